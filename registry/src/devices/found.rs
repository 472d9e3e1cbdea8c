//! Which blobs devices were found to need. A transfer asks for its blob many times a second: to look
//! each time whether it is still assigned would cost more than to answer. A look counts until the next
//! change of the database.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use selvedge_package::{DeviceId, Digest};

/// Looks that are kept, at most: then all are taken anew.
const MOST: usize = 1024;

/// Looks that count.
#[derive(Debug, Default)]
pub struct Found(Mutex<Looks>);

#[derive(Debug, Default)]
struct Looks {
    /// Changes of the database before them.
    changes: u64,
    /// Sizes of blobs.
    sizes: BTreeMap<(DeviceId, Digest), u64>,
}

impl Found {
    /// The blob's size, if the device was found to need it after so many changes of the database.
    pub fn get(&self, device: &DeviceId, digest: &Digest, changes: u64) -> Option<u64> {
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.changes != changes {
            return None;
        }
        looks.sizes.get(&(device.clone(), *digest)).copied()
    }

    /// The device needs it, and the look began after so many changes.
    pub fn keep(&self, device: &DeviceId, digest: &Digest, size: u64, changes: u64) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if looks.changes > changes {
            return;
        }
        if looks.changes < changes || looks.sizes.len() >= MOST {
            looks.sizes.clear();
            looks.changes = changes;
        }
        looks.sizes.insert((device.clone(), *digest), size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_counts_until_something_changes() {
        let (found, device, digest) = (Found::default(), "edge-1".parse().unwrap(), Digest::of(b"blob"));
        assert_eq!(found.get(&device, &digest, 7), None);
        found.keep(&device, &digest, 4, 7);
        assert_eq!(found.get(&device, &digest, 7), Some(4));
        assert_eq!(found.get(&"edge-2".parse().unwrap(), &digest, 7), None);
        assert_eq!(found.get(&device, &digest, 8), None);
        // A look that began before a change says nothing after it.
        found.keep(&device, &Digest::of(b"other"), 5, 8);
        found.keep(&device, &digest, 4, 7);
        assert_eq!(found.get(&device, &digest, 8), None);
    }
}
