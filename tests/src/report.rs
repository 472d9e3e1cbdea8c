//! What a bench found: figures, and bars that hold or do not. Its last line of output is this as JSON.

use serde_json::{Map, Value, json};

use crate::spread::Spread;

/// Of one run of a bench.
#[derive(Debug, Default)]
pub struct Report {
    figures: Map<String, Value>,
    bars: Vec<Value>,
}

impl Report {
    /// One number.
    pub fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value.into());
    }

    /// The median under this name, and beside it the least and the most.
    pub fn spread(&mut self, name: &str, spread: Spread) {
        self.figure(name, spread.median);
        self.figure(&format!("{name}_least"), spread.least);
        self.figure(&format!("{name}_most"), spread.most);
    }

    /// A value that has a limit, and whether it keeps to it.
    pub fn bar(&mut self, name: &str, value: f64, limit: f64, holds: bool) {
        self.bars.push(json!({"name": name, "value": value, "limit": limit, "holds": holds}));
    }

    /// A value that may not be above its limit.
    pub fn at_most(&mut self, name: &str, value: f64, limit: f64) {
        self.bar(name, value, limit, value <= limit);
    }

    /// A value that may not be below its limit.
    pub fn at_least(&mut self, name: &str, value: f64, limit: f64) {
        self.bar(name, value, limit, value >= limit);
    }

    /// The last line.
    pub fn print(&self, bench: &str) {
        println!("{}", json!({"bench": bench, "figures": self.figures, "bars": self.bars}));
    }
}
