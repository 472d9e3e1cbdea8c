//! Bad links between agent and broker.
//!
//! [`cable::Cable`] handles bytes, so it works under TLS: it delays, throttles, cuts, and goes silent
//! one way. [`relay::Relay`] reads MQTT, so it needs a broker in plain text: it drops, doubles and
//! reorders messages of QoS 0. [`ledger::Ledger`] sits between registry and broker, spoils nothing and
//! counts which blocks are sent, and how often. What happens when is up to a seed, which is printed:
//! `SELVEDGE_LINK_SEED` sets it. Threads move the bytes, so that the same seed gives the same faults
//! per byte and message, and not the same run.

pub mod cable;
pub mod ledger;
pub(crate) mod packets;
pub mod relay;

use std::sync::{Mutex, PoisonError};

/// The seed of this run: the variable's, or one of its own; printed.
pub fn seed() -> u64 {
    let given = std::env::var("SELVEDGE_LINK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given
        .unwrap_or_else(|| u64::from(std::process::id()) ^ crate::clock::date().as_second().cast_unsigned());
    println!("SELVEDGE_LINK_SEED={seed}");
    seed
}

/// Chance, from a seed; for several threads.
pub struct Chance(Mutex<u64>);

impl Chance {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// Any number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// True so many times of a thousand.
    pub fn per_mille(&self, times: u64) -> bool {
        self.below(1000) < times
    }

    /// Around `mean`: half of it to one and a half.
    pub fn around(&self, mean: u64) -> u64 {
        mean / 2 + self.below(mean + 1)
    }
}
