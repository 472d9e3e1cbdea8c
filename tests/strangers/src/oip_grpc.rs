//! `ModelInferRequest`: requests for inference as messages of gRPC.

use bytes::Bytes;
use selvedge_host::grpc::request::{Head, Parts, raw_begins};
use selvedge_host::oip::refusal::Refusal;
use selvedge_host::oip::request::InferRequest;
use selvedge_host::oip::request_json;
use selvedge_host::protobuf::{Fields, Message, Value, varint};

use crate::written::{Elements, Layout, json, message};
use crate::{LIMITS, answers, tensors};

/// A message, without the head that stands in front of it on a stream.
pub fn check(bytes: &[u8]) {
    let whole = Bytes::copy_from_slice(bytes);
    if let Ok(head) = Head::of(bytes) {
        assert!(head.model.len() <= 1024 && head.version.is_none_or(|text| (1..=1024).contains(&text.len())));
    }
    check_place(bytes);
    let taken = parse(&whole);
    // A field that nobody knows, in front and behind, changes nothing.
    let mut unknown = Message::default();
    unknown.part(1000, "?").number(1001, u64::MAX);
    for (place, other) in
        [[unknown.as_ref(), bytes].concat(), [bytes, unknown.as_ref()].concat()].into_iter().enumerate()
    {
        match (&taken, parse(&other.into())) {
            (Ok(request), Ok(other)) => tensors::check_same(request, &other),
            (Err(_), Err(_)) => {}
            // What is cut off may take it for the rest.
            (Err(_), Ok(_)) if place == 1 => {}
            (taken, other) => panic!("{taken:?} alone, {other:?} with a field that is unknown"),
        }
    }
    let request = match taken {
        Ok(request) => request,
        Err(refusal) => {
            assert!(refusal.to_string().len() <= 4096);
            return;
        }
    };
    tensors::check(&request);
    tensors::check_limits(&request, |limits| Parts::of(&whole, limits)?.request(limits));
    tensors::check_same(&request, &parse(&rewritten(bytes)).expect("the same fields"));
    for form in [Elements::Raw, Elements::Typed] {
        if let Some(message) = message(&request, form) {
            if form == Elements::Typed && Fields::new(bytes).flatten().all(|(number, _)| number != 7) {
                assert_eq!(typed(bytes), typed(&message));
            }
            let again = parse(&message.into()).unwrap_or_else(|refusal| panic!("{form:?}: {refusal}"));
            tensors::check_same(&request, &again);
        }
    }
    // The same tensors in JSON. What stands around them has other rules there.
    let alone = InferRequest { inputs: request.inputs.clone(), ..InferRequest::default() };
    let alone = request_json::parse(&json(&alone, Layout::Flat), &LIMITS).expect("its twin in JSON is taken");
    tensors::check_same_inputs(&request.inputs, &alone.inputs);
    answers::check_grpc(&request);
}

/// What is held for tensors before they are made is what they take.
fn parse(message: &Bytes) -> Result<InferRequest, Refusal> {
    let parts = Parts::of(message, &LIMITS)?;
    let beside = parts.beside(&LIMITS);
    let request = parts.request(&LIMITS);
    if let Ok(request) = &request {
        let held = beside.expect("what is taken was counted");
        let takes: usize = request.inputs.iter().map(|input| input.tensor.footprint()).sum();
        assert!(takes <= held, "{takes} bytes are taken, {held} were held");
    }
    request
}

/// What stands in a message as elements: numbers, and the bytes of what is no number.
fn typed(message: &[u8]) -> Vec<(u32, u64, Vec<u8>)> {
    let inputs = inside(message, 5);
    let contents = inputs.into_iter().flat_map(|input| inside(input, 5));
    let mut found = Vec::new();
    for (number, value) in contents.flat_map(|contents| Fields::new(contents).flatten().collect::<Vec<_>>()) {
        match (number, value) {
            (1..=5, Value::Number(value)) => found.push((number, value, Vec::new())),
            (1..=5, Value::Bytes(mut packed)) => {
                while let Ok(value) = varint(&mut packed) {
                    found.push((number, value, Vec::new()));
                }
            }
            (6, Value::Narrow(value)) => found.push((number, 0, value.to_vec())),
            (7, Value::Wide(value)) => found.push((number, 0, value.to_vec())),
            (6 | 7, Value::Bytes(packed)) => {
                let size = if number == 6 { 4 } else { 8 };
                found.extend(packed.chunks(size).map(|element| (number, 0, element.to_vec())));
            }
            (8, Value::Bytes(element)) => found.push((number, 0, element.to_vec())),
            _ => {}
        }
    }
    found
}

/// The messages of this field.
fn inside(message: &[u8], wanted: u32) -> Vec<&[u8]> {
    let fields = Fields::new(message).flatten().filter(|(number, _)| *number == wanted);
    fields.filter_map(|(_, value)| value.bytes().ok()).collect()
}

/// Each field written again, in the shortest way that there is.
fn rewritten(bytes: &[u8]) -> Bytes {
    let mut message = Message::default();
    for field in Fields::new(bytes) {
        match field.expect("the message was taken") {
            (number, Value::Number(value)) => message.chosen_number(number, value),
            (number, Value::Wide(value)) => message.chosen_double(number, f64::from_le_bytes(value)),
            (number, Value::Bytes(value)) => {
                message.part(number, value);
            }
            // Of a request itself none is of four bytes.
            (_, Value::Narrow(_)) => {}
        }
    }
    message.into_bytes().into()
}

/// The place where raw contents begin is found while they come, until their last byte is here.
fn check_place(bytes: &[u8]) {
    for cut in [bytes.len() / 2, bytes.len()] {
        assert!(raw_begins(&bytes[..cut]).is_none_or(|place| place <= cut));
    }
    let start = bytes.as_ptr() as usize;
    let first = Fields::new(bytes).map_while(Result::ok).find(|(number, _)| *number == 7);
    let Some((_, Value::Bytes(raw))) = first else { return };
    if raw.is_empty() {
        return;
    }
    let place = raw.as_ptr() as usize - start;
    for cut in [place, place + raw.len() / 2, place + raw.len() - 1] {
        assert_eq!(raw_begins(&bytes[..cut]), Some(place), "{cut} bytes are here");
    }
}
