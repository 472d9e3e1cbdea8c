//! Running the `selvedge` command.

use std::process::{Command, Output};

use serde_json::Value;

use crate::programs::program;

/// `selvedge` with an environment of its own.
#[derive(Default)]
pub struct Selvedge {
    environment: Vec<(String, String)>,
}

impl Selvedge {
    /// Without any registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it; whatever comes of it.
    pub fn output(&self, arguments: &[&str]) -> Output {
        Command::new(program("selvedge"))
            .args(arguments)
            .env_remove("SELVEDGE_REGISTRY")
            .env_remove("SELVEDGE_TOKEN")
            .env_remove("SELVEDGE_TOKEN_FILE")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .unwrap_or_else(|error| panic!("selvedge does not start: {error}"))
    }

    /// Runs it and gives its standard output.
    ///
    /// # Panics
    /// When it does not succeed, with what it said.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(
            output.status.success(),
            "selvedge {}: {}\n{}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs it with `--json`.
    ///
    /// # Panics
    /// When it does not succeed or prints something else.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let text = self.run(&all);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{arguments:?} printed no JSON ({error}): {text}"))
    }

    /// Runs it where it must fail; exit code and standard error.
    ///
    /// # Panics
    /// When it succeeds or is killed.
    pub fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.output(arguments);
        let code = output.status.code().unwrap_or_else(|| panic!("{arguments:?}: {}", output.status));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(
            code,
            0,
            "selvedge {} succeeded: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stdout)
        );
        (code, said)
    }
}
