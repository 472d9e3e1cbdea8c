//! `selvedge verify`: what a device would say of a file, in plain words: what was checked, against
//! which keys, until when it holds, and what would be refused and why.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use selvedge_package::archive::{ArchiveError, ArchiveLimits, Entry, MetadataFiles, Reader};
use selvedge_package::chunks::ChunkIndexer;
use selvedge_package::limits::Limits;
use selvedge_package::{Bundle, Digest};
use serde_json::{Value, json};

use crate::ceremony::{chain, files, words};
use crate::clock;
use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output;
use crate::packaging::layout::blob_path;
use crate::packaging::signed::{self, Anchor, Verdict};
use crate::packaging::{folder, oci};

/// Say what a device would say of a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge verify edge-1.svpkg --keys keys
  selvedge verify file-type.svpkg --root image.root.json
  selvedge verify layout --keys keys                                   (of `selvedge export --oci layout`)
  selvedge verify edge-1.svpkg --keys keys --at 2027-03-01T00:00:00Z   (would it hold then?)

Ends with 0 only where a device with these roots would take it, with 9 where it would not.")]
pub struct Args {
    /// A file of `selvedge export`, the directory of `selvedge export --oci`, or a package directory
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
    /// Roots that are trusted.
    #[command(flatten)]
    pub roots: Roots,
    /// Judge as if it were then, in place of now
    #[arg(long, value_name = "TIME")]
    pub at: Option<Timestamp>,
}

/// The roots that are trusted.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Roots {
    /// The Image repository's root
    #[arg(long, value_name = "FILE", conflicts_with = "keys")]
    pub root: Option<PathBuf>,
    /// The Director's root, for what was made for one device
    #[arg(long, value_name = "FILE", requires = "root")]
    pub director_root: Option<PathBuf>,
    /// Directory of the registry's keys, for both roots
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
}

impl Roots {
    /// Whether any was given.
    pub fn are_given(&self) -> bool {
        self.root.is_some() || self.keys.is_some()
    }

    fn anchor(&self) -> Result<Option<Anchor>, Failure> {
        if let Some(keys) = &self.keys {
            let roots = chain::held(keys)?;
            return Ok(Some(Anchor { image: roots.image, director: Some(roots.director) }));
        }
        let Some(root) = &self.root else { return Ok(None) };
        let director = self.director_root.as_deref().map(files::read).transpose()?;
        Ok(Some(Anchor { image: files::read(root)?, director }))
    }
}

/// What a file or directory holds, with every byte compared with its digest.
pub struct Content {
    /// Metadata; empty for a plain OCI layout.
    pub files: MetadataFiles,
    /// The packages.
    pub bundles: Vec<Bundle>,
}

/// Reads and judges.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let now = args.at.unwrap_or_else(clock::now);
    let content = read(&args.path).await?;
    let anchor = args.roots.anchor()?;
    let mut report = json!({"path": args.path, "at": now});
    around.out.line(format!("{}:", args.path.display()));
    let mut rows = Vec::new();
    for bundle in &content.bundles {
        let manifest = bundle.manifest();
        around.out.line(format!(
            "  {} {} r{}, {}, {}",
            manifest.name,
            manifest.version,
            manifest.release,
            output::bytes(bundle.size()),
            bundle.digest()
        ));
        let architectures = &manifest.requires.architectures;
        if !architectures.is_empty() {
            around.out.line(format!("    other hardware than {} refuses it", architectures.join(", ")));
        }
        if manifest.min_release > 0 {
            around.out.line(format!(
                "    once it runs, no release below r{} may run any more; a device whose floor is above r{} refuses it",
                manifest.min_release, manifest.release
            ));
        }
        rows.push(json!({
            "name": manifest.name, "version": manifest.version, "release": manifest.release, "digest": bundle.digest(),
            "architectures": architectures, "min_release": manifest.min_release,
        }));
    }
    around.out.line("  checked: every blob has the size and the SHA-256 that its manifest says");
    report["packages"] = rows.into();
    report["metadata"] = metadata(around, &content.files, now)?;
    let bundles: Vec<&Bundle> = content.bundles.iter().collect();
    let verdict = decide(around, &content.files, anchor.as_ref(), &bundles, now, &mut report);
    match &verdict {
        Ok(Verdict::Assigned(device, desired)) => {
            let settings: Vec<_> = desired
                .assignments
                .iter()
                .map(|one| json!({"package": one.package, "release": one.release, "settings": one.settings}))
                .collect();
            around.out.line(format!(
                "  {device} with these roots would take it: sequence {}, {} packages, issued {}",
                desired.sequence,
                desired.assignments.len(),
                desired.issued_at
            ));
            around.out.line(
                "  it would refuse it where it has accepted a newer sequence or newer metadata already,",
            );
            around.out.line("  and every other device refuses it: it is for another one");
            report["verdict"] = json!({"taken": true, "device": device, "sequence": desired.sequence, "assignments": settings});
        }
        Ok(Verdict::Released) => {
            around.out.line("  released: a device with this root takes it when its Director assigns it");
            report["verdict"] = json!({"taken": true, "device": null});
        }
        Err(failure) => {
            around.out.line(format!("  REFUSED: {}", failure.chain()));
            report["verdict"] = json!({"taken": false, "why": failure.chain()});
        }
    }
    around.out.value(&report);
    verdict.map(drop)
}

