//! `selvedge ask`: one question to a model, raw or as JSON, and its answer for people.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_package::{DeviceId, Digest};
use selvedge_protocol::remote::LONGEST_WAIT_MS;
use serde::Deserialize;
use serde_json::Value;

use crate::clock::Deadline;
use crate::commands::Surroundings;
use crate::context::{data_dir, process_env};
use crate::failure::Failure;
use crate::inference::{Endpoint, request};
use crate::output::{Output, put_raw};
use crate::reference::{Reference, Which};
use crate::supervisor::record::Record;
use crate::upload::file_body;

/// Largest input that is read into memory: JSON, and raw bytes from standard input.
const LARGEST_INPUT: u64 = 256 << 20;
/// Values of a tensor that people see.
const SHOWN: usize = 16;

/// Ask a model.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge ask scale --input '{\"x\": [[1, 2]]}'
  selvedge ask scale@1.0.0 --input @request.json --json
  selvedge ask file-type --file report.pdf
  selvedge ask file-type --target edge-1 --via mqtt --file report.pdf --timeout 5

With --via mqtt the registry passes the request on through the broker: the device needs no address
that can be reached from here, and request and answer must each fit one message (127 KiB, or the
broker's largest packet where that is smaller).")]
pub struct Args {
    /// The model: NAME, NAME@1.0.0 or NAME@r3
    #[arg(value_name = "MODEL")]
    pub model: Reference,
    /// Send this file as it is (the model's module must take raw bytes); `-`: standard input
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub file: Option<PathBuf>,
    /// Send this JSON: a request with "inputs", or {"NAME": VALUES, …}; @FILE reads a file. Without
    /// --file and --input, JSON or raw bytes come from standard input
    #[arg(long, value_name = "JSON")]
    pub input: Option<String>,
    /// Address of the inference endpoint [default: that of the last `selvedge up`]
    #[arg(long, value_name = "URL")]
    pub target_url: Option<String>,
    /// The target to ask, by the address in its facts (it must be reachable from here, or --via mqtt)
    #[arg(long, value_name = "NAME", conflicts_with = "target_url")]
    pub target: Option<DeviceId>,
    /// How to reach the target
    #[arg(long, value_name = "WAY", default_value = "http")]
    pub via: Via,
    /// Longest wait in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub timeout: u64,
}

/// A way to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// Straight to its address
    Http,
    /// Through the registry and the broker
    Mqtt,
}

/// What is sent.
enum Question {
    Json(Value),
    Raw(reqwest::Body),
}

/// Asks and prints the answer.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let endpoint = match args.via {
        Via::Http => Endpoint::new(&address(around, args).await?)?,
        Via::Mqtt => far(around, args).await?,
    };
    let (allowed, until) = (Duration::from_secs(args.timeout), deadline(args));
    let version = match &args.model.which {
        Which::Newest => None,
        Which::Version(version) => Some(version.to_string()),
        Which::Release(release) => Some(release.to_string()),
    };
    let (model, version) = (&args.model.name, version.as_deref());
    let answer = match question(args).await? {
        Question::Raw(body) => endpoint.raw(model, version, body, allowed).await,
        Question::Json(value) if value.get("inputs").is_some_and(Value::is_array) => {
            endpoint.infer(model, version, &value, allowed).await
        }
        Question::Json(value) => match endpoint.metadata(model, version, allowed).await {
            Ok(metadata) => {
                // What the first question took is gone; something is left for the second.
                let left = until.cut(allowed).max(Duration::from_secs(1));
                endpoint.infer(model, version, &request(value, &metadata)?, left).await
            }
            Err(failure) => Err(failure),
        },
    };
    show(around.out, &answer.map_err(|failure| of_release(failure, &args.model.which))?);
    Ok(())
}

