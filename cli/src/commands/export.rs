//! `selvedge export`: packages with all that vouches for them, in one file for a USB stick or a web
//! server, or as an OCI image layout for other tools.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use selvedge_package::archive::{ArchiveError, MetadataFiles, Writer};
use selvedge_package::trust::{DirectorAssignment, MetadataBundle};
use selvedge_package::{Bundle, DeviceId};
use selvedge_protocol::envelope::from_cbor;
use serde_json::json;

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output;
use crate::packaging::layout::{Layout, index};
use crate::packaging::{fetch, folder, oci, signed};
use crate::reference::Reference;

/// Largest bundle of metadata that a registry may send.
const LARGEST_BUNDLE: usize = 16 << 20;

/// Put packages and what vouches for them into one file.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge export file-type@1.0.0 --out file-type.svpkg       (a release, for any device that is assigned it)
  selvedge export --target edge-1 --out edge-1.svpkg          (all that edge-1 shall run, and its assignment)
  selvedge export model.pkg --out model.svpkg                 (a package directory, without any signature)
  selvedge export file-type@1.0.0 --oci layout                (an OCI image layout: skopeo copy oci:layout:1.0.0 …)

On the device: selvedge-agent import FILE --data DIR. `selvedge verify FILE` says what a device would say.")]
pub struct Args {
    /// A released package, or the directory of one
    #[arg(value_name = "NAME@VERSION|DIR", required_unless_present = "target", conflicts_with = "target")]
    pub what: Option<String>,
    /// Everything that this device shall run, with its Director's signature
    #[arg(long, value_name = "DEVICE")]
    pub target: Option<DeviceId>,
    /// The file to write, by custom NAME.svpkg
    #[arg(long, value_name = "FILE", required_unless_present = "oci", conflicts_with = "oci")]
    pub out: Option<PathBuf>,
    /// The directory to write an OCI image layout into
    #[arg(long, value_name = "DIR")]
    pub oci: Option<PathBuf>,
}

/// Fetches, writes.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let out = args.out.as_deref().or(args.oci.as_deref()).unwrap_or(Path::new("."));
    if out.exists() {
        return Err(Failure::Conflict {
            what: format!("{} exists already", out.display()),
            advice: "name a file or directory that is not there".to_owned(),
        });
    }
    let aside = oci::beside(out)?;
    let (layouts, files) = gather(around, args, aside.path()).await?;
    let bundles: Vec<&Bundle> = layouts.iter().map(Layout::bundle).collect();
    match (&args.out, &args.oci) {
        (Some(file), _) => archive(file, &layouts, &files).await?,
        (None, Some(dir)) => directory(dir, &layouts, &files, aside.path()).await?,
        (None, None) => return Err(Failure::usage("nothing says where to", "say --out FILE or --oci DIR")),
    }
    let size = layouts.iter().map(|layout| layout.bundle().size()).sum();
    let names: Vec<String> = bundles
        .iter()
        .map(|bundle| {
            format!("{} {} r{}", bundle.manifest().name, bundle.manifest().version, bundle.manifest().release)
        })
        .collect();
    around.out.line(format!("{}: {}, {}", out.display(), names.join(", "), output::bytes(size)));
    match (files.device(), files.is_empty()) {
        (Some(device), _) => around.out.line(format!("on {device}: selvedge-agent import FILE --data DIR")),
        (None, true) => around.out.line("without signatures: no device takes it; it is for other tools"),
        (None, false) => around.out.line("a device takes it when its Director assigns it"),
    }
    around.out.value(&json!({
        "out": out, "packages": names, "digests": bundles.iter().map(|bundle| bundle.digest()).collect::<Vec<_>>(),
        "device": files.device(), "signed": !files.is_empty(), "bytes": size,
    }));
    Ok(())
}

