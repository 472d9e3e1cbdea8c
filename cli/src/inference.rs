//! Asking a model over the Open Inference Protocol, and finding out where. Answers are read within
//! a limit and printed as they are; nothing is guessed about what they mean.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use selvedge_package::nearest::nearest;
use selvedge_package::tensor::TensorSpec;
use selvedge_package::{DeviceId, PackageName};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Registry, bounded, error_body, http_client};
use crate::context::Token;
use crate::failure::Failure;
use crate::rows::Target;

/// Largest answer that is read.
const LARGEST_ANSWER: usize = 1 << 30;

/// Time for an answer beyond the deadline that the registry was told, so that it says itself that
/// the time is over.
const BEYOND: Duration = Duration::from_secs(5);

/// An inference endpoint: a host, or the registry that passes requests on to a device's host.
pub struct Endpoint {
    http: reqwest::Client,
    base: String,
    /// What opens the registry, and the device behind it; `None`: a host, which needs nothing.
    through: Option<Through>,
}

struct Through {
    token: Token,
    device: DeviceId,
}

/// A model's inputs and outputs.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// What it takes.
    pub inputs: Vec<TensorSpec>,
}

impl Endpoint {
    /// The endpoint at a base address such as `http://127.0.0.1:8080`.
    pub fn new(address: &str) -> Result<Self, Failure> {
        let base = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        let fits = reqwest::Url::parse(&base)
            .is_ok_and(|url| url.scheme() == "http" && url.host_str().is_some() && url.query().is_none());
        if !fits {
            return Err(Failure::usage(
                format!("{address} is not an address of an inference endpoint"),
                "write it like http://127.0.0.1:8080",
            ));
        }
        Ok(Self { http: http_client()?, base: base.trim_end_matches('/').to_owned(), through: None })
    }

    /// The endpoint of a device that the registry reaches through the broker.
    pub fn through(registry: &Registry, device: &DeviceId) -> Result<Self, Failure> {
        let base = format!("{}{}", registry.address(), registry.in_workspace(&format!("/targets/{device}")));
        let through = Through { token: registry.token().clone(), device: device.clone() };
        Ok(Self { http: http_client()?, base, through: Some(through) })
    }

    /// A request, with what the way to the device needs.
    fn request(&self, method: Method, route: &str, allowed: Duration) -> RequestBuilder {
        match &self.through {
            None => self.http.request(method, route).timeout(allowed),
            Some(through) => self
                .http
                .request(method, format!("{route}?deadline_ms={}", allowed.as_millis()))
                .bearer_auth(through.token.reveal())
                .timeout(allowed + BEYOND),
        }
    }

    /// Who answers, for errors.
    fn name(&self) -> String {
        self.through.as_ref().map_or_else(|| self.base.clone(), |through| through.device.to_string())
    }

    /// The address of a route of a model.
    fn route(&self, model: &PackageName, version: Option<&str>, route: &str) -> String {
        let version = version.map(|version| format!("/versions/{version}")).unwrap_or_default();
        format!("{}/v2/models/{model}{version}{route}", self.base)
    }

    /// Asks with a JSON request.
    pub async fn infer(
        &self,
        model: &PackageName,
        version: Option<&str>,
        request: &Value,
        allowed: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let route = self.route(model, version, "/infer");
        let sent = self.request(Method::POST, &route, allowed).json(request).send().await;
        self.finish(model, sent, allowed).await
    }

    /// Asks with a raw body.
    pub async fn raw(
        &self,
        model: &PackageName,
        version: Option<&str>,
        body: reqwest::Body,
        allowed: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let sent = self
            .request(Method::POST, &self.route(model, version, "/raw"), allowed)
            .header("content-type", "application/octet-stream")
            .body(body)
            .send()
            .await;
        self.finish(model, sent, allowed).await
    }

