//! Stamps say what a product was made from. A product is fresh when it is there and its stamp holds
//! the hash of today's inputs; a stamp is written last, so a broken-off set-up is done again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use super::write_whole;
use crate::paths;

/// Hash of everything that decides how a product comes out.
#[derive(Default)]
pub struct Key(Sha256);

impl Key {
    /// A key with nothing in it yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value.
    pub fn text(mut self, text: &str) -> Self {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
        self
    }

    /// Adds a file or every file below a folder, but build products, by name and content.
    pub fn tree(mut self, path: &Path) -> Result<Self> {
        for file in files_below(path)? {
            let name = file.strip_prefix(path).unwrap_or(&file).display().to_string();
            let bytes = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            self = self.text(&name);
            self.0.update((bytes.len() as u64).to_le_bytes());
            self.0.update(&bytes);
        }
        Ok(self)
    }

    fn finish(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// Files below `path` in a stable order, leaving out `target` and hidden folders.
pub fn files_below(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("reading {}", path.display()))?;
    let mut names = entries.collect::<Result<Vec<_>, _>>()?;
    names.sort_by_key(|entry| entry.file_name());
    let mut files = Vec::new();
    for entry in names {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type()?.is_file() {
            files.push(entry.path());
        } else if entry.file_type()?.is_dir() && name != "target" && !name.starts_with('.') {
            files.extend(files_below(&entry.path())?);
        }
    }
    Ok(files)
}

/// The stamp of one product.
pub struct Stamp {
    path: PathBuf,
    key: String,
}

impl Stamp {
    /// The stamp called `name` for inputs with this key.
    pub fn new(name: &str, key: Key) -> Self {
        Self { path: paths::setup().join(".stamps").join(name), key: key.finish() }
    }

    /// Whether all `products` are there and were made from these inputs.
    pub fn is_fresh(&self, products: &[PathBuf]) -> bool {
        let same = fs::read_to_string(&self.path).is_ok_and(|held| held.trim() == self.key);
        same && products.iter().all(|product| product.exists())
    }

    /// Says that the products are made.
    pub fn set(&self) -> Result<()> {
        write_whole(&self.path, format!("{}\n", self.key).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_order_and_bounds() {
        let key = |words: &[&str]| words.iter().fold(Key::new(), |key, word| key.text(word)).finish();
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["a", "b"]), key(&["b", "a"]));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
    }
}
