//! The other programs of Selvedge, which lie beside this one. It never looks in `PATH`: a program
//! of the same name from elsewhere would get keys and data.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where the other programs are.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Programs {
    /// Directory with selvedge-agent, selvedge-host and selvedge-registry [default: beside this program]
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
}

impl Programs {
    /// The path of a program; an error says where it was looked for.
    pub fn find(&self, name: &str) -> Result<PathBuf, Failure> {
        let dir = match &self.programs {
            Some(dir) => dir.clone(),
            None => own_directory()?,
        };
        let path = dir.join(name);
        if path.is_file() {
            return Ok(path);
        }
        Err(Failure::missing(
            format!("there is no {name} in {}", dir.display()),
            "install all programs of Selvedge side by side (from a checkout: `cargo build`), or say --programs DIR",
        ))
    }
}

fn own_directory() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).map_err(|source| {
        Failure::Internal { what: "cannot find out where this program lies", source: source.into() }
    })?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let programs = Programs { programs: Some(dir.path().to_owned()) };
        let failure = programs.find("selvedge-host").unwrap_err();
        assert!(
            failure.to_string().contains("selvedge-host")
                && failure.to_string().contains(&dir.path().display().to_string())
        );
        std::fs::write(dir.path().join("selvedge-host"), "").unwrap();
        assert!(programs.find("selvedge-host").is_ok());
    }
}
