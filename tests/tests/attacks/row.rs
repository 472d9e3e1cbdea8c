//! One line of the table: what was attacked, what the attacker got, and whether the model answered
//! all the while.
//!
//! Rows of one field follow each other; one that fails is noted and the next is tried, and the test
//! fails at the end. `SELVEDGE_ATTACKS` names a file that collects the rows of all tests.

use std::fmt;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use selvedge_tests::asking::{Asking, failures};
use selvedge_tests::{clock, wait};

use crate::field::{Field, INPUT};

/// Time between two questions to the model.
const PACE: Duration = Duration::from_millis(20);
/// Questions that a row has at least.
const LEAST: usize = 5;

/// What an attacker gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gain {
    /// Nothing at all: the next honest offer is taken as if nothing had been.
    Nothing,
    /// The device learns nothing new while the attack lasts.
    Delay,
    /// Something that the design says he gets.
    Choice(&'static str),
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Delay => "delay",
            Self::Choice(what) => what,
        })
    }
}

impl Field {
    /// Does `attack`, which asserts what the attacker gets, while the model is asked without pause.
    pub fn row(&mut self, kind: &str, name: &str, gain: Gain, attack: impl FnOnce(&mut Self)) {
        let start = clock::now();
        let asking = Asking::start(self.infer(), INPUT, PACE);
        let result = catch_unwind(AssertUnwindSafe(|| attack(self)));
        wait::until("some questions to be asked", || match asking.sent() {
            sent if sent >= LEAST => Ok(()),
            sent => Err(sent),
        });
        let asked = asking.stop();
        let failed = failures(&asked);
        let mut why = result.err().map(|panic| said(&*panic));
        if why.is_none() && !failed.is_empty() {
            why = Some(format!(
                "{} of {} questions were not answered, such as: {}",
                failed.len(),
                asked.len(),
                failed[0]
            ));
        }
        let line = format!("attack {kind}: {name}: attacker gets {gain}");
        match &why {
            None => println!("{line}"),
            Some(why) => println!("{line}: FAILED: {why}"),
        }
        note(kind, name, gain, why.as_deref(), asked.len(), start.elapsed());
        if let Some(why) = why {
            println!("--- the agent meanwhile ---\n{}", self.agent_log_tail());
            self.failed.push(format!("{kind}: {name}: {why}"));
        }
    }

    /// Fails where a row did.
    pub fn done(self) {
        assert!(self.failed.is_empty(), "{} rows failed:\n{}", self.failed.len(), self.failed.join("\n"));
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

fn note(kind: &str, name: &str, gain: Gain, why: Option<&str>, asked: usize, took: Duration) {
    let Some(path) = std::env::var_os("SELVEDGE_ATTACKS") else { return };
    let word = match gain {
        Gain::Nothing => "nothing",
        Gain::Delay => "delay",
        Gain::Choice(_) => "choice",
    };
    let line = serde_json::json!({
        "kind": kind, "attack": name, "gain": word, "gets": gain.to_string(), "failed": why,
        "asked": asked, "seconds": took.as_secs_f64(),
    });
    let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
    // One write a line: rows of several programs meet in the file.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}
