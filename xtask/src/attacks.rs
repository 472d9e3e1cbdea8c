//! `cargo xtask test attacks`: the rows of the attack table, one a line, as the tests wrote them down,
//! and how many gave the attacker what.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{paths, run};

/// The variable that names the file in which tests collect their rows.
pub const VARIABLE: &str = "SELVEDGE_ATTACKS";

/// A new, empty file for the rows.
pub fn collect() -> Result<PathBuf> {
    let path = paths::cargo_target().join("attacks.jsonl");
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(path),
    }
}

/// Prints the table. It fails where a row did, or where there is none.
pub fn show(path: &PathBuf) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("reading the rows in {}", path.display()))?;
    let (table, failed) = table(&text)?;
    println!("{table}");
    if failed > 0 {
        bail!("{failed} attacks succeeded, or could not be tried");
    }
    run::say("in every row the model went on answering");
    Ok(())
}

/// The table, and how many rows failed.
fn table(text: &str) -> Result<(String, usize)> {
    let mut rows = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).context("a row that is no JSON"))
        .collect::<Result<Vec<Value>>>()?;
    if rows.is_empty() {
        bail!("no attack was tried");
    }
    rows.sort_by_key(|row| (word(row, "kind").to_owned(), word(row, "attack").to_owned()));
    let (mut lines, mut counts, mut failed) = (Vec::new(), BTreeMap::new(), 0);
    for row in &rows {
        let (kind, attack, gets) = (word(row, "kind"), word(row, "attack"), word(row, "gets"));
        let asked = row["asked"].as_u64().unwrap_or(0);
        let line = format!("attack {kind}: {attack}: attacker gets {gets} ({asked} answers meanwhile)");
        match row["failed"].as_str() {
            None => {
                *counts.entry(word(row, "gain")).or_insert(0_usize) += 1;
                lines.push(line);
            }
            Some(why) => {
                failed += 1;
                lines.push(format!("attack {kind}: {attack}: FAILED, for he should get {gets}: {why}"));
            }
        }
    }
    let count = |gain| counts.get(gain).copied().unwrap_or(0);
    lines.push(format!(
        "{} attacks: {} get nothing, {} a delay, {} a stated choice; {failed} failed",
        rows.len(),
        count("nothing"),
        count("delay"),
        count("choice"),
    ));
    Ok((lines.join("\n"), failed))
}

fn word<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_by_gain() {
        let text = r#"{"kind":"b","attack":"y","gain":"delay","gets":"delay","failed":null,"asked":7}
{"kind":"a","attack":"x","gain":"nothing","gets":"nothing","failed":null,"asked":9}
{"kind":"c","attack":"z","gain":"choice","gets":"a choice","failed":"it ran","asked":1}"#;
        let (table, failed) = table(text).unwrap();
        assert_eq!(failed, 1);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "attack a: x: attacker gets nothing (9 answers meanwhile)");
        assert_eq!(lines[2], "attack c: z: FAILED, for he should get a choice: it ran");
        assert_eq!(lines[3], "3 attacks: 1 get nothing, 1 a delay, 0 a stated choice; 1 failed");
        assert!(super::table("").is_err());
    }
}
