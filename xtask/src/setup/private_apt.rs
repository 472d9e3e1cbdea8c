//! A configuration of apt that knows one suite and nothing of the machine's state, so that nothing on the machine is
//! upgraded from there. Addresses come from the machine's own configuration.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::write_whole;
use crate::run;

/// A configuration that knows the one suite and keeps all its state to itself.
pub fn configure(private: &Path, suite: &str) -> Result<PathBuf> {
    let source = machine_source()?;
    let mut text = format!("Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\n", source.uri);
    if let Some(key) = source.signed_by {
        text.push_str(&format!("Signed-By: {key}\n"));
    }
    for folder in ["lists/partial", "cache/archives/partial", "parts"] {
        let folder = private.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    }
    write_whole(&private.join("parts/selvedge.sources"), text.as_bytes())?;
    let at = private.display();
    let text = format!(
        "Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"{at}/parts\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State::lists \"{at}/lists\";\nDir::Cache \"{at}/cache\";\n\
         APT::Sandbox::User \"{user}\";\n",
        user = run::quietly(std::process::Command::new("id").arg("-un"))?.trim(),
    );
    let path = private.join("apt.conf");
    write_whole(&path, text.as_bytes())?;
    Ok(path)
}

/// Debian's name of the release that runs here.
pub fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_owned()).context("this is no Debian release")
}

#[derive(Debug, PartialEq)]
struct Source {
    uri: String,
    signed_by: Option<String>,
}

/// Where this machine gets Debian's main archive from.
fn machine_source() -> Result<Source> {
    let codename = codename()?;
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(Result::ok).map(|entry| entry.path()));
    }
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if let Some(source) = source_in(&text, &codename) {
            return Ok(source);
        }
    }
    bail!("no apt source of this machine has the suite {codename}")
}

/// Finds the source of `suite` in a file of either format.
fn source_in(text: &str, suite: &str) -> Option<Source> {
    text.split("\n\n").find_map(|stanza| deb822(stanza, suite)).or_else(|| one_line(text, suite))
}

fn deb822(stanza: &str, suite: &str) -> Option<Source> {
    let field = |name: &str| {
        stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    field("Suites")?.split_whitespace().find(|named| *named == suite)?;
    let uri = field("URIs")?.split_whitespace().next()?.to_owned();
    Some(Source { uri, signed_by: field("Signed-By").map(str::to_owned) })
}

fn one_line(text: &str, suite: &str) -> Option<Source> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (uri, named) = (words.next()?, words.next()?);
        let key = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        (named == suite).then(|| Source { uri: uri.to_owned(), signed_by: key.map(str::to_owned) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_main_archive_in_both_formats() {
        let found = Some(Source { uri: "mirror:/m".into(), signed_by: Some("/k.gpg".into()) });
        let new = "# note\nTypes: deb\nURIs: mirror:/s\nSuites: bookworm-security\n\n\
                   Types: deb\nURIs: mirror:/m\nSuites: bookworm bookworm-updates\nSigned-By: /k.gpg\n";
        assert_eq!(source_in(new, "bookworm"), found);
        let old = "deb mirror:/s bookworm-security main\ndeb [arch=amd64 signed-by=/k.gpg] mirror:/m bookworm main\n";
        assert_eq!(source_in(old, "bookworm"), found);
        assert_eq!(source_in(old, "trixie"), None);
    }
}
