//! `ModelInferResponse`: an answer as a message, in pieces.
//!
//! Outputs are bytes (`raw_output_contents`), sent from where they are, be that memory of ONNX Runtime. One
//! who sent numbers and texts (`contents`) gets such, where every output's type has that form.

use bytes::Bytes;

use super::{contents, parameters};
use crate::oip::answer::InferAnswer;
use crate::oip::binary::{self, TooLong};
use crate::protobuf::Message;
use crate::tensor::Data;

/// Tensors up to this many bytes are put together with what stands before them: sending a piece costs more
/// than copying it.
const COPIED: usize = 4096;

/// How a client wrote its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// As bytes, or it had none.
    Raw,
    /// As numbers and texts.
    Typed,
}

/// Writes an answer; the pieces come one after another.
pub fn write(answer: &InferAnswer, asked: Asked) -> Result<Vec<Bytes>, TooLong> {
    let outputs = || answer.outputs.iter().map(|output| &output.tensor);
    let typed =
        asked == Asked::Typed && outputs().all(|output| contents::field(output.tensor.datatype()).is_some());
    let mut open = Message::default();
    open.bytes(1, &answer.model_name).bytes(2, &answer.model_version);
    open.bytes(3, answer.id.as_deref().unwrap_or_default());
    parameters::write(&answer.parameters, 4, &mut open);
    for output in outputs() {
        let tensor = &output.tensor;
        open.message(5, |message| {
            message.bytes(1, &output.name).bytes(2, tensor.datatype().name());
            message.packed(3, tensor.shape().iter().copied());
            if typed {
                message.message(5, |elements| contents::write(tensor, elements));
            }
        });
    }
    let mut pieces = Vec::new();
    if !typed {
        for output in outputs() {
            raw(&output.tensor, &mut open, &mut pieces)?;
        }
    }
    close(&mut open, &mut pieces);
    Ok(pieces)
}

fn raw(tensor: &crate::tensor::Tensor, open: &mut Message, pieces: &mut Vec<Bytes>) -> Result<(), TooLong> {
    open.open(6, binary::length(tensor));
    match tensor.data() {
        Data::Fixed(buffer) if buffer.len() <= COPIED => open.append(|bytes| bytes.extend_from_slice(buffer)),
        Data::Fixed(buffer) => {
            close(open, pieces);
            pieces.push(Bytes::from_owner(buffer.clone()));
        }
        Data::Bytes(strings) => open.append(|bytes| binary::write(strings, bytes))?,
    }
    Ok(())
}

fn close(open: &mut Message, pieces: &mut Vec<Bytes>) {
    if !open.is_empty() {
        pieces.push(std::mem::take(open).into_bytes().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::answer::AnsweredOutput;
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
            model_name: "m".to_owned(),
            model_version: "1.0.0".to_owned(),
            id: Some("7".to_owned()),
            parameters: [("a".to_owned(), Parameter::Integer(0))].into(),
            outputs: outputs.collect(),
        }
    }

    fn fixed(datatype: Datatype, length: usize) -> Tensor {
        let size = datatype.size().unwrap();
        Tensor::fixed(datatype, [length as u64], vec![1; length * size]).unwrap()
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
        let pieces = write(&answer(vec![fixed(Datatype::Fp16, 2), large, text]), Asked::Raw).unwrap();
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
        let pieces = write(&answer(vec![fixed(Datatype::Bool, 2)]), Asked::Typed).unwrap().concat();
        assert!(fields(&pieces, 6).is_empty());
        assert_eq!(fields(&fields(&pieces, 5)[0], 5), [vec![0x0a, 2, 1, 1]]);
        // Unless one of them has no such form: it is all or none.
        let both = answer(vec![fixed(Datatype::Bool, 2), fixed(Datatype::Bf16, 1)]);
        let pieces = write(&both, Asked::Typed).unwrap().concat();
        assert_eq!(fields(&pieces, 6).len(), 2);
    }
}
