//! Every way in which a command can fail, its row of the exit table, and what the user can do.
//!
//! A variant is the action that failed; `Display` never repeats its source. The chain is printed
//! once, by `main`.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_package::nearest::nearest;

use crate::exit::Exit;

/// Names in a directory that are looked at for one that was meant.
const MOST_NAMES: usize = 1000;

/// A cause of any kind.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A file could not be read, written, made or removed.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// `read`, `write`, …
        doing: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is there, but not what it should be.
    #[error("{} is not {what}", path.display())]
    Content {
        /// What was expected, with an article.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: Cause,
    },
    /// Arguments that cannot be carried out as they are.
    #[error("{what}")]
    Usage {
        /// What is wrong.
        what: String,
        /// What to do.
        advice: String,
    },
    /// Something named does not exist.
    #[error("{what}")]
    Missing {
        /// What.
        what: String,
        /// What to do.
        advice: String,
    },
    /// Something is in the way.
    #[error("{what}")]
    Conflict {
        /// What.
        what: String,
        /// What to do.
        advice: String,
    },
    /// Input, or a release on a device, was refused.
    #[error("{what}")]
    Refused {
        /// What and why.
        what: String,
        /// What to do.
        advice: String,
        /// Why in detail.
        source: Option<Cause>,
    },
    /// A signature, a key or a digest does not hold.
    #[error("{what}")]
    Untrusted {
        /// What.
        what: String,
        /// What to do.
        advice: String,
        /// Why in detail.
        source: Option<Cause>,
    },
    /// Nothing says which registry to talk to.
    #[error("no registry is known: no --registry, no SELVEDGE_REGISTRY, and no `selvedge up` has got its registry ready in {}", looked.display())]
    NoRegistry {
        /// The data directory that was looked at.
        looked: PathBuf,
    },
    /// There is a registry, but no token for it.
    #[error("no token for the registry at {registry}")]
    NoToken {
        /// Its address.
        registry: String,
    },
    /// An HTTP request got no answer.
    #[error("{who} at {address} does not answer")]
    Unreachable {
        /// `the registry`, `the inference endpoint`.
        who: &'static str,
        /// Where.
        address: String,
        /// Why.
        source: Cause,
        /// What to do.
        advice: String,
    },
    /// An answer that cannot be understood.
    #[error("{who} at {address} sent an answer that cannot be understood")]
    Garbled {
        /// Who.
        who: &'static str,
        /// Where.
        address: String,
        /// Why.
        source: Cause,
    },
    /// The registry or the host answered with an error.
    #[error("{who} would not {doing}: {error}")]
    Answered {
        /// Who.
        who: &'static str,
        /// What was asked.
        doing: String,
        /// HTTP status.
        status: u16,
        /// Its word for programs; empty where it sends none.
        reason: String,
        /// Its text.
        error: String,
    },
    /// A program could not be started.
    #[error("cannot start {}", program.display())]
    Start {
        /// Which.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program that was started ended.
    #[error("{name} ended ({status}); the end of its log {}:\n{tail}", log.display())]
    Ended {
        /// Which.
        name: &'static str,
        /// How.
        status: String,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A wait is over.
    #[error("waited {} s in vain for {what}", allowed.as_secs_f32().round())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// For how long.
        allowed: Duration,
        /// What to do.
        advice: String,
    },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// Ctrl-C or SIGTERM ended what only looked on, and would have gone on without end.
    #[error("stopped")]
    Stopped,
    /// Keys could not be made, read or used.
    #[error("cannot {doing}")]
    Keys {
        /// What was tried.
        doing: String,
        /// Why.
        source: Cause,
        /// What to do.
        advice: String,
    },
    /// A fault of this program.
    #[error("{what}")]
    Internal {
        /// What.
        what: &'static str,
        /// Why.
        source: Cause,
    },
}

