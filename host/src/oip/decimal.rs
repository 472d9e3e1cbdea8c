//! Short decimal numbers, as most tensors have them, in one go: digits to significand to value.
//!
//! A significand below 2⁵³ and a power of ten up to 10²² are exact in FP64, so that one division gives the
//! nearest FP64 to the number (Clinger, "How to read floating point numbers accurately", 1990). With up to 19 digits
//! the significand is rounded, too, and the product with a rounded power is still close enough for FP32, unless it
//! lies halfway between two of them. What is longer, or has an exponent, is left to the standard library, which reads
//! everything.

use super::digits;

/// Most digits of a significand that surely fits a `u64`.
const DIGITS: usize = 19;

/// Powers of ten that are exact.
const POWERS: [f64; DIGITS] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18];

/// Those by which they divide, rounded.
const PARTS: [f64; DIGITS] = [
    1e0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15,
    1e-16, 1e-17, 1e-18,
];

/// A number of up to [`DIGITS`] digits.
#[derive(Debug, Clone, Copy)]
pub struct Short {
    /// The sign bit of FP64.
    sign: u64,
    significand: u64,
    /// How many of its digits stand after the point: not all.
    fraction: usize,
}

/// The number at a place of `text`, and its end. `None` where it is not short, or no number of JSON.
#[inline(always)]
pub fn short(text: &[u8], start: usize) -> Option<(Short, usize)> {
    let (sign, mut significand, mut at) = whole(text, start)?;
    let mut digits = at - start - usize::from(sign != 0);
    let mut fraction = 0;
    if text.get(at) == Some(&b'.') {
        let point = at + 1;
        at = digits::take(text, point, &mut significand);
        fraction = at - point;
        digits += fraction;
        if fraction == 0 {
            return None;
        }
    }
    let short = digits <= DIGITS && !exponent(text, at);
    short.then_some((Short { sign, significand, fraction }, at))
}

/// The integer at a place of `text`, and its end. `None` where it is not short, or written otherwise.
#[inline(always)]
pub fn integer(text: &[u8], start: usize) -> Option<(i128, usize)> {
    let (sign, significand, at) = whole(text, start)?;
    if at - start - usize::from(sign != 0) > DIGITS || text.get(at) == Some(&b'.') || exponent(text, at) {
        return None;
    }
    let size = i128::from(significand);
    Some((if sign == 0 { size } else { -size }, at))
}

/// The sign as FP64 has it, the digits before the point, and their end.
#[inline(always)]
fn whole(text: &[u8], start: usize) -> Option<(u64, u64, usize)> {
    let negative = text.get(start) == Some(&b'-');
    let start = start + usize::from(negative);
    let mut significand = 0;
    let first = *text.get(start)?;
    // As most fractions begin, which need not wait for how many digits there are.
    if first.is_ascii_digit() && text.get(start + 1) == Some(&b'.') {
        return Some((u64::from(negative) << 63, u64::from(first - b'0'), start + 1));
    }
    let at = digits::take(text, start, &mut significand);
    // No number begins with a zero but zero and fractions below one.
    let number = at > start && (at == start + 1 || first != b'0');
    number.then_some((u64::from(negative) << 63, significand, at))
}

#[inline(always)]
fn exponent(text: &[u8], at: usize) -> bool {
    text.get(at).is_some_and(|byte| byte | 0x20 == b'e')
}

impl Short {
    /// The FP64 nearest to it, where that is known.
    #[inline(always)]
    pub fn nearest(self) -> Option<f64> {
        let exact = self.significand < 1 << f64::MANTISSA_DIGITS;
        exact.then(|| self.signed(self.significand as f64 / POWERS[self.fraction]))
    }

    /// The FP32 nearest to it, where that is known: not where it may lie halfway between two of them. But for zero it
    /// is nowhere near the ends of FP32.
    #[inline(always)]
    pub fn narrow(self) -> Option<f32> {
        const BELOW: u64 = (1 << (f64::MANTISSA_DIGITS - f32::MANTISSA_DIGITS)) - 1;
        const HALF: u64 = BELOW.div_ceil(2);
        // Rounded three times: each of the first two moves it by a place after its last bit at most, the last one
        // by half of that.
        const OFF: u64 = 3;
        let about = self.significand as f64 * PARTS[self.fraction];
        let halfway = about.to_bits().wrapping_sub(HALF - OFF) & BELOW <= 2 * OFF;
        (!halfway).then(|| self.signed(about) as f32)
    }

