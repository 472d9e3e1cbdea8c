//! The groups that the cases fall into, and whether one has moved the wrong way.

use std::collections::BTreeMap;

use selvedge_tests::counts;

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The host gave what ONNX Runtime gave, and the case says the same.
    Passed,
    /// ONNX Runtime gave something else than the case says, and the host gave that, bit by bit; or random numbers.
    Differs(String),
    /// ONNX Runtime refused the model, and so did the host; or it failed with these inputs, and so did the
    /// package's acceptance case.
    Unable(String),
    /// The host refused the model for a kind of value, saying so.
    Refused(String),
    /// The host did something else than ONNX Runtime.
    Failed(String),
}

/// Counted with onnx 1.23.2 and ONNX Runtime 1.32.0, of all that there are: at least so many pass, in at most so
/// many it gives something else than the case says; the rest it cannot do. They may only be changed towards more
/// cases that pass. A few depend on the machine: ten are allowed for what ONNX Runtime computes on another processor;
/// what the host does with that has no slack.
const ALL: usize = 2033;
const PASSED: usize = 1848 - SLACK;
const DIFFERS: usize = 22 + SLACK;
const UNABLE: usize = 163 + SLACK;
const SLACK: usize = 10;

/// The cases by what became of them.
#[derive(Default)]
pub struct Groups {
    passed: usize,
    differs: BTreeMap<String, String>,
    unable: BTreeMap<String, String>,
    refused: BTreeMap<String, String>,
    failed: BTreeMap<String, String>,
}

impl Groups {
    /// Adds a case.
    pub fn add(&mut self, name: String, outcome: Outcome) {
        let (group, why) = match outcome {
            Outcome::Passed => {
                self.passed += 1;
                return;
            }
            Outcome::Differs(why) => (&mut self.differs, why),
            Outcome::Unable(why) => (&mut self.unable, why),
            Outcome::Refused(why) => (&mut self.refused, why),
            Outcome::Failed(why) => (&mut self.failed, why),
        };
        group.insert(name, why);
    }

    fn all(&self) -> usize {
        self.passed + self.differs.len() + self.unable.len() + self.refused.len() + self.failed.len()
    }

    /// Prints the counts, and which cases did not pass.
    pub fn say(&self) {
        for (group, cases) in [
            ("differs", &self.differs),
            ("unable", &self.unable),
            ("refused", &self.refused),
            ("FAILED", &self.failed),
        ] {
            for (name, why) in cases {
                println!("{group}: {name}: {why:.300}");
            }
        }
        counts::say(&format!(
            "onnx-backend: {} cases, all through the host: {} passed, {} as ONNX Runtime has it and the case has not, {} \
             that ONNX Runtime cannot do and the host says so, {} of a kind of value that is refused, {} failed",
            self.all(),
            self.passed,
            self.differs.len(),
            self.unable.len(),
            self.refused.len(),
            self.failed.len()
        ));
    }

    /// Fails where the host did something else than ONNX Runtime, and where a group has moved the wrong way.
    pub fn judge(&self) {
        assert!(
            self.failed.is_empty(),
            "{} cases that are otherwise through the host: {:#.4000?}",
            self.failed.len(),
            self.failed
        );
        assert_eq!(self.all(), ALL, "cases");
        assert!(self.passed >= PASSED, "{} cases passed, of {PASSED} before", self.passed);
        assert!(
            self.differs.len() <= DIFFERS,
            "{} of {DIFFERS} before: {:#?}",
            self.differs.len(),
            self.differs
        );
        assert!(self.unable.len() <= UNABLE, "{} of {UNABLE} before: {:#?}", self.unable.len(), self.unable);
        assert!(self.refused.is_empty(), "refused: {:#?}", self.refused);
    }
}
