//! A look into an ONNX file without ONNX Runtime: which external data does it name?
//!
//! ONNX Runtime opens whatever path a model names, so the host looks first. Every tensor is visited,
//! wherever the format allows one, and every location counts, whether or not the tensor says that it
//! uses it. A file that is not plain protobuf is refused, the `.ort` format with it.

use std::collections::BTreeSet;

use crate::protobuf::{Fault, Fields, Value};

/// Depth of messages within messages: a graph, a node, its attribute, a graph in that, and so on.
const DEPTH: usize = 64;
/// Different names of external data.
const LOCATIONS: usize = 1000;
/// Bytes of one name.
const LOCATION_BYTES: usize = 4096;

/// A file that is no ONNX model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    /// Not protobuf, or cut off.
    #[error("it is not an ONNX file: {0}, at byte {1}")]
    Protobuf(Fault, usize),
    /// Protobuf, but no graph in it.
    #[error("it is not an ONNX file: it has no graph")]
    NoGraph,
    /// ONNX Runtime's own format.
    #[error("it is in ONNX Runtime's own format (.ort); package the ONNX file")]
    OrtFormat,
    /// Too deep.
    #[error("its messages are nested more than {DEPTH} deep")]
    Depth,
    /// Too many, or too long.
    #[error(
        "it names more than {LOCATIONS} files of external data, or one of more than {LOCATION_BYTES} bytes"
    )]
    Locations,
    /// A name that is not text.
    #[error("it names external data that is not UTF-8")]
    NotText,
}

/// Every location of external data that the model names, relative to the model's own directory.
pub fn external_data(model: &[u8]) -> Result<BTreeSet<String>, OnnxError> {
    if model.get(4..8) == Some(b"ORTM") {
        return Err(OnnxError::OrtFormat);
    }
    let (mut found, mut graphs) = (BTreeSet::new(), 0);
    each(model, 0, |number, bytes, at| {
        match number {
            7 => {
                graphs += 1;
                graph(bytes, at, DEPTH, &mut found)
            }
            // `training_info`: two graphs. `functions`: nodes, and default attributes.
            20 => visit(bytes, at, DEPTH, &mut found, |field| match field {
                1 | 2 => Some(graph as Visitor),
                _ => None,
            }),
            25 => visit(bytes, at, DEPTH, &mut found, |field| match field {
                7 => Some(node as Visitor),
                11 => Some(attribute as Visitor),
                _ => None,
            }),
            _ => Ok(()),
        }
    })?;
    if graphs == 0 { Err(OnnxError::NoGraph) } else { Ok(found) }
}

/// Goes through those fields of a message that are bytes, and says where those begin in the file. A number
/// in the place of a message is left: ONNX Runtime takes it for a field that it does not know.
fn each<'a>(
    message: &'a [u8],
    at: usize,
    mut look: impl FnMut(u32, &'a [u8], usize) -> Result<(), OnnxError>,
) -> Result<(), OnnxError> {
    let mut fields = Fields::within(message, at);
    while let Some(field) = fields.next() {
        match field.map_err(|fault| OnnxError::Protobuf(fault, fields.at()))? {
            (number, Value::Bytes(bytes)) => look(number, bytes, fields.at() - bytes.len())?,
            (_, Value::Number(_) | Value::Narrow(_) | Value::Wide(_)) => {}
        }
    }
    Ok(())
}

type Found = BTreeSet<String>;
type Visitor = fn(&[u8], usize, usize, &mut Found) -> Result<(), OnnxError>;

/// Goes through a message's fields and into those that `inside` knows.
fn visit(
    bytes: &[u8],
    at: usize,
    depth: usize,
    found: &mut Found,
    inside: impl Fn(u32) -> Option<Visitor>,
) -> Result<(), OnnxError> {
    let depth = depth.checked_sub(1).ok_or(OnnxError::Depth)?;
    each(bytes, at, |number, bytes, at| match inside(number) {
        Some(visitor) => visitor(bytes, at, depth, found),
        None => Ok(()),
    })
}

