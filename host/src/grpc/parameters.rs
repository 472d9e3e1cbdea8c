//! Parameters in messages (`map<string, InferParameter>`), both ways.

use super::Wrong;
use crate::oip::refusal::Refusal;
use crate::oip::request::{Limits, Parameter, Parameters};
use crate::protobuf::{Fields, Message, Value};

/// Whose parameters they are.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// The request's.
    Request,
    /// An input's.
    Input,
    /// Those of the output asked for at this place.
    Output(usize),
}

/// Adds the entry of a map.
pub fn parameters(
    parameters: &mut Parameters,
    value: Value<'_>,
    place: Place,
    limits: &Limits,
) -> Result<(), Refusal> {
    if parameters.len() == limits.parameters {
        return Err(Refusal::TooMany { what: "parameters", limit: limits.parameters });
    }
    let (key, value) = entry(value, limits).map_err(|wrong| match place {
        Place::Output(index) => {
            Refusal::Tensor { what: "output", index, name: None, problem: format!("a parameter: {wrong}") }
        }
        Place::Request | Place::Input => Refusal::Message(format!("a parameter: {wrong}")),
    })?;
    if parameters.insert(key.to_owned(), value).is_some() {
        return Err(Refusal::Twice { what: "parameter", name: key.to_owned() });
    }
    Ok(())
}

fn entry<'a>(value: Value<'a>, limits: &Limits) -> Result<(&'a str, Parameter), Wrong> {
    // Of a field that comes again the last one counts, and only that is made.
    let (mut key, mut last) = ("", None);
    for field in Fields::new(value.bytes()?) {
        match field? {
            (1, value) => key = value.text(limits.name_bytes)?,
            (2, value) => last = Some(value.bytes()?),
            _ => {}
        }
    }
    let value = last.map_or(Ok(None), parameter)?;
    let value = value.ok_or_else(|| format!("`{key}` has no value, or one of an unknown kind"))?;
    Ok((key, value))
}

/// The value that an `InferParameter` has chosen, the last one if several are there.
fn parameter(message: &[u8]) -> Result<Option<Parameter>, Wrong> {
    let mut chosen = None;
    for field in Fields::new(message) {
        let (number, value) = field?;
        if (1..=5).contains(&number) {
            chosen = Some((number, value));
        }
    }
    Ok(Some(match chosen {
        None => return Ok(None),
        Some((1, value)) => Parameter::Boolean(value.number()? != 0),
        Some((2, value)) => Parameter::Integer(value.number()?.cast_signed()),
        // What its text may take is bounded by what may stand beside elements.
        Some((3, value)) => Parameter::Text(value.text(usize::MAX)?.to_owned()),
        Some((4, Value::Wide(bytes))) => match f64::from_le_bytes(bytes) {
            number if number.is_finite() => Parameter::Number(number),
            _ => return Err("a number that is not finite".to_owned()),
        },
        Some((4, _)) => return Err("a double of another length".to_owned()),
        Some((_, value)) => match value.number()? {
            number if i64::try_from(number).is_ok() => Parameter::Integer(number.cast_signed()),
            number => Parameter::Unsigned(number),
        },
    }))
}

/// Writes them as the map `field` of a message.
pub fn write(parameters: &Parameters, field: u32, message: &mut Message) {
    for (key, value) in parameters {
        message.message(field, |entry| {
            entry.bytes(1, key).message(2, |chosen| match value {
                Parameter::Boolean(value) => chosen.chosen_number(1, u64::from(*value)),
                Parameter::Integer(value) => chosen.chosen_number(2, value.cast_unsigned()),
                Parameter::Unsigned(value) => chosen.chosen_number(5, *value),
                Parameter::Text(value) => {
                    chosen.part(3, value);
                }
                Parameter::Number(value) => chosen.chosen_double(4, *value),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Parameters, Refusal> {
        let mut found = Parameters::new();
        for field in Fields::new(message) {
            parameters(&mut found, field.unwrap().1, Place::Request, &Limits::for_package(1))?;
        }
        Ok(found)
    }

    #[test]
    fn every_kind_comes_back() {
        let all = Parameters::from([
            ("a".to_owned(), Parameter::Boolean(false)),
            ("b".to_owned(), Parameter::Integer(-1)),
            ("c".to_owned(), Parameter::Text(String::new())),
            ("d".to_owned(), Parameter::Number(0.0)),
        ]);
        let mut message = Message::default();
        write(&all, 4, &mut message);
        assert_eq!(read(message.as_ref()), Ok(all));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |number: u32, write: &dyn Fn(&mut Message), says: &str| {
            let mut message = Message::default();
            for _ in 0..number {
                message.message(4, |entry| {
                    entry.bytes(1, "a").message(2, |chosen| write(chosen));
                });
            }
            match read(message.as_ref()) {
                Ok(found) => assert_eq!(format!("{:?}", found["a"]), says),
                Err(refusal) => assert!(refusal.to_string().contains(says), "{refusal}"),
            }
        };
        check(1, &|chosen| chosen.chosen_number(5, 7), "Integer(7)");
        check(1, &|chosen| chosen.chosen_number(5, u64::MAX), "Unsigned(18446744073709551615)");
        check(1, &|chosen| chosen.chosen_double(4, f64::NAN), "not finite");
        check(1, &|chosen| chosen.chosen_number(4, 1), "another length");
        check(1, &|chosen| chosen.chosen_number(9, 1), "`a` has no value");
        check(
            1,
            &|chosen| {
                chosen.part(3, b"\xff");
            },
            "not UTF-8",
        );
        let both = |chosen: &mut Message| {
            chosen.part(3, "a").part(3, "b");
        };
        check(1, &both, r#"Text("b")"#);
        check(2, &|chosen| chosen.chosen_number(1, 1), "parameter `a` comes twice");
        let mut many = Message::default();
        for key in 0..65 {
            many.message(4, |entry| {
                entry.bytes(1, key.to_string()).message(2, |chosen| chosen.chosen_number(1, 1));
            });
        }
        assert!(read(many.as_ref()).unwrap_err().to_string().contains("more than 64 parameters"));
    }
}
