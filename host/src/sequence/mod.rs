//! Sequences: requests that belong together, and what is kept between them.
//!
//! A sequence has an instance of its module to itself, from its first request to its last: the instance's
//! memory is the state. `part` reads what a request says of its sequence, `kept` holds the sequences of one
//! package, bounds them in number and in idle time, and lets one request of each run at a time.

mod idle;
pub mod kept;
pub mod part;
pub mod turn;

pub use kept::{Ended, SequenceError, Sequences, State};
pub use part::{Id, Part};
pub use turn::Turn;
