//! Elements of fixed size from their JSON form, and back: what fits which type.
//!
//! Integers take digits only (`1.0` and `1e3` are refused), within the range of their type. Floating
//! point takes every number that does not become infinite by rounding to the nearest value of its type
//! (FP16 and BF16 by way of FP64, the same on every machine), and the three words of
//! [`NOT_FINITE`], bare or as strings. BOOL takes `true` and `false`.

use half::{bf16, f16};

use super::decimal::{self, Short};
use super::lexer::{JsonError, Lexer, NOT_FINITE, Number};

/// An element type of fixed size, in JSON.
pub trait Element: Copy {
    /// Its little-endian bytes.
    type Bytes: AsRef<[u8]>;

    /// The one at a place of a text, and its end, where it is written as most are.
    fn plain(text: &[u8], at: usize) -> Option<(Self, usize)>;

    /// Reads one, however it is written.
    fn read(lexer: &mut Lexer<'_>) -> Result<Self, JsonError>;

    /// Little-endian bytes.
    fn to_bytes(self) -> Self::Bytes;

    /// From as many bytes as the type has.
    fn from_bytes(bytes: &[u8]) -> Self;

    /// Appends its JSON form.
    fn write(self, text: &mut Vec<u8>);
}

macro_rules! bytes {
    ($type:ty) => {
        type Bytes = [u8; size_of::<$type>()];

        fn to_bytes(self) -> Self::Bytes {
            self.to_le_bytes()
        }

        fn from_bytes(bytes: &[u8]) -> Self {
            let mut array = Self::Bytes::default();
            array.copy_from_slice(bytes);
            Self::from_le_bytes(array)
        }
    };
}

macro_rules! integer {
    ($($type:ident),*) => {$(
        impl Element for $type {
            bytes!($type);

            #[inline(always)]
            fn plain(text: &[u8], at: usize) -> Option<(Self, usize)> {
                let (value, end) = decimal::integer(text, at)?;
                Some((value.try_into().ok()?, end))
            }

            fn read(lexer: &mut Lexer<'_>) -> Result<Self, JsonError> {
                let before = lexer.clone();
                match lexer.number()? {
                    // `-0`, which Rust does not read as unsigned.
                    Number::Integer("-0") => Ok(0),
                    Number::Integer(digits) => digits
                        .parse()
                        .map_err(|_| does_not_fit(&before, digits, stringify!($type))),
                    Number::Decimal(digits) => Err(not_integer(&before, digits)),
                    Number::NotFinite(value) => Err(not_integer(&before, &value.to_string())),
                }
            }

            #[inline]
            fn write(self, text: &mut Vec<u8>) {
                serialise(&self, text);
            }
        }
    )*};
}
integer!(u8, u16, u32, u64, i8, i16, i32, i64);

macro_rules! float {
    ($type:ident, $parse:expr, $narrow:expr) => {
        impl Element for $type {
            bytes!($type);

            #[inline(always)]
            fn plain(text: &[u8], at: usize) -> Option<(Self, usize)> {
                let narrow: fn(Short) -> Option<$type> = $narrow;
                let (value, end) = decimal::short(text, at)?;
                Some((narrow(value)?, end))
            }

            fn read(lexer: &mut Lexer<'_>) -> Result<Self, JsonError> {
                let before = lexer.clone();
                let parse: fn(&str) -> Option<$type> = $parse;
                match real(lexer)? {
                    Number::Integer(digits) | Number::Decimal(digits) => parse(digits)
                        .filter(|value| value.is_finite())
                        .ok_or_else(|| does_not_fit(&before, digits, stringify!($type))),
                    Number::NotFinite(value) if value.is_nan() => Ok($type::NAN),
                    Number::NotFinite(value) if value > 0.0 => Ok($type::INFINITY),
                    Number::NotFinite(_) => Ok($type::NEG_INFINITY),
                }
            }

            fn write(self, text: &mut Vec<u8>) {
                write_real(self, text);
            }
        }

        impl Real for $type {
            fn wide(self) -> f64 {
                f64::from(self)
            }
        }
    };
}
float!(f32, |digits| digits.parse().ok(), Short::narrow);
float!(f64, |digits| digits.parse().ok(), Short::nearest);
float!(f16, |digits| digits.parse().ok().map(|value| f16::from_f32(to_odd(value))), |value| value
    .nearest()
    .map(|value| f16::from_f32(to_odd(value)))
    .filter(|value| value.is_finite()));
float!(bf16, |digits| digits.parse().ok().map(|value| bf16::from_f32(to_odd(value))), |value| value
    .nearest()
    .map(|value| bf16::from_f32(to_odd(value)))
    .filter(|value| value.is_finite()));

/// Rounds to odd: what lies between two FP32 values becomes the one of them whose last bit is set, so
/// that it is on the right side of every tie when it is rounded once more. (`half` itself drops the
/// lower bits of an FP64, or rounds twice, depending on the machine.)
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if !nearest.is_finite() || f64::from(nearest) == value {
        return nearest;
    }
    // Nearest is not zero where it lies further out than the value.
    let further_out = f64::from(nearest).abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(further_out)) | 1)
}