    /// Asks what a model takes.
    pub async fn metadata(
        &self,
        model: &PackageName,
        version: Option<&str>,
        allowed: Duration,
    ) -> Result<Metadata, Failure> {
        let sent = self.request(Method::GET, &self.route(model, version, ""), allowed).send().await;
        let bytes = self.finish(model, sent, allowed).await?;
        serde_json::from_slice(&bytes).map_err(|source| self.garbled(source.into()))
    }

    async fn finish(
        &self,
        model: &PackageName,
        sent: reqwest::Result<Response>,
        allowed: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let response = sent.map_err(|source| self.unreachable(source, allowed))?;
        let status = response.status();
        let bytes = bounded(response, LARGEST_ANSWER).await.map_err(|source| self.garbled(source))?;
        if status.is_success() {
            return Ok(bytes);
        }
        let (error, reason) = error_body(status, &bytes);
        // A host gives no reasons: one with a reason is from the registry.
        if status == StatusCode::NOT_FOUND && reason.is_empty() {
            return Err(self.no_model(model, error).await);
        }
        let (who, doing) = match &self.through {
            Some(through) if !reason.is_empty() => ("the registry", format!("ask {}", through.device)),
            _ => ("the model", "answer".to_owned()),
        };
        Err(Failure::Answered { who, doing, status: status.as_u16(), reason, error })
    }

    async fn no_model(&self, model: &PackageName, error: String) -> Failure {
        let advice = match self.served().await {
            Some(names) if names.is_empty() => {
                "nothing is served there; `selvedge deploy` assigns a package".to_owned()
            }
            Some(names) => match nearest(model.as_str(), names.iter().map(String::as_str)) {
                Some(near) if near != model.as_str() => {
                    format!("did you mean `{near}`? served are: {}", names.join(", "))
                }
                _ => format!("served are: {}", names.join(", ")),
            },
            None => "`selvedge status` shows what runs where".to_owned(),
        };
        Failure::missing(format!("{} does not serve {model}: {error}", self.name()), advice)
    }

    /// Names of the models served, where the endpoint says them in its metadata.
    async fn served(&self) -> Option<Vec<String>> {
        if let Some(through) = &self.through {
            return self.reported(through).await;
        }
        let answer =
            self.http.get(format!("{}/v2", self.base)).timeout(Duration::from_secs(5)).send().await.ok()?;
        let value: Value = serde_json::from_slice(&bounded(answer, 1 << 20).await.ok()?).ok()?;
        let names = value.get("models")?.as_array()?;
        Some(
            names
                .iter()
                .filter_map(|name| name.as_str().or_else(|| name.get("name")?.as_str()).map(str::to_owned))
                .collect(),
        )
    }

    /// Names of the packages that the device has reported to serve.
    async fn reported(&self, through: &Through) -> Option<Vec<String>> {
        let request = self.http.get(&self.base).bearer_auth(through.token.reveal());
        let answer = request.timeout(Duration::from_secs(5)).send().await.ok()?;
        let target: Target = serde_json::from_slice(&bounded(answer, 4 << 20).await.ok()?).ok()?;
        let serving = target.reported?.packages.into_iter().filter(|report| report.serving);
        Some(serving.map(|report| report.name.to_string()).collect())
    }

    fn unreachable(&self, source: reqwest::Error, allowed: Duration) -> Failure {
        if source.is_timeout() {
            return Failure::TimedOut {
                what: format!("an answer from {}", self.name()),
                allowed,
                advice: "allow more with --timeout".to_owned(),
            };
        }
        if self.through.is_some() {
            return Failure::Unreachable {
                who: "the registry",
                address: self.base.clone(),
                source: source.without_url().into(),
                advice: "start it (`selvedge up`), or ask the device itself over HTTP with --target-url URL"
                    .to_owned(),
            };
        }
        Failure::Unreachable {
            who: "the inference endpoint",
            address: self.base.clone(),
            source: source.without_url().into(),
            advice: "check that the host runs (`selvedge status`), or say where it is with --target-url URL"
                .to_owned(),
        }
    }

