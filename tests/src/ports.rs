//! Ports for programs that are to listen where somebody else has been told already, and again after a restart.
//!
//! A port that the system gave for a moment may be given to the next who asks. These lie below those that the system
//! gives by itself, and each belongs to one test process until that ends: by a lock on a file.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// Below what Linux gives by itself (`ip_local_port_range`), above what services are known by.
const FIRST: u16 = 15_000;
const COUNT: u16 = 16_000;

/// Held until the process ends.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that nobody listens at, and that no other test is given.
///
/// # Panics
/// When there is none.
pub fn free_address() -> String {
    // Each person has an own one: nobody else's can be written.
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("selvedge-test-ports-{user}"));
    std::fs::create_dir_all(&folder).expect("the temporary directory is writable");
    // Processes that begin side by side do not try the same ones.
    let start = std::process::id().wrapping_mul(127) % u32::from(COUNT);
    for _ in 0..COUNT {
        let number = (start + u32::from(NEXT.fetch_add(1, Ordering::SeqCst))) % u32::from(COUNT);
        let port = FIRST + u16::try_from(number).expect("there are fewer than 65536");
        let path = folder.join(port.to_string());
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            HELD.lock().unwrap_or_else(PoisonError::into_inner).push(file);
            return format!("127.0.0.1:{port}");
        }
    }
    panic!("no port from {FIRST} on is free");
}
