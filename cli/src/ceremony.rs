//! Keys of people, and files that several people sign one after another: what the commands `keys`,
//! `trust` and `release` share. Nothing here talks to a registry but [`chain`].

pub mod chain;
pub mod files;
pub mod passphrase;
pub mod seen;
pub mod signers;
pub mod words;