/// The packages, fetched below `aside` where they are not on this machine, and their metadata.
async fn gather(
    around: &Surroundings<'_>,
    args: &Args,
    aside: &Path,
) -> Result<(Vec<Layout>, MetadataFiles), Failure> {
    if let Some(device) = &args.target {
        let registry = around.registry()?;
        let path = registry.in_workspace(&format!("/targets/{device}/bundle"));
        let bytes =
            registry.get_bytes(&format!("show what {device} shall run"), &path, LARGEST_BUNDLE).await?;
        let garbled = |source: String| Failure::Garbled {
            who: "the registry",
            address: registry.address().to_owned(),
            source: source.into(),
        };
        let bundle: MetadataBundle = from_cbor(&bytes).map_err(garbled)?;
        let assignment =
            DirectorAssignment::parse(&bundle.assignment).map_err(|error| garbled(error.to_string()))?;
        let mut layouts = Vec::new();
        for (number, assigned) in assignment.assignments.iter().enumerate() {
            let dir = aside.join(number.to_string());
            layouts.push(fetch::package(around.out, &registry, assigned.digest, &dir).await?);
        }
        if layouts.is_empty() {
            return Err(Failure::missing(
                format!("{device} is assigned nothing"),
                "`selvedge deploy` assigns a release to it",
            ));
        }
        return Ok((layouts, signed::files(&bundle, Some(device))?));
    }
    let what = args.what.as_deref().unwrap_or_default();
    if Path::new(what).is_dir() {
        return Ok((vec![Layout::open(Path::new(what))?], MetadataFiles::default()));
    }
    let reference: Reference = what.parse().map_err(|why: String| {
        Failure::missing(
            format!("{what} is neither a directory nor the name of a release: {why}"),
            "write it like file-type@1.0.0",
        )
    })?;
    let registry = around.registry()?;
    let (_, rows) = registry.packages().await?;
    let row = reference.resolve(&rows)?;
    let layout = fetch::package(around.out, &registry, row.digest, &aside.join("0")).await?;
    let files = signed::image(&registry, &[layout.bundle()]).await?;
    Ok((vec![layout], files))
}

/// One file, which appears when it is whole.
async fn archive(file: &Path, layouts: &[Layout], files: &MetadataFiles) -> Result<(), Failure> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(dir).map_err(Failure::file("write in", dir))?;
    let writing = |source: ArchiveError| Failure::Refused {
        what: format!("{} cannot be written", file.display()),
        advice: "make room on the disk, or export fewer packages".to_owned(),
        source: Some(source.into()),
    };
    let index = index(layouts.iter().map(Layout::bundle))?;
    let mut writer = Writer::new(BufWriter::new(&temporary), &index, files).map_err(writing)?;
    // What says what the rest is comes first, so that a reader that streams can check the rest.
    for layout in layouts {
        let bundle = layout.bundle();
        let own = (bundle.digest(), bundle.length());
        let all = bundle.blobs().into_iter().map(|blob| (blob.digest, blob.size));
        for (digest, size) in std::iter::once(own).chain(all) {
            let path = layout.blob(&digest);
            let from = File::open(&path).map_err(Failure::file("open", &path))?;
            writer.blob(digest, size, from).map_err(writing)?;
            // Lets Ctrl-C through.
            tokio::task::yield_now().await;
        }
    }
    writer.finish().map_err(writing)?;
    temporary.as_file().sync_all().map_err(Failure::file("write", file))?;
    readable(temporary.as_file(), file)?;
    temporary.persist_noclobber(file).map_err(|error| Failure::File {
        doing: "write",
        path: file.to_owned(),
        source: error.error,
    })?;
    Ok(())
}

/// An OCI image layout, with the metadata in a folder that other tools leave alone.
async fn directory(
    dir: &Path,
    layouts: &[Layout],
    files: &MetadataFiles,
    aside: &Path,
) -> Result<(), Failure> {
    let made = aside.join("layout");
    for (number, layout) in layouts.iter().enumerate() {
        let copy = if number == 0 { made.clone() } else { aside.join(format!("copy-{number}")) };
        oci::adopt(layout.dir(), layout.bundle().clone(), &copy).await?;
        if number > 0 {
            merge(&copy, &made)?;
        }
    }
    std::fs::write(made.join("index.json"), index(layouts.iter().map(Layout::bundle))?)
        .map_err(Failure::file("write", &made))?;
    folder::write(&made, files)?;
    std::fs::rename(&made, dir).map_err(Failure::file("make", dir))
}

/// Moves the blobs of one layout to another.
fn merge(from: &Path, to: &Path) -> Result<(), Failure> {
    let (from, to) = (from.join("blobs/sha256"), to.join("blobs/sha256"));
    for entry in std::fs::read_dir(&from).map_err(Failure::file("list", &from))? {
        let entry = entry.map_err(Failure::file("list", &from))?;
        std::fs::rename(entry.path(), to.join(entry.file_name())).map_err(Failure::file("write in", &to))?;
    }
    Ok(())
}

/// Temporary files are 0600; what is exported is no secret.
fn readable(file: &File, path: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(Failure::file("change", path))
}
