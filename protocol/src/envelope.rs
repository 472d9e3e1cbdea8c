//! The frame of every message but blocks: a CBOR map `{v, id, ep, sq, ts, ty, body}`.
//!
//! Written as CBOR; JSON of the same shape is read too (a payload that begins with `{`), so that a
//! person can speak to a device with any MQTT tool. Size and depth are limited before parsing. A
//! type that this version does not know is an error with its name, never a panic: the other side
//! may be newer.

use ciborium::Value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::message::{Birth, ByteString, Enrol, Enrolled, Heartbeat, Need, Rows, Want, Will};
use crate::remote::{Command, CommandResult, InferAnswer, InferRequest};

/// Version of the frame.
pub const VERSION: u8 = 1;
/// Largest message that is parsed, in bytes: stops memory exhaustion by one packet.
pub const LARGEST: usize = 1024 * 1024;
/// Deepest nesting that is parsed: stops stack exhaustion.
pub const DEEPEST: usize = 32;

/// A message with its place in the sender's life.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// Chosen by the sender; the same message sent again has the same id.
    pub id: u64,
    /// Epoch: grows at every start of the sender.
    pub epoch: u64,
    /// Grows within the epoch.
    pub sequence: u64,
    /// Milliseconds since 1970 by the sender's clock, which may be wrong.
    pub at_ms: i64,
    /// What it says.
    pub body: Body,
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $ty:literal;)*) => {
        /// What a message says. Its `ty` on the wire stands beside each.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Body { $($(#[$doc])* $name($inner),)* }

        impl Body {
            /// The message's type as the wire names it.
            pub const fn ty(&self) -> &'static str {
                match self { $(Body::$name(_) => $ty,)* }
            }

            fn to_value(&self) -> Result<Value, ciborium::value::Error> {
                match self { $(Body::$name(inner) => Value::serialized(inner),)* }
            }

            fn read(ty: &str, body: impl Decode) -> Result<Self, EnvelopeError> {
                match ty {
                    $($ty => Ok(Body::$name(body.decode($ty)?)),)*
                    _ => Err(EnvelopeError::UnknownType(ty.chars().take(40).collect())),
                }
            }
        }
    };
}

bodies! {
    /// `up/birth`
    Birth(Birth) = "birth";
    /// `up/will`
    Will(Will) = "will";
    /// `up/hb`
    Heartbeat(Heartbeat) = "hb";
    /// `dn/want`
    Want(Want) = "want";
    /// `up/state`
    State(Rows) = "state";
    /// `dn/ack`: COSE_Sign1 over a [`crate::message::Ack`] in CBOR.
    Ack(ByteString) = "ack";
    /// `up/need`
    Need(Need) = "need";
    /// `up/enrol`
    Enrol(Enrol) = "enrol";
    /// `dn/enrol`
    Enrolled(Enrolled) = "enrolled";
    /// Any of the others under a signature: COSE_Sign1 over their envelope in CBOR ([`crate::sealed`]).
    Signed(ByteString) = "signed";
    /// `dn/cmd`
    Command(Command) = "cmd";
    /// `up/res`
    CommandResult(CommandResult) = "res";
    /// `dn/infer`
    InferRequest(InferRequest) = "infer";
    /// `up/infer`
    InferAnswer(InferAnswer) = "inferred";
}

/// A payload that is no message.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// Larger than [`LARGEST`].
    #[error("a message of {0} bytes is larger than the {LARGEST} that are read")]
    TooLarge(usize),
    /// Neither CBOR nor JSON of an envelope.
    #[error("not an envelope: {0}")]
    Malformed(String),
    /// Another version of the frame.
    #[error("version {0} of the envelope is not known; this program reads version {VERSION}")]
    Version(u64),
    /// A type that this version does not know.
    #[error("message type `{0}` is not known")]
    UnknownType(String),
    /// The body is not what its type says.
    #[error("not a `{ty}`: {what}")]
    Body {
        /// The type.
        ty: &'static str,
        /// What is wrong.
        what: String,
    },
    /// It cannot be written.
    #[error("cannot write a `{ty}`: {what}")]
    Encode {
        /// The type.
        ty: &'static str,
        /// What is wrong.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Raw<V> {
    v: u64,
    id: u64,
    ep: u64,
    sq: u64,
    ts: i64,
    ty: String,
    body: V,
}

