//! The registry's REST interface, as a client. It keeps no answer, follows no redirect and sends
//! the token over plaintext to this machine only.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use reqwest::header::CONTENT_LENGTH;
use reqwest::{Method, StatusCode, Url};
use selvedge_package::nearest::nearest;
use selvedge_package::{DeviceId, Digest};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::clock::Deadline;
use crate::context::{Context, Token};
use crate::failure::Failure;
use crate::rows;
use crate::rows::deployment::Deployment;
use crate::upload;

/// Largest JSON answer that is read.
const LARGEST_ANSWER: usize = 64 << 20;

/// Longest wait for an answer that needs nobody else.
const USUAL_WAIT: Duration = Duration::from_secs(30);

/// Shortest wait for an answer, however little time is left: the last question is asked too.
const LEAST_WAIT: Duration = Duration::from_millis(500);

/// A registry, with the token that opens it.
#[derive(Clone)]
pub struct Registry {
    http: reqwest::Client,
    context: Context,
    until: Option<Deadline>,
}

impl Registry {
    /// Prepares requests; nothing is sent yet.
    pub fn new(context: Context) -> Result<Self, Failure> {
        check_address(&context.registry)?;
        Ok(Self { http: http_client()?, context, until: None })
    }

    /// The same registry, waited for until `deadline` at most, whatever is asked.
    #[must_use]
    pub fn until(&self, deadline: Deadline) -> Self {
        Self { until: Some(deadline), ..self.clone() }
    }

    /// The base address.
    pub fn address(&self) -> &str {
        &self.context.registry
    }

    /// What opens it.
    pub fn token(&self) -> &Token {
        &self.context.token
    }

    /// A path inside the workspace.
    pub fn in_workspace(&self, path: &str) -> String {
        format!("/v1/workspaces/{}{path}", self.context.workspace)
    }

    /// GET; `doing` completes "the registry would not …".
    pub async fn get(&self, doing: &str, path: &str) -> Result<Value, Failure> {
        self.call(doing, Method::GET, path, None).await
    }

    /// Any request with a JSON body or none. An empty answer is `null`.
    pub async fn call(
        &self,
        doing: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        self.call_within(USUAL_WAIT, doing, method, path, body).await
    }

