//! Messages, and what becomes of them.

use super::head::MOST_FIELDS;
use super::*;
use crate::oip::request::Parameter;
use crate::protobuf::Message;

fn limits() -> Limits {
    Limits::for_package(1)
}

/// A request for an input `x` of a type and a shape.
fn request(datatype: &str, shape: &[u64], more: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::default();
    message.bytes(1, "m").bytes(3, "7").message(5, |input| {
        input.bytes(1, "x").bytes(2, datatype).packed(3, shape.iter().copied());
        more(input);
    });
    message.into_bytes()
}

fn read(message: &[u8]) -> Result<InferRequest, Refusal> {
    let parts = Parts::of(&Bytes::copy_from_slice(message), &limits())?;
    let beside = parts.beside(&limits())?;
    let request = parts.request(&limits())?;
    let takes: usize = request.inputs.iter().map(|input| input.tensor.footprint()).sum();
    assert!(takes <= beside, "{takes} bytes, and {beside} were expected");
    Ok(request)
}

#[test]
fn elements_come_as_numbers_or_as_bytes() {
    let typed = request("INT16", &[2], |input| {
        input.message(5, |it| {
            it.packed(2, [1, 300].into_iter());
        });
    });
    let mut raw = Message::default();
    raw.part(7, [1, 0, 44, 1]);
    let raw = [request("INT16", &[2], |_| {}), raw.into_bytes()].concat();
    for message in [typed, raw] {
        let request = read(&message).unwrap();
        assert_eq!(request.id.as_deref(), Some("7"));
        assert_eq!(request.inputs[0].name, "x");
        assert_eq!(request.inputs[0].tensor.shape(), [2]);
        assert_eq!(request.inputs[0].tensor.as_fixed(), Some(&[1, 0, 44, 1][..]));
    }
    let empty = read(&request("INT16", &[0], |_| {})).unwrap();
    assert_eq!(empty.inputs[0].tensor.as_fixed(), Some(&[][..]));
}

#[test]
fn the_head_says_who_is_asked() {
    let mut message = Message::default();
    message.bytes(1, "m").bytes(2, "7").bytes(99, "later");
    assert_eq!(Head::of(message.as_ref()), Ok(Head { model: "m", version: Some("7") }));
    assert_eq!(Head::of(&[]), Ok(Head::default()));
    let many = [0x2a, 0].repeat(MOST_FIELDS + 1);
    assert!(matches!(Head::of(&many), Err(Refusal::TooMany { .. })));
    assert!(Head::of(&[0x0a, 5]).is_err());
}

fn check(message: &[u8], says: &str) {
    match read(message) {
        Err(refusal) => assert!(refusal.to_string().contains(says), "{refusal}"),
        Ok(_) => panic!("{says}: taken"),
    }
}

#[test]
fn says_what_is_wrong_and_where() {
    check(b"\x0b", "the message is refused: field 1 is of a kind");
    check(&request("FLOAT", &[1], |_| {}), "input 0 (`x`): `FLOAT` is no datatype; there are BOOL");
    check(&request("INT8", &[u64::MAX], |_| {}), "input 0 (`x`): an extent has to be a whole number from 0");
    check(&request("INT8", &[1; 65], |_| {}), "input 0 (`x`): more than 64 dimensions");
    check(&request("INT8", &[2], |_| {}), "input 0 (`x`): its shape takes 2 elements, and 0 came");
    check(&request("FP16", &[2], |_| {}), "FP16 has no form in `contents`");
    check(&request("INT8", &[1 << 30], |_| {}), "larger than the package's limit");
    let twice = |input: &mut Message| {
        input.part(5, "").part(5, "");
    };
    check(&request("INT8", &[0], twice), "`contents` comes twice");
    let x = request("INT8", &[0], |_| {});
    check(&[&x[..], &x].concat(), "input `x` comes twice");
    let mut raw = Message::default();
    raw.part(7, "a").part(7, "b");
    check(&[&x[..], raw.as_ref()].concat(), "2 raw_input_contents came for 1 inputs");
    let mut raw = Message::default();
    raw.part(7, "a");
    let both = request("INT8", &[1], |input| {
        input.message(5, |it| {
            it.packed(2, [1].into_iter());
        });
    });
    check(&[&both[..], raw.as_ref()].concat(), "it has both `contents` and `raw_input_contents`");
    check(&[&request("INT8", &[2], |_| {})[..], raw.as_ref()].concat(), "takes 2 bytes, and 1 came");
    check(&[0x2a, 0].repeat(300), "input 0: `name` is missing");
    check(&[0x3a, 0].repeat(300), "more than 256 raw_input_contents");
    check(&[0x32, 0], "output 0: `name` is missing");
    let outputs = [0x32, 3, 0x0a, 1, b'y'].repeat(2);
    check(&outputs, "output `y` comes twice");
}

