//! Clients with certificates at two brokers, Mosquitto as `pki mosquitto` sets it up and the embedded
//! one: both keep to one table of rules.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod broker;
mod connecting;
mod revoked;
mod strangers;
mod topics;
