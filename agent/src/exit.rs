//! The one table of the agent's exit codes, so that whoever started it knows whether to start it again.
//!
//! `docs/exit-codes.md` is the same table for people; a test here compares the two.

use crate::config::ConfigError;
use crate::daemon::DaemonError;
use crate::enrolment::EnrolmentError;
use crate::identity::IdentityError;
use crate::lock::LockError;
use crate::store::StoreError;

/// How a run of `selvedge-agent` ended, as the number that systemd sees (those from 64 on as in sysexits.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It was told to end, or has answered.
    Done = 0,
    /// A fault of Selvedge or of the machine.
    Unexpected = 1,
    /// The command line is wrong.
    Usage = 2,
    /// What the device keeps is damaged.
    Damaged = 65,
    /// The disk failed.
    Storage = 74,
    /// Something that will pass stands in the way.
    Busy = 75,
    /// A person has to change something first.
    Configuration = 78,
}

/// Every row: the code, whether a start with nothing changed may help, and what it means.
pub const TABLE: &[(Exit, bool, &str)] = &[
    (Exit::Done, true, "it was told to end, or has answered"),
    (Exit::Unexpected, true, "a fault of Selvedge or of the machine"),
    (Exit::Usage, false, "the command line is wrong"),
    (Exit::Damaged, true, "a record of the device, its key or its database is damaged"),
    (Exit::Storage, true, "the disk cannot be read or written"),
    (Exit::Busy, true, "another agent has the data directory, or another program an address"),
    (Exit::Configuration, false, "a configuration or enrolment file is missing or cannot be used"),
];

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The row that an error belongs to.
    pub fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(row).unwrap_or(Self::Unexpected)
    }
}

fn row(error: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if error.is::<ConfigError>() || error.is::<EnrolmentError>() {
        return Some(Exit::Configuration);
    }
    if let Some(error) = error.downcast_ref::<DaemonError>() {
        return match error {
            DaemonError::Lock(error) => row(error),
            DaemonError::Store(error) => row(error),
            DaemonError::Identity(error) => row(error),
            DaemonError::Broker { .. } => Some(Exit::Configuration),
            DaemonError::Listen(_) => Some(Exit::Busy),
            DaemonError::System { .. } => None,
        };
    }
    if let Some(error) = error.downcast_ref::<IdentityError>() {
        return match error {
            IdentityError::Store(error) => row(error),
            IdentityError::DeviceKey { .. } | IdentityError::NoTrust => Some(Exit::Damaged),
            _ => Some(Exit::Configuration),
        };
    }
    if let Some(error) = error.downcast_ref::<LockError>() {
        return Some(match error {
            LockError::Held { .. } => Exit::Busy,
            LockError::Io { .. } => Exit::Storage,
        });
    }
    error.downcast_ref::<StoreError>().map(|error| match error {
        StoreError::Unusable { .. } | StoreError::Record { .. } | StoreError::Damaged { .. } => Exit::Damaged,
        _ => Exit::Storage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_document_has_the_same_rows() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exit-codes.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (_, agents) = document.split_once("# Exit codes of `selvedge-agent`").expect("the agent's part");
        let row = |(exit, again, meaning): &(Exit, bool, &str)| {
            format!("| {} | {} | {meaning} |", exit.code(), if *again { "yes" } else { "no" })
        };
        let expected: Vec<String> = TABLE.iter().map(row).collect();
        let written: Vec<&str> = agents
            .lines()
            .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
            .collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn the_units_do_not_start_an_agent_again_that_a_person_has_to_help() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/systemd/selvedge-agent.service");
        let unit = std::fs::read_to_string(path).unwrap();
        let vain: Vec<String> =
            TABLE.iter().filter(|row| !row.1).map(|row| row.0.code().to_string()).collect();
        assert!(unit.contains(&format!("\nRestartPreventExitStatus={}\n", vain.join(" "))), "{vain:?}");
    }

    #[test]
    fn errors_have_their_rows_however_deep_they_lie() {
        let config = ConfigError::Value { key: "http", value: String::new(), rule: "" };
        let wrapped = Err::<(), _>(config).context("outside").unwrap_err();
        assert_eq!(Exit::of(&wrapped), Exit::Configuration);
        let damaged = DaemonError::Store(StoreError::Record { key: String::new(), why: String::new() });
        assert_eq!(Exit::of(&damaged.into()), Exit::Damaged);
        let missing = DaemonError::Identity(IdentityError::NotEnrolled);
        assert_eq!(Exit::of(&missing.into()), Exit::Configuration);
        let held = LockError::Held { directory: "d".into(), holder: String::new() };
        assert_eq!(Exit::of(&DaemonError::Lock(held).into()), Exit::Busy);
        assert_eq!(Exit::of(&anyhow::anyhow!("x")), Exit::Unexpected);
    }
}
