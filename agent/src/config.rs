//! What the person who runs the agent may choose: a file, the environment, the command line.
//!
//! The command line wins over the environment, which wins over the file; they meet in
//! [`Config::merge`] and nowhere else. A key that is not known is refused, naming the nearest that is.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_package::nearest::nearest;
use serde::Deserialize;

use crate::budget::{self, WindowError};

/// Largest configuration file, in bytes.
const LARGEST_FILE: u64 = 64 * 1024;

/// What cannot be used, and why.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is too large to be one.
    #[error("{} has more than {LARGEST_FILE} bytes: it is no configuration file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file is not what it should be.
    #[error("{}: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and key.
        why: String,
    },
    /// No host program was named and none lies beside the agent.
    #[error("there is no selvedge-host beside {}: name it with --host-binary", beside.display())]
    NoHost {
        /// The agent's own path.
        beside: PathBuf,
    },
    /// A value makes no sense.
    #[error("`{key}` cannot be {value}: {rule}")]
    Value {
        /// Which.
        key: &'static str,
        /// The value.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
}

/// What may be chosen; what is absent has its default from [`Config::merge`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Choices {
    /// The host program.
    pub host_binary: Option<PathBuf>,
    /// Where inference is served.
    pub http: Option<SocketAddr>,
    /// Directory with the built-in modules, handed to the host.
    pub modules: Option<PathBuf>,
    /// The ONNX Runtime library, handed to the host.
    pub onnxruntime: Option<PathBuf>,
    /// Whether the host goes on serving when the agent ends.
    pub host_outlives: Option<bool>,
    /// The enrolment file, where none is named on the command line. It may be gone once it was used.
    pub enrolment: Option<PathBuf>,
    /// The control socket of a host that somebody else keeps running.
    pub host_control: Option<PathBuf>,
    /// Seconds between two signs of life.
    pub heartbeat_seconds: Option<u64>,
    /// Longest silence towards the broker in seconds.
    pub keep_alive_seconds: Option<u64>,
    /// Seconds after which a probe of a new package is given up.
    pub probe_seconds: Option<u64>,
    /// Data memory of a probe in MiB; by default three quarters of the machine's.
    pub probe_memory_mib: Option<u64>,
    /// Seconds that loading a package in the host may take, its acceptance cases included.
    pub load_seconds: Option<u64>,
    /// MiB that packages may bring a day; by default any number.
    pub data_budget_mib: Option<u64>,
    /// Spans of the day in UTC in which packages are fetched, as `22:00-05:30`; by default always.
    pub data_windows: Option<Vec<String>>,
    /// Whether blobs are fetched from web servers that packages name.
    pub http_sources: Option<HttpSources>,
    /// The authorities that web servers are believed for, as PEM; by default the system's.
    pub http_ca: Option<PathBuf>,
}

/// Whether blobs are fetched from web servers that packages name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HttpSources {
    /// They are asked first.
    #[default]
    Allow,
    /// Blobs come from the registry alone.
    Never,
}

/// Everything decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The data directory, absolute.
    pub data: PathBuf,
    /// The host program.
    pub host_binary: PathBuf,
    /// Where inference is served; port 0 takes any free one.
    pub http: SocketAddr,
    /// Handed to the host.
    pub modules: Option<PathBuf>,
    /// Handed to the host.
    pub onnxruntime: Option<PathBuf>,
    /// Whether the host goes on serving when the agent ends.
    pub host_outlives: bool,
    /// The enrolment file that the configuration names, where it is there.
    pub enrolment: Option<PathBuf>,
    /// The control socket of a host that somebody else keeps running; `None`: the agent does.
    pub host_control: Option<PathBuf>,
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// Longest silence towards the broker.
    pub keep_alive: Duration,
    /// Longest time for a probe.
    pub probe: Duration,
    /// Data memory of a probe in bytes; `None`: three quarters of the machine's.
    pub probe_memory: Option<u64>,
    /// Longest time for a load.
    pub load: Duration,
    /// What fetching may cost.
    pub traffic: budget::Settings,
    /// Whether blobs are fetched from web servers that packages name.
    pub http_sources: HttpSources,
    /// The authorities that web servers are believed for; `None`: the system's.
    pub http_ca: Option<PathBuf>,
}

