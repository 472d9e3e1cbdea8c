//! An answer as it is sent: its JSON, then its binary outputs.
//!
//! Elements of fixed size are sent from where they are, be that memory of ONNX Runtime; small ones are
//! put together with what stands before them, since sending a piece costs more than copying it.

use bytes::Bytes;

use super::answer::InferAnswer;
use super::answer_json;
use super::binary::{self, TooLong};
use super::request::Form;
use crate::tensor::Data;

/// Tensors up to this many bytes are copied.
const COPIED: usize = 4096;

/// An answer in pieces.
#[derive(Debug)]
pub struct Written {
    /// Bytes of its JSON, where something follows it.
    pub json: Option<usize>,
    /// To be sent one after another.
    pub pieces: Vec<Bytes>,
}

impl Written {
    /// Bytes of all pieces.
    pub fn length(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }
}

/// Writes an answer. A binary answer says where its JSON ends even if nothing of any length follows.
pub fn write(answer: &InferAnswer) -> Result<Written, TooLong> {
    let mut open = answer_json::write(answer);
    let mut written = Written { json: None, pieces: Vec::new() };
    for output in answer.outputs.iter().filter(|output| output.form == Form::Binary) {
        written.json.get_or_insert(open.len());
        match output.tensor.tensor.data() {
            Data::Fixed(buffer) if buffer.len() <= COPIED => open.extend_from_slice(buffer),
            Data::Fixed(buffer) => {
                written.close(&mut open);
                written.pieces.push(Bytes::from_owner(buffer.clone()));
            }
            Data::Bytes(strings) => binary::write(strings, &mut open)?,
        }
    }
    written.close(&mut open);
    Ok(written)
}

impl Written {
    fn close(&mut self, open: &mut Vec<u8>) {
        if !open.is_empty() {
            self.pieces.push(std::mem::take(open).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::oip::answer::{AnsweredOutput, Answerer};
    use crate::tensor::{Buffer, NamedTensor, Strings, Tensor};
    use selvedge_package::tensor::Datatype;

    fn answer(outputs: Vec<(&str, Tensor, Form)>) -> InferAnswer {
        InferAnswer {
            by: Arc::new(Answerer::new("m".to_owned(), "1.0.0".to_owned(), Default::default())),
            id: None,
            parameters: Default::default(),
            outputs: outputs
                .into_iter()
                .map(|(name, tensor, form)| AnsweredOutput { tensor: NamedTensor::new(name, tensor), form })
                .collect(),
        }
    }

    fn int8(data: Buffer) -> Tensor {
        Tensor::fixed(Datatype::Int8, [data.len() as u64], data).unwrap()
    }

    #[test]
    fn binary_outputs_follow_the_json_in_its_order() {
        let text = Tensor::bytes([2], Strings::from_iter(["a", ""])).unwrap();
        let outputs = vec![
            ("x", int8(vec![7, 8].into()), Form::Binary),
            ("y", int8(vec![9].into()), Form::default()),
            ("z", text, Form::Binary),
        ];
        let written = write(&answer(outputs)).unwrap();
        let json = concat!(
            r#"{"model_name":"m","model_version":"1.0.0","outputs":["#,
            r#"{"name":"x","datatype":"INT8","shape":[2],"parameters":{"binary_data_size":2}},"#,
            r#"{"name":"y","datatype":"INT8","shape":[1],"data":[9]},"#,
            r#"{"name":"z","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":9}}]}"#
        );
        assert_eq!(written.json, Some(json.len()));
        assert_eq!(written.pieces, [[json.as_bytes(), b"\x07\x08\x01\0\0\0a\0\0\0\0"].concat()]);
    }

    #[test]
    fn a_large_output_is_sent_from_where_it_is() {
        let large = Buffer::from(vec![5; COPIED + 1]);
        let at = large.as_ptr();
        let outputs = vec![
            ("x", int8(large), Form::Binary),
            ("y", int8(vec![9].into()), Form::Binary),
            ("z", int8(Vec::new().into()), Form::Binary),
        ];
        let written = write(&answer(outputs)).unwrap();
        assert_eq!(written.pieces.len(), 3);
        assert_eq!((written.pieces[1].as_ptr(), written.pieces[1].len()), (at, COPIED + 1));
        assert_eq!(written.pieces[2], [9].as_slice());
        assert_eq!(written.json, Some(written.pieces[0].len()));
        assert_eq!(written.length(), written.pieces[0].len() + COPIED + 2);
    }

    #[test]
    fn an_answer_in_json_is_one_piece_that_ends_with_it() {
        let written = write(&answer(vec![("y", int8(vec![9].into()), Form::default())])).unwrap();
        assert_eq!((written.json, written.pieces.len()), (None, 1));
        let empty = write(&answer(vec![("y", int8(Vec::new().into()), Form::Binary)])).unwrap();
        assert_eq!(empty.json, Some(empty.length()));
    }
}
