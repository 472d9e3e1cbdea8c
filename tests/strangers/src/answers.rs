//! What came, given back as outputs: an answer reads back the same in every form that it is written in.

use std::sync::Arc;

use bytes::Bytes;
use selvedge_host::grpc::answer::{Asked, Draft};
use selvedge_host::grpc::request::Parts;
use selvedge_host::oip::answer::{AnsweredOutput, Answerer, InferAnswer};
use selvedge_host::oip::binary::Following;
use selvedge_host::oip::elements::Encoding;
use selvedge_host::oip::request::{Form, InferRequest, Parameters};
use selvedge_host::oip::{answer_body, request_json};
use selvedge_host::protobuf::{Fields, Message, Value};

use crate::tensors::{check_same_inputs, is_finite};
use crate::{LIMITS, twin};

const FORMS: [Form; 3] = [Form::Json(Encoding::Text), Form::Binary, Form::Json(Encoding::Base64)];

fn echo(request: &InferRequest, first: usize) -> InferAnswer {
    let outputs = request.inputs.iter().enumerate();
    InferAnswer {
        by: Arc::new(Answerer::new("m".to_owned(), "1.0.0".to_owned(), request.parameters.clone())),
        id: request.id.clone(),
        parameters: Parameters::new(),
        outputs: outputs
            .map(|(index, input)| AnsweredOutput {
                tensor: input.clone(),
                form: FORMS[(first + index) % FORMS.len()],
            })
            .collect(),
    }
}

/// Answers of REST: each output in each form once.
pub fn check(request: &InferRequest) {
    for first in 0..FORMS.len() {
        let answer = echo(request, first);
        let written = answer_body::write(&answer).expect("short elements");
        let whole = written.pieces.concat();
        assert_eq!(whole.len(), written.length());
        let binary = answer.outputs.iter().any(|output| output.form == Form::Binary);
        assert_eq!(binary, written.json.is_some());
        let (json, rest) = whole.split_at(written.json.unwrap_or(whole.len()));
        let in_json = answer.outputs.iter().filter(|output| output.form != Form::Binary);
        if in_json.map(|output| &output.tensor.tensor).all(is_finite) {
            serde_json::from_slice::<serde_json::Value>(json).expect("an answer is JSON");
        } else {
            assert!(twin::has_words(json));
        }
        // An answer has outputs where a request has inputs. Within a string the quotes would be escaped.
        let json = String::from_utf8(json.to_vec()).expect("an answer is text");
        let asked = json.replacen(r#","outputs":["#, r#","inputs":["#, 1);
        let following = binary.then(|| Following::new(Bytes::copy_from_slice(rest)));
        let again = request_json::parse_with(asked.as_bytes(), following, &LIMITS);
        let again = again.unwrap_or_else(|refusal| panic!("an answer is not read: {refusal}: {asked}"));
        check_same_inputs(&request.inputs, &again.inputs);
        assert_eq!((&request.id, &request.parameters), (&again.id, &again.parameters));
    }
}

/// Answers of gRPC, as bytes and as numbers and texts.
pub fn check_grpc(request: &InferRequest) {
    for asked in [Asked::Raw, Asked::Typed] {
        let answer = echo(request, 0);
        let draft = Draft::of(&answer, asked);
        let length = draft.length();
        let pieces = draft.write().expect("short elements");
        assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), length);
        // An answer's outputs are numbered as a request's inputs; its raw contents are not.
        let mut message = Message::default();
        for field in Fields::new(&pieces.concat()) {
            let (number, value) = field.expect("an answer is a message");
            let Value::Bytes(bytes) = value else { panic!("field {number} of an answer is {value:?}") };
            message.part(if number == 6 { 7 } else { number }, bytes);
        }
        let parts = Parts::of(&message.into_bytes().into(), &LIMITS).expect("an answer's parts");
        let again = parts.request(&LIMITS).expect("an answer's tensors");
        check_same_inputs(&request.inputs, &again.inputs);
        assert_eq!((&request.id, &request.parameters), (&again.id, &again.parameters));
    }
}
