//! The trace that a request belongs to, where its client says so (W3C Trace Context).
//!
//! Such a request has a span of its own: what is logged on its way, by its module too, says which trace
//! and which caller it was. Others have one at `debug` (`SELVEDGE_LOG=debug`), and otherwise none, which costs nothing.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tracing::Span;

use super::served::Served;

const PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Longest value that is kept.
const LONGEST: usize = 256;

/// A valid `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Parent<'a> {
    trace: &'a str,
    span: &'a str,
}

/// The span of a request to `model`; `None`: its client does not trace, or not in a form that is known, and nobody
/// looks so closely.
pub fn span(headers: &HeaderMap, model: &Served) -> Option<Span> {
    traced(headers, model).or_else(|| {
        let package = model.manifest().name.as_str();
        tracing::enabled!(tracing::Level::DEBUG)
            .then(|| tracing::debug_span!("request", package, version = %model.version()))
    })
}

fn traced(headers: &HeaderMap, model: &Served) -> Option<Span> {
    let mut given = headers.get_all(PARENT).iter();
    // The standard has the header ignored where it is wrong.
    let (Some(value), None) = (given.next(), given.next()) else { return None };
    let parent = parse(value.to_str().ok()?)?;
    let package = model.manifest().name.as_str();
    Some(
        tracing::info_span!("request", package, version = %model.version(), trace = parent.trace, parent = parent.span),
    )
}

/// What [`span`] looks at, of a request whose head is not kept.
pub fn kept(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    // One that came twice counts as none.
    for value in headers.get_all(PARENT).iter().take(2).filter(|value| value.len() <= LONGEST) {
        // A copy: the value itself may keep all of the frame that it came in.
        kept.extend(HeaderValue::from_bytes(value.as_bytes()).ok().map(|value| (PARENT, value)));
    }
    kept
}

/// `00-<32 hex>-<16 hex>-<2 hex>`; later versions may have more after a dash.
fn parse(text: &str) -> Option<Parent<'_>> {
    let mut parts = text.split('-');
    let version = hex(parts.next()?, 2)?;
    let (trace, span) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
    hex(parts.next()?, 2)?;
    let nothing = |part: &str| part.bytes().all(|byte| byte == b'0');
    let known = version != "ff" && (version != "00" || parts.next().is_none());
    (known && !nothing(trace) && !nothing(span)).then_some(Parent { trace, span })
}

/// So many digits, small ones only.
fn hex(part: &str, length: usize) -> Option<&str> {
    let digits = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (digits && part.len() == length).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::PredictError;
    use crate::serve::fake::{Behaviour, Fake, ask, manifest};
    use crate::serve::{Serving, routes};
    use axum::body::Body;
    use axum::http::Request;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_parent_is_taken_as_the_standard_writes_it_or_not_at_all() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let good = format!("00-{trace}-{span}-01");
        assert_eq!(parse(&good), Some(Parent { trace, span }));
        assert!(parse(&format!("01-{trace}-{span}-01-more")).is_some());
        for wrong in [
            String::new(),
            format!("{good}-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{trace}-{span}"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}-1"),
            format!("00-{trace}0-{span}-01"),
            format!("00-{trace}-{span}-01\n"),
            "00-ä".to_owned(),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    /// What is logged, up to this level, of a failure with a parent and of one with a forged one.
    async fn logged(level: tracing::Level) -> Vec<String> {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level);
        let _guard =
            tracing::subscriber::set_default(subscriber.with_writer(move || writer.clone()).finish());
        let serving = Serving::new(4);
        let failing = Behaviour::Fail(PredictError::Trap("asked for".to_owned()));
        let served = Served::new(
            Fake::package(manifest("m", "1.0.0", 1, "BYTES", &[1]), failing),
            Default::default(),
            0,
        );
        serving.table.stage(Arc::clone(&served));
        serving.table.activate(&served.reference()).unwrap();
        serving.announce();
        let router = routes::router(serving);
        for parent in [format!("00-{TRACE}-00f067aa0ba902b7-01"), "00-forged trace=1".to_owned()] {
            let request = Request::post("/v2/models/m/raw").header("traceparent", parent);
            let (status, _) = ask(&router, request.body(Body::from("x")).unwrap()).await;
            assert_eq!(status, 500);
        }
        let told = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> =
            told.lines().filter(|line| line.contains("no answer")).map(str::to_owned).collect();
        assert_eq!(lines.len(), 2, "{told}");
        assert!(lines[0].contains(TRACE) && lines[0].contains("00f067aa0ba902b7"), "{told}");
        assert!(!lines[1].contains("trace"), "{told}");
        lines
    }

    #[tokio::test]
    async fn what_is_logged_for_a_request_says_its_trace() {
        let lines = logged(tracing::Level::INFO).await;
        assert!(lines[0].contains("request{") && !lines[1].contains("request{"), "{lines:?}");
    }

    #[tokio::test]
    async fn who_looks_closely_sees_every_request() {
        let lines = logged(tracing::Level::DEBUG).await;
        assert!(lines[1].contains("request{package=\"m\" version="), "{lines:?}");
    }
}
