//! The examples' packages in a real host, against the Python packages whose models they run.
#![allow(clippy::unwrap_used)]

mod file_type;
mod voice_activity;
