//! Reading a selector. Every error names the character and what was expected there.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::{KEY, LONGEST, Number, Relation, SIZES, Selector, TERMS, Term, Test, VALUE, VALUES};

/// A selector that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Longer than any selector may be.
    #[error("it has {0} bytes; {LONGEST} are the most")]
    TooLong(usize),
    /// Nothing in it: whether that means all targets or none is not guessed.
    #[error("it is empty; `name` matches every target")]
    Empty,
    /// Something else stands there than was expected.
    #[error("character {column}: expected {expected}, found {found}")]
    Unexpected {
        /// Counted from 1.
        column: usize,
        /// What could stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// More of something than is allowed.
    #[error("character {column}: more than {limit} {what}")]
    TooMany {
        /// Counted from 1, where the first one too many begins.
        column: usize,
        /// The limit.
        limit: usize,
        /// Of what.
        what: &'static str,
    },
}

/// A character of a value without quotes.
pub(super) fn is_value(c: char) -> bool {
    is_key(c) || matches!(c, ':' | '+' | '@' | '~')
}

/// A character of a key.
pub(super) fn is_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/')
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.len() > LONGEST {
            return Err(SelectorError::TooLong(text.len()));
        }
        let mut reader = Reader { characters: text.chars().collect(), at: 0 };
        reader.space();
        if reader.peek().is_none() {
            return Err(SelectorError::Empty);
        }
        let mut terms = BTreeSet::new();
        loop {
            reader.space();
            reader.few(terms.len(), TERMS, "terms")?;
            terms.insert(reader.term()?);
            reader.space();
            match reader.peek() {
                None => return Ok(Self { terms: terms.into_iter().collect() }),
                Some(',') => reader.at += 1,
                Some(_) => return Err(reader.unexpected("`,` and another term, or the end")),
            }
        }
    }
}

struct Reader {
    characters: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        self.at += usize::from(there);
        there
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek().is_some_and(&belongs) {
            self.at += 1;
        }
        self.characters.get(start..self.at).unwrap_or_default().iter().collect()
    }

    fn unexpected(&self, expected: impl Into<String>) -> SelectorError {
        self.unexpected_at(self.at, expected)
    }

    fn unexpected_at(&self, at: usize, expected: impl Into<String>) -> SelectorError {
        let rest: String = self.characters.get(at..).unwrap_or_default().iter().take(20).collect();
        let found = match rest.is_empty() {
            true => "the end".to_owned(),
            false => format!("`{}`", rest.escape_debug()),
        };
        SelectorError::Unexpected { column: at + 1, expected: expected.into(), found }
    }

    fn few(&self, have: usize, limit: usize, what: &'static str) -> Result<(), SelectorError> {
        if have >= limit {
            return Err(SelectorError::TooMany { column: self.at + 1, limit, what });
        }
        Ok(())
    }

    fn term(&mut self) -> Result<Term, SelectorError> {
        let missing = self.take('!');
        self.space();
        let start = self.at;
        let key = self.word(is_key);
        if key.is_empty() {
            return Err(self.unexpected("a key such as `site`, `arch` or `ram`"));
        }
        if key.len() > KEY {
            return Err(self.unexpected_at(start, format!("a key of at most {KEY} characters")));
        }
        if missing {
            return Ok(Term { key, test: Test::Missing });
        }
        self.space();
        let test = self.test(&key)?;
        Ok(Term { key, test })
    }

    fn test(&mut self, key: &str) -> Result<Test, SelectorError> {
        let start = self.at;
        match self.peek() {
            None | Some(',') => Ok(Test::Exists),
            Some('=') => {
                self.at += 1;
                self.take('=');
                Ok(Test::In(vec![self.value()?]))
            }
            Some('!') => {
                self.at += 1;
                if !self.take('=') {
                    return Err(self.unexpected("`=` behind `!`"));
                }
                Ok(Test::NotIn(vec![self.value()?]))
            }
            Some(less_or_more @ ('<' | '>')) => {
                self.at += 1;
                let relation = match (less_or_more, self.take('=')) {
                    ('<', false) => Relation::Less,
                    ('<', true) => Relation::LessOrEqual,
                    (_, false) => Relation::More,
                    (_, true) => Relation::MoreOrEqual,
                };
                Ok(Test::Compare(relation, self.number(key)?))
            }
            Some(_) => match self.word(is_key).as_str() {
                "in" => Ok(Test::In(self.list()?)),
                "notin" => Ok(Test::NotIn(self.list()?)),
                _ => Err(self
                    .unexpected_at(start, "one of `=`, `!=`, `in`, `notin`, `<`, `<=`, `>`, `>=`, or a `,`")),
            },
        }
    }

    fn number(&mut self, key: &str) -> Result<Number, SelectorError> {
        self.space();
        let start = self.at;
        let word = self.word(is_value);
        let Some(number) = Number::parse(&word) else {
            return Err(self.unexpected_at(
                start,
                "a number such as `4`, `1.5`, `2k` or `512MiB` (at most 15 digits and 3 decimals)",
            ));
        };
        if SIZES.iter().any(|(size, _)| *size == key) && !number.has_unit() {
            return Err(self.unexpected_at(start, format!("a size with its unit, such as `{word}MiB`")));
        }
        Ok(number)
    }

    fn list(&mut self) -> Result<Vec<String>, SelectorError> {
        self.space();
        if !self.take('(') {
            return Err(self.unexpected("`(` and a list such as `(oslo, bergen)`"));
        }
        let mut values = BTreeSet::new();
        loop {
            self.few(values.len(), VALUES, "values in a list")?;
            values.insert(self.value()?);
            self.space();
            if self.take(')') {
                return Ok(values.into_iter().collect());
            }
            if !self.take(',') {
                return Err(self.unexpected("`,` and another value, or `)`"));
            }
        }
    }

    fn value(&mut self) -> Result<String, SelectorError> {
        self.space();
        let start = self.at;
        let value = if self.take('"') { self.quoted()? } else { self.word(is_value) };
        if self.at == start {
            return Err(self.unexpected("a value, in double quotes where it has spaces or signs"));
        }
        if value.chars().count() > VALUE {
            return Err(self.unexpected_at(start, format!("a value of at most {VALUE} characters")));
        }
        Ok(value)
    }

    fn quoted(&mut self) -> Result<String, SelectorError> {
        let mut value = String::new();
        loop {
            let escaped = self.take('\\');
            match self.peek() {
                Some(c @ ('"' | '\\')) if escaped => value.push(c),
                _ if escaped => return Err(self.unexpected("`\"` or `\\` behind `\\`")),
                None => return Err(self.unexpected("the closing `\"`")),
                Some('"') => {
                    self.at += 1;
                    return Ok(value);
                }
                Some(c) if c.is_control() => return Err(self.unexpected("no control character")),
                Some(c) => value.push(c),
            }
            self.at += 1;
        }
    }
}
