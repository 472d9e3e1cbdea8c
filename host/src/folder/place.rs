//! Where packages are laid out: a directory that is the host's alone, apart from what people keep.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Its name below the data directory. Nothing else has that name there.
pub const LAID: &str = "laid-out";

/// Digits of a package's digest.
const DIGITS: usize = 64;

/// A data directory for one process, which only its user may enter. No name is used twice: in a container every
/// process has the same number.
pub fn temporary() -> std::io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o700);
    Ok(tempfile::Builder::new().prefix("selvedge-host-").permissions(mode).tempdir()?.keep())
}

/// Whether a name below the directory is one that the host makes: a digest, or one that was not finished.
pub fn is_own(name: &OsStr) -> bool {
    let Some((digest, rest)) = name.to_str().and_then(|name| name.split_at_checked(DIGITS)) else {
        return false;
    };
    let digits = digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits && (rest.is_empty() || rest.starts_with(".new-"))
}

/// Whether neither of the two lies in the other, by whatever links; says what is wrong.
pub fn apart(folder: &Path, laid: &Path) -> Result<(), String> {
    let (real_folder, real_laid) = (real(folder), real(laid));
    if !real_folder.starts_with(&real_laid) && !real_laid.starts_with(&real_folder) {
        return Ok(());
    }
    Err(format!(
        "packages would be laid out in `{}`, which is in the folder of packages `{}` or the other way round: give a \
         --data directory that is apart from it",
        real_laid.display(),
        real_folder.display()
    ))
}

/// A path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_process_without_data_has_a_directory_of_its_own() {
        let made = [(); 2].map(|()| temporary().unwrap());
        assert_ne!(made[0], made[1], "though one process made both");
        for made in made {
            assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
            std::fs::remove_dir(made).unwrap();
        }
    }

    #[test]
    fn only_names_of_the_host_are_its_own() {
        let digest = "0a".repeat(32);
        for own in [digest.clone(), format!("{digest}.new-7-1")] {
            assert!(is_own(own.as_ref()), "{own}");
        }
        let others = [
            "",
            "packages",
            &digest[1..],
            &digest.to_uppercase(),
            &format!("{digest}.old"),
            &format!("{digest}0"),
        ];
        for other in others {
            assert!(!is_own(other.as_ref()), "{other}");
        }
    }

    #[test]
    fn neither_lies_in_the_other() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("data/packages")).unwrap();
        std::os::unix::fs::symlink(at("data"), at("link")).unwrap();
        assert_eq!(apart(&at("data/packages"), &at("data/laid-out")), Ok(()));
        assert_eq!(apart(&at("data/packages"), &at("data/packages-2")), Ok(()));
        for (folder, laid) in [
            ("data", "data/laid-out"),
            ("data/packages", "data/packages"),
            ("data/packages", "link/packages/not/there"),
            ("link/packages", "data"),
        ] {
            assert!(apart(&at(folder), &at(laid)).unwrap_err().contains("--data"), "{folder} {laid}");
        }
    }
}
