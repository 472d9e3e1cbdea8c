//! `ModelInferResponse`: an answer as a message, in pieces.
//!
//! Outputs are bytes (`raw_output_contents`), sent from where they are, be that memory of ONNX Runtime. One
//! who sent numbers and texts (`contents`) gets such, where every output's type has that form.

use bytes::Bytes;

use super::{contents, parameters};
use crate::oip::answer::InferAnswer;
use crate::oip::binary::{self, TooLong};
use crate::protobuf::Message;
use crate::tensor::{Data, Tensor};

/// Tensors up to this many bytes are put together with what stands before them: sending a piece costs more
/// than copying it.
const COPIED: usize = 4096;

/// Fields of the message, and the one of an output for its elements as numbers and texts.
const OUTPUT: u32 = 5;
const RAW: u32 = 6;
const CONTENTS: u32 = 5;

/// How a client wrote its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// As bytes, or it had none.
    Raw,
    /// As numbers and texts.
    Typed,
}

/// Bytes of an answer that are written, or copied: what is sent from where it is costs nothing.
pub fn work(answer: &InferAnswer, asked: Asked) -> usize {
    let tensors = answer.outputs.iter().map(|output| &output.tensor.tensor);
    let of = |tensor: &Tensor| match tensor.data() {
        Data::Fixed(_) if asked == Asked::Raw => 0,
        _ => tensor.footprint(),
    };
    tensors.map(of).fold(0, usize::saturating_add)
}

/// An answer whose length is known before its elements are written.
#[derive(Debug)]
pub struct Draft<'a> {
    answer: &'a InferAnswer,
    /// What stands in front of the outputs.
    front: Message,
    /// What stands in each output in front of its elements, and the bytes of those, as numbers and texts or raw.
    outputs: Vec<(Message, usize)>,
    form: Asked,
}

impl<'a> Draft<'a> {
    /// Of an answer, for one who asked so.
    pub fn of(answer: &'a InferAnswer, asked: Asked) -> Self {
        let tensors = || answer.outputs.iter().map(|output| &output.tensor.tensor);
        let all_typed = tensors().all(|tensor| contents::field(tensor.datatype()).is_some());
        let form = if all_typed { asked } else { Asked::Raw };
        let mut front = Message::default();
        front.bytes(1, &answer.by.name).bytes(2, &answer.by.version);
        front.bytes(3, answer.id.as_deref().unwrap_or_default());
        for parameters in [&answer.by.provenance, &answer.parameters] {
            parameters::write(parameters, 4, &mut front);
        }
        let outputs = answer.outputs.iter().map(|output| {
            let tensor = &output.tensor.tensor;
            let mut described = Message::default();
            described.bytes(1, &output.tensor.name).bytes(2, tensor.datatype().name());
            described.packed(3, tensor.shape().iter().copied());
            let elements = match form {
                Asked::Raw => binary::length(tensor),
                Asked::Typed => contents::length(tensor),
            };
            (described, elements)
        });
        let outputs = outputs.collect();
        Self { answer, front, outputs, form }
    }

    /// Bytes that it will have.
    pub fn length(&self) -> usize {
        let outputs = self.outputs.iter().map(|(described, elements)| match self.form {
            Asked::Raw => {
                let output = Message::takes(OUTPUT, described.as_ref().len());
                output.saturating_add(Message::takes(RAW, *elements))
            }
            Asked::Typed => Message::takes(OUTPUT, inside(described, *elements)),
        });
        outputs.fold(self.front.as_ref().len(), usize::saturating_add)
    }

    /// Writes it; the pieces come one after another.
    pub fn write(self) -> Result<Vec<Bytes>, TooLong> {
        match self.form {
            Asked::Raw => self.raw(),
            Asked::Typed => Ok(self.typed()),
        }
    }

    fn typed(self) -> Vec<Bytes> {
        let mut message = Message::with_room(self.length());
        message.append(|bytes| bytes.extend_from_slice(self.front.as_ref()));
        for (output, (described, elements)) in self.answer.outputs.iter().zip(&self.outputs) {
            message.open(OUTPUT, inside(described, *elements));
            message.append(|bytes| bytes.extend_from_slice(described.as_ref()));
            message.open(CONTENTS, *elements);
            contents::write(&output.tensor.tensor, &mut message);
        }
        let mut pieces = Vec::new();
        close(&mut message, &mut pieces);
        pieces
    }

    fn raw(self) -> Result<Vec<Bytes>, TooLong> {
        let Self { answer, front: mut open, outputs, .. } = self;
        for (described, _) in &outputs {
            open.part(OUTPUT, described);
        }
        let mut pieces = Vec::new();
        for (output, (_, length)) in answer.outputs.iter().zip(outputs) {
            open.open(RAW, length);
            match output.tensor.tensor.data() {
                Data::Fixed(buffer) if length <= COPIED => {
                    open.append(|bytes| bytes.extend_from_slice(buffer));
                }
                Data::Bytes(strings) if length <= COPIED => {
                    open.append(|bytes| binary::write(strings, bytes))?;
                }
                Data::Fixed(buffer) => {
                    close(&mut open, &mut pieces);
                    pieces.push(Bytes::from_owner(buffer.clone()));
                }
                Data::Bytes(strings) => {
                    close(&mut open, &mut pieces);
                    let mut piece = Vec::with_capacity(length);
                    binary::write(strings, &mut piece)?;
                    pieces.push(piece.into());
                }
            }
        }
        close(&mut open, &mut pieces);
        Ok(pieces)
    }
}