impl Failure {
    /// For `map_err`: a file operation on `path` failed.
    pub fn file<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::File { doing, path: path.to_owned(), source }
    }

    /// For `map_err`: the file at `path` is not `what`.
    pub fn content<'a, E: Into<Cause>>(what: &'static str, path: &'a Path) -> impl FnOnce(E) -> Self + 'a {
        move |source| Self::Content { what, path: path.to_owned(), source: source.into() }
    }

    /// Something that was refused, without a further cause.
    pub fn refused(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Refused { what: what.into(), advice: advice.into(), source: None }
    }

    /// Arguments that cannot be carried out.
    pub fn usage(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Usage { what: what.into(), advice: advice.into() }
    }

    /// Something that does not exist.
    pub fn missing(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::Missing { what: what.into(), advice: advice.into() }
    }

    /// A file or directory that is not there: the nearest name beside it, then `advice`.
    pub fn no_file(path: &Path, advice: &str) -> Self {
        let advice = match beside(path) {
            Some(near) => format!("did you mean `{}`? {advice}", near.display()),
            None => advice.to_owned(),
        };
        Self::Missing { what: format!("there is no {}", path.display()), advice }
    }

    /// The row of the exit table.
    pub fn exit(&self) -> Exit {
        match self {
            Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound => Exit::NotFound,
            Self::File { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => Exit::Conflict,
            Self::File { .. } | Self::Internal { .. } | Self::Garbled { .. } => Exit::Unexpected,
            Self::Content { .. } | Self::Refused { .. } => Exit::Refused,
            Self::Usage { .. } | Self::NoRegistry { .. } => Exit::Usage,
            Self::Missing { .. } => Exit::NotFound,
            Self::Conflict { .. } => Exit::Conflict,
            Self::Untrusted { .. } | Self::Keys { .. } => Exit::Untrusted,
            Self::NoToken { .. } => Exit::Unauthorised,
            Self::Unreachable { .. } | Self::Start { .. } | Self::Ended { .. } => Exit::Unreachable,
            Self::Answered { reason, .. } if reason == "untrusted" => Exit::Untrusted,
            Self::Answered { status, .. } => answered(*status),
            Self::TimedOut { .. } => Exit::TimedOut,
            Self::Interrupted | Self::Stopped => Exit::Interrupted,
        }
    }

    /// What the user can do; `None` where there is nothing to say.
    pub fn advice(&self) -> Option<String> {
        let advice = match self {
            Self::Usage { advice, .. }
            | Self::Missing { advice, .. }
            | Self::Conflict { advice, .. }
            | Self::Refused { advice, .. }
            | Self::Untrusted { advice, .. }
            | Self::Unreachable { advice, .. }
            | Self::TimedOut { advice, .. }
            | Self::Keys { advice, .. } => advice.clone(),
            Self::File { doing, path, source } => file_advice(doing, path, source),
            Self::Content { path, .. } => format!("correct {} and run the command again", path.display()),
            Self::NoRegistry { .. } => {
                "start everything on this machine with `selvedge up`, or say --registry URL and --token-file FILE".to_owned()
            }
            Self::NoToken { .. } => "say --token-file FILE (on the registry's machine it is the file `token` in its data \
                 directory), or set SELVEDGE_TOKEN_FILE or SELVEDGE_TOKEN"
                .to_owned(),
            Self::Garbled { .. } => "check that the address is the right one and that both sides have the same version \
                 (`selvedge --version`)"
                .to_owned(),
            Self::Answered { status, reason, .. } => answer_advice(*status, reason).to_owned(),
            Self::Start { program, .. } => format!(
                "build or install all programs side by side; {} must be there and executable (or say --programs DIR)",
                program.display()
            ),
            Self::Ended { .. } => "the log says why (a port that is taken: choose another, --broker-port, --registry-port or --http-port 0); then \
                 run `selvedge up` again"
                .to_owned(),
            Self::Interrupted | Self::Stopped | Self::Internal { .. } => String::new(),
        };
        (!advice.is_empty()).then_some(advice)
    }

    /// The whole chain in one text: `what: why: why`.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let next = error.to_string();
            // Libraries often repeat their source's text in their own.
            if !text.ends_with(&next) {
                let _ = write!(text, ": {next}");
            }
            cause = error.source();
        }
        text
    }
}

