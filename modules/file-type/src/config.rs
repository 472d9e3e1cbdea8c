//! The model's configuration and its table of content types, as magika publishes them. What this
//! module does not do (bytes from the middle, inputs at offsets) is refused, not approximated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;

/// Where the host shows the package's files.
const FOLDER: &str = "/package";

/// Everything but the model's weights.
pub struct Config {
    pub model: Model,
    /// Content types that are text.
    pub text: BTreeSet<String>,
}

/// `config.min.json`. Fields that say nothing about how to use the model are left out.
#[derive(Deserialize)]
pub struct Model {
    pub beg_size: usize,
    pub mid_size: usize,
    pub end_size: usize,
    pub block_size: usize,
    pub padding_token: i32,
    /// Files with fewer bytes, or fewer after leading white space, are not shown to the model.
    pub min_file_size_for_dl: usize,
    pub use_inputs_at_offsets: bool,
    pub medium_confidence_threshold: f64,
    /// Lowest score by the model's label, where it is not the medium one.
    pub thresholds: BTreeMap<String, f64>,
    /// What to answer instead of a label of the model.
    pub overwrite_map: BTreeMap<String, String>,
    /// The model's labels, in the order of its scores.
    pub target_labels_space: Vec<String>,
}

#[derive(Deserialize)]
struct ContentType {
    is_text: bool,
}

impl Config {
    /// Reads both files of the package.
    pub fn read() -> Result<Self, String> {
        let read = |name: &str| {
            let path = format!("{FOLDER}/{name}");
            fs::read(&path).map_err(|error| format!("reading {path}: {error}"))
        };
        Self::parse(&read("config.min.json")?, &read("content_types_kb.min.json")?)
    }

    /// Reads what the files hold.
    pub fn parse(model: &[u8], types: &[u8]) -> Result<Self, String> {
        let model: Model =
            serde_json::from_slice(model).map_err(|error| format!("config.min.json: {error}"))?;
        model.check().map_err(|why| format!("config.min.json: {why}"))?;
        let types: BTreeMap<String, ContentType> =
            serde_json::from_slice(types).map_err(|error| format!("content_types_kb.min.json: {error}"))?;
        let text = types.into_iter().filter(|(_, kind)| kind.is_text).map(|(name, _)| name).collect();
        Ok(Self { model, text })
    }
}

impl Model {
    fn check(&self) -> Result<(), &'static str> {
        if self.mid_size != 0 || self.use_inputs_at_offsets {
            return Err("models that look into the middle of a file are not supported");
        }
        if self.beg_size >= self.block_size || self.end_size >= self.block_size {
            return Err("the block must be larger than the beginning and than the end");
        }
        if self.block_size > 1 << 20 {
            return Err("the block must not be larger than 1 MiB");
        }
        if self.min_file_size_for_dl == 0 || self.min_file_size_for_dl > self.beg_size {
            return Err("the smallest file must have from 1 to beg_size bytes");
        }
        Ok(())
    }
}
