//! `selvedge trust publish`: hands the registry the next root, or lists that were signed again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reqwest::Method;
use selvedge_package::trust::ImageFiles;
use selvedge_signing::tree::ChangedFiles;
use selvedge_signing::{metadata, roots};
use serde_json::{Value, json};

use crate::ceremony::chain::{self, Which};
use crate::ceremony::seen::Seen;
use crate::ceremony::{files, words};
use crate::client::Registry;
use crate::clock;
use crate::commands::Surroundings;
use crate::commands::release::previous;
use crate::failure::Failure;
use crate::keyring::failed;

/// Hand in roots, or lists of releases that were signed again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge trust publish next.json --keys keys
  selvedge trust publish next.json --lists resigned --keys keys   (a root that changes the targets keys)
  selvedge trust publish --lists renewed --keys keys              (lists that were renewed by several people)")]
pub struct Args {
    /// Roots, each the next one of its repository
    #[arg(value_name = "ROOT.json", required_unless_present = "lists")]
    pub roots: Vec<PathBuf>,
    /// Folder of lists of releases that were signed again: with a root that changes the targets keys,
    /// or alone
    #[arg(long, value_name = "DIR")]
    pub lists: Option<PathBuf>,
    /// Which repository, where the root does not say
    #[arg(long)]
    pub repository: Option<Which>,
    /// Directory of keys whose `roots/`, and memory of the lists that were seen, are brought up to date
    /// with what was published
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
}

/// Checks what a device would check first, and sends it.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let lists = args.lists.as_deref().map(files::proposal).transpose()?;
    let mut memory = match (&args.keys, &lists) {
        (Some(keys), Some(_)) => Some(Memory::of(&registry, keys).await?),
        _ => None,
    };
    let mut rows = Vec::new();
    let mut left = lists.as_ref();
    for path in &args.roots {
        let bytes = files::read(path)?;
        let reading = |error| failed(format!("read {}", path.display()), error);
        let head = metadata::head(&bytes).map_err(reading)?;
        if head.role != "root" {
            return Err(Failure::usage(
                format!("{} is a {} file, not a root", path.display(), head.role),
                "lists of releases are handed in with --lists DIR",
            ));
        }
        words::check_expiry(&path.display().to_string(), head.expires, clock::now())?;
        let said = roots::repository(&bytes).map_err(reading)?;
        let which = which(path, said.as_deref(), args.repository)?;
        check(&registry, which, path, &bytes).await?;
        let mut body = json!({"repository": which.name(), "root": text(bytes.clone())?});
        if which == Which::Image
            && let Some(lists) = left.take()
        {
            body["roles"] = texts(lists)?;
        }
        let doing = format!("publish version {} of the {} root", head.version, which.name());
        registry.call(&doing, Method::POST, "/v1/trust/roots", Some(&body)).await?;
        if let (Some(lists), Some(memory), true) = (&lists, &mut memory, body.get("roles").is_some()) {
            memory.keep(&registry, lists)?;
        }
        around.out.line(format!("{} root version {} is published", which.name(), head.version));
        if let Some(keys) = &args.keys {
            chain::keep(keys, which, &bytes)?;
        }
        rows.push(json!({"repository": which.name(), "version": head.version}));
    }
    if let Some(lists) = left {
        let body = json!({"roles": texts(lists)?});
        registry
            .call("take the lists that were signed again", Method::POST, "/v1/trust/image", Some(&body))
            .await?;
        if let Some(memory) = &mut memory {
            memory.keep(&registry, lists)?;
        }
        let names: Vec<&str> = lists.keys().map(String::as_str).collect();
        around.out.line(format!("signed again and handed in: {}", names.join(", ")));
    }
    around
        .out
        .value(&json!({"roots": rows, "lists": lists.map(|lists| lists.into_keys().collect::<Vec<_>>())}));
    Ok(())
}

/// What the releaser has seen of the registry's lists: it shows no older ones than that, before new
/// ones are handed in, and never again afterwards.
struct Memory {
    seen: Seen,
    before: Option<ImageFiles>,
}

impl Memory {
    async fn of(registry: &Registry, keys: &Path) -> Result<Self, Failure> {
        let root = chain::newest(keys, registry, Which::Image).await?;
        let seen = Seen::load(keys)?;
        let before = previous(registry, &root, keys, &seen).await?;
        Ok(Self { seen, before })
    }

    fn keep(&mut self, registry: &Registry, lists: &BTreeMap<String, Vec<u8>>) -> Result<(), Failure> {
        let all = ChangedFiles(lists.clone()).on(self.before.as_ref());
        self.seen.keep(registry.address(), &all)
    }
}

fn which(path: &Path, said: Option<&str>, asked: Option<Which>) -> Result<Which, Failure> {
    let named = said.and_then(Which::of);
    match (named, asked) {
        (Some(named), Some(asked)) if named != asked => Err(Failure::Untrusted {
            what: format!("{} is a root of the {} repository", path.display(), named.name()),
            advice: "it cannot be published as one of the other repository".to_owned(),
            source: None,
        }),
        (Some(which), _) | (None, Some(which)) => Ok(which),
        (None, None) => Err(Failure::usage(
            format!("{} does not say to which repository it belongs", path.display()),
            "say --repository image or --repository director",
        )),
    }
}

/// A device that trusts the registry's newest root must follow to this one.
async fn check(registry: &Registry, which: Which, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let published = chain::published(registry, which).await?;
    let Some(newest) = published.last() else { return Ok(()) };
    if newest == bytes {
        return Err(Failure::Conflict {
            what: format!("{} is published already", path.display()),
            advice: "there is nothing to do".to_owned(),
        });
    }
    super::sign::succeeds(path, bytes, newest)?;
    chain::follows(which, newest, bytes).map_err(|source| Failure::Untrusted {
        what: format!("no device would follow to {}", path.display()),
        advice: "`selvedge trust check FILE --against CURRENT` says whose signatures are missing".to_owned(),
        source: Some(source),
    })
}

/// Signed files as JSON text.
pub fn texts(files: &BTreeMap<String, Vec<u8>>) -> Result<Value, Failure> {
    let mut map = serde_json::Map::new();
    for (role, file) in files {
        map.insert(role.clone(), text(file.clone())?.into());
    }
    Ok(Value::Object(map))
}

fn text(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|source| Failure::Refused {
        what: "signed metadata is not text".to_owned(),
        advice: "ask for the file again".to_owned(),
        source: Some(source.into()),
    })
}
