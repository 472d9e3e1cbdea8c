//! ONNX files, into which the host looks for external data before ONNX Runtime sees them.
//!
//! What it finds is held against a reader of its own, which knows a list of places and no functions for them,
//! and against models of which it is known what they name, as they were written for it.

use std::collections::BTreeSet;

use selvedge_host::onnx::{OnnxError, external_data};
use selvedge_host::protobuf::Message;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    Sparse,
    Tensor,
    Entry,
}

/// Which field of which message holds a message that may lead to a name. Of those that hold the same the first one
/// is nearest to the model.
const PLACES: [(Kind, u32, Kind); 20] = [
    (Kind::Model, 7, Kind::Graph),
    (Kind::Model, 20, Kind::Training),
    (Kind::Model, 25, Kind::Function),
    (Kind::Training, 1, Kind::Graph),
    (Kind::Training, 2, Kind::Graph),
    (Kind::Graph, 1, Kind::Node),
    (Kind::Function, 7, Kind::Node),
    (Kind::Node, 5, Kind::Attribute),
    (Kind::Function, 11, Kind::Attribute),
    (Kind::Graph, 5, Kind::Tensor),
    (Kind::Graph, 15, Kind::Sparse),
    (Kind::Attribute, 5, Kind::Tensor),
    (Kind::Attribute, 10, Kind::Tensor),
    (Kind::Attribute, 6, Kind::Graph),
    (Kind::Attribute, 11, Kind::Graph),
    (Kind::Attribute, 22, Kind::Sparse),
    (Kind::Attribute, 23, Kind::Sparse),
    (Kind::Sparse, 1, Kind::Tensor),
    (Kind::Sparse, 2, Kind::Tensor),
    (Kind::Tensor, 13, Kind::Entry),
];

/// Deepest message, most names, longest name.
const DEEPEST: usize = 64;
const MOST: usize = 1000;
const LONGEST: usize = 4096;

/// A file. Its bytes also choose the place of a name in a model that is written.
pub fn check(bytes: &[u8]) {
    let found = external_data(bytes);
    match (&found, twin(bytes)) {
        (Ok(found), Some(twin)) => {
            assert_eq!(found, &twin);
            assert!(found.iter().map(String::len).sum::<usize>() <= bytes.len());
        }
        (Err(error), None) => assert!(error.to_string().len() <= 200),
        (found, twin) => panic!("{found:?}, and {twin:?} is there"),
    }
    // A message behind a message is one with the fields of both, and one that nobody knows changes nothing.
    let mut unknown = Message::default();
    unknown.part(1000, "?").number(1001, u64::MAX);
    let unknown = unknown.into_bytes();
    if found.is_ok() {
        assert_eq!(external_data(&[bytes, bytes].concat()), found);
        assert_eq!(external_data(&[bytes, &unknown].concat()), found);
    }
    // In front it may stand where the other format has its mark, but for that.
    if found != Err(OnnxError::OrtFormat) {
        assert_eq!(external_data(&[&unknown, bytes].concat()).is_ok(), found.is_ok());
    }
    check_written(bytes);
}

/// What a file names; `None` where it is no model, or names too much.
fn twin(file: &[u8]) -> Option<BTreeSet<String>> {
    if file.get(4..8) == Some(b"ORTM") {
        return None;
    }
    let mut names = BTreeSet::new();
    let mut graphs = 0;
    let mut left = vec![(Kind::Model, 0, file)];
    while let Some((kind, depth, mut message)) = left.pop() {
        if depth > DEEPEST && kind != Kind::Entry {
            return None;
        }
        let (mut key, mut value) = (false, None);
        while !message.is_empty() {
            let tag = number(&mut message)?;
            let field = u32::try_from(tag >> 3).ok().filter(|field| (1..1 << 29).contains(field))?;
            let length = match tag & 7 {
                0 => {
                    number(&mut message)?;
                    continue;
                }
                1 => 8,
                2 => usize::try_from(number(&mut message)?).ok()?,
                5 => 4,
                _ => return None,
            };
            let (bytes, rest) = message.split_at_checked(length)?;
            message = rest;
            if tag & 7 != 2 {
                continue;
            }
            graphs += usize::from(kind == Kind::Model && field == 7);
            key |= field == 1 && bytes == b"location";
            value = if field == 2 { Some(bytes) } else { value };
            let inner = PLACES.iter().find(|(outer, place, _)| (*outer, *place) == (kind, field));
            left.extend(inner.map(|(_, _, inner)| (*inner, depth + 1, bytes)));
        }
        if let (Kind::Entry, true, Some(name)) = (kind, key, value) {
            let name = String::from_utf8(name.to_vec()).ok().filter(|name| name.len() <= LONGEST)?;
            names.insert(name);
        }
    }
    (graphs > 0 && names.len() <= MOST).then_some(names)
}

/// A number of up to 64 bits.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let length = bytes.iter().position(|byte| *byte < 0x80)? + 1;
    let (digits, rest) = bytes.split_at(length);
    *bytes = rest;
    let whole = digits
        .iter()
        .rev()
        .try_fold(0_u128, |whole, digit| (length <= 10).then_some(whole << 7 | u128::from(digit & 0x7f)));
    whole.and_then(|whole| u64::try_from(whole).ok())
}

/// Wherever a name stands, it is found, unless that is too deep.
fn check_written(choices: &[u8]) {
    const NAME: &str = "elsewhere";
    let mut message = Message::default();
    message.message(13, |entry| {
        entry.bytes(1, "location").bytes(2, NAME);
    });
    let (mut kind, mut depth) = (Kind::Tensor, 0);
    let mut choices = choices.iter().take(200);
    while kind != Kind::Model {
        let holds = || PLACES.iter().filter(|(_, _, inner)| *inner == kind);
        let choice = choices.next().map_or(0, |choice| usize::from(*choice) % holds().count());
        let Some((outer, field, _)) = holds().nth(choice) else { return };
        let mut around = Message::default();
        around.part(*field, &message);
        (message, kind, depth) = (around, *outer, depth + 1);
    }
    // What is not in the graph needs one beside it.
    message.part(7, "");
    let expected = if depth > DEEPEST { Err(OnnxError::Depth) } else { Ok([NAME.to_owned()].into()) };
    assert_eq!(external_data(message.as_ref()), expected, "{depth} deep");
}
