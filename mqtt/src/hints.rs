//! What a program tells a running client besides messages: that it doubts the link, that it awaits messages in
//! bulk, and how large its fleet is.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// All of it, shared by the handles and the connection.
#[derive(Debug)]
pub(crate) struct Hints {
    doubt: AtomicBool,
    awaited: AtomicBool,
    fleet: AtomicU32,
}

impl Hints {
    pub fn new(fleet: u32) -> Self {
        Self { doubt: AtomicBool::new(false), awaited: AtomicBool::new(false), fleet: AtomicU32::new(fleet) }
    }

    pub fn doubt(&self) {
        self.doubt.store(true, Ordering::Relaxed);
    }

    /// Whether the link was doubted since this was asked last.
    pub fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::Relaxed)
    }

    pub fn set_awaited(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    pub fn awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    pub fn set_fleet(&self, fleet: u32) {
        self.fleet.store(fleet, Ordering::Relaxed);
    }

    pub fn fleet(&self) -> u32 {
        self.fleet.load(Ordering::Relaxed)
    }
}
