//! The registry of compute targets: what exists, what runs where, and what devices say.
//!
//! A request comes in through `rest` or `devices` (MQTT), changes `store` and `blobs`, and what
//! devices shall run is signed in `trust`. It never holds a key that releases packages, serves no
//! blob to a device that does not need it, and answers nobody without the token. `broker` is the
//! embedded MQTT broker for one machine, `pki` the registry's own certificate authority, `credentials`
//! what it has issued to devices. Time is read in `clock` alone.

pub mod app;
pub mod blobs;
#[cfg(feature = "embedded-broker")]
pub mod broker;
pub mod clock;
pub mod credentials;
pub mod devices;
pub mod durable;
pub mod error;
pub mod health;
pub mod notices;
pub mod pki;
pub mod presence;
pub mod progress;
pub mod refusal;
pub mod remote;
pub mod resolve;
pub mod rest;
pub mod selector;
pub mod serve;
pub mod store;
pub mod trust;
