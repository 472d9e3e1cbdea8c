//! Requests for inference with binary data. Input: the length of the JSON (16 bits, little-endian), the JSON,
//! and what follows it.

use selvedge_host::oip::request_json::{self, parse_with};

use crate::written::{Layout, binary, following, json};
use crate::{LIMITS, answers, tensors};

/// A body of `infer` with its header.
pub fn check(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk() else { return };
    let (text, rest) = body.split_at(usize::from(u16::from_le_bytes(*length)).min(body.len()));
    let taken = parse_with(text, Some(following(rest, 0)), &LIMITS);
    // Where the bytes lie in memory changes nothing.
    let shifted = parse_with(text, Some(following(rest, 1)), &LIMITS);
    let request = match (taken, shifted) {
        (Ok(request), Ok(shifted)) => {
            tensors::check_same(&request, &shifted);
            request
        }
        (Err(refusal), Err(shifted)) => {
            assert_eq!(refusal, shifted);
            assert!(refusal.to_string().len() <= 4096);
            return;
        }
        (taken, shifted) => panic!("{taken:?} where it is aligned, {shifted:?} where it is not"),
    };
    tensors::check(&request);
    tensors::check_limits(&request, |limits| parse_with(text, Some(following(rest, 0)), limits));
    if rest.is_empty()
        && let Ok(alone) = request_json::parse(text, &LIMITS)
    {
        tensors::check_same(&request, &alone);
    }
    let alone = request_json::parse(&json(&request, Layout::Flat), &LIMITS);
    tensors::check_same(&request, &alone.expect("its twin in JSON is taken"));
    let (text, rest) = binary(&request);
    let again = parse_with(&text, Some(following(&rest, 0)), &LIMITS);
    tensors::check_same(&request, &again.expect("it is taken when it is written again"));
    // Neither a byte more nor one less is its data.
    let more = [&rest[..], b"\0"].concat();
    assert!(parse_with(&text, Some(following(&more, 0)), &LIMITS).is_err());
    if let [less @ .., _] = &rest[..] {
        assert!(parse_with(&text, Some(following(less, 0)), &LIMITS).is_err());
    }
    answers::check(&request);
}
