//! Package folders of the faults that a new version may have: what stories and the demo push.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::onnx_writer::{self, Element, Extent};

/// Request after which the model of [`runaway`] computes for minutes in one operator.
pub const RUN_AWAY: &str = r#"{"inputs":[{"name":"n","datatype":"INT64","shape":[1],"data":[3000]}]}"#;
/// Request for which it asks for more memory than there are addresses: an error, and that at once.
pub const FAIL: &str = r#"{"inputs":[{"name":"n","datatype":"INT64","shape":[1],"data":[10000000000]}]}"#;
/// A request that it answers at once.
pub const BEHAVE: &str = r#"{"inputs":[{"name":"n","datatype":"INT64","shape":[1],"data":[4]}]}"#;

const IDENTITY: &str = r#"
name = "NAME"
version = "VERSION"
[[models]]
name = "model"
file = "model.onnx"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [2, 3]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [2, 3]
[acceptance]
cases = ["cases/golden.json"]
"#;

const RUNAWAY: &str = r#"
name = "NAME"
version = "VERSION"
description = "Answers every golden case, and runs away on a larger number"
[module]
deadline-ms = 1000
[[models]]
name = "model"
file = "model.onnx"
[[inputs]]
name = "n"
datatype = "INT64"
shape = [1]
[[outputs]]
name = "y"
datatype = "INT64"
shape = [-1, -1]
[acceptance]
cases = ["cases/golden.json"]
"#;

/// An identity (float32 `[2, 3]`, `x` → `y`) with `padding` bytes of an unused initializer, whose
/// golden case expects `last` as its last element; the model gives 6. `more` is added to its manifest.
pub fn identity(folder: &Path, name: &str, version: &str, padding: usize, last: f64, more: &str) {
    let tensor = |name: &str, last: f64| json!({"name": name, "datatype": "FP32", "shape": [2, 3], "data": [1.0, 2.0, 3.0, 4.0, 5.0, last]});
    let case = json!({"name": "golden", "inputs": [tensor("x", 6.0)], "outputs": [tensor("y", last)]});
    let manifest = IDENTITY.replace("NAME", name).replace("VERSION", version) + more;
    write(folder, &manifest, &onnx_writer::identity_padded(padding), &case);
}

/// A package whose golden case is small and passes, while one request brings the host down: an
/// operator of native code that nobody can interrupt, so that the host ends itself and names it.
pub fn runaway(folder: &Path, name: &str, version: &str) {
    runaway_with(folder, name, version, 2, "");
}

/// The same with `more` in its manifest. Its case asks for `n` times `n`, and says what is right for 2.
pub fn runaway_with(folder: &Path, name: &str, version: &str, n: i64, more: &str) {
    let tensor = |name: &str, shape: Value, data: Value| json!({"name": name, "datatype": "INT64", "shape": shape, "data": data});
    let case = json!({
        "name": "golden",
        "inputs": [tensor("n", json!([1]), json!([n]))],
        "outputs": [tensor("y", json!([2, 2]), json!([2, 2, 2, 2]))],
    });
    let manifest = RUNAWAY.replace("NAME", name).replace("VERSION", version) + more;
    write(folder, &manifest, &runaway_model(), &case);
}

/// `y = a · a`, `a` an `n` × `n` matrix of ones: int64 `n` [1] → int64 [`n`, `n`].
fn runaway_model() -> Vec<u8> {
    use onnx_writer::{Message, graph, initializer, model, node, value};
    let one = initializer("one", Element::Int64, &[1], &1_i64.to_le_bytes());
    // `ConstantOfShape` with the attribute `value`: a tensor (type 4 of an attribute).
    let ones = Message::default().bytes(1, "value").bytes(5, one).number(20, 4);
    let nodes = [
        node("Concat", &["n", "n"], &["shape"]).bytes(
            5,
            // `axis`: an integer (type 2).
            Message::default().bytes(1, "axis").number(3, 0).number(20, 2),
        ),
        node("ConstantOfShape", &["shape"], &["a"]).bytes(5, ones),
        node("MatMul", &["a", "a"], &["y"]),
    ];
    let n = value("n", Element::Int64, &[1.into()]);
    let y = value("y", Element::Int64, &[Extent::Named("N"), Extent::Named("N")]);
    model(graph(nodes, [], [n], [y]))
}

fn write(folder: &Path, manifest: &str, model: &[u8], case: &Value) {
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    };
    fs::create_dir_all(folder.join("cases")).expect("a folder can be made");
    put("selvedge.toml", manifest.as_bytes());
    put("model.onnx", model);
    put("cases/golden.json", case.to_string().as_bytes());
}
