//! `selvedge-host probe` as a child: models are opened and cases run there, never in this process,
//! which links no inference library and outlives a model that crashes its own.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use selvedge_control::{Loaded, ProbeResult, ProbedModel};
use tokio::io::AsyncReadExt as _;

use super::memory;
use crate::failure::Failure;
use crate::programs::Programs;

/// Largest answer of a probe: a recorded case holds its tensors as text.
const LARGEST_ANSWER: u64 = 256 << 20;
/// As much of its standard error as an error shows.
const LARGEST_COMPLAINT: u64 = 16 << 10;

/// What is inside a bare model, and one recorded case.
pub async fn model(programs: &Programs, file: &Path, allowed: Duration) -> Result<ProbedModel, Failure> {
    match run(programs, "--model", file, allowed).await?.0 {
        ProbeResult::Model(probed) => Ok(probed),
        ProbeResult::Refused(refusal) => {
            Err(refused(format!("{} is not a model that can be packaged", file.display()), refusal.error))
        }
        ProbeResult::Package(_) => Err(misunderstood("it answered about a package")),
    }
}

/// Loads a laid-out package and runs its acceptance cases; also why a device would refuse it for the memory
/// that this took, where it may take `most_mib` (0: any).
pub async fn package(
    programs: &Programs,
    dir: &Path,
    allowed: Duration,
    most_mib: u32,
) -> Result<(Loaded, Option<String>), Failure> {
    let (result, peak) = run(programs, "--package", dir, allowed).await?;
    match result {
        ProbeResult::Package(loaded) => Ok((loaded, memory::over(peak, most_mib))),
        ProbeResult::Refused(refusal) => {
            Err(refused("the host does not load the package".to_owned(), refusal.error))
        }
        ProbeResult::Model(_) => Err(misunderstood("it answered about a model")),
    }
}

fn refused(what: String, why: String) -> Failure {
    Failure::Refused {
        what,
        advice: "put right what it names and run the command again".to_owned(),
        source: Some(why.into()),
    }
}

fn misunderstood(why: &str) -> Failure {
    Failure::Garbled {
        who: "selvedge-host probe",
        address: "its standard output".to_owned(),
        source: why.to_owned().into(),
    }
}

async fn run(
    programs: &Programs,
    what: &str,
    path: &Path,
    allowed: Duration,
) -> Result<(ProbeResult, Option<u64>), Failure> {
    let program = programs.find("selvedge-host")?;
    let mut child = tokio::process::Command::new(&program)
        .arg("probe")
        .arg(what)
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| Failure::Start { program: program.clone(), source })?;
    let process = child.id();
    let (mut answer, mut complaint) = (Vec::new(), Vec::new());
    let out = child.stdout.take().map(|pipe| pipe.take(LARGEST_ANSWER));
    let err = child.stderr.take().map(|pipe| pipe.take(LARGEST_COMPLAINT));
    let (Some(mut out), Some(mut err)) = (out, err) else {
        return Err(misunderstood("it has no standard output"));
    };
    let talk = async {
        let (heard, said, status) = tokio::join!(
            out.read_to_end(&mut answer),
            async {
                let read = err.read_to_end(&mut complaint).await;
                // What is beyond the limit is read and dropped, so that the child is not held up.
                tokio::io::copy(err.get_mut(), &mut tokio::io::sink()).await.and(read)
            },
            child.wait()
        );
        heard.and(said).and(status)
    };
    let (ended, peak) = memory::watched(process, tokio::time::timeout(allowed, talk)).await;
    let status = match ended {
        Ok(Ok(status)) => status,
        Ok(Err(source)) => return Err(misunderstood(&source.to_string())),
        Err(_) => {
            return Err(Failure::TimedOut {
                what: "the end of `selvedge-host probe`".to_owned(),
                allowed,
                advice: "the model is slow or does not end; allow more with --timeout".to_owned(),
            });
        }
    };
    // It may log before; the result is the last line.
    let text = String::from_utf8_lossy(&answer);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let result = serde_json::from_str(line).map_err(|_| {
        let complaint = String::from_utf8_lossy(&complaint);
        let last: Vec<&str> = complaint.lines().rev().take(5).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n  ");
        Failure::Refused {
            what: format!("`selvedge-host probe {what} {}` ended without a result ({status})", path.display()),
            advice: "a model that crashes its own process is not packaged; if its last words name the ONNX Runtime library, \
                 run `cargo xtask setup` or set SELVEDGE_ONNXRUNTIME"
                .to_owned(),
            source: (!last.is_empty()).then(|| format!("it said:\n  {last}").into()),
        }
    })?;
    Ok((result, peak))
}

#[cfg(test)]
mod tests {
    //! `selvedge-host` is a mock here: a shell script with the answers that a host may give. The
    //! real one is asked in `tests/`.
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    async fn probe(script: &str, allowed: Duration) -> Result<Loaded, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("selvedge-host");
        std::fs::write(&host, format!("#!/bin/sh\n{script}")).unwrap();
        std::fs::set_permissions(&host, std::fs::Permissions::from_mode(0o755)).unwrap();
        let programs = Programs { programs: Some(dir.path().to_owned()) };
        package(&programs, Path::new("/x"), allowed, 1).await.map(|(loaded, heavy)| {
            assert!(heavy.is_some_and(|heavy| heavy.contains("`acceptance.memory-mib` allows 1")));
            loaded
        })
    }

    #[tokio::test]
    async fn every_end_of_a_probe_is_told() {
        let long = Duration::from_secs(60);
        let crash = probe("echo bad >&2; kill -SEGV $$", long).await.unwrap_err();
        assert!(crash.chain().contains("bad") && crash.chain().contains("signal: 11"), "{}", crash.chain());
        let refused =
            probe(r#"echo '{"refused":{"error":"no such operator","reason":"bad-model"}}'; exit 1"#, long)
                .await
                .unwrap_err();
        assert!(refused.chain().contains("no such operator"));
        assert_eq!(refused.exit(), crate::exit::Exit::Refused);
        let slow = probe("exec sleep 60", Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(slow.exit(), crate::exit::Exit::TimedOut);
        // More than a MiB is more than it may, where the system says how much it is.
        if cfg!(target_os = "linux") {
            let answer = r#"{"package":{"package":{"name":"p","digest":"DIGEST"},"cases":[],"load_ms":1}}"#;
            let answer = answer.replace("DIGEST", &selvedge_package::Digest::of(b"").to_string());
            probe(&format!("sleep 2; echo '{answer}'"), long).await.unwrap();
        }
        let flood =
            probe("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo nonsense", long).await.unwrap_err();
        assert_eq!(flood.exit(), crate::exit::Exit::Refused);
    }
}
