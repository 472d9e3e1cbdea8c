//! Where the registry is and what opens it: command line over environment over the last
//! `selvedge up`. It opens no connection, and sends no token to a registry that it isn't for.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::client::check_address;
use crate::failure::Failure;
use crate::supervisor::record::Record;

/// Options that every command takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Global {
    /// Address of the registry [env: SELVEDGE_REGISTRY; else that of the last `selvedge up`]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub registry: Option<String>,
    /// File with the registry's token [env: SELVEDGE_TOKEN_FILE, or SELVEDGE_TOKEN with the token itself]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub token_file: Option<PathBuf>,
    /// Data directory of a `selvedge up` [default: selvedge/up in the user's data directory]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    pub data: Option<PathBuf>,
    /// Workspace of the registry
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        default_value = "default",
        help_heading = "Global options"
    )]
    pub workspace: Workspace,
    /// Results as JSON on standard output, errors as JSON on standard error
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

/// The name of a workspace: 1 to 63 of a-z, 0-9, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace(String);

impl Default for Workspace {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl std::str::FromStr for Workspace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
        if (1..=63).contains(&text.len()) && text.bytes().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err("a workspace is 1 to 63 of a-z, 0-9, `-` and `_`".to_owned())
        }
    }
}

impl fmt::Display for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A secret that opens the registry. Neither `Debug` nor anything else prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The secret itself, for the `Authorization` header only.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// From text such as a file's content: surrounding blanks are cut; it must be printable ASCII.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty() && text.len() <= 4096 && text.bytes().all(|b| b.is_ascii_graphic()))
            .then(|| Self(text.to_owned()))
    }

    /// Reads a token file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = read_small(path, 8192)?;
        Self::parse(&text).ok_or_else(|| Failure::Content {
            what: "a token file",
            path: path.to_owned(),
            source: "it must hold one token of printable characters".into(),
        })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Which registry, with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// Base address without a slash at its end.
    pub registry: String,
    /// What opens it.
    pub token: Token,
    /// Workspace.
    pub workspace: Workspace,
}

/// The environment as a function, so that tests can give their own.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Context {
    /// Finds the registry and its token.
    pub fn discover(global: &Global, env: Env<'_>) -> Result<Self, Failure> {
        // An explicit --data is the command line's word and goes before the environment.
        let said = global.registry.clone();
        let from_env = if global.data.is_none() { env("SELVEDGE_REGISTRY") } else { None };
        let explicit = said.or(from_env);
        let directory = data_dir(global, env)?;
        let record = Record::read(&directory)?;
        let registry = match (&explicit, &record) {
            (Some(url), _) => {
                let url = url.trim_end_matches('/');
                // Before its token is looked for: that would be missing too.
                check_address(url)?;
                url.to_owned()
            }
            // An `up` that is still starting has written its record, but no address yet.
            (None, Some(record)) if !record.registry.is_empty() => record.registry.clone(),
            (None, _) => return Err(Failure::NoRegistry { looked: directory }),
        };
        let token = match Self::explicit_token(global, env)? {
            Some(token) => token,
            None => match record {
                Some(record) if record.registry == registry => Token::read(&record.token_file)?,
                _ => return Err(Failure::NoToken { registry }),
            },
        };
        Ok(Self { registry, token, workspace: global.workspace.clone() })
    }

    fn explicit_token(global: &Global, env: Env<'_>) -> Result<Option<Token>, Failure> {
        if let Some(path) = &global.token_file {
            return Token::read(path).map(Some);
        }
        if global.data.is_some() {
            return Ok(None);
        }
        if let Some(path) = env("SELVEDGE_TOKEN_FILE") {
            return Token::read(Path::new(&path)).map(Some);
        }
        match env("SELVEDGE_TOKEN") {
            None => Ok(None),
            Some(text) => Token::parse(&text).map(Some).ok_or_else(|| {
                Failure::usage(
                    "SELVEDGE_TOKEN does not hold a token",
                    "set it to the content of the registry's token file",
                )
            }),
        }
    }
}

