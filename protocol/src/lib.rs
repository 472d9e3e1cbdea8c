//! What devices and registry say over MQTT. Pure: no clock, no file, no socket, no runtime.
//!
//! `topic` owns every topic string, both ways; `envelope` is the CBOR frame of each message (JSON
//! is accepted); `message` its bodies; `block` the frames and the planning of block transfer;
//! `signed` the COSE_Sign1 wrapping of reports and acknowledgements, `sealed` of whole messages;
//! `proof` how a device shows its token without giving it away;
//! `remote` the bodies of commands and remote inference;
//! `line` makes what strangers say fit to be shown.

pub mod block;
pub mod envelope;
pub mod line;
pub mod message;
pub mod proof;
pub mod remote;
pub mod sealed;
pub mod signed;
pub mod topic;

pub use envelope::{Body, Envelope, EnvelopeError};
pub use topic::{Kind, Qos, Topic};