/// The same without words; for who only wants to know.
pub async fn check(path: &Path, roots: &Roots, now: Timestamp) -> Result<Verdict, Failure> {
    let content = read(path).await?;
    let bundles: Vec<&Bundle> = content.bundles.iter().collect();
    let anchor =
        roots.anchor()?.ok_or_else(|| Failure::usage("no root is given", "say --keys DIR or --root FILE"))?;
    if content.files.is_empty() {
        return Err(unsigned());
    }
    signed::judge(&content.files, &anchor, &bundles, now)
}

fn unsigned() -> Failure {
    Failure::Untrusted {
        what: "nobody has signed for it: there is no metadata in it".to_owned(),
        advice: "export it from a registry that has released it; a plain OCI layout carries no signatures"
            .to_owned(),
        source: None,
    }
}

fn decide(
    around: &Surroundings<'_>,
    files: &MetadataFiles,
    anchor: Option<&Anchor>,
    bundles: &[&Bundle],
    now: Timestamp,
    report: &mut Value,
) -> Result<Verdict, Failure> {
    if files.is_empty() {
        return Err(unsigned());
    }
    let Some(anchor) = anchor else {
        return Err(Failure::usage(
            "no root is given: signatures were not checked",
            "say --keys DIR, or --root FILE with the root that the device was enrolled with",
        ));
    };
    around.out.line(format!("  judged at {now}, against the keys of:"));
    let mut trusted = Vec::new();
    for root in std::iter::once(&anchor.image).chain(&anchor.director) {
        let (lines, value) = words::root(root)?;
        for line in lines {
            around.out.line(format!("    {line}"));
        }
        trusted.push(value);
    }
    report["trusted"] = trusted.into();
    signed::judge(files, anchor, bundles, now)
}

fn metadata(around: &Surroundings<'_>, files: &MetadataFiles, now: Timestamp) -> Result<Value, Failure> {
    let mut rows = Vec::new();
    for (place, head, signers) in signed::described(files)? {
        let late = if head.expires <= now { "EXPIRED at" } else { "good until" };
        around.out.line(format!("  {place}: version {}, {late} {}", head.version, head.expires));
        for signer in &signers {
            around.out.line(format!("    says to be signed by {signer}"));
        }
        rows.push(json!({
            "file": place, "role": head.role, "version": head.version, "expires": head.expires, "signed_by": signers,
        }));
    }
    Ok(rows.into())
}

/// Reads a file as a device does, or a package directory.
pub async fn read(path: &Path) -> Result<Content, Failure> {
    if !path.exists() {
        return Err(Failure::no_file(
            path,
            "name a file or directory of `selvedge export`, or a package directory",
        ));
    }
    if path.is_dir() { directory(path).await } else { stream(path).await }
}

