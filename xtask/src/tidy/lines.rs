//! What may not stand in a file, by line: unfinished work, skipped tests, paths of one machine, host
//! names of registries, unsafe code without a reason or in the wrong place.

use super::Source;

const LONGEST: usize = 600;

/// Found nowhere in Rust. Written in pieces, so that this file passes.
const UNFINISHED: [(&str, &str); 4] = [
    (concat!("todo", "!("), "finish it"),
    (concat!("unimplemented", "!("), "finish it"),
    (concat!("#[", "ignore"), "a test that is skipped tests nothing"),
    (concat!("dbg", "!("), "remove it"),
];

/// Found in no file but lock files.
const MACHINES: [(&str, &str); 11] = [
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (concat!("/opt/", "wheels"), "a path of one machine"),
    (concat!("py", "pi.org"), "name packages, not addresses of registries"),
    (concat!("python", "hosted.org"), "name packages, not addresses of registries"),
    (concat!("registry.", "npmjs"), "name packages, not addresses of registries"),
    (concat!("debian", ".org"), "name packages, not addresses of registries"),
    (concat!("index.", "crates.io"), "name packages, not addresses of registries"),
    (concat!("static.", "rust-lang.org"), "name packages, not addresses of registries"),
];

/// Unsafe code stands here only: the host, which calls native code, and one call of the kernel.
const UNSAFE: [&str; 3] = ["host/", "modules/", "agent/src/clock/kernel.rs"];

/// The faults of one file.
pub fn check(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let path = &source.path;
    let mut fault = |line: usize, what: String| found.push(format!("{path}:{line}: {what}"));
    if source.is_rust() {
        let count = source.text.lines().count();
        if count > LONGEST {
            fault(count, format!("{count} lines: split it (at most {LONGEST})"));
        }
        if !source.text.starts_with("//!") {
            fault(1, "does not begin with `//!`: say what it is for and what it refuses".to_owned());
        }
    }
    let lines: Vec<&str> = source.text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let at = number + 1;
        if source.is_rust() {
            for (word, advice) in UNFINISHED.iter().filter(|(word, _)| line.contains(word)) {
                fault(at, format!("`{word}`: {advice}"));
            }
            if is_unsafe(line) {
                check_unsafe(path, &lines, number).into_iter().for_each(|what| fault(at, what));
            }
        }
        if !path.ends_with(".lock") {
            for (word, advice) in MACHINES.iter().filter(|(word, _)| line.contains(word)) {
                fault(at, format!("`{word}`: {advice}"));
            }
        }
    }
    found
}

fn is_unsafe(line: &str) -> bool {
    let code = line.trim_start();
    let word = concat!("unsafe", " ");
    !code.starts_with("//")
        && ["{", "impl", "extern"].iter().any(|next| code.contains(&format!("{word}{next}")))
}

fn check_unsafe(path: &str, lines: &[&str], number: usize) -> Option<String> {
    if !UNSAFE.iter().any(|allowed| path.starts_with(allowed)) {
        return Some("unsafe code outside of the host".to_owned());
    }
    let before = &lines[number.saturating_sub(8)..=number];
    let explained = before.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety"));
    (!explained).then(|| "unsafe code without a `SAFETY:` note".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> Vec<String> {
        check(&Source { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn passes_what_is_in_order() {
        assert!(faults("a/src/a.rs", "//! For a.\nfn a() {}\n").is_empty());
        assert!(
            faults("host/src/a.rs", concat!("//! A.\n// SAFETY: it is.\nuns", "afe { a() }\n")).is_empty()
        );
        assert!(faults("Cargo.lock", concat!("/ho", "me/")).is_empty());
    }

    #[test]
    fn finds_each_fault() {
        for (path, text) in [
            ("a.rs", "fn a() {}"),
            ("a.rs", concat!("//! A.\nfn a() { to", "do!() }")),
            ("a.rs", concat!("//! A.\n#[ig", "nore]\n")),
            ("a.md", concat!("see /ho", "me/me/a")),
            ("a.toml", concat!("x = \"py", "pi.org\"")),
            ("agent/src/a.rs", concat!("//! A.\n// SAFETY: no.\nuns", "afe { a() }\n")),
            ("host/src/a.rs", concat!("//! A.\nuns", "afe { a() }\n")),
        ] {
            assert_eq!(faults(path, text).len(), 1, "{path}: {text}");
        }
        let long = "//! A.\n".repeat(LONGEST + 1);
        assert_eq!(faults("a.rs", &long).len(), 1);
    }
}
