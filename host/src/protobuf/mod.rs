//! Protobuf's wire format, both ways, by hand and without a schema: for the messages of gRPC, and for a look
//! into ONNX files.
//!
//! Fields are looked at one by one, in place, so that a message is bounded before anything is made of it. A
//! generated reader makes a list of two hundred bytes for every two bytes of a message that consists of
//! empty inputs. Nothing here goes into a message within a message: how deep, is up to who asks.

mod read;
mod write;

pub use read::{Fault, Fields, Value, varint};
pub use write::{Message, packed_length};