#[test]
fn what_stands_beside_elements_is_bounded_wherever_it_stands() {
    let x = request("INT8", &[0], |_| {});
    // What is around a field that fills the rest.
    let check_at = |build: &dyn Fn(&[u8]) -> Vec<u8>| {
        let around = build(&[0; 1 << 19]).len() - (1 << 19);
        for (more, taken) in [(0, true), (1, false)] {
            let message = build(&vec![0; BESIDE - around + more]);
            assert_eq!(message.len(), BESIDE + more);
            let parts = Parts::of(&message.into(), &limits());
            match parts {
                Ok(parts) => assert!(taken && parts.length() == BESIDE),
                Err(refusal) => {
                    let says = format!("more than {BESIDE} bytes beside the tensors' elements");
                    assert!(!taken && refusal.to_string() == says, "{refusal}");
                }
            }
        }
    };
    let unknown = |bytes: &[u8]| {
        let mut message = Message::default();
        message.part(100, bytes);
        message.into_bytes()
    };
    check_at(&|bytes| [&x[..], &unknown(bytes)].concat());
    check_at(&|bytes| request("INT8", &[0], |input| input.append(|it| it.extend(unknown(bytes)))));
    check_at(&|bytes| {
        let mut output = Message::default();
        output.part(6, [&b"\x0a\x01y"[..], &unknown(bytes)].concat());
        [&x[..], output.as_ref()].concat()
    });
    check_at(&|bytes| {
        let mut parameter = Message::default();
        parameter.message(4, |entry| {
            entry.bytes(1, "a").message(2, |chosen| {
                chosen.part(3, bytes);
            });
        });
        [&x[..], parameter.as_ref()].concat()
    });
    // Elements are not among it, in either form.
    let typed = request("FP32", &[1 << 18], |input| {
        input.message(5, |it| {
            it.bytes(6, vec![0; 1 << 20]);
        });
    });
    let parts = Parts::of(&typed.into(), &limits()).unwrap();
    assert!(parts.beside < 100 && parts.length() > 1 << 20 && parts.raw_length() == 0);
    let mut raw = Message::default();
    raw.part(7, vec![0; 1 << 20]);
    let parts =
        Parts::of(&[&request("INT8", &[1 << 20], |_| {})[..], raw.as_ref()].concat().into(), &limits());
    let parts = parts.unwrap();
    assert!(parts.length() < 100 && parts.raw_length() == 1 << 20);
}

#[test]
fn parameters_are_those_of_the_json_form() {
    let region = |message: &mut Message| {
        message.bytes(1, "shared_memory_region").message(2, |value| {
            value.part(3, "r");
        });
    };
    check(
        &request("INT8", &[0], |input| {
            input.message(4, region);
        }),
        "shared memory",
    );
    let mut message = Message::default();
    message.message(6, |output| {
        output.bytes(1, "y").message(2, region);
    });
    check(message.as_ref(), "shared memory");
    let mut message = Message::default();
    message.message(4, |entry| {
        entry.bytes(1, "timeout").message(2, |it| it.chosen_number(2, 5));
    });
    assert_eq!(read(message.as_ref()).unwrap().parameters["timeout"], Parameter::Integer(5));
}

#[test]
fn where_raw_contents_begin_is_known_before_their_end_is_here() {
    let mut raw = Message::default();
    raw.part(7, [7; 100]);
    let head = request("INT8", &[100], |_| {});
    let whole = [&head[..], raw.as_ref()].concat();
    for cut in 0..whole.len() {
        let known = (head.len() + 2 <= cut).then_some(head.len() + 2);
        assert_eq!(raw_begins(&whole[..cut]), known, "{cut}");
    }
    assert_eq!(raw_begins(&whole), None, "all is here");
}

proptest::proptest! {
    #[test]
    fn bytes_from_anywhere_never_panic(bytes: Vec<u8>) {
        let _ = Head::of(&bytes);
        let _ = read(&bytes);
        let _ = raw_begins(&bytes);
    }
}
