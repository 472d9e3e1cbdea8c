//! Writes tiny ONNX models, byte by byte: what tests need, and nothing that a model library would add.
//!
//! Every function gives a complete file (IR version 8, opset 17), as the ONNX specification's
//! `onnx.proto3` has it. Names are `x` for an input and `y` for an output unless said otherwise.

/// Element types, by their numbers in `TensorProto.DataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Element {
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Bfloat16 = 16,
}

/// An extent of an input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Always this.
    Fixed(i64),
    /// Any, under this name.
    Named(&'static str),
}

impl From<i64> for Extent {
    fn from(extent: i64) -> Self {
        Self::Fixed(extent)
    }
}

/// A protobuf message as it grows.
#[derive(Debug, Clone, Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Adds a number.
    pub fn number(mut self, field: u32, value: i64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
        self
    }

    /// Adds text, bytes or a message.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }

    /// Adds several messages under one number.
    pub fn all(self, field: u32, values: impl IntoIterator<Item = Self>) -> Self {
        values.into_iter().fold(self, |message, value| message.bytes(field, value.0))
    }

    /// The message as bytes.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// `ValueInfoProto`: an input or output.
pub fn value(name: &str, element: Element, shape: &[Extent]) -> Message {
    let shape = Message::default().all(
        1,
        shape.iter().map(|extent| match extent {
            Extent::Fixed(extent) => Message::default().number(1, *extent),
            Extent::Named(name) => Message::default().bytes(2, name),
        }),
    );
    let tensor = Message::default().number(1, element as i64).bytes(2, shape);
    Message::default().bytes(1, name).bytes(2, Message::default().bytes(1, tensor))
}

/// `TensorProto` with its elements inside, little-endian.
pub fn initializer(name: &str, element: Element, shape: &[i64], data: &[u8]) -> Message {
    header(name, element, shape).bytes(9, data)
}

/// `TensorProto` with its elements in a file, as PyTorch exports them.
pub fn external_initializer(
    name: &str,
    element: Element,
    shape: &[i64],
    location: &str,
    offset: usize,
    length: usize,
) -> Message {
    let entry = |key: &str, value: &str| Message::default().bytes(1, key).bytes(2, value);
    header(name, element, shape)
        .all(
            13,
            [
                entry("location", location),
                entry("offset", &offset.to_string()),
                entry("length", &length.to_string()),
            ],
        )
        .number(14, 1)
}

fn header(name: &str, element: Element, shape: &[i64]) -> Message {
    shape
        .iter()
        .fold(Message::default(), |message, &extent| message.number(1, extent))
        .number(2, element as i64)
        .bytes(8, name)
}

/// `NodeProto` without attributes.
pub fn node(operator: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let message = inputs.iter().fold(Message::default(), |message, name| message.bytes(1, name));
    let message = outputs.iter().fold(message, |message, name| message.bytes(2, name));
    message.bytes(4, operator)
}

/// `GraphProto`.
pub fn graph(
    nodes: impl IntoIterator<Item = Message>,
    initializers: impl IntoIterator<Item = Message>,
    inputs: impl IntoIterator<Item = Message>,
    outputs: impl IntoIterator<Item = Message>,
) -> Message {
    Message::default().all(1, nodes).bytes(2, "tiny").all(5, initializers).all(11, inputs).all(12, outputs)
}