/// A floating-point type.
trait Real: Copy {
    fn wide(self) -> f64;
}

fn write_real<T: Real + Shortest>(value: T, text: &mut Vec<u8>) {
    if value.wide().is_finite() {
        value.shortest(text);
    } else {
        text.extend_from_slice(not_finite(value.wide()).as_bytes());
    }
}

/// The shortest digits that read back as the same value.
trait Shortest {
    fn shortest(self, text: &mut Vec<u8>);
}

impl Shortest for f32 {
    fn shortest(self, text: &mut Vec<u8>) {
        serialise(&self, text);
    }
}

impl Shortest for f64 {
    fn shortest(self, text: &mut Vec<u8>) {
        serialise(&self, text);
    }
}

impl Shortest for f16 {
    fn shortest(self, text: &mut Vec<u8>) {
        serialise(&self.to_f32(), text);
    }
}

impl Shortest for bf16 {
    fn shortest(self, text: &mut Vec<u8>) {
        serialise(&self.to_f32(), text);
    }
}

fn serialise(value: &impl serde::Serialize, text: &mut Vec<u8>) {
    // A number cannot fail, nor can a vector.
    drop(serde_json::to_writer(text, value));
}

/// A BOOL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boolean(pub bool);

impl Element for Boolean {
    type Bytes = [u8; 1];

    fn plain(_: &[u8], _: usize) -> Option<(Self, usize)> {
        None
    }

    fn read(lexer: &mut Lexer<'_>) -> Result<Self, JsonError> {
        lexer.boolean().map(Self)
    }

    fn to_bytes(self) -> Self::Bytes {
        [u8::from(self.0)]
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes != [0])
    }

    fn write(self, text: &mut Vec<u8>) {
        text.extend_from_slice(if self.0 { b"true" } else { b"false" });
    }
}

/// A number for a floating-point type, which may be one of the three words as a string.
#[inline]
fn real<'a>(lexer: &mut Lexer<'a>) -> Result<Number<'a>, JsonError> {
    if lexer.peek() != Some(b'"') {
        return lexer.number();
    }
    let before = lexer.clone();
    let text = lexer.string()?;
    NOT_FINITE.iter().find(|(word, _)| *word == text).map(|(_, value)| Number::NotFinite(*value)).ok_or_else(
        || before.error("a string is no number (but \"NaN\", \"Infinity\" and \"-Infinity\" are)"),
    )
}

/// `NaN`, `Infinity` or `-Infinity`.
pub fn not_finite(value: f64) -> &'static str {
    match value {
        _ if value.is_nan() => NOT_FINITE[0].0,
        _ if value > 0.0 => NOT_FINITE[1].0,
        _ => NOT_FINITE[2].0,
    }
}

#[cold]
fn does_not_fit(at: &Lexer<'_>, digits: &str, rust: &str) -> JsonError {
    let datatype = match rust {
        "f16" => "FP16".to_owned(),
        "bf16" => "BF16".to_owned(),
        _ => rust.replace('u', "UINT").replace('i', "INT").replace('f', "FP"),
    };
    at.error(format!("{} does not fit {datatype}", short(digits)))
}

#[cold]
fn not_integer(at: &Lexer<'_>, digits: &str) -> JsonError {
    at.error(format!("{} is not written as an integer", short(digits)))
}