/// The protocol knows versions only, and a release travels as one: who asked for a release is told
/// about a release.
fn of_release(failure: Failure, which: &Which) -> Failure {
    match (failure, which) {
        (Failure::Missing { what, advice }, Which::Release(release)) => Failure::Missing {
            what: what.replace(&format!("its version `{release}`"), &format!("its release r{release}")),
            advice,
        },
        (failure, _) => failure,
    }
}

/// The endpoint of a device behind the broker.
async fn far(around: &Surroundings<'_>, args: &Args) -> Result<Endpoint, Failure> {
    let Some(name) = &args.target else {
        return Err(Failure::usage(
            "--via mqtt needs a target",
            "say --target NAME; `selvedge targets` lists them",
        ));
    };
    if args.timeout * 1000 > u64::from(LONGEST_WAIT_MS) {
        let longest = LONGEST_WAIT_MS / 1000;
        return Err(Failure::usage(
            format!("a device is given at most {longest} s to answer through the broker"),
            format!("say --timeout {longest} or less"),
        ));
    }
    let registry = around.registry()?.until(deadline(args));
    // An unknown target is told with the nearest known one.
    registry.target(name).await?;
    Endpoint::through(&registry, name)
}

/// Until when anybody is waited for.
fn deadline(args: &Args) -> Deadline {
    Deadline::after(Duration::from_secs(args.timeout))
}

async fn address(around: &Surroundings<'_>, args: &Args) -> Result<String, Failure> {
    if let Some(url) = &args.target_url {
        return Ok(url.clone());
    }
    let record = Record::read(&data_dir(around.global, &process_env)?)?;
    if let Some(name) = &args.target {
        if let Some(record) =
            record.filter(|record| record.target == name.as_str() && !record.pids.is_empty())
        {
            return Ok(record.inference);
        }
        let (_, target) = around.registry()?.until(deadline(args)).target(name).await?;
        return target.facts.get("inference").cloned().ok_or_else(|| {
            Failure::missing(
                format!("{name} has not said where it answers"),
                "say --via mqtt to ask it through the broker, or --target-url URL",
            )
        });
    }
    match record {
        Some(record) if !record.inference.is_empty() => Ok(record.inference),
        _ => Err(Failure::usage(
            "no inference endpoint is known: no --target-url, no --target, and no `selvedge up` has run",
            "say --target-url http://127.0.0.1:PORT",
        )),
    }
}

async fn question(args: &Args) -> Result<Question, Failure> {
    if let Some(input) = &args.input {
        let text = match input.strip_prefix('@') {
            Some(path) => crate::context::read_small(Path::new(path), LARGEST_INPUT)?,
            None => input.clone(),
        };
        return serde_json::from_str(&text).map(Question::Json).map_err(|source| Failure::Refused {
            what: "the input is not JSON".to_owned(),
            advice: "quote it for the shell, or send raw bytes with --file".to_owned(),
            source: Some(source.into()),
        });
    }
    match &args.file {
        Some(path) if path.as_os_str() != "-" => {
            let about = std::fs::metadata(path).map_err(Failure::file("read", path))?;
            if about.is_dir() {
                return Err(Failure::usage(format!("{} is a directory", path.display()), "name a file"));
            }
            if about.is_file() {
                return file_body(path, about.len(), |_| {})
                    .map(Question::Raw)
                    .map_err(Failure::file("read", path));
            }
            // A pipe or a device has no length.
            let place = path.clone();
            let open = move || std::fs::File::open(&place);
            Ok(Question::Raw(drain(open, path).await?.into()))
        }
        Some(_) => {
            Ok(Question::Raw(drain(|| Ok(std::io::stdin()), Path::new("standard input")).await?.into()))
        }
        None => {
            let bytes = drain(|| Ok(std::io::stdin()), Path::new("standard input")).await?;
            match serde_json::from_slice::<Value>(&bytes) {
                Ok(value @ Value::Object(_)) => Ok(Question::Json(value)),
                _ => Ok(Question::Raw(bytes.into())),
            }
        }
    }
}