/// The data directory of `selvedge up` that is meant.
pub fn data_dir(global: &Global, env: Env<'_>) -> Result<PathBuf, Failure> {
    if let Some(path) = &global.data {
        return Ok(path.clone());
    }
    let base = match env("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(path) => path,
        None => match env("HOME") {
            Some(home) => PathBuf::from(home).join(".local/share"),
            None => {
                return Err(Failure::usage(
                    "there is no default data directory: neither XDG_DATA_HOME nor HOME is set",
                    "say --data DIR",
                ));
            }
        },
    };
    Ok(base.join("selvedge/up"))
}

/// Reads a small text file; a larger one is refused before it is read.
pub fn read_small(path: &Path, limit: u64) -> Result<String, Failure> {
    use std::io::Read as _;
    let file = std::fs::File::open(path).map_err(Failure::file("open", path))?;
    let mut text = String::new();
    let length = file.take(limit + 1).read_to_string(&mut text).map_err(Failure::file("read", path))?;
    if length as u64 > limit {
        return Err(Failure::Content {
            what: "a file of the expected size",
            path: path.to_owned(),
            source: format!("it is larger than {limit} bytes").into(),
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_in(dir: &Path) {
        std::fs::write(dir.join("tok"), "s3cret\n").unwrap();
        let record = Record {
            registry: "http://127.0.0.1:1".into(),
            token_file: dir.join("tok"),
            ..Record::default()
        };
        record.write(dir).unwrap();
    }

    fn global(data: Option<&Path>) -> Global {
        Global { data: data.map(Path::to_owned), ..Global::default() }
    }

    #[test]
    fn the_last_up_is_the_context() {
        let dir = tempfile::tempdir().unwrap();
        up_in(dir.path());
        let context = Context::discover(&global(Some(dir.path())), &|_| None).unwrap();
        assert_eq!(context.registry, "http://127.0.0.1:1");
        assert_eq!(context.token.reveal(), "s3cret");
        assert!(!format!("{context:?}").contains("s3cret"));
    }

    #[test]
    fn a_token_stays_with_its_registry() {
        let dir = tempfile::tempdir().unwrap();
        up_in(dir.path());
        let other = Global { registry: Some("http://127.0.0.1:2".into()), ..global(Some(dir.path())) };
        assert!(matches!(Context::discover(&other, &|_| None), Err(Failure::NoToken { .. })));
        let same = Global { registry: Some("http://127.0.0.1:1/".into()), ..global(Some(dir.path())) };
        assert_eq!(Context::discover(&same, &|_| None).unwrap().token.reveal(), "s3cret");
    }

    #[test]
    fn the_command_line_goes_before_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        up_in(dir.path());
        let env = |name: &str| match name {
            "SELVEDGE_REGISTRY" => Some("http://127.0.0.1:9".to_owned()),
            "SELVEDGE_TOKEN" => Some("other".to_owned()),
            "XDG_DATA_HOME" => Some(dir.path().display().to_string()),
            _ => None,
        };
        assert_eq!(
            Context::discover(&global(Some(dir.path())), &env).unwrap().registry,
            "http://127.0.0.1:1"
        );
        let by_env = Context::discover(&global(None), &env).unwrap();
        assert_eq!((by_env.registry.as_str(), by_env.token.reveal()), ("http://127.0.0.1:9", "other"));
    }

    #[test]
    fn nothing_known_says_where_it_looked() {
        let dir = tempfile::tempdir().unwrap();
        let failure = Context::discover(&global(Some(dir.path())), &|_| None).unwrap_err();
        assert!(failure.to_string().contains(&dir.path().display().to_string()));
        assert!(failure.advice().unwrap().contains("selvedge up"));
    }

    #[test]
    fn an_up_that_has_not_got_its_registry_yet_is_none() {
        let dir = tempfile::tempdir().unwrap();
        Record::default().write(dir.path()).unwrap();
        let failure = Context::discover(&global(Some(dir.path())), &|_| None).unwrap_err();
        assert!(matches!(failure, Failure::NoRegistry { .. }), "{failure}");
    }

    #[test]
    fn workspaces_fit_into_an_address() {
        for bad in ["", "a/b", "..", "A", "a b"] {
            assert!(bad.parse::<Workspace>().is_err(), "{bad}");
        }
        assert!("default".parse::<Workspace>().is_ok());
    }
}
