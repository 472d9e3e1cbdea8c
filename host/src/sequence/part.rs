//! What a request says of its sequence: parameters `sequence_id`, `sequence_start` and `sequence_end`, as
//! Triton has them.

use std::fmt;

use crate::oip::refusal::Refusal;
use crate::oip::request::{Parameter, Parameters};
use crate::sandbox::output::one_line;

/// Longest id, in bytes: as many as Triton takes.
const ID_BYTES: usize = 128;

/// The name of a sequence. A number and its digits are two names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// From 1 up.
    Number(u64),
    /// Not empty.
    Text(String),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// A request's place in its sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The sequence.
    pub id: Id,
    /// It begins the sequence, anew where there is one of this id.
    pub first: bool,
    /// It ends it.
    pub last: bool,
}

impl Part {
    /// What `parameters` say. `None`: the request stands alone, as it does with the id 0 or an empty one.
    pub fn of(parameters: &Parameters) -> Result<Option<Self>, Refusal> {
        let id = id(parameters)?;
        let (first, last) = (flag(parameters, "sequence_start")?, flag(parameters, "sequence_end")?);
        match id {
            Some(id) => Ok(Some(Self { id, first, last })),
            None if first => Err(no_id("sequence_start")),
            None if last => Err(no_id("sequence_end")),
            None => Ok(None),
        }
    }

    /// The id as a line of a message can have it.
    pub fn id_in_words(&self) -> String {
        one_line(&self.id.to_string()).into_owned()
    }
}

fn id(parameters: &Parameters) -> Result<Option<Id>, Refusal> {
    const NAME: &str = "sequence_id";
    match parameters.get(NAME) {
        None | Some(Parameter::Boolean(false) | Parameter::Integer(0)) => Ok(None),
        Some(Parameter::Text(text)) if text.is_empty() => Ok(None),
        Some(Parameter::Text(text)) if text.len() > ID_BYTES => {
            Err(Refusal::Parameter { name: NAME, problem: "a text has at most 128 bytes" })
        }
        Some(Parameter::Text(text)) => Ok(Some(Id::Text(text.clone()))),
        Some(Parameter::Integer(number)) if *number > 0 => Ok(Some(Id::Number(number.unsigned_abs()))),
        Some(Parameter::Unsigned(number)) => Ok(Some(Id::Number(*number))),
        Some(_) => Err(Refusal::Parameter {
            name: NAME,
            problem: "it has to be a whole number from 0 to 2^64 - 1, or a text",
        }),
    }
}

fn flag(parameters: &Parameters, name: &'static str) -> Result<bool, Refusal> {
    match parameters.get(name) {
        None => Ok(false),
        Some(Parameter::Boolean(value)) => Ok(*value),
        Some(_) => Err(Refusal::Parameter { name, problem: "it has to be `true` or `false`" }),
    }
}

fn no_id(name: &'static str) -> Refusal {
    Refusal::Parameter { name, problem: "it needs a `sequence_id` that is not 0 and not empty" }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Parameter = Parameter::Boolean(true);
    const NO: Parameter = Parameter::Boolean(false);

    fn part(parameters: &[(&str, Parameter)]) -> Result<Option<Part>, String> {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Part::of(&parameters).map_err(|refusal| refusal.to_string())
    }

    fn text(text: &str) -> Parameter {
        Parameter::Text(text.to_owned())
    }

    #[test]
    fn an_id_is_a_number_or_a_text() {
        let check = |value: Parameter, id: Option<Id>| {
            let found = part(&[("sequence_id", value.clone())]).unwrap();
            assert_eq!(found.map(|part| part.id), id, "{value:?}");
        };
        check(Parameter::Integer(7), Some(Id::Number(7)));
        check(Parameter::Unsigned(u64::MAX), Some(Id::Number(u64::MAX)));
        check(text("7"), Some(Id::Text("7".to_owned())));
        check(text(&"x".repeat(ID_BYTES)), Some(Id::Text("x".repeat(ID_BYTES))));
        for none in [Parameter::Integer(0), text(""), Parameter::Boolean(false)] {
            check(none, None);
        }
        assert_eq!(part(&[]), Ok(None));
    }

    #[test]
    fn both_ends_are_told() {
        let id = ("sequence_id", Parameter::Integer(1));
        let both = [id.clone(), ("sequence_start", YES), ("sequence_end", YES)];
        assert_eq!(part(&both).unwrap(), Some(Part { id: Id::Number(1), first: true, last: true }));
        let neither = [id, ("sequence_start", NO)];
        assert_eq!(part(&neither).unwrap(), Some(Part { id: Id::Number(1), first: false, last: false }));
        // As clients write that they want none.
        assert_eq!(part(&[("sequence_id", Parameter::Integer(0)), ("sequence_end", NO)]), Ok(None));
    }

    #[test]
    fn what_is_neither_is_refused_by_its_name() {
        let check = |parameters: &[(&str, Parameter)], says: &str| {
            let error = part(parameters).expect_err(says);
            assert!(error.contains(says), "{error}");
        };
        for value in [Parameter::Integer(-1), Parameter::Number(1.5), Parameter::Boolean(true)] {
            check(&[("sequence_id", value)], "`sequence_id`: it has to be a whole number");
        }
        check(&[("sequence_id", text(&"x".repeat(ID_BYTES + 1)))], "at most 128 bytes");
        check(&[("sequence_start", YES)], "`sequence_start`: it needs a `sequence_id`");
        check(&[("sequence_id", Parameter::Integer(0)), ("sequence_end", YES)], "`sequence_end`: it needs");
        let id = ("sequence_id", Parameter::Integer(1));
        check(&[id, ("sequence_start", text("true"))], "`sequence_start`: it has to be `true` or `false`");
    }

    #[test]
    fn an_id_in_a_message_ends_no_line() {
        let part = Part { id: Id::Text("a\nb".to_owned()), first: false, last: false };
        assert_eq!(part.id_in_words(), "a\\nb");
    }
}
