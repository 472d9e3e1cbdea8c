//! What the head of a request says its body is, and an answer as HTTP sends it.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;

use super::body::{Budget, Reserved};
use super::coding::{self, Wanted};
use super::failure::{self, Failure};
use super::pieces::Pieces;
use crate::oip::answer_body::Written;

/// Bytes of JSON at the start of a body with binary data.
pub const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// What the body of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// JSON from end to end.
    Json,
    /// So many bytes of JSON, then tensors.
    Binary(usize),
    /// The elements of the only input.
    Raw,
}

impl Wire {
    /// As the headers of `raw` say, whose body has no JSON in front.
    pub fn of_raw(headers: &HeaderMap) -> Result<Self, Failure> {
        match headers.get_all(JSON_LENGTH).iter().all(|length| length == "0") {
            true => Ok(Self::Raw),
            false => Err(Failure::Header(
                "the whole body is the input here: send JSON with binary data behind it to `infer`, or leave \
                 Inference-Header-Content-Length out"
                    .to_owned(),
            )),
        }
    }

    /// As the headers of `infer` say.
    pub fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        let mut given = headers.get_all(JSON_LENGTH).iter();
        let (length, more) = (given.next(), given.next());
        let Some(length) = length else {
            return is_json(headers).map(|()| Self::Json);
        };
        let text = length.to_str().unwrap_or_default();
        // `parse` would take a sign.
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(0) if digits && more.is_none() => Ok(Self::Raw),
            Ok(length) if digits && more.is_none() => Ok(Self::Binary(length)),
            _ => Err(Failure::Header(
                "Inference-Header-Content-Length has to be one number: the bytes of JSON in front of the \
                 binary data (0: the body is the input)"
                    .to_owned(),
            )),
        }
    }
}

fn is_json(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or_default();
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json");
    if is_json {
        Ok(())
    } else {
        Err(Failure::MediaType(format!(
            "the body has to be JSON and its Content-Type is `{kind}`: send `application/json` \
             (curl: --json), a body with Inference-Header-Content-Length, or use the path `raw`"
        )))
    }
}

/// The answer to a request whose memory is `reserved`, packed as `wanted`.
pub async fn answer(
    written: Written,
    wanted: Wanted,
    mut reserved: Reserved,
    budget: &Budget,
) -> Result<Response, Failure> {
    let json = written.json;
    // Answers wait to be packed, too.
    reserved.grow(budget, written.pieces.iter().map(Bytes::len).sum())?;
    let (pieces, packed) = coding::pack(wanted, written.pieces).await?;
    let mut response = failure::json_text(StatusCode::OK, body(reserved.hold(budget, pieces)?));
    let headers = response.headers_mut();
    if let Some(json) = json {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(JSON_LENGTH, json.into());
    }
    if let Some(coding) = packed {
        headers.insert(header::CONTENT_ENCODING, coding);
    }
    // Whether it was asked for or not.
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Ok(response)
}

fn body(mut pieces: Vec<Bytes>) -> Body {
    match pieces.len() {
        1 => pieces.remove(0).into(),
        _ => Body::new(Pieces::new(pieces)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_says_what_the_body_is() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            for value in values {
                headers.append(JSON_LENGTH, value.parse().unwrap());
            }
            Wire::of(&headers).map_err(|failure| failure.status().as_u16())
        };
        assert_eq!(of(&["0"]), Ok(Wire::Raw));
        assert_eq!(of(&["17"]), Ok(Wire::Binary(17)));
        assert_eq!(of(&[]), Err(415));
        for other in [&[""][..], &["-1"], &["+1"], &["1.0"], &["x"], &["17", "17"], &["99999999999999999999"]]
        {
            assert_eq!(of(other), Err(400), "{other:?}");
        }
        assert_eq!(Wire::of(&HeaderMap::new()).unwrap(), Wire::Json);
    }
}
