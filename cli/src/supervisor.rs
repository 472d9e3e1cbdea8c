//! What `selvedge up` is made of: child processes, their readiness, their end, and the record that
//! other commands find them by. It speaks to its children as anyone would: files, HTTP, signals.

pub mod child;
pub mod enrolment;
pub mod host;
pub mod place;
pub mod process;
pub mod ready;
pub mod record;
pub mod stack;