/// Bytes of an output with its elements inside.
fn inside(described: &Message, elements: usize) -> usize {
    described.as_ref().len().saturating_add(Message::takes(CONTENTS, elements))
}

fn close(open: &mut Message, pieces: &mut Vec<Bytes>) {
    if !open.is_empty() {
        pieces.push(std::mem::take(open).into_bytes().into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::oip::answer::{AnsweredOutput, Answerer};
    use crate::oip::request::{Form, Parameter};
    use crate::protobuf::{Fault, Fields, Value};
    use crate::tensor::{NamedTensor, Strings, Tensor};
    use selvedge_package::tensor::Datatype;

    fn answer(tensors: Vec<Tensor>) -> InferAnswer {
        let outputs = tensors.into_iter().enumerate().map(|(index, tensor)| AnsweredOutput {
            tensor: NamedTensor::new(format!("y{index}"), tensor),
            form: Form::Binary,
        });
        InferAnswer {
            by: Arc::new(Answerer::new("m".to_owned(), "1.0.0".to_owned(), Default::default())),
            id: Some("7".to_owned()),
            parameters: [("a".to_owned(), Parameter::Integer(0))].into(),
            outputs: outputs.collect(),
        }
    }

    fn fixed(datatype: Datatype, length: usize) -> Tensor {
        let size = datatype.size().unwrap();
        Tensor::fixed(datatype, [length as u64], vec![1; length * size]).unwrap()
    }

    /// Its length is known before, and it takes no more memory.
    fn write(answer: &InferAnswer, asked: Asked) -> Vec<Bytes> {
        let draft = Draft::of(answer, asked);
        let length = draft.length();
        let pieces = draft.write().unwrap();
        assert_eq!(length, pieces.iter().map(Bytes::len).sum::<usize>());
        pieces
    }

    fn fields(message: &[u8], number: u32) -> Vec<Vec<u8>> {
        let of = |field: Result<(u32, Value<'_>), Fault>| match field.unwrap() {
            (found, value) if found == number => Some(value.bytes().unwrap().to_vec()),
            _ => None,
        };
        Fields::new(message).filter_map(of).collect()
    }

    #[test]
    fn outputs_are_bytes_in_their_order() {
        let text = Tensor::bytes([2], Strings::from_iter(["a", ""])).unwrap();
        let large = fixed(Datatype::Int64, 1000);
        let at = large.as_fixed().unwrap().as_ptr();
        let pieces = write(&answer(vec![fixed(Datatype::Fp16, 2), large, text]), Asked::Raw);
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[1].as_ptr(), at, "sent from where it is");
        let whole = pieces.concat();
        assert_eq!((fields(&whole, 1), fields(&whole, 3)), (vec![b"m".to_vec()], vec![b"7".to_vec()]));
        let raw = fields(&whole, 6);
        assert_eq!(raw, [vec![1; 4], vec![1; 8000], b"\x01\0\0\0a\0\0\0\0".to_vec()]);
        let outputs = fields(&whole, 5);
        assert_eq!(outputs.len(), 3);
        assert_eq!(
            (fields(&outputs[0], 1), fields(&outputs[0], 2)),
            (vec![b"y0".to_vec()], vec![b"FP16".to_vec()])
        );
        assert_eq!(fields(&outputs[1], 3), [vec![0xe8, 7]]);
        assert!(fields(&outputs[0], 5).is_empty());
    }

    #[test]
    fn one_who_sent_numbers_gets_numbers() {
        let pieces = write(&answer(vec![fixed(Datatype::Bool, 2)]), Asked::Typed).concat();
        assert!(fields(&pieces, 6).is_empty());
        assert_eq!(fields(&fields(&pieces, 5)[0], 5), [vec![0x0a, 2, 1, 1]]);
        // Unless one of them has no such form: it is all or none.
        let both = answer(vec![fixed(Datatype::Bool, 2), fixed(Datatype::Bf16, 1)]);
        let pieces = write(&both, Asked::Typed).concat();
        assert_eq!(fields(&pieces, 6).len(), 2);
    }

    #[test]
    fn numbers_that_take_more_than_their_elements_are_written_into_as_much_as_they_take() {
        let minus = Tensor::fixed(Datatype::Int8, [3000], vec![0xff; 3000]).unwrap();
        let text = Tensor::bytes([2], Strings::from_iter(["a".repeat(200), String::new()])).unwrap();
        let pieces = write(&answer(vec![minus, text]), Asked::Typed);
        let [piece] = <[Bytes; 1]>::try_from(pieces).unwrap();
        assert!(piece.len() > 30_000);
        let piece = Vec::from(piece);
        assert_eq!(piece.capacity(), piece.len());
    }

    #[test]
    fn what_is_sent_from_where_it_is_is_no_work() {
        let text = || Tensor::bytes([1], Strings::from_iter(["a".repeat(92)])).unwrap();
        let both = answer(vec![fixed(Datatype::Int64, 1000), text()]);
        assert_eq!((work(&both, Asked::Raw), work(&both, Asked::Typed)), (100, 8100));
        // A long text is a piece of its own, of its own length.
        let long = Tensor::bytes([1], Strings::from_iter(["a".repeat(5000)])).unwrap();
        let pieces = write(&answer(vec![long]), Asked::Raw);
        assert_eq!(Vec::from(pieces[1].clone()).capacity(), 5004);
    }
}