    fn signed(self, size: f64) -> f64 {
        f64::from_bits(size.to_bits() | self.sign)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bits of the nearest FP64, and the end, of a number that begins the text.
    fn bits(text: &str) -> Option<(u64, usize)> {
        let (value, end) = short(text.as_bytes(), 0)?;
        Some((value.nearest()?.to_bits(), end))
    }

    /// As the standard library reads it, where it is read at all; whatever stands around it.
    fn check(before: &[u8], text: &str, after: &[u8]) {
        let whole = [before, text.as_bytes(), after].concat();
        let Some((value, end)) = short(&whole, before.len()) else { return };
        assert_eq!(end, before.len() + text.len(), "{text}");
        if let Some(nearest) = value.nearest() {
            assert_eq!(nearest.to_bits(), text.parse::<f64>().unwrap().to_bits(), "{text}");
        }
        if let Some(near) = value.narrow() {
            assert_eq!(near.to_bits(), text.parse::<f32>().unwrap().to_bits(), "{text}");
        }
    }

    #[test]
    fn what_is_no_short_number_is_left() {
        for text in
            ["", "-", "01", "-00", "1.", ".5", "+1", "1e5", "1.5E-3", "NaN", "\"1\"", "-.5", "1.e3", "--1"]
        {
            assert_eq!(bits(text), None, "{text}");
        }
        assert_eq!(bits("12345678901234567890"), None);
        assert_eq!(bits("0.1234567890123456789"), None);
        assert_eq!(bits("9007199254740992"), None);
        assert_eq!(bits("0,"), Some((0, 1)));
        assert_eq!(bits("-0.0]"), Some(((-0.0_f64).to_bits(), 4)));
        assert_eq!(bits("9007199254740991 "), Some((9007199254740991.0_f64.to_bits(), 16)));
    }

    #[test]
    fn a_number_ends_where_it_ends() {
        let end = |text: &[u8]| short(text, 1).map(|(_, end)| end);
        assert_eq!(end(b"51"), Some(2));
        assert_eq!(end(b"51.5\xff23"), Some(4));
        assert_eq!(end(b"512345678\x80"), Some(9));
        assert_eq!(end(b"512345678/"), Some(9));
        assert_eq!(end(b"512345678:"), Some(9));
        assert_eq!(end(b"51.5."), Some(4));
        assert_eq!(end(b"5"), None);
        assert_eq!(end(b""), None);
        assert_eq!(end(b"51.2345678e"), None);
    }

    #[test]
    fn what_lies_halfway_is_left_to_all_its_digits() {
        let narrow = |text: &str| short(text.as_bytes(), 0).unwrap().0.narrow();
        assert_eq!(narrow("0.913725495338439941"), Some(0.913_725_5));
        // 1 + 2⁻²⁴, and 2²⁴ + 1.
        assert_eq!(narrow("1.000000059604644775"), None);
        assert_eq!(narrow("16777217"), None);
        assert_eq!(narrow("16777216"), Some(16_777_216.0));
        assert_eq!(narrow("9999999999999999999"), Some(1e19));
        assert_eq!(narrow("0.000000000000000001"), Some(1e-18));
        assert_eq!(narrow("-0.0").map(f32::to_bits), Some((-0.0_f32).to_bits()));
    }

    #[test]
    fn integers_are_whole() {
        let read = |text: &str| integer(text.as_bytes(), 0);
        assert_eq!(read("0]"), Some((0, 1)));
        assert_eq!(read("-0]"), Some((0, 2)));
        assert_eq!(read("-9223372036854775808,"), Some((i128::from(i64::MIN), 20)));
        assert_eq!(read("9999999999999999999"), Some((9_999_999_999_999_999_999, 19)));
        for text in ["", "-", "01", "1.", "1.0", "1e3", "1E3", "10000000000000000000", "a", "\"1\""] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn it_is_what_the_standard_library_reads(
            before: [u8; 3],
            text in "-?(0|[1-9][0-9]{0,11})(\\.[0-9]{1,12})?",
            after in "([],: }ax\u{80}-\u{ffff}][^\n]{0,9})?",
        ) {
            check(&before, &text, after.as_bytes());
        }

        #[test]
        fn long_ones_are_too(text in "-?(0|[1-9][0-9]{0,9})\\.[0-9]{8,18}") {
            check(b"", &text, b"");
        }

        // As clients write FP32 that they hold as FP64, and next to what lies halfway between two FP32.
        #[test]
        fn and_those_between_two_fp32(bits in 0x2000_0000_u32..0x5000_0000, half: bool, off in -5_i64..=5) {
            let wide = f64::from(f32::from_bits(bits)).to_bits() + if half { 1 << 28 } else { 0 };
            let wide = f64::from_bits(wide.wrapping_add_signed(off));
            check(b"", &format!("{wide}"), b"");
            check(b"", &format!("{wide:.17}"), b"");
            check(b"", &format!("{wide:.18}"), b"");
        }

        #[test]
        fn every_fp32_comes_back(bits: u32) {
            check(b"", &format!("{}", f32::from_bits(bits)), b"");
        }

        #[test]
        fn every_integer_comes_back(value: i64, shift in 0_u32..64) {
            let value = value >> shift;
            let text = value.to_string();
            let short = text.trim_start_matches('-').len() <= DIGITS;
            prop_assert_eq!(integer(text.as_bytes(), 0), short.then_some((value.into(), text.len())));
        }
    }
}
