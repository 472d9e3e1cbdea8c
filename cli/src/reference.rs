//! How people name a release: `file-type`, `file-type@1.0.0`, `file-type@r3`. And `key=value`.

use std::fmt;
use std::str::FromStr;

use selvedge_package::PackageName;
use selvedge_package::nearest::nearest;
use semver::Version;

use crate::failure::Failure;
use crate::rows;

/// A package, and which release of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The package.
    pub name: PackageName,
    /// Which release.
    pub which: Which,
}

/// Which release of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one with the largest counter.
    Newest,
    /// The newest with this version for people.
    Version(Version),
    /// The one with this counter.
    Release(u64),
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, which) = match text.split_once('@') {
            None => (text, Which::Newest),
            Some((name, which)) => (name, parse_which(which)?),
        };
        Ok(Self {
            name: name.parse().map_err(|error: selvedge_package::NameError| error.to_string())?,
            which,
        })
    }
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_which(text)
    }
}

fn parse_which(text: &str) -> Result<Which, String> {
    if let Some(number) = text.strip_prefix('r') {
        return match number.parse() {
            Ok(release) if release > 0 => Ok(Which::Release(release)),
            _ => Err(format!("`{text}` is not a release: write `r` and a number from 1, like `r3`")),
        };
    }
    Version::parse(text)
        .map(Which::Version)
        .map_err(|_| format!("`{text}` is neither a version like `1.0.0` nor a release like `r3`"))
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Which::Newest => write!(f, "{}", self.name),
            Which::Version(version) => write!(f, "{}@{version}", self.name),
            Which::Release(release) => write!(f, "{}@r{release}", self.name),
        }
    }
}

impl Reference {
    /// The release that is meant, among all that there are.
    pub fn resolve<'a>(&self, packages: &'a [rows::Package]) -> Result<&'a rows::Package, Failure> {
        let fits = |package: &&rows::Package| match &self.which {
            Which::Newest => true,
            Which::Version(version) => package.version == version.to_string(),
            Which::Release(release) => package.release == *release,
        };
        let ours: Vec<&rows::Package> = packages.iter().filter(|package| package.name == self.name).collect();
        if let Some(found) = ours.iter().copied().filter(fits).max_by_key(|package| package.release) {
            return Ok(found);
        }
        if ours.is_empty() {
            let advice =
                match nearest(self.name.as_str(), packages.iter().map(|package| package.name.as_str())) {
                    Some(near) => format!("did you mean `{near}`? `selvedge packages` lists all"),
                    None => {
                        "`selvedge packages` lists what is released; `selvedge release` adds to it".to_owned()
                    }
                };
            return Err(Failure::missing(format!("no package {} is released", self.name), advice));
        }
        let known: Vec<String> =
            ours.iter().map(|package| format!("{} (r{})", package.version, package.release)).collect();
        Err(Failure::missing(
            format!("{self} is not released"),
            format!("released are: {}", known.join(", ")),
        ))
    }
}

/// A `key=value` argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// In front of the first `=`.
    pub key: String,
    /// Behind it; it may be empty.
    pub value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(Self { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("`{text}` is not KEY=VALUE")),
        }
    }
}

/// Pairs as the JSON object that requests carry; a key said twice is an error.
pub fn object(pairs: &[Pair]) -> Result<serde_json::Value, Failure> {
    let mut map = serde_json::Map::new();
    for pair in pairs {
        if map.insert(pair.key.clone(), pair.value.clone().into()).is_some() {
            return Err(Failure::usage(format!("{} is given twice", pair.key), "give each key once"));
        }
    }
    Ok(map.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, release: u64) -> rows::Package {
        rows::Package {
            name: name.parse().unwrap(),
            version: version.into(),
            release,
            digest: selvedge_package::Digest::of(version.as_bytes()),
            size: 0,
            settings: serde_json::Value::Null,
            released_at: None,
        }
    }

    #[test]
    fn references_read_as_people_write_them() {
        for good in ["file-type", "file-type@1.0.0", "file-type@1.0.0-rc.1", "file-type@r3"] {
            assert_eq!(good.parse::<Reference>().unwrap().to_string(), good);
        }
        for bad in ["", "@", "a@", "a@r", "a@r0", "a@rx", "a@1", "A", "a@1.0.0@r1", "a@r-1"] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_release_that_is_meant_is_found_or_named() {
        let all = [
            package("a", "1.0.0", 1),
            package("a", "1.1.0", 2),
            package("a", "1.0.0", 3),
            package("b", "9.0.0", 9),
        ];
        for (text, release) in [("a", 3), ("a@r2", 2), ("a@1.0.0", 3), ("a@1.1.0", 2), ("b", 9)] {
            assert_eq!(text.parse::<Reference>().unwrap().resolve(&all).unwrap().release, release, "{text}");
        }
        let failure = "a@r7".parse::<Reference>().unwrap().resolve(&all).unwrap_err();
        assert!(failure.advice().unwrap().contains("1.1.0 (r2)"));
        assert!("c".parse::<Reference>().unwrap().resolve(&all).is_err());
    }

    #[test]
    fn pairs_are_keys_with_values() {
        let pairs: Vec<Pair> = ["a=1", "b=", "c=x=y"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(object(&pairs).unwrap(), serde_json::json!({"a": "1", "b": "", "c": "x=y"}));
        assert!("x".parse::<Pair>().is_err() && "=x".parse::<Pair>().is_err());
        assert!(object(&[pairs[0].clone(), pairs[0].clone()]).is_err());
    }
}
