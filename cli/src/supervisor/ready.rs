//! Waiting until a child is ready: an address file appears, an endpoint answers. Never longer than
//! allowed, and never for a child that has ended.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::clock::Deadline;
use crate::context::read_small;
use crate::failure::Failure;
use crate::supervisor::child::Child;

const PAUSE: Duration = Duration::from_millis(25);

/// Waits until `path` holds the address on which `child` listens.
pub async fn address(child: &mut Child, path: &Path, deadline: Deadline) -> Result<SocketAddr, Failure> {
    loop {
        child.check()?;
        if path.exists()
            && let Ok(address) = plain(&read_small(path, 256)?).parse()
        {
            return Ok(address);
        }
        if deadline.passed() {
            return Err(late(format!("an address of the {}", child.name()), deadline));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Address and port of what may be written as a URL.
fn plain(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/')
}

/// Waits until GET `url` is answered with success.
pub async fn answers(
    child: &mut Child,
    http: &reqwest::Client,
    url: &str,
    deadline: Deadline,
) -> Result<(), Failure> {
    loop {
        child.check()?;
        let answer = http.get(url).timeout(Duration::from_secs(5)).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        if deadline.passed() {
            return Err(late(format!("an answer from {url}"), deadline));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The error for a wait that is over.
pub fn late(what: String, deadline: Deadline) -> Failure {
    Failure::TimedOut {
        what,
        allowed: deadline.allowed(),
        advice: "look into the logs (directory `logs` of the data directory); on a slow machine allow more with --timeout".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_comes_late_or_never_or_from_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        let script = |script: String| {
            Child::start("x", Path::new("/bin/sh"), &["-c".into(), script.into()], &dir.path().join("x.log"))
                .unwrap()
        };
        let long = Deadline::after(Duration::from_secs(30));
        let mut child = script(format!(
            "echo > {0}; sleep 0.1; echo http://127.0.0.1:7/ > {0}; exec sleep 60",
            file.display()
        ));
        assert_eq!(address(&mut child, &file, long).await.unwrap(), "127.0.0.1:7".parse().unwrap());
        let late = address(&mut child, &dir.path().join("b"), Deadline::after(Duration::ZERO)).await;
        assert!(matches!(late, Err(Failure::TimedOut { .. })));
        let mut dead = script("exit 1".to_owned());
        assert!(matches!(address(&mut dead, &dir.path().join("b"), long).await, Err(Failure::Ended { .. })));
    }
}