fn answered(status: u16) -> Exit {
    match status {
        401 | 403 => Exit::Unauthorised,
        404 => Exit::NotFound,
        409 => Exit::Conflict,
        400..=499 if status != 408 && status != 429 => Exit::Refused,
        408 | 504 => Exit::TimedOut,
        429 | 502 | 503 => Exit::Unreachable,
        _ => Exit::Unexpected,
    }
}

fn answer_advice(status: u16, reason: &str) -> &'static str {
    match (status, reason) {
        (401 | 403, _) => "check the token: --token-file FILE, SELVEDGE_TOKEN_FILE or SELVEDGE_TOKEN",
        (_, "untrusted") => {
            "`selvedge trust show` lists the keys that this registry's roots name; \
             `selvedge trust check FILE --against ROOT.json` says whose signatures are missing"
        }
        (_, "targets-version") => "someone else released in the meantime; run the command again",
        (_, "release-not-growing" | "version-exists") => {
            "make the package again with a larger --release and another --version"
        }
        (_, "selector") => "`selvedge deploy -h` says how selectors are written; quote them for the shell",
        (_, "offline") => {
            "`selvedge targets` shows when it was last heard; a device connects again by itself"
        }
        (_, "deadline") => {
            "the device may be asleep or gone: `selvedge targets` says when it was last heard; ask again, \
             `selvedge ask` with a longer --timeout"
        }
        (_, "unsupported") => "update the agent on that device",
        (_, "too-large") => "ask the device itself over HTTP, with --target-url URL",
        (_, "too-many") => "ask again when some of them are answered",
        (_, "target-exists") => "choose another name, or remove that target with `selvedge target rm NAME`",
        (429 | 503, _) => "it is busy or still starting; try again in a moment",
        (500..=502, _) => {
            "its log says more (under `selvedge up`: in the directory `logs` of its data directory)"
        }
        _ => "",
    }
}

fn file_advice(doing: &str, path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound => match beside(path) {
            Some(near) => format!("check the path {}; did you mean `{}`?", path.display(), near.display()),
            None => format!("check the path {}", path.display()),
        },
        io::ErrorKind::PermissionDenied => {
            format!("your user may not {doing} it; check its owner and mode")
        }
        io::ErrorKind::StorageFull => "the disk is full; make room and try again".to_owned(),
        _ => String::new(),
    }
}

/// The file or directory beside `path` whose name is nearest to its own.
pub fn beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = std::fs::read_dir(parent.unwrap_or(Path::new("."))).ok()?;
    let names: Vec<String> = entries
        .take(MOST_NAMES)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|known| !known.starts_with('.') || name.starts_with('.'))
        .collect();
    let near = nearest(name, names.iter().map(String::as_str)).filter(|near| *near != name)?;
    Some(parent.map_or_else(|| near.into(), |parent| parent.join(near)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_http_status_has_its_row() {
        for (status, exit) in [
            (400, Exit::Refused),
            (401, Exit::Unauthorised),
            (403, Exit::Unauthorised),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (413, Exit::Refused),
            (422, Exit::Refused),
            (429, Exit::Unreachable),
            (500, Exit::Unexpected),
            (503, Exit::Unreachable),
            (504, Exit::TimedOut),
        ] {
            assert_eq!(answered(status), exit, "{status}");
        }
    }

    #[test]
    fn the_chain_names_every_cause_once() {
        let failure = Failure::File {
            doing: "read",
            path: "x".into(),
            source: io::Error::new(io::ErrorKind::NotFound, "no such file"),
        };
        assert_eq!(failure.chain(), "cannot read x: no such file");
        assert_eq!(failure.exit(), Exit::NotFound);
        assert_eq!(failure.advice().as_deref(), Some("check the path x"));
    }
}
