//! Several measurements of one thing: their median, and how far they are apart.

use std::fmt;

/// The value below which this part of them lies; sorts them.
///
/// # Panics
/// Of none.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part) as usize]
}

/// Of at least one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// The smallest.
    pub least: f64,
    /// The one in the middle; of an even number the upper one.
    pub median: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of these, in any order.
    ///
    /// # Panics
    /// Of none.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
            panic!("nothing was measured");
        };
        Self { least, median: sorted[sorted.len() / 2], most }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "median {:.3}, {:.3} to {:.3}", self.median, self.least, self.most)
    }
}
