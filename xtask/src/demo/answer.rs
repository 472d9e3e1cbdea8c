//! What the device answered beside what the Python package had said when the cases were made.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::setup::files_below;

/// As in the example's manifest.
const TOLERANCE: f64 = 1e-4;

/// One acceptance case of the example.
pub struct Case {
    /// The file that it asks about, below the package folder.
    pub sample: String,
    label: String,
    score: f64,
}

/// Cases and what was answered.
#[derive(Default)]
pub struct Answers(Vec<(Case, String, f64)>);

/// The acceptance cases of a package folder.
pub fn cases(example: &Path) -> Result<Vec<Case>> {
    let files = files_below(&example.join("cases"))?;
    let read = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let case: Value = serde_json::from_str(&text)?;
        let sample = case["inputs"][0]["file"].as_str().context("a case without a file")?.to_owned();
        let (label, score) = label_and_score(&case)?;
        Ok(Case { sample, label, score })
    };
    files.iter().map(read).collect()
}

impl Answers {
    /// Adds an answer of the Open Inference Protocol.
    pub fn add(&mut self, case: Case, answer: &Value) -> Result<()> {
        let (label, score) = label_and_score(answer).with_context(|| format!("reading {answer}"))?;
        self.0.push((case, label, score));
        Ok(())
    }

    /// A line for each.
    pub fn table(&self) -> String {
        let mut lines = vec![format!("  {:<22} {:<20} {:<20}", "file", "expected", "answered")];
        for (case, label, score) in &self.0 {
            let name = case.sample.strip_prefix("samples/").unwrap_or(&case.sample);
            let expected = format!("{} {:.6}", case.label, case.score);
            let mark = if fits(case, label, *score) { "" } else { "  DIFFERS" };
            lines.push(format!("  {name:<22} {expected:<20} {:<20}{mark}", format!("{label} {score:.6}")));
        }
        lines.join("\n")
    }

    /// Fails when one differs.
    pub fn check(&self) -> Result<()> {
        let wrong = self.0.iter().filter(|(case, label, score)| !fits(case, label, *score)).count();
        if wrong > 0 || self.0.is_empty() {
            bail!("{wrong} of {} answers differ from the expected ones", self.0.len());
        }
        Ok(())
    }
}

fn fits(case: &Case, label: &str, score: f64) -> bool {
    case.label == label && (case.score - score).abs() <= TOLERANCE
}

fn label_and_score(of: &Value) -> Result<(String, f64)> {
    let outputs = of["outputs"].as_array().context("no outputs")?;
    let data =
        |name: &str| outputs.iter().find(|output| output["name"] == name).map(|output| &output["data"][0]);
    let label = data("label").and_then(Value::as_str).context("no label")?;
    let score = data("score").and_then(Value::as_f64).context("no score")?;
    Ok((label.to_owned(), score))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_label_or_score_differs() {
        let answer = |label: &str, score: f64| serde_json::json!({"outputs": [{"name": "label", "data": [label]}, {"name": "score", "data": [score]}]});
        let check = |label: &str, score: f64| {
            let mut answers = Answers::default();
            let case = Case { sample: "samples/a".into(), label: "pdf".into(), score: 0.5 };
            answers.add(case, &answer(label, score)).unwrap();
            answers.check().is_ok()
        };
        assert!(check("pdf", 0.50001));
        assert!(!check("png", 0.5));
        assert!(!check("pdf", 0.51));
        assert!(Answers::default().check().is_err());
    }
}