impl Choices {
    /// Reads a configuration file.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(read)?;
        file.take(LARGEST_FILE + 1).read_to_string(&mut text).map_err(read)?;
        if text.len() as u64 > LARGEST_FILE {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        Self::from_text(&text).map_err(|why| ConfigError::Content { path: path.to_owned(), why })
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
        if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(match nearest(unknown, KEYS) {
                Some(known) => format!("there is no key `{unknown}`; did you mean `{known}`?"),
                None => format!("there is no key `{unknown}`; there are {}", KEYS.join(", ")),
            });
        }
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// These choices where they are made, the others where they are not.
    pub fn or(self, others: Self) -> Self {
        Self {
            host_binary: self.host_binary.or(others.host_binary),
            http: self.http.or(others.http),
            modules: self.modules.or(others.modules),
            onnxruntime: self.onnxruntime.or(others.onnxruntime),
            host_outlives: self.host_outlives.or(others.host_outlives),
            enrolment: self.enrolment.or(others.enrolment),
            host_control: self.host_control.or(others.host_control),
            heartbeat_seconds: self.heartbeat_seconds.or(others.heartbeat_seconds),
            keep_alive_seconds: self.keep_alive_seconds.or(others.keep_alive_seconds),
            probe_seconds: self.probe_seconds.or(others.probe_seconds),
            probe_memory_mib: self.probe_memory_mib.or(others.probe_memory_mib),
            load_seconds: self.load_seconds.or(others.load_seconds),
            data_budget_mib: self.data_budget_mib.or(others.data_budget_mib),
            data_windows: self.data_windows.or(others.data_windows),
            http_sources: self.http_sources.or(others.http_sources),
            http_ca: self.http_ca.or(others.http_ca),
        }
    }
}

/// The keys of [`Choices`].
const KEYS: [&str; 16] = [
    "host-binary",
    "http",
    "modules",
    "onnxruntime",
    "host-outlives",
    "enrolment",
    "host-control",
    "heartbeat-seconds",
    "keep-alive-seconds",
    "probe-seconds",
    "probe-memory-mib",
    "load-seconds",
    "data-budget-mib",
    "data-windows",
    "http-sources",
    "http-ca",
];

impl Config {
    /// Everything decided, from a file's choices and the command line's (with the environment's).
    pub fn merge(data: &Path, file: Choices, line: Choices) -> Result<Self, ConfigError> {
        let chosen = line.or(file);
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let host_binary = match chosen.host_binary {
            Some(path) => absolute(path),
            None => beside_us()?,
        };
        let heartbeat = chosen.heartbeat_seconds.unwrap_or(60);
        if !(1..=3600).contains(&heartbeat) {
            return Err(ConfigError::Value {
                key: "heartbeat-seconds",
                value: heartbeat.to_string(),
                rule: "1 to 3600",
            });
        }
        let keep_alive = chosen.keep_alive_seconds.unwrap_or(240);
        if !(10..=3600).contains(&keep_alive) {
            return Err(ConfigError::Value {
                key: "keep-alive-seconds",
                value: keep_alive.to_string(),
                rule: "10 to 3600",
            });
        }
        let host_control = chosen.host_control.map(absolute);
        // Its service says where it serves, and whether it goes on.
        if let Some(path) = &host_control
            && (chosen.http.is_some() || chosen.host_outlives == Some(false))
        {
            return Err(ConfigError::Value {
                key: "host-control",
                value: path.display().to_string(),
                rule: "a host that somebody else keeps running takes neither `http` nor `host-outlives = false`",
            });
        }
        let http = chosen.http.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080)));
        if !http.ip().is_loopback() {
            return Err(ConfigError::Value {
                key: "http",
                value: http.to_string(),
                rule: "inference is served on a loopback address",
            });
        }
        Ok(Self {
            data: absolute(data.to_owned()),
            host_binary,
            http,
            modules: chosen.modules.map(absolute),
            onnxruntime: chosen.onnxruntime.map(absolute),
            host_outlives: chosen.host_outlives.unwrap_or(true),
            enrolment: chosen.enrolment.map(absolute).filter(|path| path.exists()),
            host_control,
            heartbeat: Duration::from_secs(heartbeat),
            keep_alive: Duration::from_secs(keep_alive),
            probe: patience("probe-seconds", chosen.probe_seconds)?,
            probe_memory: chosen.probe_memory_mib.map(|mib| mib.saturating_mul(1 << 20)),
            load: patience("load-seconds", chosen.load_seconds)?,
            traffic: traffic(chosen.data_budget_mib, chosen.data_windows)?,
            http_sources: chosen.http_sources.unwrap_or_default(),
            http_ca: chosen.http_ca.map(absolute),
        })
    }
}

/// How long something may take with a package.
fn patience(key: &'static str, seconds: Option<u64>) -> Result<Duration, ConfigError> {
    match seconds.unwrap_or(600) {
        seconds @ 1..=86_400 => Ok(Duration::from_secs(seconds)),
        seconds => Err(ConfigError::Value { key, value: seconds.to_string(), rule: "1 to 86400" }),
    }
}