trait Decode {
    fn decode<T: DeserializeOwned>(self, ty: &'static str) -> Result<T, EnvelopeError>;
}

impl Decode for Value {
    fn decode<T: DeserializeOwned>(self, ty: &'static str) -> Result<T, EnvelopeError> {
        self.deserialized().map_err(|error| EnvelopeError::Body { ty, what: error.to_string() })
    }
}

impl Decode for serde_json::Value {
    fn decode<T: DeserializeOwned>(self, ty: &'static str) -> Result<T, EnvelopeError> {
        serde_json::from_value(self).map_err(|error| EnvelopeError::Body { ty, what: error.to_string() })
    }
}

impl Envelope {
    /// The CBOR bytes. Refuses what the other side would not read.
    pub fn encode(&self) -> Result<Vec<u8>, EnvelopeError> {
        let ty = self.body.ty();
        let raw = Raw {
            v: VERSION.into(),
            id: self.id,
            ep: self.epoch,
            sq: self.sequence,
            ts: self.at_ms,
            ty: ty.to_owned(),
            body: self
                .body
                .to_value()
                .map_err(|error| EnvelopeError::Encode { ty, what: error.to_string() })?,
        };
        let mut bytes = Vec::new();
        ciborium::into_writer(&raw, &mut bytes)
            .map_err(|error| EnvelopeError::Encode { ty, what: error.to_string() })?;
        if bytes.len() > LARGEST {
            return Err(EnvelopeError::TooLarge(bytes.len()));
        }
        Ok(bytes)
    }

    /// Reads CBOR, or JSON where the first byte is `{`.
    pub fn decode(payload: &[u8]) -> Result<Self, EnvelopeError> {
        if payload.len() > LARGEST {
            return Err(EnvelopeError::TooLarge(payload.len()));
        }
        if payload.first() == Some(&b'{') {
            // serde_json itself stops at a depth of 128.
            let raw: Raw<serde_json::Value> = serde_json::from_slice(payload)
                .map_err(|error| EnvelopeError::Malformed(error.to_string()))?;
            Self::from_raw(raw)
        } else {
            let raw: Raw<Value> = from_cbor(payload).map_err(EnvelopeError::Malformed)?;
            Self::from_raw(raw)
        }
    }

