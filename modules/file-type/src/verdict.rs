//! The final answer: the model's best label, unless it is not sure enough or the configuration says
//! otherwise (magika's default mode, "high confidence"), and the rules for files that the model is
//! not asked about.

use crate::config::Config;

/// A label and how sure it is.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    pub label: String,
    /// From 0 to 1; 1 where no model was asked.
    pub score: f32,
}

impl Verdict {
    /// A label that follows from a rule.
    pub fn sure(label: &str) -> Self {
        Self { label: label.to_owned(), score: 1.0 }
    }
}

/// For files too short for the model.
pub fn of_few_bytes(content: &[u8]) -> Verdict {
    match std::str::from_utf8(content) {
        Ok(_) => Verdict::sure("txt"),
        Err(_) => Verdict::sure("unknown"),
    }
}

/// For the scores of all labels.
pub fn of_scores(config: &Config, scores: &[f32]) -> Result<Verdict, String> {
    let model = &config.model;
    let labels = &model.target_labels_space;
    if scores.len() != labels.len() {
        return Err(format!("the model has {} scores for {} labels", scores.len(), labels.len()));
    }
    // The first of the best, as Python's `max` has it.
    let best = (0..scores.len()).reduce(|best, at| if scores[at] > scores[best] { at } else { best });
    let best = best.ok_or("the model has no labels")?;
    let (found, score) = (&labels[best], scores[best]);
    let threshold = model.thresholds.get(found).unwrap_or(&model.medium_confidence_threshold);
    let label = model.overwrite_map.get(found).unwrap_or(found);
    let label = if f64::from(score) >= *threshold {
        label
    } else if config.text.contains(label) {
        "txt"
    } else {
        "unknown"
    };
    Ok(Verdict { label: label.to_owned(), score })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A small model: four bytes from each end.
    pub fn config() -> Config {
        let model = r#"{"beg_size":4,"mid_size":0,"end_size":4,"block_size":8,"padding_token":256,
            "min_file_size_for_dl":2,"use_inputs_at_offsets":false,"medium_confidence_threshold":0.5,
            "thresholds":{"c":0.9},"overwrite_map":{"noise":"unknown"},"version_major":3,
            "target_labels_space":["c","elf","noise"]}"#;
        let types = r#"{"c":{"is_text":true},"elf":{"is_text":false},"unknown":{"is_text":false}}"#;
        Config::parse(model.as_bytes(), types.as_bytes()).unwrap()
    }

    fn check(scores: [f32; 3], label: &str) {
        let best = scores.iter().copied().fold(0.0, f32::max);
        let verdict = of_scores(&config(), &scores).unwrap();
        assert_eq!(verdict, Verdict { label: label.to_owned(), score: best });
    }

    #[test]
    fn a_label_needs_its_threshold() {
        check([0.95, 0.0, 0.0], "c");
        check([0.89, 0.1, 0.0], "txt");
        check([0.1, 0.51, 0.0], "elf");
        check([0.2, 0.4, 0.1], "unknown");
        check([0.5, 0.5, 0.0], "txt");
        check([0.0, 0.2, 0.8], "unknown");
    }

    #[test]
    fn few_bytes_are_text_or_not() {
        assert_eq!(of_few_bytes("é".as_bytes()), Verdict::sure("txt"));
        assert_eq!(of_few_bytes(b"\xed\xa0\x80"), Verdict::sure("unknown"));
    }

    #[test]
    fn refuses_scores_that_do_not_fit_the_labels() {
        assert!(of_scores(&config(), &[1.0]).is_err());
    }

    #[test]
    fn refuses_models_that_it_cannot_feed() {
        assert!(Config::parse(b"{}", b"{}").is_err());
    }
}