/// Reads what may never end, on a thread of its own, so that Ctrl-C is still heard.
async fn drain<R: std::io::Read>(
    open: impl FnOnce() -> std::io::Result<R> + Send + 'static,
    path: &Path,
) -> Result<Vec<u8>, Failure> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        open()?.take(LARGEST_INPUT + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    let bytes = read
        .await
        .map_err(|source| Failure::Internal { what: "reading the input broke off", source: source.into() })?
        .map_err(Failure::file("read", path))?;
    if bytes.len() as u64 > LARGEST_INPUT {
        return Err(Failure::refused(
            format!("{} is larger than {LARGEST_INPUT} bytes", path.display()),
            "send a file with --file",
        ));
    }
    Ok(bytes)
}

/// An answer, as far as people see it.
#[derive(Deserialize)]
struct Answer {
    model_name: String,
    #[serde(default)]
    model_version: Option<String>,
    #[serde(default)]
    parameters: serde_json::Map<String, Value>,
    outputs: Vec<Tensor>,
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    datatype: String,
    shape: Vec<u64>,
    #[serde(default)]
    data: Vec<Value>,
}

fn show(out: Output, answer: &[u8]) {
    if out.is_json() {
        // As it came: re-writing it could change how its numbers are written.
        put_raw(answer);
        put_raw(b"\n");
        return;
    }
    match serde_json::from_slice::<Answer>(answer) {
        Ok(answer) => {
            for tensor in &answer.outputs {
                out.line(format!("{} = {}", tensor.name, values(tensor)));
            }
            let package = answer
                .parameters
                .get("selvedge_package")
                .and_then(Value::as_str)
                .and_then(|text| text.parse::<Digest>().ok());
            let package = package.map(|digest| format!(", package {digest}")).unwrap_or_default();
            out.note(format!(
                "answered by {} {}{package}",
                answer.model_name,
                answer.model_version.unwrap_or_default()
            ));
        }
        // NaN and infinity are not JSON, and a host may write them all the same.
        Err(_) => out.line(String::from_utf8_lossy(answer)),
    }
}

/// The values of a tensor: itself where it is one, else the first few with type and shape.
fn values(tensor: &Tensor) -> String {
    let mut flat = Vec::new();
    collect(&tensor.data, &mut flat);
    if let [only] = flat.as_slice() {
        return only.clone();
    }
    let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("×");
    let more = if flat.len() > SHOWN { format!(", … ({} in all)", flat.len()) } else { String::new() };
    let some = flat.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    format!("{} [{shape}] {some}{more}", tensor.datatype)
}

fn collect(data: &[Value], into: &mut Vec<String>) {
    for value in data {
        match value {
            Value::Array(inner) => collect(inner, into),
            Value::String(text) => into.push(text.clone()),
            other => into.push(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_asks_for_a_release_is_told_about_a_release() {
        let missing = || Failure::missing("m is served here, but not its version `9`; there is 1.0.0", "");
        let said = |which| of_release(missing(), &which).to_string();
        assert_eq!(said(Which::Release(9)), "m is served here, but not its release r9; there is 1.0.0");
        assert_eq!(said(Which::Release(8)), missing().to_string());
        assert_eq!(said(Which::Newest), missing().to_string());
    }

    #[test]
    fn one_value_stands_alone_and_many_are_cut() {
        let tensor = |shape: Value, data: Value| -> Tensor {
            serde_json::from_value(json!({"name": "y", "datatype": "FP32", "shape": shape, "data": data}))
                .unwrap()
        };
        assert_eq!(values(&tensor(json!([1]), json!(["pdf"]))), "pdf");
        assert_eq!(values(&tensor(json!([2, 1]), json!([[1.5], [2]]))), "FP32 [2×1] 1.5, 2");
        let many = values(&tensor(json!([20]), json!(vec![0; 20])));
        assert!(many.ends_with("0, … (20 in all)"), "{many}");
        assert_eq!(values(&tensor(json!([0]), json!([]))), "FP32 [0] ");
    }
}
