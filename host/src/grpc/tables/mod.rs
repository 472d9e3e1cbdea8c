//! Answers about the server and its models, as messages: what REST answers in JSON, told in protobuf by a
//! table of names and numbers. So both say the same; a name that no table has is a failing test.

mod messages;
#[cfg(test)]
mod tests;

pub use messages::{CONFIG, INDEX, LIVE, MODEL, MODEL_READY, READY, SERVER, STATISTICS};
use serde_json::Value;

use crate::protobuf::Message;

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    name: &'static str,
    number: u32,
    kind: Kind,
}

/// What a field holds; a list of it is written as a list.
#[derive(Debug)]
enum Kind {
    Text,
    /// A whole number or a boolean.
    Number,
    /// One of these words, written as the number of its place.
    Word(&'static [&'static str]),
    Message(&'static [Field]),
    /// A map from text to messages.
    Map(&'static [Field]),
    /// A map from text to text: values that are no text as JSON writes them.
    Texts,
    /// Nothing: REST alone says it.
    Left,
}

/// Writes an object as the message of a table. What a table does not have, or has otherwise, is left out.
pub fn message(table: &[Field], value: &Value) -> Message {
    let mut message = Message::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        if let Some(field) = table.iter().find(|field| field.name == name) {
            write(field, value, &mut message);
        }
    }
    message
}

fn write(field: &Field, value: &Value, message: &mut Message) {
    let number = field.number;
    match (&field.kind, value) {
        (Kind::Number, Value::Array(values)) => {
            message.packed(number, values.iter().filter_map(whole));
        }
        (_, Value::Array(values)) => values.iter().for_each(|value| one(field, value, message)),
        (Kind::Text, Value::String(text)) => {
            message.bytes(number, text);
        }
        (Kind::Number, value) => {
            message.number(number, whole(value).unwrap_or_default());
        }
        (Kind::Word(words), Value::String(word)) => {
            let place = words.iter().position(|known| known == word).unwrap_or_default();
            message.number(number, place as u64);
        }
        _ => one(field, value, message),
    }
}

/// Writes one of a list, or a message, which are there even when they say nothing.
fn one(field: &Field, value: &Value, message: &mut Message) {
    let number = field.number;
    match (&field.kind, value) {
        (Kind::Text, Value::String(text)) => {
            message.part(number, text);
        }
        (Kind::Message(table), Value::Object(_)) => {
            message.part(number, self::message(table, value));
        }
        (Kind::Map(table), Value::Object(entries)) => {
            for (key, value) in entries {
                message.message(number, |entry| {
                    entry.bytes(1, key).part(2, self::message(table, value));
                });
            }
        }
        (Kind::Texts, Value::Object(entries)) => {
            for (key, value) in entries {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                message.message(number, |entry| {
                    entry.bytes(1, key).bytes(2, text);
                });
            }
        }
        _ => {}
    }
}

/// A whole number as a varint: a negative one with all bits of its sign.
fn whole(value: &Value) -> Option<u64> {
    let signed = || value.as_i64().map(i64::cast_unsigned);
    value.as_u64().or_else(signed).or_else(|| value.as_bool().map(u64::from))
}