    /// The same for a request that may take as long as `allowed`.
    pub async fn call_within(
        &self,
        allowed: Duration,
        doing: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let allowed = self.until.map_or(allowed, |until| until.cut(allowed).max(LEAST_WAIT));
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.context.registry))
            .bearer_auth(self.context.token.reveal())
            .timeout(allowed);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        let bytes = bounded(response, LARGEST_ANSWER).await.map_err(|source| self.broken(source))?;
        if !status.is_success() {
            return Err(self.answered(doing, status, &bytes));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|source| self.garbled(source.into()))
    }

    /// Reads an answer as the rows that this program knows.
    pub fn read<T: DeserializeOwned>(&self, value: &Value) -> Result<T, Failure> {
        T::deserialize(value).map_err(|source| self.garbled(source.into()))
    }

    /// Whether the registry has a blob of that many bytes; one of another length is damaged there.
    pub async fn has_blob(&self, digest: &Digest, size: u64) -> Result<bool, Failure> {
        let response = self
            .http
            .head(format!("{}/v1/blobs/{digest}", self.context.registry))
            .bearer_auth(self.context.token.reveal())
            .timeout(USUAL_WAIT)
            .send()
            .await
            .map_err(|source| self.unreachable(source))?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => {
                // The body of an answer to HEAD is empty: its length is only in the header.
                let length = response.headers().get(CONTENT_LENGTH);
                let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
                Ok(length.is_none_or(|length| length == size))
            }
            status => Err(self.answered("say whether it has a blob", status, b"")),
        }
    }

    /// Sends a blob from a file, without holding it in memory. `sent` hears of every piece.
    pub async fn put_blob(
        &self,
        digest: &Digest,
        path: &Path,
        size: u64,
        sent: impl Fn(u64) + Send + 'static,
    ) -> Result<(), Failure> {
        let body = upload::file_body(path, size, sent).map_err(Failure::file("read", path))?;
        let response = self
            .http
            .put(format!("{}/v1/blobs/{digest}", self.context.registry))
            .bearer_auth(self.context.token.reveal())
            .header("content-type", "application/octet-stream")
            .body(body)
            .send()
            .await
            .map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let bytes = bounded(response, 65_536).await.map_err(|source| self.garbled(source))?;
        // The blob may have come from someone else in the meantime.
        if status == StatusCode::CONFLICT && self.has_blob(digest, size).await? {
            return Ok(());
        }
        Err(self.answered(&format!("store the blob {digest}"), status, &bytes))
    }

    /// Fetches a blob of at most `most` bytes into a new file, and compares it with its digest. `got`
    /// hears of every piece.
    pub async fn get_blob(
        &self,
        digest: &Digest,
        most: u64,
        path: &Path,
        got: impl Fn(u64),
    ) -> Result<(), Failure> {
        use std::io::Write as _;
        let mut response = self
            .http
            .get(format!("{}/v1/blobs/{digest}", self.context.registry))
            .bearer_auth(self.context.token.reveal())
            .send()
            .await
            .map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if !status.is_success() {
            let bytes = bounded(response, 65_536).await.map_err(|source| self.garbled(source))?;
            return Err(self.answered(&format!("give the blob {digest}"), status, &bytes));
        }
        let mut file = std::fs::File::create_new(path).map_err(Failure::file("write", path))?;
        let (mut hashing, mut size) = (selvedge_package::chunks::ChunkIndexer::new(), 0);
        while let Some(piece) = response.chunk().await.map_err(|error| self.broken(error.into()))? {
            size += piece.len() as u64;
            if size > most {
                return Err(self.garbled(format!("blob {digest} is larger than {most} bytes").into()));
            }
            hashing.update(&piece);
            file.write_all(&piece).map_err(Failure::file("write", path))?;
            got(piece.len() as u64);
        }
        if hashing.finish().digest != *digest {
            return Err(Failure::Untrusted {
                what: format!("what the registry sent for blob {digest} is something else"),
                advice: "try again; if it stays so, the registry's store is damaged".to_owned(),
                source: None,
            });
        }
        Ok(())
    }

    /// GET of something that is not JSON, of at most `most` bytes.
    pub async fn get_bytes(&self, doing: &str, path: &str, most: usize) -> Result<Vec<u8>, Failure> {
        let response = self
            .http
            .get(format!("{}{path}", self.context.registry))
            .bearer_auth(self.context.token.reveal())
            .timeout(USUAL_WAIT)
            .send()
            .await
            .map_err(|source| self.unreachable(source))?;
        let status = response.status();
        let bytes = bounded(response, most).await.map_err(|source| self.broken(source))?;
        if status.is_success() { Ok(bytes) } else { Err(self.answered(doing, status, &bytes)) }
    }

    /// Every release of the workspace, as sent and as rows.
    pub async fn packages(&self) -> Result<(Value, Vec<rows::Package>), Failure> {
        let value = self.get("list packages", &self.in_workspace("/packages")).await?;
        let items: rows::Items<rows::Package> = self.read(&value)?;
        Ok((value, items.items))
    }

    /// Every target of the workspace, as sent and as rows.
    pub async fn targets(&self) -> Result<(Value, Vec<rows::Target>), Failure> {
        let value = self.get("list targets", &self.in_workspace("/targets")).await?;
        let items: rows::Items<rows::Target> = self.read(&value)?;
        Ok((value, items.items))
    }

    /// The deployments of the workspace, newest first, as sent and as rows.
    pub async fn deployments(&self, ended_too: bool) -> Result<(Value, Vec<Deployment>), Failure> {
        let query = if ended_too { "?ended=true" } else { "" };
        let path = self.in_workspace(&format!("/deployments{query}"));
        let value = self.get("list deployments", &path).await?;
        let items: rows::Items<Deployment> = self.read(&value)?;
        Ok((value, items.items))
    }

    /// A deployment with its targets, as sent.
    pub async fn deployment(&self, id: &str) -> Result<Value, Failure> {
        let path = self.in_workspace(&format!("/deployments/{id}"));
        self.get(&format!("show deployment {id}"), &path).await
    }

    /// One target, as sent and as a row.
    pub async fn target(&self, name: &DeviceId) -> Result<(Value, rows::Target), Failure> {
        let path = self.in_workspace(&format!("/targets/{name}"));
        match self.get(&format!("show target {name}"), &path).await {
            Ok(value) => {
                let row = self.read(&value)?;
                Ok((value, row))
            }
            Err(Failure::Answered { status: 404, .. }) => Err(self.no_target(name).await),
            Err(failure) => Err(failure),
        }
    }

    /// The error for a target that is not there, naming those that are.
    pub async fn no_target(&self, name: &DeviceId) -> Failure {
        let known = self.targets().await.map(|(_, rows)| rows).unwrap_or_default();
        let names: Vec<&str> = known.iter().map(|target| target.name.as_str()).collect();
        let advice = match nearest(name.as_str(), names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? `selvedge targets` lists all"),
            None if names.is_empty() => {
                format!("there are no targets; `selvedge target enrol {name} --out FILE` makes one")
            }
            None => "`selvedge targets` lists those that there are".to_owned(),
        };
        Failure::missing(format!("there is no target {name}"), advice)
    }

    fn unreachable(&self, source: reqwest::Error) -> Failure {
        Failure::Unreachable {
            who: "the registry",
            address: self.context.registry.clone(),
            source: source.without_url().into(),
            advice: "start it (`selvedge up` starts everything on this machine), or say where it is with --registry URL"
                .to_owned(),
        }
    }

    /// An answer that did not come to its end in time is none; any other is not understood.
    fn broken(&self, source: crate::failure::Cause) -> Failure {
        match source.downcast::<reqwest::Error>() {
            Ok(late) if late.is_timeout() => self.unreachable(*late),
            Ok(other) => self.garbled(other),
            Err(source) => self.garbled(source),
        }
    }

    fn garbled(&self, source: crate::failure::Cause) -> Failure {
        Failure::Garbled { who: "the registry", address: self.context.registry.clone(), source }
    }

    fn answered(&self, doing: &str, status: StatusCode, body: &[u8]) -> Failure {
        let (error, reason) = error_body(status, body);
        Failure::Answered {
            who: "the registry",
            doing: doing.to_owned(),
            status: status.as_u16(),
            reason,
            error,
        }
    }
}

