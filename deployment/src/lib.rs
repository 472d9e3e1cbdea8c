//! The device's deployment state machine. Pure: no tokio, no clock, no file, no socket.
//!
//! A package on a device goes fetching → staged → trial → committed, or is rolled back. [`step`]
//! takes a state and an event and gives the next state; [`plan`] derives from a state alone what
//! must be done now. The driver persists the state first, then does what the plan says, and reports
//! what came of it as the next event. After a power cut it reads the state, feeds
//! [`Event::Restarted`] and plans again: every effect is idempotent, so nothing else is remembered.
//!
//! What it refuses: a commit without a passed acceptance case, a release below the floor, a release
//! that has failed while nothing about its assignment changed, more than [`MAX_ATTEMPTS`] starts of
//! one release, and events about a release that is no longer on its way.

mod event;
mod plan;
mod probation;
mod refusal;
mod state;
mod step;

pub use event::{Event, Illegal, Note};
pub use plan::{Effect, loadable, plan, stored};
pub use probation::{CHECKPOINTS, LEAST_JUDGED, PAUSES};
pub use state::{
    Budget, Committed, Failure, Health, Measured, Phase, Release, Rules, Slot, Stage, State, StateRecord,
    Swap,
};
pub use step::{CRASH_WINDOW_MS, MAX_ATTEMPTS, MAX_CRASHES, Step, step};
