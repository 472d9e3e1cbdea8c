//! Numbers with a unit, exact to three decimals: no rounding decides where something runs.

use std::fmt;

/// Digits before the point: with the largest unit the value fits 128 bits by far.
const DIGITS: usize = 15;
/// Digits after the point.
const DECIMALS: usize = 3;
const THOUSAND: i64 = 1000;

/// A number as it is written in a selector, a label or a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Number {
    /// Thousandths, before the unit.
    thousandths: i64,
    unit: Option<Unit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    K,
    M,
    G,
    T,
    Ki,
    Mi,
    Gi,
    Ti,
}

const UNITS: [(&str, Unit, i64); 8] = [
    ("KiB", Unit::Ki, 1 << 10),
    ("MiB", Unit::Mi, 1 << 20),
    ("GiB", Unit::Gi, 1 << 30),
    ("TiB", Unit::Ti, 1 << 40),
    ("k", Unit::K, 1_000),
    ("M", Unit::M, 1_000_000),
    ("G", Unit::G, 1_000_000_000),
    ("T", Unit::T, 1_000_000_000_000),
];

impl Number {
    /// `-1.5GiB`; `None` for anything else, and for what has more digits than are exact.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, unit) = match UNITS.iter().find(|(name, ..)| text.ends_with(name)) {
            Some((name, unit, _)) => (text.strip_suffix(name)?, Some(*unit)),
            None => (text, None),
        };
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || whole.len() > DIGITS || fraction.len() > DECIMALS {
            return None;
        }
        let padded: i64 = format!("{fraction:0<DECIMALS$}").parse().ok()?;
        let size = whole.parse::<i64>().ok()? * THOUSAND + padded;
        Some(Self { thousandths: if negative { -size } else { size }, unit })
    }

    /// The value in thousandths of one.
    pub fn value(self) -> i128 {
        let unit = UNITS.iter().find(|(_, unit, _)| Some(*unit) == self.unit);
        i128::from(self.thousandths) * i128::from(unit.map_or(1, |(_, _, size)| *size))
    }

    /// Whether a unit stands behind it.
    pub fn has_unit(self) -> bool {
        self.unit.is_some()
    }

    /// The same in MiB, if it has no unit of its own.
    pub fn in_mib(self) -> Self {
        Self { unit: self.unit.or(Some(Unit::Mi)), ..self }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.thousandths < 0 { "-" } else { "" };
        let size = self.thousandths.unsigned_abs();
        let (whole, rest) = (size / THOUSAND.unsigned_abs(), size % THOUSAND.unsigned_abs());
        write!(f, "{sign}{whole}")?;
        if rest > 0 {
            write!(f, ".{}", format!("{rest:0>DECIMALS$}").trim_end_matches('0'))?;
        }
        let unit = UNITS.iter().find(|(_, unit, _)| Some(*unit) == self.unit);
        f.write_str(unit.map_or("", |(name, ..)| name))
    }
}