/// A package directory, or an OCI image layout as `selvedge export --oci` writes it.
async fn directory(path: &Path) -> Result<Content, Failure> {
    if !path.join("oci-layout").is_file() {
        return Err(Failure::refused(
            format!("{} is no package and no OCI image layout", path.display()),
            "name the directory that holds `oci-layout` and `index.json`, or a file of `selvedge export`",
        ));
    }
    let bundles = oci::packages(path)?;
    for bundle in &bundles {
        for blob in bundle.blobs() {
            let place = blob_path(path, &blob.digest);
            // Looked at before it is opened: opening a pipe would wait for its writer.
            let there = std::fs::metadata(&place).map_err(Failure::file("read", &place))?;
            if !there.is_file() || there.len() != blob.size {
                return Err(Failure::content::<String>("whole", &place)(format!(
                    "it has {} bytes instead of {}",
                    there.len(),
                    blob.size
                )));
            }
            let file = File::open(&place).map_err(Failure::file("open", &place))?;
            let found = digest(file.take(blob.size)).map_err(Failure::file("read", &place))?;
            if found != blob.digest {
                return Err(Failure::content("what its name says", &place)("its digest is another one"));
            }
            tokio::task::yield_now().await;
        }
    }
    Ok(Content { files: folder::read(path)?, bundles })
}

fn digest(mut from: impl std::io::Read) -> std::io::Result<Digest> {
    let (mut indexer, mut piece) = (ChunkIndexer::new(), vec![0; 1 << 18]);
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(indexer.finish().digest),
            length => indexer.update(&piece[..length]),
        }
    }
}

async fn stream(path: &Path) -> Result<Content, Failure> {
    let refused = |source: ArchiveError| Failure::Untrusted {
        what: format!("{} is not read by a device", path.display()),
        advice: "`selvedge import` reads what other tools wrote; `selvedge export` writes what devices read"
            .to_owned(),
        source: Some(source.into()),
    };
    let file = File::open(path).map_err(Failure::file("open", path))?;
    let mut reader = Reader::new(BufReader::new(file), ArchiveLimits::PACKAGES);
    let mut files = MetadataFiles::default();
    let (mut index, mut small, mut sizes) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let most = Limits::PACKAGE.oci_manifest_bytes.max(Limits::PACKAGE.config_bytes);
    while let Some(entry) = reader.next_entry().map_err(refused)? {
        match entry {
            Entry::Layout => {}
            Entry::Index(bytes) => index = bytes,
            Entry::Metadata { repository, name, bytes } => files.insert(repository, name, bytes),
            Entry::Blob(mut blob) => {
                let (named, size) = (blob.digest, blob.size);
                let found = if size <= most {
                    let mut bytes = Vec::new();
                    blob.read_to_end(&mut bytes).map_err(Failure::file("read", path))?;
                    let found = Digest::of(&bytes);
                    small.insert(named, bytes);
                    found
                } else {
                    digest(&mut blob).map_err(Failure::file("read", path))?
                };
                if found != named {
                    return Err(refused(ArchiveError::Blob { digest: named }));
                }
                sizes.insert(named, size);
            }
        }
        tokio::task::yield_now().await;
    }
    let bundles = bundles(path, &index, &small, &sizes)?;
    Ok(Content { files, bundles })
}

fn bundles(
    path: &Path,
    index: &[u8],
    small: &BTreeMap<Digest, Vec<u8>>,
    sizes: &BTreeMap<Digest, u64>,
) -> Result<Vec<Bundle>, Failure> {
    let index: Value =
        serde_json::from_slice(index).map_err(Failure::content("an archive with an index", path))?;
    let lacks =
        |digest: &str| Failure::content::<String>("whole", path)(format!("it lacks the blob {digest}"));
    let mut bundles = Vec::new();
    for listed in index["manifests"].as_array().into_iter().flatten() {
        let text = listed["digest"].as_str().unwrap_or_default();
        let digest: Digest = text.parse().map_err(|_| lacks(text))?;
        let manifest = small.get(&digest).ok_or_else(|| lacks(text))?;
        let outer = selvedge_package::bundle::parse_oci(&Limits::PACKAGE, manifest)
            .map_err(Failure::content("an archive of packages", path))?;
        let config = &outer.config.digest;
        let config = small.get(config).ok_or_else(|| lacks(&config.to_string()))?;
        let bundle =
            Bundle::parse(manifest, config).map_err(Failure::content("an archive of packages", path))?;
        for blob in bundle.blobs() {
            if sizes.get(&blob.digest) != Some(&blob.size) {
                return Err(lacks(&blob.digest.to_string()));
            }
        }
        bundles.push(bundle);
    }
    if bundles.is_empty() {
        return Err(Failure::content("an archive of packages", path)("its index lists none"));
    }
    Ok(bundles)
}