    fn from_raw<V: Decode>(raw: Raw<V>) -> Result<Self, EnvelopeError> {
        if raw.v != u64::from(VERSION) {
            return Err(EnvelopeError::Version(raw.v));
        }
        Ok(Self {
            id: raw.id,
            epoch: raw.ep,
            sequence: raw.sq,
            at_ms: raw.ts,
            body: Body::read(&raw.ty, raw.body)?,
        })
    }
}

/// CBOR of `value`, for payloads that are signed or stored by themselves.
pub fn to_cbor<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Reads one CBOR item with our limits of size and depth; anything after it is an error.
pub fn from_cbor<T: DeserializeOwned>(mut bytes: &[u8]) -> Result<T, String> {
    if bytes.len() > LARGEST {
        return Err(format!("{} bytes are more than the {LARGEST} that are read", bytes.len()));
    }
    let value = ciborium::de::from_reader_with_recursion_limit(&mut bytes, DEEPEST)
        .map_err(|error| error.to_string())?;
    if bytes.is_empty() { Ok(value) } else { Err(format!("{} bytes follow the item", bytes.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Accepted;
    use selvedge_package::Digest;

    fn check(body: Body) {
        let sent = Envelope { id: 7, epoch: 2, sequence: u64::MAX, at_ms: -5, body };
        let bytes = sent.encode().unwrap();
        assert_eq!(Envelope::decode(&bytes).unwrap(), sent);
    }

    #[test]
    fn reads_what_it_writes() {
        check(Body::Heartbeat(Heartbeat { generation: 1, desired: 2 }));
        check(Body::Will(Will {}));
        check(Body::Want(Want::Inline(vec![0, 255, 1])));
        check(Body::Want(Want::Pull { digest: Digest::of(b"x"), size: 9 }));
        check(Body::Ack(ByteString(vec![1; 300])));
        check(Body::State(Rows { rows: vec![ByteString(vec![]), ByteString(vec![3])] }));
        check(Body::Need(Need {
            transfer: 1,
            digest: Digest::of(b"x"),
            block: 4096,
            first: 3,
            missing: vec![0xff, 1],
            count: 4,
        }));
        check(Body::Enrolled(Enrolled::Refused("no".into())));
        check(Body::Enrol(Enrol { proof: vec![3], public_key: vec![9; 32], csr: vec![1] }));
        check(Body::Birth(Birth {
            agent: "0.1.0".into(),
            capabilities: vec!["x".into()],
            largest_block: 65536,
            generation: 0,
            desired: 0,
            image_root: 1,
            director_root: 1,
            nonce: vec![1, 2],
            accepted: Accepted::default(),
        }));
    }

    #[test]
    fn a_byte_string_costs_its_bytes_on_the_wire() {
        let body = Body::Want(Want::Inline(vec![200; 10_000]));
        let sent = Envelope { id: 0, epoch: 0, sequence: 0, at_ms: 0, body };
        assert!(sent.encode().unwrap().len() < 10_100);
    }

    #[test]
    fn json_is_read() {
        let text = r#"{"v":1,"id":4,"ep":1,"sq":2,"ts":3,"ty":"hb","body":{"generation":5,"desired":6}}"#;
        let envelope = Envelope::decode(text.as_bytes()).unwrap();
        assert_eq!(envelope.body, Body::Heartbeat(Heartbeat { generation: 5, desired: 6 }));
        let text =
            r#"{"v":1,"id":4,"ep":1,"sq":2,"ts":3,"ty":"enrol","body":{"token":"t","public_key":[1,2]}}"#;
        let envelope = Envelope::decode(text.as_bytes()).unwrap();
        assert_eq!(
            envelope.body,
            Body::Enrol(Enrol { proof: Vec::new(), public_key: vec![1, 2], csr: Vec::new() })
        );
    }

    #[test]
    fn unknown_types_and_versions_are_named() {
        let json = |v: u8, ty: &str| {
            Envelope::decode(
                format!(r#"{{"v":{v},"id":4,"ep":1,"sq":2,"ts":3,"ty":"{ty}","body":{{}}}}"#).as_bytes(),
            )
        };
        assert!(matches!(json(1, "later"), Err(EnvelopeError::UnknownType(ty)) if ty == "later"));
        assert!(matches!(json(2, "hb"), Err(EnvelopeError::Version(2))));
        assert!(matches!(json(1, "hb"), Err(EnvelopeError::Body { ty: "hb", .. })));
    }

    #[test]
    fn hostile_payloads_are_errors() {
        let deep_json = "{\"a\":".repeat(200_000);
        let deep_cbor = vec![0x81; 200_000];
        let claims_much = [0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let claims_bytes = [0x5b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        for bad in [
            deep_json.as_bytes(),
            &deep_cbor,
            &claims_much,
            &claims_bytes,
            b"",
            b"{",
            b"\xa0",
            b"\xff",
            &vec![0; LARGEST + 1],
        ] {
            assert!(Envelope::decode(bad).is_err());
        }
        let mut trailing =
            Envelope { id: 0, epoch: 0, sequence: 0, at_ms: 0, body: Body::Will(Will {}) }.encode().unwrap();
        trailing.push(0);
        assert!(Envelope::decode(&trailing).is_err());
    }
}
