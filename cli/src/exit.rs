//! The one table of exit codes. It decides nothing: `failure` says which row an error belongs to.
//!
//! `docs/exit-codes.md` is the same table for people; a test here compares the two.

/// How a run of `selvedge` ended, as the number that the shell sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything that was asked for is done.
    Done = 0,
    /// A fault of Selvedge or of the machine.
    Unexpected = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Something that was named does not exist.
    NotFound = 3,
    /// Input was refused, or a device refused or failed a release.
    Refused = 4,
    /// It contradicts what is already there.
    Conflict = 5,
    /// A program that must answer does not.
    Unreachable = 6,
    /// What was waited for did not happen in time.
    TimedOut = 7,
    /// No token, or one that is not accepted.
    Unauthorised = 8,
    /// A signature, a key or a digest does not hold.
    Untrusted = 9,
    /// Ended by Ctrl-C or SIGTERM.
    Interrupted = 130,
}

/// Every row: the code, its word (the `reason` of `--json` errors), and what it means.
pub const TABLE: &[(Exit, &str, &str)] = &[
    (Exit::Done, "ok", "everything that was asked for is done"),
    (
        Exit::Unexpected,
        "unexpected",
        "a fault of Selvedge or of the machine (a full disk, a file that cannot be read)",
    ),
    (Exit::Usage, "usage", "the command line is wrong, or it does not say enough"),
    (
        Exit::NotFound,
        "not-found",
        "something that was named does not exist: a file, package, release, target or model",
    ),
    (
        Exit::Refused,
        "refused",
        "input was refused: a bad manifest, model or request, or a device refused or failed a release",
    ),
    (
        Exit::Conflict,
        "conflict",
        "it contradicts what is there: a release counter in use, a name taken, `selvedge up` running",
    ),
    (
        Exit::Unreachable,
        "unreachable",
        "registry, broker, agent or host does not answer, or could not be started",
    ),
    (Exit::TimedOut, "timed-out", "what was waited for did not happen in time; it may still happen"),
    (Exit::Unauthorised, "unauthorised", "no token was given, or the registry does not accept it"),
    (Exit::Untrusted, "untrusted", "a signature, a key, a digest or signed metadata does not hold"),
    (Exit::Interrupted, "interrupted", "ended by Ctrl-C or SIGTERM before it was done"),
];

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The word of this row.
    pub fn word(self) -> &'static str {
        TABLE.iter().find(|row| row.0 == self).map_or("unexpected", |row| row.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_the_same_table() {
        let document = include_str!("../../docs/exit-codes.md");
        let (document, _) =
            document.split_once("# Exit codes of `selvedge-agent`").expect("the agent's part");
        let rows: Vec<&str> = document
            .lines()
            .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
            .collect();
        let expected: Vec<String> = TABLE
            .iter()
            .map(|(exit, word, means)| format!("| {} | `{word}` | {means} |", exit.code()))
            .collect();
        assert_eq!(rows, expected);
    }

    /// Their codes are what scripts of several people branch on; `tests/{trust,oci,keys_doc}` hold them.
    #[test]
    fn the_document_says_how_the_commands_of_keys_and_files_end() {
        let document = include_str!("../../docs/exit-codes.md");
        for command in ["keys new", "trust check", "trust publish", "verify", "export", "import", "push"] {
            assert!(document.contains(&format!("\n- `selvedge {command}` ")), "{command}");
        }
    }

    #[test]
    fn codes_and_words_are_unique() {
        for (index, (exit, word, _)) in TABLE.iter().enumerate() {
            assert_eq!(exit.word(), *word);
            for other in &TABLE[index + 1..] {
                assert_ne!(exit.code(), other.0.code());
                assert_ne!(*word, other.1);
            }
        }
    }
}
