//! Short decimal numbers, as most tensors have them, in one go: digits to significand to value.
//!
//! A significand below 2⁵³ and a power of ten up to 10²² are exact in FP64, so that one division gives the
//! nearest FP64 to the number (Clinger, "How to read floating point numbers accurately", 1990). What is longer,
//! or has an exponent, is left to the standard library, which reads everything.

/// Most digits of a significand that surely fits a `u64`.
const DIGITS: usize = 19;

/// Powers of ten that are exact.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// The FP64 nearest to the number at the start of `text`, and the number's length. `None` where it is not
/// short, or no number of JSON.
#[inline]
pub fn short(text: &[u8]) -> Option<(f64, usize)> {
    let negative = text.first() == Some(&b'-');
    let start = usize::from(negative);
    let (mut significand, mut at) = (0, start);
    digits(text, &mut at, &mut significand);
    let whole = at - start;
    // No number begins with a zero but zero and fractions below one.
    if whole == 0 || (whole > 1 && text[start] == b'0') {
        return None;
    }
    let mut fraction = 0;
    if text.get(at) == Some(&b'.') {
        at += 1;
        let point = at;
        digits(text, &mut at, &mut significand);
        fraction = at - point;
        if fraction == 0 {
            return None;
        }
    }
    let exponent = matches!(text.get(at), Some(b'e' | b'E'));
    if exponent || whole + fraction > DIGITS || significand >= 1 << f64::MANTISSA_DIGITS {
        return None;
    }
    // At most 19 digits: the power is among them.
    let value = significand as f64 / POWERS[fraction];
    Some((if negative { -value } else { value }, at))
}

/// Goes past digits. The significand means something only up to [`DIGITS`] of them.
#[inline]
fn digits(text: &[u8], at: &mut usize, significand: &mut u64) {
    while let Some(digit) = text.get(*at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
        *significand = significand.wrapping_mul(10).wrapping_add(u64::from(digit));
        *at += 1;
    }
}

/// The FP32 nearest to a number whose nearest FP64 is `wide`. `None` where that does not say: halfway between
/// two of them, and where FP32 has fewer digits.
#[inline]
pub fn narrow(wide: f64) -> Option<f32> {
    const BELOW: u64 = (1 << (f64::MANTISSA_DIGITS - f32::MANTISSA_DIGITS)) - 1;
    const HALF: u64 = BELOW.div_ceil(2);
    let size = wide.abs();
    let sure = wide == 0.0 || (size >= f64::from(f32::MIN_POSITIVE) && wide.to_bits() & BELOW != HALF);
    let near = wide as f32;
    (sure && near.is_finite()).then_some(near)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(text: &str) -> Option<(u64, usize)> {
        short(text.as_bytes()).map(|(value, length)| (value.to_bits(), length))
    }

    #[test]
    fn what_is_no_short_number_is_left() {
        for text in ["", "-", "01", "-00", "1.", ".5", "+1", "1e5", "1.5E-3", "NaN", "\"1\"", "-.5", "1.e3"] {
            assert_eq!(bits(text), None, "{text}");
        }
        assert_eq!(bits("12345678901234567890"), None);
        assert_eq!(bits("0.00000000000000000001"), None);
        assert_eq!(bits("9007199254740992"), None);
        assert_eq!(bits("0,"), Some((0, 1)));
        assert_eq!(bits("-0.0]"), Some(((-0.0_f64).to_bits(), 4)));
        assert_eq!(bits("9007199254740991 "), Some((9007199254740991.0_f64.to_bits(), 16)));
    }

    #[test]
    fn what_lies_halfway_is_left_to_all_its_digits() {
        // 1 + 2⁻²⁴, halfway between two of FP32, and a little more.
        assert_eq!(narrow(1.0 + 2_f64.powi(-24)), None);
        assert_eq!(narrow(1e-40), None);
        assert_eq!(narrow(f64::MAX), None);
        assert_eq!(narrow(-0.0).map(f32::to_bits), Some((-0.0_f32).to_bits()));
    }

    proptest! {
        #[test]
        fn it_is_what_the_standard_library_reads(text in "-?(0|[1-9][0-9]{0,11})(\\.[0-9]{1,12})?", end in "[],: ]?") {
            if let Some((value, length)) = short(format!("{text}{end}").as_bytes()) {
                prop_assert_eq!(length, text.len());
                prop_assert_eq!(value.to_bits(), text.parse::<f64>().unwrap().to_bits());
                if let Some(near) = narrow(value) {
                    prop_assert_eq!(near.to_bits(), text.parse::<f32>().unwrap().to_bits());
                }
            }
        }

        #[test]
        fn every_fp32_comes_back(bits in any::<u32>()) {
            let number = f32::from_bits(bits);
            let text = format!("{number}");
            if let Some((value, length)) = short(text.as_bytes()) {
                prop_assert_eq!(length, text.len());
                if let Some(near) = narrow(value) {
                    prop_assert_eq!(near.to_bits(), bits);
                }
            }
        }
    }
}
