//! `selvedge import`: a package directory out of a file, or out of an OCI image layout that any tool
//! wrote. Every blob is compared with its digest; with roots, signatures are checked too.

use std::path::{Path, PathBuf};

use selvedge_package::Bundle;
use serde_json::json;

use crate::commands::Surroundings;
use crate::commands::verify::{self, Roots};
use crate::failure::Failure;
use crate::packaging::oci;
use crate::reference::{Reference, Which};

/// Make a package directory of a file or an OCI image layout.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  selvedge import file-type.svpkg --out file-type.pkg
  selvedge import layout --out file-type.pkg              (skopeo copy docker://… oci:layout:1.0.0)
  selvedge import edge-1.svpkg --package file-type --out file-type.pkg
  selvedge import file-type.svpkg --keys keys --out file-type.pkg    (only if it was released)")]
pub struct Args {
    /// A file that `selvedge export` or another tool wrote, or the directory of an OCI image layout
    #[arg(value_name = "FILE|DIR")]
    pub from: PathBuf,
    /// The directory to make
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Which package, where there are several
    #[arg(long, value_name = "NAME[@VERSION]")]
    pub package: Option<Reference>,
    /// Roots that must vouch for it; without them, bytes alone are checked.
    #[command(flatten)]
    pub roots: Roots,
}

/// Unpacks, checks, copies.
pub async fn run(around: &Surroundings<'_>, args: &Args) -> Result<(), Failure> {
    if !args.from.exists() {
        return Err(Failure::no_file(&args.from, "name a file of `selvedge export`, or an OCI image layout"));
    }
    if args.out.exists() {
        return Err(Failure::Conflict {
            what: format!("{} exists already", args.out.display()),
            advice: "name a directory that is not there".to_owned(),
        });
    }
    if args.roots.are_given() {
        verify::check(&args.from, &args.roots, crate::clock::now()).await?;
    }
    let aside = oci::beside(&args.out)?;
    let from = if args.from.is_dir() {
        if !args.from.join("oci-layout").is_file() {
            return Err(Failure::refused(
                format!("{} is no OCI image layout", args.from.display()),
                "name the directory that holds `oci-layout` and `index.json`",
            ));
        }
        args.from.clone()
    } else {
        let unpacked = aside.path().join("unpacked");
        std::fs::create_dir(&unpacked).map_err(Failure::file("make", &unpacked))?;
        oci::unpack(&args.from, &unpacked)?;
        unpacked
    };
    let bundle = choose(&from, args.package.as_ref())?;
    let made = aside.path().join("package");
    let layout = oci::adopt(&from, bundle, &made).await?;
    std::fs::rename(&made, &args.out).map_err(Failure::file("make", &args.out))?;
    let manifest = layout.manifest();
    around.out.line(format!(
        "{}: {} {} r{}, {}",
        args.out.display(),
        manifest.name,
        manifest.version,
        manifest.release,
        layout.bundle().digest()
    ));
    let checked = args.roots.are_given();
    around.out.line(if checked {
        "every byte is what its digest says, and the digest was released"
    } else {
        "every byte is what its digest says; who released it was not asked (--keys, --root)"
    });
    around.out.value(&json!({
        "out": args.out, "name": manifest.name, "version": manifest.version, "release": manifest.release,
        "digest": layout.bundle().digest(), "released": checked.then_some(true),
    }));
    Ok(())
}

fn choose(dir: &Path, wanted: Option<&Reference>) -> Result<Bundle, Failure> {
    let mut all = oci::packages(dir)?;
    let name = |bundle: &Bundle| format!("{}@{}", bundle.manifest().name, bundle.manifest().version);
    let known: Vec<String> = all.iter().map(name).collect();
    if let Some(wanted) = wanted {
        all.retain(|bundle| {
            bundle.manifest().name == wanted.name
                && match &wanted.which {
                    Which::Newest => true,
                    Which::Version(version) => bundle.manifest().version == *version,
                    Which::Release(release) => bundle.manifest().release == *release,
                }
        });
    }
    match (all.len(), all.pop()) {
        (1, Some(bundle)) => Ok(bundle),
        (0, _) => {
            Err(Failure::missing("it does not hold that package", format!("it holds {}", known.join(", "))))
        }
        _ => Err(Failure::usage(
            format!("it holds several packages: {}", known.join(", ")),
            "say which with --package NAME[@VERSION]",
        )),
    }
}
