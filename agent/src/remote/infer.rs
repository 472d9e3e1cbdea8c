//! One inference request: from the message to the host's own endpoint on this machine, and back.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use selvedge_package::PackageName;
use selvedge_protocol::remote::{Endpoint, InferAnswer, InferRequest};
use tokio::net::TcpStream;

/// Where the JSON part of a body with binary tensors ends.
const HEADER_LENGTH: &str = "inference-header-content-length";
/// Longest version in a path, in bytes.
const LONGEST_VERSION: usize = 128;

/// An answer that the device gives itself.
pub(super) fn refusal(id: &str, status: u16, why: &str) -> InferAnswer {
    InferAnswer {
        id: id.to_owned(),
        status,
        content_type: Some("application/json".to_owned()),
        header_length: None,
        body: serde_json::json!({ "error": why }).to_string().into_bytes(),
    }
}

/// Asks the host at this address. Its answer is read up to `largest` bytes.
pub(super) async fn carry(request: InferRequest, host: &str, largest: usize) -> InferAnswer {
    let id = request.id.clone();
    match exchange(request, host, largest).await {
        Ok(answer) => answer,
        Err((status, why)) => refusal(&id, status, &why),
    }
}

async fn exchange(request: InferRequest, host: &str, largest: usize) -> Result<InferAnswer, (u16, String)> {
    let id = request.id.clone();
    let request = ask(request, host)?;
    let gone = |why: &dyn std::fmt::Display| (503, format!("the device's host does not answer: {why}"));
    let address: SocketAddr = host.parse().map_err(|error| gone(&error))?;
    let stream = TcpStream::connect(address).await.map_err(|error| gone(&error))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(16 * 1024)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| gone(&error))?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(|error| gone(&error))?;
        let (head, body) = answer.into_parts();
        let body = match Limited::new(body, largest).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                let size = head.headers.get(header::CONTENT_LENGTH).and_then(|size| size.to_str().ok());
                let size = size.map_or_else(|| format!("more than {largest}"), str::to_owned);
                return Err((
                    413,
                    format!("the answer has {size} bytes; {largest} fit one message of the device's broker"),
                ));
            }
            Err(error) => return Err(gone(&error)),
        };
        let text = |name| head.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        Ok(InferAnswer {
            id,
            status: head.status.as_u16(),
            content_type: text(header::CONTENT_TYPE.as_str()).map(str::to_owned),
            header_length: text(HEADER_LENGTH).and_then(|length| length.parse().ok()),
            body: body.to_vec(),
        })
    };
    // The connection only moves while it is polled, and may end an instant before the last of the
    // answer has been taken out of it.
    tokio::pin!(answer);
    tokio::pin!(connection);
    let mut open = true;
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            _ = &mut connection, if open => open = false,
        }
    }
}

/// The request as the host's endpoint takes it. What cannot be one is the asker's mistake.
fn ask(request: InferRequest, host: &str) -> Result<Request<Full<Bytes>>, (u16, String)> {
    let bad = |what: String| (400, what);
    let model: PackageName = request.model.parse().map_err(|error| bad(format!("`model`: {error}")))?;
    let mut path = format!("/v2/models/{model}");
    if let Some(version) = &request.version {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-+_".contains(&byte);
        if version.is_empty() || version.len() > LONGEST_VERSION || !version.bytes().all(plain) {
            return Err(bad("`version` is not one: letters, digits and `.-+_`".to_owned()));
        }
        path.push_str("/versions/");
        path.push_str(version);
    }
    let method = match request.endpoint {
        Endpoint::Infer => {
            path.push_str("/infer");
            Method::POST
        }
        Endpoint::Raw => {
            path.push_str("/raw");
            Method::POST
        }
        Endpoint::Metadata => Method::GET,
    };
    let mut asked = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::CONNECTION, "close");
    if let Some(kind) = &request.content_type {
        asked = asked.header(header::CONTENT_TYPE, kind);
    }
    if let Some(length) = request.header_length {
        asked = asked.header(HEADER_LENGTH, length);
    }
    asked.body(Full::new(Bytes::from(request.body))).map_err(|error| bad(error.to_string()))
}
