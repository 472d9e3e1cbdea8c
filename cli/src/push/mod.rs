//! `selvedge push`: a Director for one device and one moment. Not done yet.

use crate::commands::Surroundings;
use crate::commands::push::{Args, Offline};
use crate::failure::Failure;

/// Pushes.
pub async fn run(_around: &Surroundings<'_>, _args: &Args) -> Result<(), Failure> {
    Err(Failure::usage("`selvedge push` is not there yet", "use a registry"))
}

/// Enrols.
pub fn enrol(_around: &Surroundings<'_>, _offline: &Offline<'_>) -> Result<(), Failure> {
    Err(Failure::usage("`target enrol --offline` is not there yet", "use a registry"))
}
