//! `selvedge trust publish`: hands the registry the next root, or lists that were signed again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reqwest::Method;
use selvedge_package::trust::ImageFiles;
use selvedge_signing::tree::ChangedFiles;
use serde_json::{Value, json};

use crate::ceremony::chain::{self, Which};
use crate::ceremony::seen::Seen;
use crate::client::Registry;
use crate::commands::Surroundings;
use crate::commands::release::previous;
use crate::failure::Failure;

/// Hand in roots, or lists of releases that were signed again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge trust publish next.json --keys keys
  selvedge trust publish next.json --lists resigned --keys keys   (a root that changes the targets keys)
  selvedge trust publish --lists renewed --keys keys              (lists that were renewed by several people)

Everything is checked before anything is published. What the registry has already is left out, so that the
command can be given again after a failure.")]
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

/// Checks everything first, then sends what the registry does not have yet.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let registry = around.registry()?;
    let mut memory = match (&args.keys, &args.lists) {
        (Some(keys), Some(_)) => Some(Memory::of(&registry, keys).await?),
        _ => None,
    };
    let plan = super::plan::plan(&registry, args).await?;
    let mut rows = Vec::new();
    let mut left = plan.lists.as_ref().filter(|_| !plan.lists_done);
    for step in &plan.steps {
        let (which, version) = (step.which, step.version);
        if step.done {
            around.out.line(format!("{} root version {version} is published already", which.name()));
        } else {
            let mut body = json!({"repository": which.name(), "root": text(step.bytes.clone())?});
            if step.with_lists
                && let Some(lists) = left.take()
            {
                body["roles"] = texts(lists)?;
            }
            let doing = format!("publish version {version} of the {} root", which.name());
            registry.call(&doing, Method::POST, "/v1/trust/roots", Some(&body)).await?;
            if let (Some(lists), Some(memory), true) = (&plan.lists, &mut memory, step.with_lists) {
                memory.keep(&registry, lists)?;
            }
            around.out.line(format!("{} root version {version} is published", which.name()));
        }
        if let Some(keys) = &args.keys {
            chain::keep_newer(keys, which, &step.bytes)?;
        }
        rows.push(json!({"repository": which.name(), "version": version, "already": step.done}));
    }
    if let Some(lists) = left {
        let body = json!({"roles": texts(lists)?});
        registry
            .call("take the lists that were signed again", Method::POST, "/v1/trust/image", Some(&body))
            .await?;
        if let Some(memory) = &mut memory {
            memory.keep(&registry, lists)?;
        }
    }
    let names: Option<Vec<&String>> = plan.lists.as_ref().map(|lists| lists.keys().collect());
    if let Some(names) = &names {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let word = if plan.lists_done { "handed in already" } else { "signed again and handed in" };
        around.out.line(format!("{word}: {}", names.join(", ")));
    }
    around.out.value(&json!({"roots": rows, "lists": names}));
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
