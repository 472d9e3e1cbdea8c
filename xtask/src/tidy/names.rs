//! Names that say nothing about what is inside.

use std::path::Path;

const EMPTY: [&str; 8] = ["utils", "util", "common", "helpers", "helper", "misc", "types", "type"];

/// Rust files and folders of Rust must not have such a name.
pub fn check(path: &str) -> Option<String> {
    let rust = Path::new(path);
    if rust.extension().is_none_or(|extension| extension != "rs") {
        return None;
    }
    let names = rust.with_extension("");
    let bad = names.iter().filter_map(|name| name.to_str()).find(|name| EMPTY.contains(name))?;
    Some(format!("{path}: `{bad}` says nothing: name what is inside"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_names_that_say_nothing() {
        assert!(check("agent/src/utils.rs").is_some());
        assert!(check("tests/common/mod.rs").is_some());
        assert!(check("agent/src/store/layout.rs").is_none());
        assert!(check("docs/common.md").is_none());
    }
}