/// The HTTP client of every request that this program makes.
pub fn http_client() -> Result<reqwest::Client, Failure> {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .read_timeout(Duration::from_secs(120))
        .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|source| Failure::Internal { what: "cannot prepare HTTP", source: source.into() })
}

/// Reads a body, refusing one over `limit` bytes.
pub async fn bounded(
    mut response: reqwest::Response,
    limit: usize,
) -> Result<Vec<u8>, crate::failure::Cause> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        if bytes.len() + piece.len() > limit {
            return Err(format!("it is larger than {limit} bytes").into());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// `error` and `reason` of an error's body; the status where it has none.
pub fn error_body(status: StatusCode, body: &[u8]) -> (String, String) {
    let value: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let word = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    (word("error").unwrap_or_else(|| format!("HTTP {status}")), word("reason").unwrap_or_default())
}

/// Plain HTTP, and to this machine only: the token travels in it.
/// Refuses what can be no registry, before anything is sent there.
pub fn check_address(address: &str) -> Result<(), Failure> {
    let wrong = |why: &str, advice: &str| {
        Err(Failure::usage(format!("{address} is not an address of a registry: {why}"), advice))
    };
    let example = "write it like http://127.0.0.1:8470";
    let Ok(url) = Url::parse(address) else {
        return wrong("it is not a URL", example);
    };
    if url.scheme() == "https" {
        return wrong("https is not supported yet", "reach it through a tunnel, as http on this machine");
    }
    if url.scheme() != "http" {
        return wrong("only http is supported", example);
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return wrong("it must not hold a user, a query or a fragment", example);
    }
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if !loopback {
        return wrong(
            "its token would travel in plain text over the network",
            "reach it through a tunnel, for example `ssh -L 8470:127.0.0.1:8470 HOST`, as http://127.0.0.1:8470",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_leaves_this_machine_over_no_plain_address() {
        for good in ["http://127.0.0.1:80", "http://[::1]:9", "http://localhost:1", "http://127.3.2.1:1/x"] {
            assert!(check_address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "x",
            "ftp://127.0.0.1",
            "https://127.0.0.1",
            "http://192.168.0.1:1",
            "http://localhost.example.com",
            "http://a:b@127.0.0.1",
            "http://127.0.0.1?x",
        ] {
            assert!(matches!(check_address(bad), Err(Failure::Usage { .. })), "{bad}");
        }
    }

    #[test]
    fn an_error_without_a_body_still_says_something() {
        let (error, reason) = error_body(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!((error.as_str(), reason.as_str()), ("HTTP 502 Bad Gateway", ""));
        let (error, reason) = error_body(StatusCode::CONFLICT, br#"{"error":"taken","reason":"exists"}"#);
        assert_eq!((error.as_str(), reason.as_str()), ("taken", "exists"));
    }
}