fn graph(bytes: &[u8], at: usize, depth: usize, found: &mut Found) -> Result<(), OnnxError> {
    visit(bytes, at, depth, found, |field| match field {
        1 => Some(node as Visitor),
        5 => Some(tensor as Visitor),
        15 => Some(sparse_tensor as Visitor),
        _ => None,
    })
}

fn node(bytes: &[u8], at: usize, depth: usize, found: &mut Found) -> Result<(), OnnxError> {
    visit(bytes, at, depth, found, |field| (field == 5).then_some(attribute as Visitor))
}

fn attribute(bytes: &[u8], at: usize, depth: usize, found: &mut Found) -> Result<(), OnnxError> {
    visit(bytes, at, depth, found, |field| match field {
        5 | 10 => Some(tensor as Visitor),
        6 | 11 => Some(graph as Visitor),
        22 | 23 => Some(sparse_tensor as Visitor),
        _ => None,
    })
}

fn sparse_tensor(bytes: &[u8], at: usize, depth: usize, found: &mut Found) -> Result<(), OnnxError> {
    visit(bytes, at, depth, found, |field| matches!(field, 1 | 2).then_some(tensor as Visitor))
}

fn tensor(bytes: &[u8], at: usize, depth: usize, found: &mut Found) -> Result<(), OnnxError> {
    visit(bytes, at, depth, found, |field| (field == 13).then_some(entry as Visitor))
}

/// A key and a value of a tensor's `external_data`.
fn entry(bytes: &[u8], at: usize, _: usize, found: &mut Found) -> Result<(), OnnxError> {
    let (mut is_location, mut location) = (false, None);
    each(bytes, at, |number, bytes, _| {
        match number {
            // A repeated scalar's last value counts for a reader; here any `location` makes it one.
            1 => is_location |= bytes == b"location",
            2 => location = Some(bytes),
            _ => {}
        }
        Ok(())
    })?;
    let (true, Some(location)) = (is_location, location) else {
        return Ok(());
    };
    if location.len() > LOCATION_BYTES {
        return Err(OnnxError::Locations);
    }
    found.insert(std::str::from_utf8(location).map_err(|_| OnnxError::NotText)?.to_owned());
    // Many tensors may lie in one file.
    if found.len() > LOCATIONS { Err(OnnxError::Locations) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::Message;

    /// A model whose tensors lie in files of these names.
    fn model(names: impl IntoIterator<Item = String>) -> Vec<u8> {
        let mut model = Message::default();
        model.message(7, |graph| {
            for name in names {
                graph.message(5, |tensor| {
                    tensor.message(13, |entry| {
                        entry.bytes(1, "location").bytes(2, name);
                    });
                });
            }
        });
        model.into_bytes()
    }

    #[test]
    fn names_are_counted_and_not_the_tensors_that_have_them() {
        let names = |count: usize| (0..count).map(|name| name.to_string());
        let twice = external_data(&model(names(LOCATIONS).chain(names(LOCATIONS)))).unwrap();
        assert_eq!(twice.len(), LOCATIONS);
        assert_eq!(external_data(&model(names(LOCATIONS + 1))), Err(OnnxError::Locations));
        assert!(external_data(&model(["a".repeat(LOCATION_BYTES)])).is_ok());
        assert_eq!(external_data(&model(["a".repeat(LOCATION_BYTES + 1)])), Err(OnnxError::Locations));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let check = |bytes: &[u8], says: &str| {
            assert_eq!(
                external_data(bytes).unwrap_err().to_string(),
                format!("it is not an ONNX file: {says}")
            );
        };
        check(b"", "it has no graph");
        check(&[8, 8, 0x3a, 5, 0x2a], "field 7 goes past the end of its message, at byte 4");
        // A graph, in it a tensor, in that external data that is longer than it.
        check(&[8, 8, 0x3a, 4, 0x2a, 2, 0x6a, 5], "field 13 goes past the end of its message, at byte 8");
        check(
            &[0x3a, 3, 0x2a, 1, 0x0b],
            "field 1 is of a kind that protobuf does not have any more, at byte 5",
        );
    }
}
