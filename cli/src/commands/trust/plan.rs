//! What `selvedge trust publish` is about to do. Every root and every list is judged before anything is
//! handed in, and what the registry has already is left out: half a success can be repeated.

use std::collections::BTreeMap;
use std::path::Path;

use reqwest::Method;
use selvedge_package::trust::{ImageFiles, verify_image};
use selvedge_signing::{metadata, roots};

use super::publish::Args;
use crate::ceremony::chain::{self, Which};
use crate::ceremony::{files, words};
use crate::client::Registry;
use crate::clock;
use crate::commands::release::read_files;
use crate::failure::Failure;
use crate::keyring::failed;

/// One root.
pub struct Step {
    /// Its repository.
    pub which: Which,
    /// Its version.
    pub version: u64,
    /// The file.
    pub bytes: Vec<u8>,
    /// The registry has exactly this one already.
    pub done: bool,
    /// The lists are published together with it.
    pub with_lists: bool,
}

/// Everything, in its order.
pub struct Plan {
    /// The roots.
    pub steps: Vec<Step>,
    /// The lists that were named.
    pub lists: Option<BTreeMap<String, Vec<u8>>>,
    /// The registry has exactly these lists already.
    pub lists_done: bool,
}

/// What the registry has, and what it would have after each step.
struct Ahead {
    image: Vec<Vec<u8>>,
    director: Vec<Vec<u8>>,
    held: Option<ImageFiles>,
}

impl Ahead {
    fn roots(&mut self, which: Which) -> &mut Vec<Vec<u8>> {
        match which {
            Which::Image => &mut self.image,
            Which::Director => &mut self.director,
        }
    }
}

/// Judges everything as the registry and its devices would.
pub async fn plan(registry: &Registry, args: &Args) -> Result<Plan, Failure> {
    let lists = args.lists.as_deref().map(files::proposal).transpose()?;
    let answer = registry.call("show what was released", Method::GET, "/v1/trust/image", None).await?;
    let mut ahead = Ahead {
        image: chain::published(registry, Which::Image).await?,
        director: chain::published(registry, Which::Director).await?,
        held: read_files(&answer),
    };
    let has = |role: &str, file: &[u8]| {
        ahead.held.iter().flat_map(ImageFiles::roles).any(|(held, bytes)| held == role && bytes == file)
    };
    let lists_done = lists.as_ref().is_some_and(|lists| lists.iter().all(|(role, file)| has(role, file)));
    let mut left = lists.as_ref().filter(|_| !lists_done);
    let mut steps = Vec::new();
    for path in &args.roots {
        let mut step = step(path, args.repository, &mut ahead)?;
        if !step.done && step.which == Which::Image {
            step.with_lists = left.is_some();
            image(path, &step.bytes, left.take(), &mut ahead)?;
        }
        if !step.done {
            ahead.roots(step.which).push(step.bytes.clone());
        }
        steps.push(step);
    }
    if let Some(lists) = left {
        let root = ahead.image.last().cloned().unwrap_or_default();
        take(&root, lists, &mut ahead, "the lists that were signed again would not be taken")?;
    }
    if let Some(keys) = &args.keys {
        check_directory(keys, &steps, &mut ahead)?;
    }
    Ok(Plan { steps, lists, lists_done })
}

