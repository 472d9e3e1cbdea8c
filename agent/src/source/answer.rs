//! What a server's answer to a request for a range is worth, before any of its body is read.

use std::time::Duration;

use hyper::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, LOCATION,
    RETRY_AFTER,
};
use hyper::{Response, StatusCode};

use super::Trouble;

/// What was asked for: bytes from `first` up to but not including `end`, of a blob of `size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub first: u64,
    pub end: u64,
    pub size: u64,
}

/// What the body is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Bytes of the blob from `first` up to `end`; `whole` where the server answers no ranges.
    Bytes { first: u64, end: u64, whole: bool },
    /// Nothing of use: it lies elsewhere.
    Elsewhere(Vec<u8>),
}

/// Judges an answer by its head.
pub(super) fn judge<B>(answer: &Response<B>, asked: Asked) -> Result<Body, Trouble> {
    let (status, headers) = (answer.status(), answer.headers());
    let wrong = |why: String| Err(Trouble::Answer(why));
    match status {
        StatusCode::PARTIAL_CONTENT | StatusCode::OK => {}
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => {
            return match headers.get(LOCATION) {
                Some(location) => Ok(Body::Elsewhere(location.as_bytes().to_vec())),
                None => wrong(format!("{} without an address", status.as_u16())),
            };
        }
        _ => {
            let wait = number(headers, &RETRY_AFTER).map(Duration::from_secs);
            return Err(Trouble::Status { status: status.as_u16(), wait });
        }
    }
    if headers.get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return wrong("it is packed although that was not asked for".to_owned());
    }
    let length = number(headers, &CONTENT_LENGTH);
    if status == StatusCode::OK {
        return match length {
            Some(length) if length != asked.size => {
                wrong(format!("the blob has {length} bytes there instead of {}", asked.size))
            }
            _ => Ok(Body::Bytes { first: 0, end: asked.size, whole: true }),
        };
    }
    let several = |kind: &[u8]| kind.to_ascii_lowercase().starts_with(b"multipart/");
    if headers.get(CONTENT_TYPE).is_some_and(|kind| several(kind.as_bytes())) {
        return wrong("it has several parts although one was asked for".to_owned());
    }
    let Some((first, last, size)) =
        headers.get(CONTENT_RANGE).and_then(|range| content_range(range.as_bytes()))
    else {
        return wrong("it does not say which bytes it has".to_owned());
    };
    if size.is_some_and(|size| size != asked.size) {
        return wrong(format!("the blob has {} bytes there instead of {}", size.unwrap_or(0), asked.size));
    }
    if first != asked.first || last < first || last >= asked.end {
        let Asked { first: from, end, .. } = asked;
        return wrong(format!("it has bytes {first} to {last} instead of {from} to {}", end - 1));
    }
    let end = last + 1;
    match length {
        Some(length) if length != end - first => {
            wrong(format!("it has {length} bytes instead of {}", end - first))
        }
        _ => Ok(Body::Bytes { first, end, whole: false }),
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    digits(headers.get(name)?.to_str().ok()?)
}

/// `bytes 0-9/10` or `bytes 0-9/*`: first, last, size.
fn content_range(value: &[u8]) -> Option<(u64, u64, Option<u64>)> {
    let text = std::str::from_utf8(value).ok()?;
    let (range, size) = text.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let size = if size == "*" { None } else { Some(digits(size)?) };
    Some((digits(first)?, digits(last)?, size))
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASKED: Asked = Asked { first: 100, end: 200, size: 1000 };

    fn judged(status: u16, headers: &[(&str, &str)]) -> Result<Body, Trouble> {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        judge(&answer.body(()).unwrap(), ASKED)
    }

    #[test]
    fn what_was_asked_for_is_taken() {
        let part = |end| Ok(Body::Bytes { first: 100, end, whole: false });
        assert_eq!(judged(206, &[("content-range", "bytes 100-199/1000")]), part(200));
        assert_eq!(
            judged(206, &[("content-range", "bytes 100-199/*"), ("content-length", "100")]),
            part(200)
        );
        assert_eq!(judged(206, &[("content-range", "bytes 100-149/1000")]), part(150));
        assert_eq!(
            judged(206, &[("content-range", "bytes 100-199/1000"), ("content-encoding", "identity")]),
            part(200)
        );
        let whole = Ok(Body::Bytes { first: 0, end: 1000, whole: true });
        assert_eq!(judged(200, &[("content-length", "1000")]), whole);
        assert_eq!(judged(200, &[]), whole);
        assert_eq!(judged(307, &[("location", "/x")]), Ok(Body::Elsewhere(b"/x".to_vec())));
    }

    #[test]
    fn anything_else_is_trouble() {
        for headers in [
            &[][..],
            &[("content-range", "bytes 0-99/1000")],
            &[("content-range", "bytes 100-200/1000")],
            &[("content-range", "bytes 100-99/1000")],
            &[("content-range", "bytes 100-199/1001")],
            &[("content-range", "bytes 100-199/")],
            &[("content-range", "bytes 100-199")],
            &[("content-range", "bytes +100-199/1000")],
            &[("content-range", "bytes 100-18446744073709551615/*")],
            &[("content-range", "bytes 100-18446744073709551616/*")],
            &[("content-range", "items 100-199/1000")],
            &[("content-range", "bytes 100-199/1000"), ("content-length", "99")],
            &[("content-range", "bytes 100-199/1000"), ("content-encoding", "gzip")],
            &[("content-range", "bytes 100-199/1000"), ("content-type", "Multipart/ByteRanges; boundary=x")],
        ] {
            assert!(matches!(judged(206, headers), Err(Trouble::Answer(_))), "{headers:?}");
        }
        assert!(judged(200, &[("content-length", "999")]).is_err());
        assert!(judged(200, &[("content-encoding", "br")]).is_err());
        assert!(judged(301, &[]).is_err());
        for status in [204, 300, 304, 400, 404, 416, 500] {
            assert_eq!(judged(status, &[]), Err(Trouble::Status { status, wait: None }));
        }
        let wait = Some(Duration::from_secs(7));
        assert_eq!(judged(503, &[("retry-after", "7")]), Err(Trouble::Status { status: 503, wait }));
        let wait = None;
        assert_eq!(judged(429, &[("retry-after", "Fri, 1 Jan")]), Err(Trouble::Status { status: 429, wait }));
    }

    proptest! {
        #[test]
        fn no_header_makes_it_take_bytes_that_were_not_asked_for(range in "(bytes )?[0-9]{0,3}-[0-9]{0,20}/([0-9]{0,5}|\\*)") {
            if let Ok(Body::Bytes { first, end, .. }) = judged(206, &[("content-range", &range)]) {
                prop_assert!(first == 100 && end > 100 && end <= 200);
            }
        }
    }
}
