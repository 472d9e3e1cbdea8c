//! Decimal digits of a text, eight at a time.
//!
//! Eight bytes are one word, in which all are looked at, and all digits added up, at once. Where fewer than eight bytes
//! are left, the word is filled up with what is no digit.

/// Powers of ten by which a significand grows.
const POWERS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// The end of the digits at a place. The significand, modulo 2⁶⁴, goes on with them.
#[inline(always)]
pub fn take(text: &[u8], mut at: usize, significand: &mut u64) -> usize {
    loop {
        let word = word(text, at);
        // What is above 9 gets its first bit by adding, and what is below 0, or far above, by taking away. What is
        // carried on from them concerns only the bytes after them.
        let values = word.wrapping_sub(0x3030_3030_3030_3030);
        let others = (word.wrapping_add(0x4646_4646_4646_4646) | values) & 0x8080_8080_8080_8080;
        if others == 0 {
            *significand = significand.wrapping_mul(100_000_000).wrapping_add(sum(values));
            at += 8;
            continue;
        }
        let count = others.trailing_zeros() / 8;
        // Zeros come in front, and what follows the digits falls off at the end.
        let values = values << (8 * (7 - count)) << 8;
        *significand = significand.wrapping_mul(POWERS[count as usize]).wrapping_add(sum(values));
        return at + count as usize;
    }
}

/// Eight bytes, the first one the lowest.
#[inline(always)]
fn word(text: &[u8], at: usize) -> u64 {
    match text.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => last(text, at),
    }
}

#[cold]
fn last(text: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = text.get(at..).unwrap_or_default();
    bytes[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(bytes)
}

/// The number that eight digits are, the first one in the lowest byte: pairs, then fours, then all.
#[inline(always)]
fn sum(values: u64) -> u64 {
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let first = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let second = (pairs >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    first.wrapping_add(second) >> 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one_by_one(text: &[u8], mut at: usize, mut significand: u64) -> (usize, u64) {
        while let Some(digit) = text.get(at).filter(|byte| byte.is_ascii_digit()) {
            significand = significand.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            at += 1;
        }
        (at, significand)
    }

    fn check(text: &[u8], at: usize, significand: u64) {
        let mut grown = significand;
        let end = take(text, at, &mut grown);
        assert_eq!((end, grown), one_by_one(text, at, significand), "{text:?} from {at}");
    }

    #[test]
    fn every_byte_ends_digits_but_digits() {
        for byte in 0..=u8::MAX {
            for place in 0..20 {
                let mut text = *b"98765432109876543210";
                text[place] = byte;
                for at in 0..=text.len() {
                    check(&text, at, 7);
                }
                check(&text[..=place], 0, 0);
            }
        }
    }

    #[test]
    fn past_the_end_there_are_none() {
        check(b"", 0, 5);
        check(b"123", 3, 5);
        check(b"123", 4, 5);
        check(b"123", usize::MAX, 5);
    }

    proptest! {
        #[test]
        fn they_are_those_that_are_there_one_by_one(
            text in prop::collection::vec(prop_oneof![9 => b'0'..=b'9', 1 => any::<u8>()], 0..40),
            at in 0_usize..40,
            significand: u64,
        ) {
            check(&text, at, significand);
        }
    }
}
