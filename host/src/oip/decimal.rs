//! Short decimal numbers, as most tensors have them, in one go: digits to significand to value.
//!
//! A significand below 2⁵³ and a power of ten up to 10²² are exact in FP64, so that one division gives the
//! nearest FP64 to the number (Clinger, "How to read floating point numbers accurately", 1990). With up to 19 digits
//! the significand is rounded, too, and the quotient is one of the FP64 next to the number: enough for FP32, unless it
//! lies halfway between two of them. What is longer, or has an exponent, is left to the standard library, which reads
//! everything.

/// Most digits of a significand that surely fits a `u64`.
const DIGITS: usize = 19;

/// Powers of ten that are exact.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// What a number is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Short {
    /// Nearest to this one.
    Nearest(f64),
    /// No further from this one than two places after its last bit.
    About(f64),
}

/// The number at the start of `text`, and its length. `None` where it is not short, or no number of JSON.
#[inline]
pub fn short(text: &[u8]) -> Option<(Short, usize)> {
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
    if exponent || whole + fraction > DIGITS {
        return None;
    }
    // At most 19 digits: the power is among them.
    let value = significand as f64 / POWERS[fraction];
    let value = if negative { -value } else { value };
    let exact = significand < 1 << f64::MANTISSA_DIGITS;
    Some((if exact { Short::Nearest(value) } else { Short::About(value) }, at))
}

/// Goes past digits. The significand means something only up to [`DIGITS`] of them.
#[inline]
fn digits(text: &[u8], at: &mut usize, significand: &mut u64) {
    while let Some(digit) = text.get(*at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
        *significand = significand.wrapping_mul(10).wrapping_add(u64::from(digit));
        *at += 1;
    }
}

impl Short {
    /// The FP64 nearest to it, where that is known.
    #[inline]
    pub fn nearest(self) -> Option<f64> {
        match self {
            Self::Nearest(value) => Some(value),
            Self::About(_) => None,
        }
    }

    /// The FP32 nearest to it, where that is known.
    #[inline]
    pub fn narrow(self) -> Option<f32> {
        match self {
            Self::Nearest(value) => narrow(value),
            Self::About(value) => {
                // Not zero, nor anywhere near the ends of FP64. Rounding keeps the order: what lies between two that
                // become the same does, too.
                let near = |bits: u64| f64::from_bits(bits) as f32;
                let (below, above) = (near(value.to_bits() - 2), near(value.to_bits() + 2));
                (below == above && below.is_finite()).then_some(below)
            }
        }
    }
}

/// The FP32 nearest to a number whose nearest FP64 is `wide`. `None` where that does not say: halfway between
/// two of them, and where FP32 has fewer digits.
#[inline]
fn narrow(wide: f64) -> Option<f32> {
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
        let (value, length) = short(text.as_bytes())?;
        Some((value.nearest()?.to_bits(), length))
    }

    /// As the standard library reads it, where it is read at all.
    fn check(text: &str, end: &str) {
        let Some((value, length)) = short(format!("{text}{end}").as_bytes()) else { return };
        assert_eq!(length, text.len());
        if let Some(nearest) = value.nearest() {
            assert_eq!(nearest.to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
        }
        if let Some(near) = value.narrow() {
            assert_eq!(near.to_bits(), text.parse::<f32>().unwrap().to_bits(), "{text}");
        }
    }

    #[test]
    fn what_is_no_short_number_is_left() {
        for text in ["", "-", "01", "-00", "1.", ".5", "+1", "1e5", "1.5E-3", "NaN", "\"1\"", "-.5", "1.e3"] {
            assert_eq!(bits(text), None, "{text}");
        }
        assert_eq!(bits("12345678901234567890"), None);
        assert_eq!(bits("0.00000000000000000001"), None);
        assert_eq!(bits("9007199254740992"), None);
        assert_eq!(short(b"0.913725495338439941").unwrap().0.narrow(), Some(0.913_725_5));
        assert_eq!(
            short(b"1.000000059604644775").unwrap().0.narrow(),
            None,
            "about halfway between two of FP32"
        );
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
            check(&text, &end);
        }

        #[test]
        fn long_ones_are_too(text in "-?(0|[1-9][0-9]{0,9})\\.[0-9]{8,18}") {
            check(&text, "");
        }

        // As clients write FP32 that they hold as FP64, and next to what lies halfway between two FP32.
        #[test]
        fn and_those_between_two_fp32(bits in 0x2000_0000_u32..0x5000_0000, half in any::<bool>(), off in -3_i64..=3) {
            let wide = f64::from(f32::from_bits(bits)).to_bits() + if half { 1 << 28 } else { 0 };
            check(&format!("{}", f64::from_bits(wide.wrapping_add_signed(off))), "");
            check(&format!("{:.17}", f64::from_bits(wide.wrapping_add_signed(off))), "");
        }

        #[test]
        fn every_fp32_comes_back(bits in any::<u32>()) {
            let text = format!("{}", f32::from_bits(bits));
            check(&text, "");
        }
    }
}
