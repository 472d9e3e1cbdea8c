//! `selvedge package`: makes a package that any device can check, and does not make one whose own
//! acceptance cases fail.

use std::path::{Path, PathBuf};
use std::time::Duration;

use selvedge_control::Loaded;
use selvedge_package::{FilePath, Origin, PackageName};
use semver::Version;
use serde_json::json;

use crate::commands::Surroundings;
use crate::failure::Failure;
use crate::output::bytes;
use crate::packaging::authoring::{Authored, Content};
use crate::packaging::layout::{self, Layout};
use crate::packaging::probe;
use crate::programs::Programs;
use crate::progress::{Bytes, Step};

/// Make a package.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge package model.onnx                        (a bare model; NAME-VERSION-rN.pkg is made here)
  selvedge package model.onnx --version 1.1.0 --release 2 --out model.pkg
  selvedge package examples/01-file-type             (a directory with selvedge.toml)")]
pub struct Args {
    /// An ONNX file, or a directory with selvedge.toml
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Name of the package [default: the manifest's, or the model file's]
    #[arg(long)]
    pub name: Option<PackageName>,
    /// Version for people [default: the manifest's, or 1.0.0]
    #[arg(long)]
    pub version: Option<Version>,
    /// Release counter, larger than that of every earlier release of this name [default: the manifest's, or 1]
    #[arg(long, value_name = "N")]
    pub release: Option<u64>,
    /// Devices that committed this package never go below this release again
    #[arg(long, value_name = "N")]
    pub min_release: Option<u64>,
    /// One line about it
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// A guest component (.wasm) in place of the manifest's or the built-in module
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// An acceptance case (JSON, docs/package.md), added to the manifest's; may be repeated
    #[arg(long = "case", value_name = "FILE")]
    pub cases: Vec<PathBuf>,
    /// A web server that has the package's blobs, too, like https://files.example/blobs/sha256/{digest}; devices ask
    /// it before the registry. Added to the manifest's; may be repeated
    #[arg(long = "source", value_name = "URL")]
    pub sources: Vec<Origin>,
    /// Where to write it [default: NAME-VERSION-rN.pkg here]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace an existing package
    #[arg(long)]
    pub force: bool,
    /// Do not run the acceptance cases; devices will, and refuse the package where they fail
    #[arg(long)]
    pub skip_acceptance: bool,
    /// Longest time for probing the model and for running the cases, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub timeout: u64,
    /// Where the host program is
    #[command(flatten)]
    pub programs: Programs,
}

/// Makes the package.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    let allowed = Duration::from_secs(args.timeout);
    let mut authored = read(&args.path)?;
    apply(&mut authored, args)?;
    if let Some(model) = authored.to_probe() {
        let step = Step::begin(around.out, &format!("looking into {}", model.display()));
        if !model.is_file() {
            return Err(Failure::refused(
                format!("there is no model {}", model.display()),
                "check its path in the manifest",
            ));
        }
        let probed = probe::model(&args.programs, &model, allowed).await?;
        step.end();
        authored.fill_in(probed)?;
        if authored.draft.module.component.is_some() {
            around.out.note("what the manifest lacks of inputs, outputs and cases is the model's own: the module must take and give the same");
        }
    }
    if authored.draft.release.is_none() {
        authored.draft.release = Some(1);
        around.out.note("no release counter was given: this is r1; say --release N for the next ones");
    }
    let sources = authored.finish()?;
    let manifest = &sources.manifest;
    let out = args.out.clone().unwrap_or_else(|| {
        format!("{}-{}-r{}.pkg", manifest.name, manifest.version, manifest.release).into()
    });
    if out.exists() && !args.force {
        return Err(Failure::Conflict {
            what: format!("{} exists already", out.display()),
            advice: "say another place with --out, or --force to replace it".to_owned(),
        });
    }
    let parent = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let work = tempfile::Builder::new()
        .prefix(".selvedge-package-")
        .tempdir_in(parent)
        .map_err(Failure::file("write in", parent))?;
    let total = sources.files.values().try_fold(0, |sum, content| size(content).map(|size| sum + size))?;
    let bar = Bytes::begin(around.out, "packing", total);
    let made = layout::write(&work.path().join("package"), sources, bar.counter()).await?;
    bar.end();
    let loaded = if args.skip_acceptance {
        None
    } else {
        Some(accept(around, args, &made, work.path(), allowed).await?)
    };
    let (bundle, files) = (made.bundle().clone(), made.bundle().files().count());
    place(&work.path().join("package"), &out, args.force, work.path())?;
    let manifest = bundle.manifest();
    around.out.value(&json!({
        "name": manifest.name, "version": manifest.version, "release": manifest.release,
        "digest": bundle.digest(), "size": bundle.size(), "path": out,
        "cases": loaded.as_ref().map(|loaded| &loaded.cases),
    }));
    around.out.line(format!(
        "{} {} r{} is in {} ({files} files, {})",
        manifest.name,
        manifest.version,
        manifest.release,
        out.display(),
        bytes(bundle.size())
    ));
    around.out.line(bundle.digest().to_string());
    Ok(())
}