/// A device that trusts the newest root must follow to this one.
fn step(path: &Path, asked: Option<Which>, ahead: &mut Ahead) -> Result<Step, Failure> {
    let bytes = files::read(path)?;
    let reading = |error| failed(format!("read {}", path.display()), error);
    let head = metadata::head(&bytes).map_err(reading)?;
    if head.role != "root" {
        return Err(Failure::usage(
            format!("{} is a {} file, not a root", path.display(), head.role),
            "lists of releases are handed in with --lists DIR",
        ));
    }
    let said = roots::repository(&bytes).map_err(reading)?;
    let which = which(path, said.as_deref(), asked)?;
    let before = ahead.roots(which);
    let done = before.contains(&bytes);
    if !done {
        words::check_expiry(&path.display().to_string(), head.expires, clock::now())?;
        if let Some(newest) = before.last() {
            super::sign::succeeds(path, &bytes, newest)?;
            chain::follows(which, newest, &bytes).map_err(|source| Failure::Untrusted {
                what: format!("no device would follow to {}", path.display()),
                advice: "`selvedge trust check FILE --against CURRENT` says whose signatures are missing"
                    .to_owned(),
                source: Some(source),
            })?;
        }
    }
    Ok(Step { which, version: head.version, bytes, done, with_lists: false })
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

/// What is released must be signed by the keys that the next Image root names.
fn image(
    path: &Path,
    root: &[u8],
    lists: Option<&BTreeMap<String, Vec<u8>>>,
    ahead: &mut Ahead,
) -> Result<(), Failure> {
    if let Some(lists) = lists {
        return take(
            root,
            lists,
            ahead,
            &format!("the lists that were signed again do not go with {}", path.display()),
        );
    }
    let Some(held) = &ahead.held else { return Ok(()) };
    verify_image(root, held, clock::now()).map(drop).map_err(|source| Failure::Untrusted {
        what: format!("what is released is not signed by the keys that {} names", path.display()),
        advice:
            "publish it with the lists signed again: `selvedge trust renew --for ROOT.json --propose DIR` \
                 makes them, `selvedge trust sign` signs them, and --lists DIR hands them in"
                .to_owned(),
        source: Some(source.into()),
    })
}

/// Lists that were signed again say what was released, in newer files.
fn take(
    root: &[u8],
    lists: &BTreeMap<String, Vec<u8>>,
    ahead: &mut Ahead,
    what: &str,
) -> Result<(), Failure> {
    let refuse = |why: crate::failure::Cause| {
        Failure::Untrusted {
        what: what.to_owned(),
        advice: "`selvedge trust check DIR --against ROOT.json` says whose signatures are missing; where somebody \
                 released in the meantime, renew and sign them again"
            .to_owned(),
        source: Some(why),
    }
    };
    let held = ahead.held.clone().unwrap_or_default();
    let mut files = held.clone();
    for (role, file) in lists {
        let version = |file: &[u8]| metadata::head(file).map(|head| head.version);
        let before = held.roles().find(|(name, file)| name == role && !file.is_empty());
        let before = before.map(|(_, file)| version(file)).transpose();
        let (before, next) = (before.map_err(|e| refuse(e.into()))?, version(file));
        let next = next.map_err(|e| refuse(e.into()))?;
        if before.is_some_and(|before| next <= before) {
            return Err(refuse(format!("`{role}` has version {next}, not above the registry's").into()));
        }
        files.set(role, file.clone());
    }
    let read = verify_image(root, &files, clock::now()).map_err(|source| refuse(source.into()))?;
    let newest = ahead.image.last().cloned().unwrap_or_default();
    // Its age is no matter: it is about to be renewed.
    let old =
        verify_image(&newest, &held, jiff::Timestamp::UNIX_EPOCH).map_err(|source| refuse(source.into()))?;
    if read.releases != old.releases {
        return Err(refuse("they list other releases than the registry has".into()));
    }
    ahead.held = Some(files);
    Ok(())
}

/// The directory of keys must be this registry's: its roots lead to those that are published.
fn check_directory(keys: &Path, steps: &[Step], ahead: &mut Ahead) -> Result<(), Failure> {
    let held = chain::held(keys)?;
    for (which, trusted) in [(Which::Image, &held.image), (Which::Director, &held.director)] {
        if !steps.iter().any(|step| step.which == which) {
            continue;
        }
        let roots = ahead.roots(which).clone();
        chain::follow(which, trusted, roots).map_err(|source| Failure::Untrusted {
            what: format!("the {} root in {} does not lead to this one", which.name(), keys.display()),
            advice: "check that --keys names the directory of this registry's keys".to_owned(),
            source: Some(source),
        })?;
    }
    Ok(())
}