fn traffic(mib: Option<u64>, windows: Option<Vec<String>>) -> Result<budget::Settings, ConfigError> {
    if let Some(mib @ (0 | 1_048_577..)) = mib {
        let rule = "1 to 1048576; without it there is no limit";
        return Err(ConfigError::Value { key: "data-budget-mib", value: mib.to_string(), rule });
    }
    let windows = windows.unwrap_or_default();
    let parsed = budget::Windows::parse(&windows).map_err(|error| ConfigError::Value {
        key: "data-windows",
        value: format!("{windows:?}"),
        rule: match error {
            WindowError::Form => "spans of the day in UTC, as \"22:00-05:30\"",
            WindowError::Empty => {
                "a window that begins when it ends is none; without windows there is no limit"
            }
            WindowError::TooMany => "at most 16 windows",
        },
    })?;
    Ok(budget::Settings { per_day: mib.map(|mib| mib << 20), windows: parsed })
}

fn beside_us() -> Result<PathBuf, ConfigError> {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("selvedge-agent"));
    let host = own.with_file_name("selvedge-host");
    if host.is_file() { Ok(host) } else { Err(ConfigError::NoHost { beside: own }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = Choices::from_text("heartbeet-seconds = 3").unwrap_err();
        assert_eq!(error, "there is no key `heartbeet-seconds`; did you mean `heartbeat-seconds`?");
        assert!(Choices::from_text("http = 7").is_err());
        assert!(Choices::from_text("http =").is_err());
    }

    #[test]
    fn every_key_is_known_to_both_lists() {
        let text = "host-binary = 'h'\nhttp = '127.0.0.1:1'\nmodules = 'm'\nonnxruntime = 'o'\n\
                    host-outlives = false\nheartbeat-seconds = 5\nprobe-seconds = 6\n\
                    enrolment = 'e'\nhost-control = 'c'\nkeep-alive-seconds = 11\n\
                    probe-memory-mib = 7\nload-seconds = 8\ndata-budget-mib = 9\n\
                    data-windows = ['22:00-05:00']\nhttp-sources = 'never'\nhttp-ca = '/ca'";
        assert_eq!(text.lines().count(), KEYS.len());
        let choices = Choices::from_text(text).unwrap();
        let config = Config::merge(Path::new("/d"), choices.clone(), Choices::default());
        assert!(config.unwrap_err().to_string().contains("neither `http`"));
        let choices = Choices { host_control: None, ..choices };
        let config = Config::merge(Path::new("/d"), choices, Choices::default()).unwrap();
        assert_eq!((config.keep_alive, config.enrolment), (Duration::from_secs(11), None));
        assert_eq!(config.heartbeat, Duration::from_secs(5));
        assert_eq!(config.probe_memory, Some(7 << 20));
        assert!(!config.host_outlives);
        assert_eq!(config.traffic.per_day, Some(9 << 20));
        assert_eq!(config.traffic.windows.to_string(), "22:00-05:00");
        assert_eq!(config.http_sources, HttpSources::Never);
        assert_eq!(config.http_ca.as_deref(), Some(Path::new("/ca")));
    }

    #[test]
    fn the_line_wins_over_the_file() {
        let file =
            Choices { http: "127.0.0.1:1".parse().ok(), host_binary: Some("h".into()), ..Choices::default() };
        let line = Choices { http: "127.0.0.1:2".parse().ok(), ..Choices::default() };
        let config = Config::merge(Path::new("/d"), file, line).unwrap();
        assert_eq!(config.http.port(), 2);
        assert!(config.host_binary.is_absolute());
    }

    #[test]
    fn a_package_is_not_waited_for_without_end() {
        for key in ["probe-seconds", "load-seconds"] {
            for (seconds, taken) in
                [(0, false), (1, true), (86_400, true), (86_401, false), (i64::MAX, false)]
            {
                let text = format!("host-binary = 'h'\n{key} = {seconds}");
                let choices = Choices::from_text(&text).unwrap();
                let merged = Config::merge(Path::new("/d"), choices, Choices::default());
                assert_eq!(merged.is_ok(), taken, "{text}: {merged:?}");
            }
        }
    }

    #[test]
    fn a_budget_that_is_none_and_a_window_that_is_none_are_refused() {
        let with = |text: &str| {
            let choices = Choices::from_text(&format!("host-binary = 'h'\n{text}")).unwrap();
            Config::merge(Path::new("/d"), choices, Choices::default())
        };
        assert!(with("data-budget-mib = 1").is_ok());
        for bad in ["data-budget-mib = 0", "data-windows = ['22-5']", "data-windows = ['01:00-01:00']"] {
            let error = with(bad).unwrap_err().to_string();
            assert!(error.contains("cannot be"), "{error}");
        }
    }

    #[test]
    fn an_address_for_the_whole_world_is_refused() {
        let line =
            Choices { http: "0.0.0.0:80".parse().ok(), host_binary: Some("h".into()), ..Choices::default() };
        assert!(Config::merge(Path::new("/d"), Choices::default(), line).is_err());
    }
}
