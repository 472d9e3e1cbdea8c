//! Which targets a deployment is for: terms over labels and facts, a comma is "and". Pure.
//!
//! Written by people, so that an error says at which character what was expected; limited before it
//! is parsed. Two selectors that say the same in another order are the same selector: terms and lists
//! are sorted, and the text that [`Selector`] shows is the one that is stored and compared.

mod number;
mod parse;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

pub use number::Number;
pub use parse::SelectorError;

/// Longest selector in bytes: stops parsing without end.
pub const LONGEST: usize = 1024;
/// Most terms: stops a selector that is slow to match against every target.
pub const TERMS: usize = 16;
/// Most values of a list.
pub const VALUES: usize = 32;
/// Longest key in characters, as for labels.
pub const KEY: usize = 63;
/// Longest value in characters, as for labels.
pub const VALUE: usize = 255;

/// A fact that falls while a package is installed: a term over it does not uninstall.
const VOLATILE: [&str; 2] = ["disk", "disk-free-mib"];
/// Keys that want sizes with a unit, with the fact that they stand for.
const SIZES: [(&str, &str); 2] = [("ram", "memory-mib"), ("disk", "disk-free-mib")];
/// Short names of facts.
const SHORT: [(&str, &str); 1] = [("arch", "architecture")];
/// Facts whose name ends so count MiB.
const MIB: &str = "-mib";

/// A selector in its canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    terms: Vec<Term>,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// A label, `name`, `kind`, or a fact.
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Exists,
    Missing,
    /// One of these: one or more, sorted.
    In(Vec<String>),
    /// None of these: one or more, sorted. What lacks the key matches.
    NotIn(Vec<String>),
    Compare(Relation, Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Relation {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

/// What a target is, as far as selectors see it.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// Set by people; they win.
    pub labels: &'a BTreeMap<String, String>,
    /// As the device reported them.
    pub facts: &'a BTreeMap<String, String>,
}

/// Whether a target matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match<'a> {
    /// Every term holds.
    Yes,
    /// All hold but this one, which is about free disk.
    NoRoom(&'a Term),
    /// This one does not hold.
    No(&'a Term),
}

impl Selector {
    /// Whether a target matches, or the term that does not.
    pub fn matches(&self, target: &Attributes<'_>) -> Match<'_> {
        let mut room = Match::Yes;
        for term in &self.terms {
            if term.holds(target) {
                continue;
            }
            if !term.about_disk(target) {
                return Match::No(term);
            }
            room = Match::NoRoom(term);
        }
        room
    }

    /// Every key that is asked for, once.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.terms.iter().map(|term| term.key.as_str()).filter(move |key| {
            let new = last != Some(*key);
            last = Some(*key);
            new
        })
    }
}

impl Term {
    fn holds(&self, target: &Attributes<'_>) -> bool {
        let value = target.get(&self.key);
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::In(wanted) => value.is_some_and(|value| wanted.iter().any(|wanted| *wanted == value)),
            Test::NotIn(unwanted) => {
                value.is_none_or(|value| unwanted.iter().all(|unwanted| *unwanted != value))
            }
            Test::Compare(relation, wanted) => {
                let Some(has) = value.and_then(|value| Number::parse(&value)) else {
                    return false;
                };
                // `memory-mib >= 1GiB`: the fact's unit is in its name.
                let has = match self.key.ends_with(MIB) && wanted.has_unit() {
                    true => has.in_mib(),
                    false => has,
                };
                match relation {
                    Relation::Less => has.value() < wanted.value(),
                    Relation::LessOrEqual => has.value() <= wanted.value(),
                    Relation::More => has.value() > wanted.value(),
                    Relation::MoreOrEqual => has.value() >= wanted.value(),
                }
            }
        }
    }

    /// Whether this is about the device's free disk, and not about a label of that name.
    fn about_disk(&self, target: &Attributes<'_>) -> bool {
        VOLATILE.contains(&self.key.as_str()) && !target.labels.contains_key(&self.key)
    }

    /// Why the term does not hold, for people.
    pub fn why_not(&self, target: &Attributes<'_>) -> String {
        match target.get(&self.key) {
            Some(value) => {
                format!("`{self}` does not hold: its `{}` is `{}`", self.key, shown(&value))
            }
            None => format!("`{self}` does not hold: it has no `{}`", self.key),
        }
    }
}

impl<'a> Attributes<'a> {
    /// The value of a key: of a label, else of what the registry knows, else of a fact.
    fn get(&self, key: &str) -> Option<Cow<'a, str>> {
        if let Some(label) = self.labels.get(key) {
            return Some(Cow::Borrowed(label));
        }
        match key {
            "name" => return Some(Cow::Borrowed(self.name)),
            "kind" => return Some(Cow::Borrowed(self.kind)),
            _ => {}
        }
        if let Some((_, fact)) = SIZES.iter().find(|(size, _)| *size == key) {
            return self.facts.get(*fact).map(|mib| Cow::Owned(format!("{mib}MiB")));
        }
        let short = SHORT.iter().find(|(short, _)| *short == key).map(|(_, fact)| *fact);
        self.facts.get(key).or_else(|| self.facts.get(short?)).map(|fact| Cow::Borrowed(fact.as_str()))
    }

    /// Whether it has the key.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Every key that it has and that a selector can name, short names too.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let facts = self.facts;
        let shorter = SIZES.iter().chain(&SHORT).filter(move |(_, fact)| facts.contains_key(*fact));
        let own = self.labels.keys().chain(facts.keys()).map(String::as_str);
        let own = own.filter(|key| key.len() <= KEY && key.chars().all(parse::is_key));
        own.chain(["name", "kind"]).chain(shorter.map(|(short, _)| *short))
    }
}

/// A value as a sentence shows it: devices tell facts, and must not reach a person's terminal.
pub fn shown(value: &str) -> String {
    value.chars().take(VALUE).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.test {
            Test::Exists => write!(f, "{key}"),
            Test::Missing => write!(f, "!{key}"),
            Test::In(values) => match values.as_slice() {
                [value] => write!(f, "{key} = {}", Written(value)),
                values => write!(f, "{key} in ({})", List(values)),
            },
            Test::NotIn(values) => match values.as_slice() {
                [value] => write!(f, "{key} != {}", Written(value)),
                values => write!(f, "{key} notin ({})", List(values)),
            },
            Test::Compare(relation, number) => write!(f, "{key} {relation} {number}"),
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::More => ">",
            Self::MoreOrEqual => ">=",
        })
    }
}

/// A value as it is written: in quotes where it must be.
struct Written<'a>(&'a str);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.chars().all(parse::is_value) {
            return f.write_str(self.0);
        }
        f.write_str("\"")?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\') {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        f.write_str("\"")
    }
}

struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, value) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}", Written(value))?;
        }
        Ok(())
    }
}