fn short(digits: &str) -> String {
    if digits.len() <= 40 { digits.to_owned() } else { format!("{}…", &digits[..40]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element + PartialEq + std::fmt::Debug>(text: &str, expected: Result<T, &str>) {
        let mut lexer = Lexer::new(text);
        let actual = T::read(&mut lexer).and_then(|value| lexer.end().map(|()| value));
        if let Some((value, end)) = T::plain(text.as_bytes(), 0) {
            assert_eq!((&actual, end), (&Ok(value), text.len()), "{text}");
        }
        let actual = actual.map_err(|error| error.problem);
        assert_eq!(actual, expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn integers_are_within_their_type() {
        check("255", Ok(255_u8));
        check("-0", Ok(0_u8));
        check::<u8>("256", Err("256 does not fit UINT8"));
        check::<u8>("-1", Err("-1 does not fit UINT8"));
        check("-128", Ok(-128_i8));
        check::<i8>("128", Err("128 does not fit INT8"));
        check::<i16>("32768", Err("32768 does not fit INT16"));
        check("18446744073709551615", Ok(u64::MAX));
        check::<u64>("18446744073709551616", Err("18446744073709551616 does not fit UINT64"));
        check("-9223372036854775808", Ok(i64::MIN));
        check::<i64>("9223372036854775808", Err("9223372036854775808 does not fit INT64"));
        check::<i32>("1.0", Err("1.0 is not written as an integer"));
        check::<i32>("1e3", Err("1e3 is not written as an integer"));
        check::<i32>("NaN", Err("NaN is not written as an integer"));
        check::<i32>("true", Err("expected a number, found `t`"));
        check::<i32>("null", Err("expected a number, found `n`"));
        check::<i32>("\"1\"", Err("expected a number, found `\\\"`"));
    }

    #[test]
    fn floating_point_does_not_become_infinite() {
        check("1", Ok(1_f32));
        check("0.1", Ok(0.1_f32));
        check("3.4028235e38", Ok(f32::MAX));
        check::<f32>("3.5e38", Err("3.5e38 does not fit FP32"));
        check("1e-50", Ok(0_f32));
        check::<f64>("1e309", Err("1e309 does not fit FP64"));
        check("65504", Ok(f16::MAX));
        check::<f16>("65520", Err("65520 does not fit FP16"));
        check("0.1", Ok(f16::from_f32(0.1)));
        check("3e38", Ok(bf16::from_f64(3e38)));
        check::<bf16>("3.4e38", Err("3.4e38 does not fit BF16"));
    }

    #[test]
    fn rounding_to_half_a_float_happens_once() {
        // Between 1 and its neighbour, a hair over the tie: rounded twice it would fall on it.
        check("1.000488281250001", Ok(f16::from_bits(0x3c01)));
        check("1.00048828125", Ok(f16::ONE));
        check("1.000488281249999", Ok(f16::ONE));
        check("1.003906250000001", Ok(bf16::from_bits(0x3f81)));
        check("1.00390625", Ok(bf16::ONE));
        check("6.0e-8", Ok(f16::from_bits(1)));
        check("2.9e-8", Ok(f16::from_bits(0)));
        check("-1e-300", Ok(f16::NEG_ZERO));
        check::<f16>("65519.99", Ok(f16::MAX));
    }

    proptest::proptest! {
        #[test]
        fn half_floats_are_the_nearest(bits in 0_u16..0x7bff, part in 0.0..=1.0_f64, negative: bool) {
            let (low, high) = (f16::from_bits(bits).to_f64(), f16::from_bits(bits + 1).to_f64());
            let value = low + (high - low) * part;
            let expected = match (value - low).total_cmp(&(high - value)) {
                std::cmp::Ordering::Less => bits,
                std::cmp::Ordering::Greater => bits + 1,
                std::cmp::Ordering::Equal => bits + bits % 2,
            };
            let sign = if negative { "-" } else { "" };
            let read = f16::read(&mut Lexer::new(&format!("{sign}{value:e}"))).unwrap();
            proptest::prop_assert_eq!(read.to_bits(), expected | u16::from(negative) << 15);
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_plain_is_what_is_read(text in "-?[0-9]{1,21}(\\.[0-9]{1,20})?([eE][-+]?[0-9]{1,2})?[],: x]?") {
            fn check<T: Element>(text: &str) {
                let Some((value, end)) = T::plain(text.as_bytes(), 0) else { return };
                let mut lexer = Lexer::new(text);
                let read = T::read(&mut lexer).unwrap();
                let same = (value.to_bytes().as_ref(), end) == (read.to_bytes().as_ref(), lexer.at());
                assert!(same, "{text}");
            }
            check::<u8>(&text);
            check::<u64>(&text);
            check::<i8>(&text);
            check::<i64>(&text);
            check::<f16>(&text);
            check::<bf16>(&text);
            check::<f32>(&text);
            check::<f64>(&text);
        }
    }

    #[test]
    fn three_words_are_no_finite_numbers() {
        check("Infinity", Ok(f32::INFINITY));
        check("\"-Infinity\"", Ok(f64::NEG_INFINITY));
        check("-Infinity", Ok(f16::NEG_INFINITY));
        assert!(bf16::read(&mut Lexer::new("NaN")).unwrap().is_nan());
        assert!(f32::read(&mut Lexer::new("\"NaN\"")).unwrap().is_nan());
        let wrong = "a string is no number (but \"NaN\", \"Infinity\" and \"-Infinity\" are)";
        check::<f32>("\"1.0\"", Err(wrong));
        check::<f32>("nan", Err("expected a number, found `n`"));
        check::<f32>("inf", Err("expected a number, found `i`"));
    }

    #[test]
    fn a_bool_is_true_or_false() {
        check("true", Ok(Boolean(true)));
        check("false", Ok(Boolean(false)));
        check::<Boolean>("1", Err("expected true or false, found `1`"));
        check::<Boolean>("True", Err("expected true or false, found `T`"));
    }

    #[test]
    fn writes_the_shortest_form() {
        fn check<T: Element>(value: T, expected: &str) {
            let mut text = Vec::new();
            value.write(&mut text);
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
        check(0.1_f32, "0.1");
        check(1.0_f32, "1.0");
        check(f16::from_f32(0.1), "0.099975586");
        check(u64::MAX, "18446744073709551615");
        check(f32::NAN, "NaN");
        check(f64::NEG_INFINITY, "-Infinity");
        check(bf16::INFINITY, "Infinity");
    }
}
