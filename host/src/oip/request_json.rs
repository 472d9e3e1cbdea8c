//! The JSON form of a request, and the JSON part of a binary one.
//!
//! Fields that the protocol does not know are gone past, as it says; those that it knows come once.

use super::binary::Following;
use super::elements::Encoding;
use super::lexer::{JsonError, Lexer};
use super::refusal::Refusal;
use super::request::{Form, InferRequest, Limits, Parameters, RequestedOutput};
use super::tensor_json::{self, Beside, Content, binary, encoding, name, offered, once, parameters};
use crate::tensor::NamedTensor;

/// Reads a request that is JSON from end to end. `body` has been bounded by the caller.
pub fn parse(body: &[u8], limits: &Limits) -> Result<InferRequest, Refusal> {
    parse_with(body, None, limits)
}

/// Reads a request whose tensors may be in the bytes that follow its JSON, in the order of its inputs.
/// All of those bytes have to be some tensor's.
pub fn parse_with(
    json: &[u8],
    mut following: Option<Following>,
    limits: &Limits,
) -> Result<InferRequest, Refusal> {
    let mut lexer = Lexer::from_body(json)?;
    let (mut id, mut shared, mut inputs, mut outputs) = (None, None, None, None);
    lexer.object(|lexer, key| match &*key {
        "id" => once("id", &mut id, name(lexer, limits)?),
        "parameters" => once("parameters", &mut shared, parameters(lexer, limits)?),
        "inputs" => {
            let list = read_inputs(lexer, following.as_mut(), limits)?;
            once("inputs", &mut inputs, list)
        }
        "outputs" => {
            let list = read_outputs(lexer, limits)?;
            once("outputs", &mut outputs, list)
        }
        _ => Ok::<(), Refusal>(lexer.skip()?),
    })?;
    lexer.end()?;
    let parameters: Parameters = shared.unwrap_or_default();
    offered(&parameters)?;
    let inputs = inputs.ok_or(Refusal::Missing("inputs"))?;
    following.map_or(Ok(()), Following::end)?;
    let form = match binary(&parameters, "binary_data_output")? {
        Some(true) => Form::Binary,
        Some(false) | None => Form::default(),
    };
    let outputs: Vec<Asked> = outputs.unwrap_or_default();
    let outputs = outputs.into_iter().map(|asked| asked.or(form)).collect();
    Ok(InferRequest { id, parameters, inputs, outputs, form })
}

fn read_inputs(
    lexer: &mut Lexer<'_>,
    mut following: Option<&mut Following>,
    limits: &Limits,
) -> Result<Vec<NamedTensor>, Refusal> {
    let beside = if following.is_some() { Beside::Binary } else { Beside::Nothing };
    let mut inputs: Vec<NamedTensor> = Vec::new();
    let mut bytes = 0_usize;
    lexer.array(|lexer, index| {
        if index == limits.tensors {
            return Err(Refusal::TooMany { what: "inputs", limit: limits.tensors });
        }
        let described = tensor_json::read(lexer, "input", index, beside, limits)?;
        let tensor = match (described.content, &mut following) {
            (Content::Data(tensor), _) => tensor,
            (Content::Binary(size), Some(following)) => following
                .take(described.datatype, &described.shape, size, limits.tensor_bytes)
                .map_err(|problem| Refusal::Tensor {
                    what: "input",
                    index,
                    name: Some(described.name.clone()),
                    problem,
                })?,
            _ => return Err(Refusal::Missing("data")),
        };
        bytes = bytes.saturating_add(tensor.footprint());
        if bytes > limits.tensor_bytes {
            return Err(Refusal::TooLarge { bytes, limit: limits.tensor_bytes });
        }
        if inputs.iter().any(|input| input.name == described.name) {
            return Err(Refusal::Twice { what: "input", name: described.name });
        }
        inputs.push(NamedTensor::new(described.name, tensor));
        Ok(())
    })?;
    Ok(inputs)
}

/// An output as it was asked for, before it is known what the request says of all of them.
struct Asked {
    name: String,
    encoding: Encoding,
    binary: Option<bool>,
}

impl Asked {
    fn or(self, form: Form) -> RequestedOutput {
        let binary = self.binary.unwrap_or(form == Form::Binary);
        let form = if binary { Form::Binary } else { Form::Json(self.encoding) };
        RequestedOutput { name: self.name, form }
    }
}

fn read_outputs(lexer: &mut Lexer<'_>, limits: &Limits) -> Result<Vec<Asked>, Refusal> {
    let mut outputs: Vec<Asked> = Vec::new();
    lexer.array(|lexer, index| {
        if index == limits.tensors {
            return Err(Refusal::TooMany { what: "outputs", limit: limits.tensors });
        }
        let output = read_output(lexer, index, limits)?;
        if outputs.iter().any(|other| other.name == output.name) {
            return Err(Refusal::Twice { what: "output", name: output.name });
        }
        outputs.push(output);
        Ok(())
    })?;
    Ok(outputs)
}

