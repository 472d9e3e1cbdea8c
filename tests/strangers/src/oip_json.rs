//! Requests for inference in JSON.

use selvedge_host::oip::lexer::{Lexer, MAX_DEPTH};
use selvedge_host::oip::request_json;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::written::{Layout, json};
use crate::{LIMITS, answers, tensors, twin};

/// A body of `infer`.
pub fn check(bytes: &[u8]) {
    check_skip(bytes);
    let request = match request_json::parse(bytes, &LIMITS) {
        Ok(request) => request,
        Err(refusal) => {
            // What is said of a body is not as long as the body.
            let said = refusal.to_string();
            assert!(said.len() <= 4096, "{} bytes are said: {said}", said.len());
            return;
        }
    };
    tensors::check(&request);
    tensors::check_limits(&request, |limits| request_json::parse(bytes, limits));
    twin::check(bytes, &request);
    for layout in [Layout::Flat, Layout::Nested] {
        let text = json(&request, layout);
        let again = request_json::parse(&text, &LIMITS);
        let again = again.unwrap_or_else(|refusal| panic!("{refusal}: {}", String::from_utf8_lossy(&text)));
        tensors::check_same(&request, &again);
    }
    answers::check(&request);
}

/// What the protocol does not know is gone past if it is JSON, and only then.
fn check_skip(bytes: &[u8]) {
    let skipped = Lexer::from_body(bytes).and_then(|mut lexer| {
        lexer.skip()?;
        lexer.end()
    });
    match skipped {
        Ok(()) => {
            let json = serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
            assert!(json || twin::has_words(bytes), "gone past, and no JSON");
        }
        Err(error) => {
            assert!(error.at <= bytes.len());
            if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
                assert!(depth(&value) > MAX_DEPTH, "JSON, and not gone past: {error}");
            }
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
