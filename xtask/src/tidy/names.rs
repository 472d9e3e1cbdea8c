//! Names that say nothing about what is inside, and files that are not for the repository.

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

/// Folders of files that are no text.
const SAMPLES: [&str; 2] = ["samples", "seeds"];

/// A file that is no text is a sample, and not what some tool has left behind.
pub fn check_binary(path: &str) -> Option<String> {
    let mut folders = Path::new(path).iter().filter_map(|name| name.to_str());
    let is_sample = folders.any(|folder| SAMPLES.contains(&folder));
    (!is_sample).then(|| format!("{path}: no text, and in no folder of samples: is it for the repository?"))
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

    #[test]
    fn finds_what_a_tool_has_left_behind() {
        assert!(check_binary("sched.14135.data").is_some());
        assert!(check_binary("host/src/core").is_some());
        assert!(check_binary("examples/01-file-type/samples/a.pdf").is_none());
        assert!(check_binary("tests/fuzz/seeds/bundle/a").is_none());
    }
}
