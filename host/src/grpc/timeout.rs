//! `grpc-timeout`: the time that a client gives its call. It becomes the request's own `timeout`, so that
//! one rule holds for both.

use std::time::Duration;

use axum::http::HeaderMap;

use crate::oip::request::{Parameter, Parameters};
use crate::serve::failure::Failure;

/// The parameter that shortens the package's deadline, in microseconds.
const TIMEOUT: &str = "timeout";

/// The time that a call's head gives it.
pub fn of(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    parse(text).map(Some).ok_or_else(|| {
        Failure::Header("grpc-timeout has to be up to 8 digits and one of H, M, S, m, u, n".to_owned())
    })
}

fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count = digits.parse::<u64>().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(count * 3600)),
        'M' => Some(Duration::from_secs(count * 60)),
        'S' => Some(Duration::from_secs(count)),
        'm' => Some(Duration::from_millis(count)),
        'u' => Some(Duration::from_micros(count)),
        'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// Shortens the time of a request, unless it is shorter already.
pub fn shorten(parameters: &mut Parameters, left: Duration) {
    let left = i64::try_from(left.as_micros()).unwrap_or(i64::MAX).max(1);
    let own = match parameters.get(TIMEOUT) {
        Some(Parameter::Integer(own)) if *own > 0 => *own,
        _ => i64::MAX,
    };
    parameters.insert(TIMEOUT.to_owned(), Parameter::Integer(own.min(left)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_standard_writes_them() {
        for (text, time) in [
            ("1H", Some(3_600_000_000)),
            ("2M", Some(120_000_000)),
            ("99999999S", Some(99_999_999_000_000)),
            ("7m", Some(7_000)),
            ("5u", Some(5)),
            ("5000n", Some(5)),
            ("", None),
            ("S", None),
            ("1", None),
            ("123456789m", None),
            ("-1m", None),
            ("1.5m", None),
            ("1ü", None),
        ] {
            assert_eq!(parse(text), time.map(Duration::from_micros), "{text}");
        }
    }

    #[test]
    fn the_shorter_time_holds() {
        let check = |own: Option<i64>, left: u64, expected: i64| {
            let mut parameters = Parameters::new();
            parameters.extend(own.map(|own| (TIMEOUT.to_owned(), Parameter::Integer(own))));
            shorten(&mut parameters, Duration::from_micros(left));
            assert_eq!(parameters[TIMEOUT], Parameter::Integer(expected));
        };
        check(None, 5, 5);
        check(Some(3), 5, 3);
        check(Some(7), 5, 5);
        check(Some(0), 5, 5);
        check(None, 0, 1);
    }
}
