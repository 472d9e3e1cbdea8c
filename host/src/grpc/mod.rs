//! gRPC: the Open Inference Protocol's `inference.GRPCInferenceService`, on the connections that speak
//! HTTP/2. It is another way to write what REST says, and decides nothing: requests go the way of
//! `serve::answer`, answers about models are those of REST by the tables of `tables`.
//!
//! Messages are read and written by hand (`crate::protobuf`): a message is bounded by counts before anything
//! is made of it, and elements stay where they came. `docs/adr/0028` says why.

pub mod answer;
pub mod contents;
mod frame;
mod infer;
pub mod parameters;
mod repository;
pub mod request;
pub mod status;
mod stream;
mod tables;
#[cfg(test)]
mod tests;
mod timeout;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Version, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::control::Control;
use crate::memory;
use crate::oip::metadata::{self, ModelConfig, ModelMetadata};
use crate::oip::refusal::Refusal;
use crate::protobuf::{Fault, Message};
use crate::serve::Serving;
use crate::serve::failure::Failure;
use crate::serve::served::Served;
use crate::serve::statistics::{ModelStatistics, Statistics};
use frame::Messages;
use request::Head;
use tables::Field;

/// Path of the service.
pub const SERVICE: &str = "/inference.GRPCInferenceService/{method}";

/// Path of gRPC's own service for health.
pub const HEALTH: &str = "/grpc.health.v1.Health/{method}";

/// The names of both, as the one for health knows them.
const NAMES: [&str; 2] = ["inference.GRPCInferenceService", "grpc.health.v1.Health"];

/// What is wrong with a message, in words.
type Wrong = String;

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Message(fault.to_string())
    }
}

/// Longest message of a call that brings no tensors.
const SMALL: usize = 64 << 10;

/// Whether a request is a call of gRPC.
pub fn is_call<B>(request: &axum::http::Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    kind.is_some_and(|kind| {
        let rest = kind.strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

/// Answers a call; with `control` those of the model repository too.
pub async fn call(serving: Arc<Serving>, control: Option<Arc<Control>>, request: Request) -> Response {
    if !is_call(&request) {
        let kind =
            "calls of gRPC come here, with the Content-Type `application/grpc`; REST is at /v2".to_owned();
        return Failure::MediaType(kind).into_response();
    }
    if request.version() != Version::HTTP_2 {
        return Failure::MediaType("gRPC needs HTTP/2 (by prior knowledge, without TLS)".to_owned())
            .into_response();
    }
    let path = request.uri().path().to_owned();
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    let answered = match (service, method) {
        ("inference.GRPCInferenceService", "ModelInfer") => infer::answer(&serving, request).await,
        ("inference.GRPCInferenceService", "ModelStreamInfer") => stream::answer(serving, request),
        ("inference.GRPCInferenceService", method) => {
            about(&serving, control.as_ref(), method, request).await
        }
        ("grpc.health.v1.Health", "Check") => health(&serving, request).await,
        _ => Err(Failure::Path),
    };
    answered.unwrap_or_else(|failure| status::refused(&failure))
}

/// A call that no service of this server has.
pub fn unknown() -> Response {
    status::refused(&Failure::Path)
}

/// Calls about the server and its models.
async fn about(
    serving: &Serving,
    control: Option<&Arc<Control>>,
    method: &str,
    request: Request,
) -> Result<Response, Failure> {
    let refused = match method {
        "SystemSharedMemoryStatus"
        | "SystemSharedMemoryRegister"
        | "SystemSharedMemoryUnregister"
        | "CudaSharedMemoryStatus"
        | "CudaSharedMemoryRegister"
        | "CudaSharedMemoryUnregister" => Some(Failure::NotOffered(crate::serve::routes::SHARED_MEMORY)),
        "RepositoryIndex" | "RepositoryModelLoad" | "RepositoryModelUnload" if control.is_none() => {
            Some(Failure::NotOffered(crate::serve::routes::REPOSITORY))
        }
        "TraceSetting" | "LogSettings" => Some(Failure::NotOffered(
            "what is logged and traced is set when the host starts (SELVEDGE_LOG), not over this address",
        )),
        _ => None,
    };
    if let Some(refused) = refused {
        return Err(refused);
    }
    let message = small(serving, request).await?;
    if let (Some(control), true) = (control, method.starts_with("Repository")) {
        return repository::answer(control, method, &message).await;
    }
    let head = Head::of(&message)?;
    let model = || serving.find(head.model, head.version);
    match method {
        "ServerLive" => told(tables::LIVE, &json!({"live": true})),
        "ServerReady" => told(tables::READY, &json!({"ready": serving.ready()})),
        "ServerMetadata" => told(tables::SERVER, &metadata::server()),
        "ModelReady" => {
            let ready = match model() {
                Ok(_) => true,
                // As Triton has it: what is not here is not ready.
                Err(Failure::Missing(_) | Failure::Coming(_)) => false,
                Err(failure) => return Err(failure),
            };
            told(tables::MODEL_READY, &json!({"ready": ready}))
        }
        "ModelMetadata" => {
            let model = model()?;
            let manifest = model.manifest();
            let versions = serving.table.versions(manifest.name.as_str());
            told(tables::MODEL, &ModelMetadata::new(manifest, versions, &model.answerer.provenance))
        }
        "ModelStatistics" => {
            let memory = memory::own();
            let served: Vec<Arc<Served>> = match head.model {
                "" => serving.table.all(),
                _ => vec![model()?.served()],
            };
            let model_stats = served.iter().map(|served| ModelStatistics::of(served, memory)).collect();
            told(tables::STATISTICS, &Statistics { model_stats })
        }
        "ModelConfig" => told(tables::CONFIG, &json!({"config": ModelConfig::new(model()?.manifest())})),
        _ => Err(Failure::Path),
    }
}

/// The message of a call that brings no tensors.
async fn small(serving: &Serving, request: Request) -> Result<Bytes, Failure> {
    let (parts, body) = request.into_parts();
    let (message, _) = Messages::of(&parts.headers, body)?.only(SMALL, &serving.budget).await?;
    Ok(message)
}

/// What REST says, as a message.
fn told(table: &[Field], value: &impl Serialize) -> Result<Response, Failure> {
    let value: Value = serde_json::to_value(value).map_err(|error| {
        tracing::error!(%error, "an answer could not be written");
        Failure::Panic
    })?;
    let message = tables::message(table, &value).into_bytes();
    Ok(frame::answer(frame::framed(vec![message.into()])?))
}

/// `grpc.health.v1.Health/Check`: serving (1) or not (2).
async fn health(serving: &Serving, request: Request) -> Result<Response, Failure> {
    let message = small(serving, request).await?;
    // Its only field is the name of a service, empty for the server.
    let service = Head::of(&message)?.model;
    if !service.is_empty() && !NAMES.contains(&service) {
        return Err(Failure::NoService);
    }
    let mut answer = Message::default();
    answer.number(1, if serving.ready() { 1 } else { 2 });
    Ok(frame::answer(frame::framed(vec![answer.into_bytes().into()])?))
}
