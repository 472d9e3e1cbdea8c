//! Copies of the metadata in TUF's standard layout, for people and for other tools.
//!
//! Nothing is read back from here. A file is put into place as a whole; what the database no longer
//! has is removed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use selvedge_package::DeviceId;

use crate::error::Error;
use crate::store::Store;
use crate::store::metadata::{Repository, Role, Signed};

/// The folder.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Write the Image repository.
    pub async fn image(&self, store: &Store) -> Result<(), Error> {
        let mut files = BTreeMap::new();
        for role in [Role::Root, Role::Targets, Role::Snapshot, Role::Timestamp] {
            named(&mut files, store.versions(&Repository::Image, role).await?);
        }
        named(&mut files, store.image_roles().await?.into_values().collect());
        write(&self.folder.join("image"), &files)?;
        let mut roots = BTreeMap::new();
        named(&mut roots, store.versions(&Repository::DirectorRoot, Role::Root).await?);
        write(&self.folder.join("director"), &roots)
    }

    /// Write the Director repository of one device, with its one target.
    pub async fn director(&self, store: &Store, device: &DeviceId) -> Result<(), Error> {
        let mut files = BTreeMap::new();
        for role in [Role::Targets, Role::Snapshot, Role::Timestamp] {
            named(&mut files, store.versions(&Repository::Director(device.clone()), role).await?);
        }
        named(&mut files, store.versions(&Repository::DirectorRoot, Role::Root).await?);
        if let Some(directed) = store.directed(device).await? {
            files.insert(format!("{device}.json"), directed.body);
        }
        write(&self.folder.join("director").join(device.as_str()), &files)
    }
}

fn named(files: &mut BTreeMap<String, String>, signed: Vec<Signed>) {
    for signed in signed {
        let name = match &signed.role {
            Role::Timestamp => "timestamp.json".to_owned(),
            role => format!("{}.{}.json", signed.version, role.name()),
        };
        files.insert(name, signed.body);
    }
}

/// Make the folder hold exactly these files (folders in it stay).
fn write(folder: &Path, files: &BTreeMap<String, String>) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(Error::file("make the directory", folder))?;
    // The timestamp comes last, so that whoever follows the files finds what it names.
    let (last, first): (Vec<_>, Vec<_>) = files.iter().partition(|(name, _)| *name == "timestamp.json");
    for (name, body) in first.into_iter().chain(last) {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|held| held == body.as_bytes()) {
            continue;
        }
        let temporary = folder.join(format!(".{name}.new"));
        fs::write(&temporary, body).map_err(Error::file("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::file("put into place", &path))?;
    }
    for entry in fs::read_dir(folder).map_err(Error::file("list", folder))? {
        let entry = entry.map_err(Error::file("list", folder))?;
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| files.contains_key(name));
        if !ours && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let path = entry.path();
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
    }
    Ok(())
}
