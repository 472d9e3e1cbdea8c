//! The agent as a TUF client that the public conformance suite can drive, by the suite's `CLIENT-CLI.md`:
//! `package`'s trust code decides, the agent's own database keeps what is trusted. The JSON files that
//! the suite looks at are copies, written after the transaction.
//!
//! Beside a checkout of the suite: `pytest tuf_conformance --entrypoint target/debug/tuf_conformance`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use selvedge_agent::store::{Key, RealDisk, Store};
use selvedge_package::trust::{Client, Found, Refresh, Source, SourceError, Wanted};

/// Largest artifact that is downloaded.
const LARGEST: u64 = 64 << 20;

#[derive(Parser)]
struct Arguments {
    /// Where the database lies, and the copies that the suite looks at.
    #[arg(long)]
    metadata_dir: PathBuf,
    /// Where the repository's metadata is.
    #[arg(long)]
    metadata_url: Option<String>,
    /// The artifacts to download.
    #[arg(long)]
    target_name: Vec<String>,
    /// Where the repository's artifacts are.
    #[arg(long)]
    target_base_url: Option<String>,
    /// Where downloaded artifacts go.
    #[arg(long)]
    target_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take over a trusted root.
    Init {
        /// Its file.
        root: PathBuf,
    },
    /// Update the top-level metadata.
    Refresh,
    /// Download artifacts.
    Download,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let folder = &arguments.metadata_dir;
    let store = Store::open(Arc::new(RealDisk), &folder.join("agent"))?;
    if let Command::Init { root } = &arguments.command {
        let root = fs::read(root).context("reading the trusted root")?;
        return commit(&store, &Client::from_root(&root)?, folder);
    }
    let held: Client = store.database().read(Key::Trust)?.context("`init` has not succeeded")?;
    let url = arguments.metadata_url.as_deref().context("--metadata-url is missing")?;
    let mut refresh = held.refresh(Http::new(url)?, now())?;
    let done = refresh.top_level();
    // What was verified is kept, also where the next file was not.
    commit(&store, &refresh.verified(), folder)?;
    done?;
    if let Command::Download = arguments.command {
        let base = arguments.target_base_url.as_deref().context("--target-base-url is missing")?;
        let into = arguments.target_dir.as_deref().context("--target-dir is missing")?;
        let artifacts = Http::new(base)?;
        for name in &arguments.target_name {
            let found = refresh.find(name);
            commit(&store, &refresh.verified(), folder)?;
            let found = found?.with_context(|| format!("no role lists {name:?}"))?;
            download(&artifacts, &refresh, name, &found, into)?;
        }
    }
    Ok(())
}

/// One transaction, then the copies.
fn commit(store: &Store, client: &Client, folder: &Path) -> Result<()> {
    store.database().write(|transaction| transaction.put(Key::Trust, client))?;
    let mut trusted = BTreeSet::new();
    for (role, file) in client.files() {
        let name = format!("{}.json", encoded(role));
        fs::write(folder.join(&name), file)?;
        trusted.insert(name);
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") && !trusted.contains(&name) {
            fs::remove_file(folder.join(name))?;
        }
    }
    Ok(())
}

fn download<S: Source>(
    http: &Http,
    refresh: &Refresh<S>,
    name: &str,
    found: &Found,
    into: &Path,
) -> Result<()> {
    let place = into.join(encoded(name));
    if fs::read(&place).is_ok_and(|bytes| found.is(&bytes)) {
        return Ok(());
    }
    let mut path = name.to_owned();
    if refresh.consistent_snapshot() {
        let hash = ["sha256", "sha512"].iter().find_map(|kind| found.hashes.get(*kind));
        let hash = hash.with_context(|| format!("{name:?} has no hash that is known"))?;
        path = match name.rsplit_once('/') {
            Some((folder, file)) => format!("{folder}/{hash}.{file}"),
            None => format!("{hash}.{name}"),
        };
    }
    ensure!(found.length <= LARGEST, "{name:?} has {} bytes", found.length);
    let bytes = http.get(&path, usize::try_from(found.length)?)?;
    let bytes = bytes.with_context(|| format!("there is no artifact {path:?}"))?;
    ensure!(found.is(&bytes), "{name:?} is not what was signed for");
    fs::write(place, bytes).with_context(|| format!("writing {name:?}"))
}

/// Reads over plain HTTP, and never more than was asked for.
struct Http {
    base: String,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Http {
    fn new(base: &str) -> Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { base: base.trim_end_matches('/').to_owned(), client, runtime })
    }

    /// The file, or `None` where the server has none: 404, and 403 of object stores.
    fn get(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>> {
        let url = format!("{}/{path}", self.base);
        self.runtime.block_on(async {
            let mut answer = self.client.get(&url).send().await?;
            match answer.status().as_u16() {
                200 => {}
                403 | 404 => return Ok(None),
                status => bail!("GET {url}: {status}"),
            }
            let mut bytes = Vec::new();
            while let Some(chunk) = answer.chunk().await? {
                ensure!(bytes.len() + chunk.len() <= most, "GET {url}: more than {most} bytes");
                bytes.extend_from_slice(&chunk);
            }
            Ok(Some(bytes))
        })
    }
}

impl Source for Http {
    fn fetch(&mut self, wanted: Wanted<'_>, most: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let versioned = |version: Option<u64>, name: &str| match version {
            Some(version) => format!("{version}.{name}.json"),
            None => format!("{name}.json"),
        };
        let name = match wanted {
            Wanted::Root(version) => format!("{version}.root.json"),
            Wanted::Timestamp => "timestamp.json".to_owned(),
            Wanted::Snapshot { version } => versioned(version, "snapshot"),
            Wanted::Targets { role, version } => versioned(version, &encoded(role)),
        };
        self.get(&name, most).map_err(Box::<dyn Error + Send + Sync>::from)
    }
}

/// A name as one part of a URL or a path: all but RFC 3986's unreserved characters is escaped.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The suite moves this clock with `faketime`.
#[allow(clippy::disallowed_methods)]
fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}