fn read(path: &Path) -> Result<Authored, Failure> {
    if path.is_dir() {
        return Authored::directory(path);
    }
    if !path.exists() {
        return Err(Failure::no_file(path, "name an .onnx file or a directory with selvedge.toml"));
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
        return Authored::bare(path);
    }
    Err(Failure::usage(
        format!("{} is neither an .onnx file nor a directory", path.display()),
        "export the model to ONNX, or name the directory that has selvedge.toml",
    ))
}

/// What the command line says goes before the manifest.
fn apply(authored: &mut Authored, args: &Args) -> Result<(), Failure> {
    let draft = &mut authored.draft;
    draft.name = args.name.clone().or_else(|| draft.name.take());
    draft.version = args.version.clone().or_else(|| draft.version.take());
    draft.release = args.release.or(draft.release);
    draft.min_release = args.min_release.unwrap_or(draft.min_release);
    if let Some(description) = &args.description {
        draft.description.clone_from(description);
    }
    for source in &args.sources {
        if !draft.sources.contains(source) {
            draft.sources.push(source.clone());
        }
    }
    if let Some(module) = &args.module {
        let path = given_path(module, "")?;
        authored.given.insert(path.clone(), Content::Disk(module.clone()));
        authored.draft.module.component = Some(path);
    }
    for case in &args.cases {
        let path = given_path(case, "cases/")?;
        authored.given.insert(path.clone(), Content::Disk(case.clone()));
        authored.draft.acceptance.cases.push(path);
    }
    Ok(())
}

/// Where a file of the command line lies in the package.
fn given_path(file: &Path, folder: &str) -> Result<FilePath, Failure> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    format!("{folder}{name}")
        .parse()
        .map_err(|error: selvedge_package::NameError| Failure::usage(error.to_string(), "rename the file"))
}

fn size(content: &Content) -> Result<u64, Failure> {
    match content {
        Content::Bytes(bytes) => Ok(bytes.len() as u64),
        Content::Disk(path) => Ok(std::fs::metadata(path).map_err(Failure::file("read", path))?.len()),
    }
}

/// Runs the package's own cases, in the host.
async fn accept(
    around: &Surroundings<'_>,
    args: &Args,
    made: &Layout,
    work: &Path,
    allowed: Duration,
) -> Result<Loaded, Failure> {
    let step = Step::begin(around.out, "running the acceptance cases");
    let laid = work.join("laid-out");
    made.lay_out(&laid)?;
    let most_mib = made.bundle().manifest().acceptance.memory_mib;
    let (loaded, heavy) = probe::package(&args.programs, &laid, allowed, most_mib).await?;
    step.end();
    if let Some(case) = loaded.first_failure() {
        return Err(Failure::refused(
            format!(
                "the acceptance case `{}` fails: {}",
                case.case,
                case.failure.as_deref().unwrap_or_default()
            ),
            "correct the case, the model or the tolerance; --skip-acceptance packs it all the same, and devices will refuse it",
        ));
    }
    if !loaded.accepted() {
        return Err(Failure::refused("no acceptance case was run", "add a case under `acceptance.cases`"));
    }
    if let Some(heavy) = heavy {
        return Err(Failure::refused(
            heavy,
            "allow more, or make it smaller; --skip-acceptance packs it all the same, and devices will refuse it",
        ));
    }
    for case in &loaded.cases {
        around.out.note(format!("case {} passed in {:.1} ms", case.case, case.ms));
    }
    Ok(loaded)
}

/// Moves the finished package to its place; an older one goes away only then.
fn place(made: &Path, out: &Path, force: bool, work: &Path) -> Result<(), Failure> {
    if out.exists() {
        if !out.join("oci-layout").is_file() || !force {
            return Err(Failure::Conflict {
                what: format!("{} exists and is not a package", out.display()),
                advice: "say another place with --out".to_owned(),
            });
        }
        std::fs::rename(out, work.join("replaced")).map_err(Failure::file("replace", out))?;
    }
    std::fs::rename(made, out).map_err(Failure::file("write", out))
}
