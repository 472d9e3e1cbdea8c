//! Lock files beside the workspace's own: what is built from them is seldom built, so that nobody would see for long
//! that a package of this repository has got another dependency.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use toml::{Table, Value};

use super::Source;

/// What a package's manifest says that it needs.
#[derive(Default)]
struct Needs {
    /// Of whoever builds it.
    always: BTreeSet<String>,
    /// For its own tests, or only with some feature.
    perhaps: BTreeSet<String>,
}

/// Every lock file that does not say what the manifests say.
pub fn check(sources: &[Source]) -> Result<Vec<String>> {
    let parsed =
        |source: &Source| source.text.parse::<Table>().with_context(|| format!("{} is no TOML", source.path));
    let mut manifests = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.ends_with("Cargo.toml")) {
        let manifest = parsed(source)?;
        let name = manifest.get("package").and_then(|package| package.get("name")).and_then(Value::as_str);
        if let Some(name) = name {
            manifests.insert(name.to_owned(), needs(&manifest));
        }
    }
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with("Cargo.lock")) {
        found.extend(faults(&parsed(source)?, &manifests).into_iter().map(|fault| {
            format!("{}:1: {fault}: run `cargo metadata --format-version 1` in its folder", source.path)
        }));
    }
    Ok(found)
}

fn needs(manifest: &Table) -> Needs {
    let mut needs = Needs::default();
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    for table in targets.filter_map(Value::as_table).chain([manifest]) {
        for (kind, always) in
            [("dependencies", true), ("build-dependencies", true), ("dev-dependencies", false)]
        {
            for (key, value) in table.get(kind).and_then(Value::as_table).into_iter().flatten() {
                let name = value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned();
                let optional = value.get("optional").and_then(Value::as_bool) == Some(true);
                if always && !optional {
                    needs.always.insert(name)
                } else {
                    needs.perhaps.insert(name)
                };
            }
        }
    }
    needs
}

fn faults(lock: &Table, manifests: &BTreeMap<String, Needs>) -> Vec<String> {
    let mut found = Vec::new();
    let packages = lock.get("package").and_then(Value::as_array).into_iter().flatten();
    // Those of this repository come from nowhere.
    for package in packages.filter(|package| package.get("source").is_none()) {
        let name = package.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(needs) = manifests.get(name) else { continue };
        let locked = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        // A version follows where there are several of one name.
        let locked: BTreeSet<&str> = locked.filter_map(|entry| entry.as_str()?.split(' ').next()).collect();
        for missing in needs.always.iter().filter(|need| !locked.contains(need.as_str())) {
            found.push(format!("{name} needs {missing}, which it does not know"));
        }
        let needed = |name: &str| needs.always.contains(name) || needs.perhaps.contains(name);
        for extra in locked.iter().filter(|name| !needed(name)) {
            found.push(format!("{name} does not need {extra} any more"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_texts(manifest: &str, lock: &str) -> Vec<String> {
        let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        check(&[source("a/Cargo.toml", manifest), source("b/Cargo.lock", lock)]).unwrap()
    }

    #[test]
    fn a_lock_says_what_its_packages_need() {
        let manifest = "package.name = 'a'\n[dependencies]\nb.workspace = true\nc = { version = '1', package = 'd' }\n\
             [target.'cfg(unix)'.dependencies]\ne = '1'\n[dev-dependencies]\nf = '1'\n";
        let lock = |dependencies: &str| {
            format!(
                "[[package]]\nname = 'a'\ndependencies = [{dependencies}]\n\
                 [[package]]\nname = 'd'\nsource = 'registry'\ndependencies = ['x']\n"
            )
        };
        assert_eq!(check_texts(manifest, &lock("'b 1.2.3', 'd', 'e', 'f'")), Vec::<String>::new());
        assert_eq!(check_texts(manifest, &lock("'b', 'd', 'e'")), Vec::<String>::new());
        let missing = check_texts(manifest, &lock("'b', 'e'"));
        assert!(missing.len() == 1 && missing[0].starts_with("b/Cargo.lock:1: a needs d"), "{missing:?}");
        let extra = check_texts(manifest, &lock("'b', 'd', 'e', 'g'"));
        assert!(extra.len() == 1 && extra[0].contains("g any more"), "{extra:?}");
    }
}
