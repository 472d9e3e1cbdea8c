//! A program that something is compared with: from the first line that it says until it is dropped.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::programs::{program, set_up};

/// A running peer.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    /// Its first line.
    pub said: String,
}

impl Peer {
    /// Starts it and waits for its first line.
    ///
    /// # Panics
    /// Where it says none.
    pub fn start(command: &mut Command) -> Self {
        // Those that stay until their input ends have one.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let mut peer = Self { child, said: String::new() };
        peer.said = lines.next().and_then(Result::ok).unwrap_or_else(|| panic!("{command:?} said nothing"));
        // What else it says goes nowhere, but must find room.
        std::thread::spawn(move || lines.for_each(drop));
        peer
    }

    /// The least program that opens an ONNX model with ort, once it has answered.
    ///
    /// # Panics
    /// Where it does not answer.
    pub fn bare(model: &Path) -> Self {
        let library = set_up("setup/onnxruntime/libonnxruntime.so");
        let peer = Self::start(Command::new(program("peer-bare")).arg(library).arg(model));
        assert!(peer.said.starts_with("answered"), "it said {:?}", peer.said);
        peer
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
