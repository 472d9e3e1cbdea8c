//! Whether an element is the number that stands in the text, told in another way than the host reads it.

use half::{bf16, f16};
use selvedge_package::tensor::Datatype;

use crate::tensors::wide;

/// `element` is what `token` says: digits, a word, or a word in quotes.
pub fn check(datatype: Datatype, token: &str, element: &[u8]) {
    let word: String;
    let token = if token.starts_with('"') {
        word = serde_json::from_str(token).expect("a word in quotes is a string");
        assert!(matches!(&*word, "NaN" | "Infinity" | "-Infinity"), "{word:?}");
        &word
    } else {
        token
    };
    match wide(datatype, element) {
        Some(value) => {
            assert!(is_nearest(datatype, token, value, element), "{datatype}: {token} read as {value}")
        }
        None => assert_eq!(whole(token), stored(datatype, element), "{datatype}: {token}"),
    }
}

/// Digits as a number; `true` and `false` as 1 and 0.
fn whole(token: &str) -> i128 {
    match token {
        "true" => 1,
        "false" => 0,
        digits => digits.parse().expect("digits alone"),
    }
}

fn stored(datatype: Datatype, element: &[u8]) -> i128 {
    let signed = matches!(datatype, Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64);
    let negative = signed && element.last().is_some_and(|last| *last >= 0x80);
    let mut bytes = if negative { [0xff; 16] } else { [0; 16] };
    bytes[..element.len()].copy_from_slice(element);
    i128::from_le_bytes(bytes)
}

/// Whether `value` is the one of its type that lies nearest to the number, and the even one of two.
fn is_nearest(datatype: Datatype, token: &str, value: f64, element: &[u8]) -> bool {
    let Ok(number) = token.parse::<f64>() else { return false };
    if number.is_nan() || (number.is_infinite() && token.ends_with("Infinity")) {
        return value.to_bits() == number.to_bits() || value.is_nan() && number.is_nan();
    }
    // What a number of the text becomes is finite, or the number is refused.
    if !value.is_finite() || value.is_sign_negative() != number.is_sign_negative() {
        return false;
    }
    let size = value.abs();
    let (below, above): (f64, f64) = match datatype {
        Datatype::Fp64 => return value.to_bits() == number.to_bits(),
        Datatype::Fp32 => return token.parse::<f32>().is_ok_and(|near| f64::from(near) == value),
        Datatype::Fp16 => {
            let bits = f16::from_f64(size).to_bits();
            let beside = |bits: u16| f16::from_bits(bits).to_f64();
            // Beyond the largest lies where the next one would be.
            (if bits == 0 { -beside(1) } else { beside(bits - 1) }, next(beside(bits + 1), 65536.0))
        }
        _ => {
            let bits = bf16::from_f64(size).to_bits();
            let beside = |bits: u16| bf16::from_bits(bits).to_f64();
            (if bits == 0 { -beside(1) } else { beside(bits - 1) }, next(beside(bits + 1), 2_f64.powi(128)))
        }
    };
    // Both are exact: these types have few digits.
    let (from, to) = ((below + size) / 2.0, (size + above) / 2.0);
    let number = number.abs();
    let is_even = element.first().is_some_and(|first| first.is_multiple_of(2));
    from < number && number < to || is_even && (number == from || number == to)
}

fn next(above: f64, instead: f64) -> f64 {
    if above.is_finite() { above } else { instead }
}