    fn garbled(&self, source: crate::failure::Cause) -> Failure {
        let who = if self.through.is_some() { "the registry" } else { "the inference endpoint" };
        Failure::Garbled { who, address: self.base.clone(), source }
    }
}

/// Makes a request out of `{"name": values, …}`: element types come from the model's metadata, the
/// shape from the nesting. A whole request (with `inputs`) stays as it is.
pub fn request(given: Value, metadata: &Metadata) -> Result<Value, Failure> {
    let Value::Object(map) = given else {
        return Err(Failure::usage(
            "the input is not a JSON object",
            r#"write a request with "inputs", or {"NAME": VALUES, …}"#,
        ));
    };
    let mut inputs = Vec::new();
    for (name, values) in map {
        let Some(spec) = metadata.inputs.iter().find(|spec| spec.name == name) else {
            let known: Vec<&str> = metadata.inputs.iter().map(|spec| spec.name.as_str()).collect();
            return Err(Failure::refused(
                format!("the model has no input `{name}`"),
                format!("its inputs are: {}", known.join(", ")),
            ));
        };
        let mut shape = Vec::new();
        let mut data = Vec::new();
        flatten(&name, values, 0, &mut shape, &mut data)?;
        // One value for a tensor that has dimensions: as many as it has, of 1 each.
        if shape.is_empty() && !spec.shape.is_empty() {
            shape = vec![1; spec.shape.len()];
        }
        inputs.push(json!({"name": name, "datatype": spec.datatype, "shape": shape, "data": data}));
    }
    Ok(json!({"inputs": inputs}))
}

fn flatten(
    name: &str,
    values: Value,
    depth: usize,
    shape: &mut Vec<usize>,
    data: &mut Vec<Value>,
) -> Result<(), Failure> {
    let uneven = || {
        Failure::refused(
            format!("the lists of `{name}` differ in length"),
            "write a list of equally long lists",
        )
    };
    match values {
        Value::Array(items) => {
            if shape.len() == depth {
                if !data.is_empty() {
                    return Err(uneven());
                }
                shape.push(items.len());
            } else if shape[depth] != items.len() {
                return Err(uneven());
            }
            for item in items {
                flatten(name, item, depth + 1, shape, data)?;
            }
            Ok(())
        }
        value if shape.len() == depth => {
            data.push(value);
            Ok(())
        }
        _ => Err(uneven()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        serde_json::from_value(json!({"name": "m", "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]}, {"name": "s", "datatype": "INT64", "shape": []}]}))
        .unwrap()
    }

    #[test]
    fn plain_values_become_tensors() {
        let made = request(json!({"x": [[1, 2], [3, 4]], "s": 7}), &metadata()).unwrap();
        assert_eq!(
            made,
            json!({"inputs": [{"name": "s", "datatype": "INT64", "shape": [], "data": [7]},
                {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]})
        );
        let one = request(json!({"x": 5}), &metadata()).unwrap();
        assert_eq!(one["inputs"][0]["shape"], json!([1, 1]));
        let none = request(json!({"x": []}), &metadata()).unwrap();
        assert_eq!(none["inputs"][0]["shape"], json!([0]));
    }

    #[test]
    fn uneven_lists_and_unknown_names_are_refused() {
        for bad in [
            json!({"x": [[1], [2, 3]]}),
            json!({"x": [1, [2]]}),
            json!({"x": [[1], 2]}),
            json!({"y": 1}),
            json!([1]),
        ] {
            assert!(request(bad.clone(), &metadata()).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_may_lack_their_scheme() {
        assert_eq!(Endpoint::new("127.0.0.1:1/").unwrap().base, "http://127.0.0.1:1");
        for bad in ["", "https://x", "http://", "http://x?y"] {
            assert!(Endpoint::new(bad).is_err(), "{bad}");
        }
    }
}
