//! `selvedge logs`: lines for people and programs, and following over restarts and absences.

use std::io::{BufRead as _, BufReader};

use serde_json::{Value, json};

use crate::mock::{Mock, check};

const PATH: &str = "/targets/edge-1/logs";

fn answer(epoch: u64, last: u64, numbers: impl IntoIterator<Item = u64>) -> Value {
    let lines: Vec<Value> = numbers
        .into_iter()
        .map(|number| {
            json!({"number": number, "at_ms": 1_767_225_600_123_u64, "source": if number % 2 == 0 { "host" } else { "agent" },
                "level": "warn", "text": format!("epoch {epoch} line {number} \u{1b}[2J")})
        })
        .collect();
    json!({"last": last, "epoch": epoch, "lines": lines})
}

#[test]
fn lines_for_people_and_for_programs() {
    let mock = Mock::start();
    mock.says("GET", PATH, answer(1, 7, 5..=7));
    let said = mock.check(
        &["logs", "edge-1", "-n", "20"],
        0,
        &["2026-01-01T00:00:00.123Z agent warn  epoch 1 line 5"],
    );
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(mock.asked("GET", PATH)[0].line.ends_with("?lines=20"));
    let said = mock.check(&["logs", "edge-1", "--tail", "1", "--source", "host"], 0, &["line 6"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    let output = mock.selvedge(&["logs", "edge-1", "--json"]).output().unwrap();
    check(&output, 0, &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["number"], &first["at"]), (&json!(5), &json!("2026-01-01T00:00:00.123Z")));
    mock.check(&["logs", "edge-1", "-n", "0"], 2, &["1..=1000"]);
}

#[test]
fn a_device_that_is_away_is_told_and_not_waited_for() {
    for (status, reason, code, says) in [
        (503, "offline", 6, "connects again by itself"),
        (504, "deadline", 7, "ask again"),
        (422, "unsupported", 4, "update the agent"),
    ] {
        let mock = Mock::start();
        mock.refuses("GET", PATH, status, reason, "edge-1 does not");
        mock.check(&["logs", "edge-1"], code, &["would not show the log of edge-1", says]);
    }
}

#[test]
fn following_goes_on_over_restarts_and_absences() {
    let mock = Mock::start();
    mock.says("GET", PATH, answer(1, 500, [499, 500]));
    mock.refuses("GET", PATH, 503, "offline", "edge-1 is not heard");
    mock.refuses("GET", PATH, 503, "offline", "edge-1 is not heard");
    // The agent was started again and has written more lines than before: an answer to `after=500`.
    mock.answers("GET", PATH, 200, answer(2, 502, 501..=502));
    mock.answers("GET", PATH, 200, answer(2, 502, 1..=502));
    mock.answers("GET", PATH, 200, answer(2, 503, [503]));
    let mut child = mock.begin(&["logs", "edge-1", "-f"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().contains("epoch 1 line 499") && next().contains("epoch 1 line 500"));
    for number in 1..=503 {
        let line = next();
        assert!(line.contains(&format!("epoch 2 line {number} ")), "{number}: {line}");
    }
    // `| head`: it ends although nothing more is written.
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let notes: Vec<String> =
        BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes[0].contains("asking again") && notes[1].contains("answers again"), "{notes:?}");
    assert!(notes[2].contains("started again"), "{notes:?}");
    let asked = mock.asked("GET", PATH);
    assert!(asked[1].line.ends_with("&after=500") && asked[4].line.ends_with("&after=0"), "{asked:?}");
}

#[test]
fn following_waits_for_a_device_that_is_not_there_yet() {
    let mock = Mock::start();
    mock.refuses("GET", PATH, 503, "offline", "edge-1 is not heard");
    mock.answers("GET", PATH, 200, answer(1, 1, [1]));
    let mut child = mock.begin(&["logs", "edge-1", "-f"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("line 1"));
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