fn read_output(lexer: &mut Lexer<'_>, index: usize, limits: &Limits) -> Result<Asked, Refusal> {
    let (mut found, mut own) = (None, None);
    let wrong =
        |error: JsonError| Refusal::Tensor { what: "output", index, name: None, problem: error.to_string() };
    lexer
        .object(|lexer, key| match &*key {
            "name" => once("name", &mut found, name(lexer, limits)?),
            "parameters" => once("parameters", &mut own, parameters(lexer, limits)?),
            _ => Ok::<(), Refusal>(lexer.skip()?),
        })
        .map_err(|error| match error {
            Refusal::Json(error) => wrong(error),
            other => other,
        })?;
    let own = own.unwrap_or_default();
    offered(&own)?;
    let name = found.ok_or_else(|| wrong(lexer.error("`name` is missing")))?;
    Ok(Asked { name, encoding: encoding(&own)?, binary: binary(&own, "binary_data")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::elements::Encoding;
    use crate::oip::request::Parameter;

    fn limits() -> Limits {
        Limits::for_package(1)
    }

    fn request(text: &str) -> InferRequest {
        parse(text.as_bytes(), &limits()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn reads_fields_in_any_order() {
        let first = r#"{"name":"x","datatype":"INT8","shape":[2],"data":[1,2]}"#;
        let last = r#"{"data":[1,2],"shape":[2],"more":{"a":[]},"datatype":"INT8","name":"x"}"#;
        for input in [first, last] {
            let request = request(&format!(r#"{{"model_name":"m","inputs":[{input}],"id":"7"}}"#));
            assert_eq!(request.id.as_deref(), Some("7"));
            assert_eq!(request.inputs[0].name, "x");
            assert_eq!(request.inputs[0].tensor.shape(), [2]);
            assert_eq!(request.inputs[0].tensor.as_fixed(), Some(&[1, 2][..]));
            assert!(request.outputs.is_empty());
        }
    }

    #[test]
    fn the_encoding_may_stand_after_the_data() {
        let request = request(
            r#"{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["/w=="],
                "parameters":{"encoding":"base64"}}],
                "outputs":[{"name":"y","parameters":{"encoding":"base64"}},{"name":"z"}],
                "parameters":{"a":1,"b":1.5,"c":"d","e":true,"f":18446744073709551615,"binary_data_output":false}}"#,
        );
        assert_eq!(request.inputs[0].tensor.as_strings().unwrap().get(0), Some(&[0xff][..]));
        assert_eq!(request.outputs[0].form, Form::Json(Encoding::Base64));
        assert_eq!(request.outputs[1].form, Form::Json(Encoding::Text));
        assert_eq!(request.parameters["b"], Parameter::Number(1.5));
        assert_eq!(request.parameters["f"], Parameter::Unsigned(u64::MAX));
    }

    fn check(text: &str, expected: &str) {
        match parse(text.as_bytes(), &limits()) {
            Err(error) if error.to_string().contains(expected) => {}
            Err(error) => panic!("{text}: {error}"),
            Ok(_) => panic!("{text} was accepted"),
        }
    }

    fn check_input(input: &str, expected: &str) {
        check(&format!(r#"{{"inputs":[{input}]}}"#), expected);
    }

    #[test]
    fn says_what_is_wrong_with_a_request() {
        check("", "expected an object, found the end, at byte 0");
        check("[]", "expected an object, found `[`");
        check("{}", "`inputs` is missing");
        check(r#"{"inputs":[]} x"#, "expected the end, found `x`");
        check(r#"{"inputs":[],"inputs":[]}"#, "field `inputs` comes twice");
        check(r#"{"inputs":{}}"#, "expected an array, found `{`");
        check(r#"{"inputs":[],"id":7}"#, "expected a string, found `7`");
        check(&format!(r#"{{"inputs":[],"id":"{}"}}"#, "x".repeat(1025)), "longer than 1024 bytes");
        check(r#"{"inputs":[],"parameters":{"a":{}}}"#, "a string, a number or a boolean");
        check(r#"{"inputs":[],"parameters":{"a":null}}"#, "a string, a number or a boolean");
        check(r#"{"inputs":[],"parameters":{"a":1,"a":1}}"#, "parameter `a` comes twice");
        check(r#"{"inputs":[],"parameters":{"binary_data_output":"x"}}"#, "`binary_data_output` other than");
        check(
            r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":7}}]}"#,
            "`binary_data` other",
        );
        check(r#"{"inputs":[],"parameters":{"shared_memory_region":"a"}}"#, "shared memory");
        check(r#"{"inputs":[],"outputs":[{"name":"y"},{"name":"y"}]}"#, "output `y` comes twice");
        check(r#"{"inputs":[],"outputs":[{}]}"#, "output 0: `name` is missing");
        check(r#"{"inputs":[],"outputs":["y"]}"#, "output 0: expected an object");
        check(
            r#"{"inputs":[],"outputs":[{"name":"y","parameters":{"classification":3}}]}"#,
            "classification",
        );
        assert!(parse(b"{\"inputs\":[],\"id\":\"\xff\"}", &limits()).is_err());
    }

    #[test]
    fn says_what_is_wrong_with_an_input() {
        let x = r#"{"name":"x","datatype":"INT8","shape":[1],"data":[1]}"#;
        check(&format!(r#"{{"inputs":[{x},{x}]}}"#), "input `x` comes twice");
        check_input("7", "input 0: expected an object");
        check_input("{}", "input 0: `name` is missing");
        check_input(r#"{"name":"x"}"#, "input 0 (`x`): `data` is missing");
        check_input(r#"{"name":"x","data":[]}"#, "input 0 (`x`): `datatype` is missing");
        check_input(r#"{"name":"x","datatype":"INT8","data":[]}"#, "`shape` is missing");
        check_input(r#"{"name":"x","name":"y"}"#, "field `name` comes twice");
        check_input(r#"{"data":[],"data":[]}"#, "field `data` comes twice");
        check_input(r#"{"name":"x","datatype":"FLOAT"}"#, "`FLOAT` is no datatype; there are BOOL, ");
        check_input(r#"{"name":"x","datatype":"int8"}"#, "`int8` is no datatype");
        for shape in ["[-1]", "[1.5]", "[\"1\"]", "[null]", "[18446744073709551616]", "[[1]]"] {
            check_input(&format!(r#"{{"name":"x","shape":{shape}}}"#), "a whole number from 0 up");
        }
        check_input(r#"{"name":"x","shape":1}"#, "expected an array");
        check_input(
            r#"{"name":"x","datatype":"UINT8","shape":[2],"data":[1,300]}"#,
            "input 0 (`x`): element 1: 300 does not fit UINT8, at byte ",
        );
        check_input(r#"{"name":"x","file":"a","datatype":"INT8","shape":[1]}"#, "`data` is missing");
        check_input(
            r#"{"name":"x","shape":[1],"datatype":"INT8","parameters":{"binary_data_size":4}}"#,
            "input 0 (`x`): `binary_data_size` is for requests with binary data",
        );
        check_input(
            r#"{"name":"x","shape":[1],"datatype":"BYTES","parameters":{"encoding":"hex"}}"#,
            "\"text\" and \"base64\"",
        );
        check_input(
            r#"{"name":"x","datatype":"FP64","shape":[1000000],"data":[]}"#,
            "larger than the package's limit",
        );
    }

    #[test]
    fn brackets_without_end_are_refused_everywhere() {
        let deep = "[".repeat(200_000);
        for text in [
            deep.clone(),
            format!(r#"{{"inputs":{deep}"#),
            format!(r#"{{"unknown":{deep}"#),
            format!(r#"{{"parameters":{deep}"#),
            format!(r#"{{"inputs":[{{"data":{deep}"#),
            format!(r#"{{"inputs":[{{"name":"x","datatype":"INT8","shape":[1,1],"data":{deep}"#),
            format!(r#"{{"outputs":[{{"x":{deep}"#),
        ] {
            assert!(parse(text.as_bytes(), &limits()).is_err());
        }
    }

    #[test]
    fn lists_are_bounded() {
        let input = r#"{"name":"x","datatype":"INT8","shape":[0],"data":[]}"#;
        let many: Vec<String> = (0..257).map(|n| input.replace('x', &n.to_string())).collect();
        check(&format!(r#"{{"inputs":[{}]}}"#, many.join(",")), "more than 256 inputs");
        assert!(parse(format!(r#"{{"inputs":[{}]}}"#, many[..256].join(",")).as_bytes(), &limits()).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn a_cut_request_is_refused_and_never_panics(cut in 0_usize..150) {
            let whole = r#"{"id":"1","inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1.5,NaN],[-1e3,0]]}],"outputs":[{"name":"y"}],"parameters":{"a":1}}"#;
            let cut = cut.min(whole.len() - 1);
            proptest::prop_assert!(parse(&whole.as_bytes()[..cut], &limits()).is_err());
        }

        #[test]
        fn bytes_from_anywhere_never_panic(body: Vec<u8>) {
            drop(parse(&body, &limits()));
        }
    }
}