/// `ModelProto`: the file.
pub fn model(graph: Message) -> Vec<u8> {
    let opset = Message::default().bytes(1, "").number(2, 17);
    Message::default().number(1, 8).bytes(2, "selvedge-tests").bytes(7, graph).bytes(8, opset).finish()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `y = x` of one element type, with extents fixed or free.
pub fn identity_of(element: Element, shape: &[Extent]) -> Vec<u8> {
    let (x, y) = (value("x", element, shape), value("y", element, shape));
    model(graph([node("Identity", &["x"], &["y"])], [], [x], [y]))
}

/// `y = x`, float32 [2, 3].
pub fn identity() -> Vec<u8> {
    identity_of(Element::Float, &[2.into(), 3.into()])
}

/// As [`identity`], with an initializer that nothing uses of about `padding` bytes of pseudo-random
/// data: a model of many chunks.
pub fn identity_padded(padding: usize) -> Vec<u8> {
    let shape = [2.into(), 3.into()];
    let (x, y) = (value("x", Element::Float, &shape), value("y", Element::Float, &shape));
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let data: Vec<u8> = (0..padding)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let unused = initializer("unused", Element::Uint8, &[padding as i64], &data);
    model(graph([node("Identity", &["x"], &["y"])], [unused], [x], [y]))
}

/// `y = a + b`, float32 [`N`, 2] each.
pub fn add() -> Vec<u8> {
    let shape = [Extent::Named("N"), 2.into()];
    let of = |name| value(name, Element::Float, &shape);
    model(graph([node("Add", &["a", "b"], &["y"])], [], [of("a"), of("b")], [of("y")]))
}

/// Weights of [`two_layers`]: [4, 3] and [3, 2].
pub const LAYERS: ([f32; 12], [f32; 6]) = (
    [0.5, -1.0, 0.25, 1.0, 0.0, -0.5, -0.75, 1.5, 2.0, 0.125, -0.25, 1.0],
    [1.0, -1.0, 0.5, 2.0, -0.5, 0.25],
);

/// `y = relu(x · w1) · w2`, float32 [`N`, 4] → [`N`, 2], with [`LAYERS`].
pub fn two_layers() -> Vec<u8> {
    layers(
        initializer("w1", Element::Float, &[4, 3], &floats(&LAYERS.0)),
        initializer("w2", Element::Float, &[3, 2], &floats(&LAYERS.1)),
    )
}

/// As [`two_layers`], with weights in a file of the name `location` beside the model, as PyTorch's
/// exporter writes it. Gives the model and that file.
pub fn two_layers_external(location: &str) -> (Vec<u8>, Vec<u8>) {
    let (first, second) = (floats(&LAYERS.0), floats(&LAYERS.1));
    let model = layers(
        external_initializer("w1", Element::Float, &[4, 3], location, 0, first.len()),
        external_initializer("w2", Element::Float, &[3, 2], location, first.len(), second.len()),
    );
    (model, [first, second].concat())
}

fn layers(first: Message, second: Message) -> Vec<u8> {
    let nodes = [
        node("MatMul", &["x", "w1"], &["hidden"]),
        node("Relu", &["hidden"], &["active"]),
        node("MatMul", &["active", "w2"], &["y"]),
    ];
    let x = value("x", Element::Float, &[Extent::Named("N"), 4.into()]);
    let y = value("y", Element::Float, &[Extent::Named("N"), 2.into()]);
    model(graph(nodes, [first, second], [x], [y]))
}

/// `y = shape(x)`, float32 of `rank` free extents → int64 [`rank`]: it touches no data, so that a
/// run's time is the time of everything around it.
pub fn shape(rank: usize) -> Vec<u8> {
    let names = ["A", "B", "C", "D", "E", "F", "G", "H"];
    let extents: Vec<_> = names.iter().take(rank).map(|name| Extent::Named(name)).collect();
    let x = value("x", Element::Float, &extents);
    let y = value("y", Element::Int64, &[Extent::Fixed(extents.len() as i64)]);
    model(graph([node("Shape", &["x"], &["y"])], [], [x], [y]))
}

/// Counts to `trips` (int64 scalar `trips` → int64 scalar `count`) in an ONNX `Loop`: with the
/// greatest number it never ends, and stops at once when told to.
pub fn count_to() -> Vec<u8> {
    let scalar = |name| value(name, Element::Int64, &[]);
    let flag = |name| value(name, Element::Bool, &[]);
    let one = initializer("one", Element::Int64, &[], &1_i64.to_le_bytes());
    let body = graph(
        [node("Add", &["before", "one"], &["after"]), node("Identity", &["go"], &["go_on"])],
        [one],
        [scalar("turn"), flag("go"), scalar("before")],
        [flag("go_on"), scalar("after")],
    );
    let body = Message::default().bytes(1, "body").bytes(6, body).number(20, 5);
    let turns = node("Loop", &["trips", "yes", "zero"], &["count"]).bytes(5, body);
    let initializers = [
        initializer("yes", Element::Bool, &[], &[1]),
        initializer("zero", Element::Int64, &[], &0_i64.to_le_bytes()),
    ];
    model(graph([turns], initializers, [scalar("trips")], [scalar("count")]))
}

/// `y = x · x`, int64 [`N`, `N`]: one operator that cannot be interrupted, and that no processor is
/// fast at.
pub fn square() -> Vec<u8> {
    let shape = [Extent::Named("N"), Extent::Named("N")];
    let (x, y) = (value("x", Element::Int64, &shape), value("y", Element::Int64, &shape));
    model(graph([node("MatMul", &["x", "x"], &["y"])], [], [x], [y]))
}
