//! The groups that the cases fall into, and whether one has moved the wrong way.

use std::collections::BTreeMap;

use selvedge_tests::counts;

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The host gave what ONNX Runtime gave.
    Passed,
    /// ONNX Runtime refused the model or the inputs, or gave something else than the case says.
    OnnxRuntime(String),
    /// The host refused the model for a kind of value, saying so.
    Refused(String),
    /// ONNX Runtime did it and the host did not.
    Failed(String),
}

/// Counted with onnx 1.23.2 and ONNX Runtime 1.32.0: at least so many pass, at most so many are refused.
/// Both may only be changed towards more cases that pass. A few depend on the machine: ten less than
/// were counted, for what ONNX Runtime computes on another processor; what the host does with that has no slack.
const PASSED: usize = 1824;
const REFUSED: usize = 2;

/// The cases by what became of them.
#[derive(Default)]
pub struct Groups {
    passed: usize,
    onnxruntime: BTreeMap<String, String>,
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
            Outcome::OnnxRuntime(why) => (&mut self.onnxruntime, why),
            Outcome::Refused(why) => (&mut self.refused, why),
            Outcome::Failed(why) => (&mut self.failed, why),
        };
        group.insert(name, why);
    }

    fn all(&self) -> usize {
        self.passed + self.onnxruntime.len() + self.refused.len() + self.failed.len()
    }

    /// Prints the counts, and which cases did not pass.
    pub fn say(&self) {
        for (group, cases) in
            [("onnxruntime", &self.onnxruntime), ("refused", &self.refused), ("FAILED", &self.failed)]
        {
            for (name, why) in cases {
                println!("{group}: {name}: {why:.300}");
            }
        }
        counts::say(&format!(
            "onnx-backend: {} cases: {} passed, {} that ONNX Runtime itself fails, {} of a kind of value that is \
             refused, {} failed",
            self.all(),
            self.passed,
            self.onnxruntime.len(),
            self.refused.len(),
            self.failed.len()
        ));
    }

    /// Fails where ONNX Runtime did a case and the host did not, and where fewer pass than before.
    pub fn judge(&self) {
        assert!(
            self.failed.is_empty(),
            "{} cases of which ONNX Runtime is capable: {:#.4000?}",
            self.failed.len(),
            self.failed
        );
        assert!(self.passed >= PASSED, "{} cases passed, of {PASSED} before", self.passed);
        assert!(self.refused.len() <= REFUSED, "refused: {:#?}", self.refused);
    }
}
