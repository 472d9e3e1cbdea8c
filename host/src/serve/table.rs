//! The routing table: which package answers under a name, and which under a version.
//!
//! One package of a name is routed; another may be staged beside it, and old ones drain. Moving the
//! route is one write under the lock, and every request takes its package under the same lock: no
//! request finds neither. A draining package still answers those who name its version, until it is
//! idle once, or until its time is up.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use selvedge_control::{PackageRef, PackageState, PackageStatus};
use selvedge_package::Digest;

use super::served::{Asked, Held, Served};
use crate::memory::{self, share};

/// Time over the package's deadline after which a draining package takes no more requests.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Packages by name.
#[derive(Default)]
pub struct Table {
    packages: RwLock<BTreeMap<String, Vec<Entry>>>,
}

struct Entry {
    served: Arc<Served>,
    state: PackageState,
}

/// What a client asked for is not here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No package of the name.
    #[error("no model `{0}` is served here")]
    Model(String),
    /// Another version of it.
    #[error("model `{name}` is served here, but not its version `{version}`; there is {known}")]
    Version {
        /// The model.
        name: String,
        /// What was asked for.
        version: String,
        /// What there is.
        known: String,
    },
}

impl Table {
    fn read<T>(&self, look: impl FnOnce(&BTreeMap<String, Vec<Entry>>) -> T) -> T {
        // Nothing panics while it holds the lock for writing.
        look(&self.packages.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<Entry>>) -> T) -> T {
        change(&mut self.packages.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// The package that answers under `name`, or under a version of it, held for a request.
    pub fn find(&self, name: &str, version: Option<&str>) -> Result<Held, Missing> {
        self.read(|packages| {
            let entries = packages.get(name).map(Vec::as_slice).unwrap_or_default();
            let mut answering = entries.iter().filter(|entry| entry.state != PackageState::Staged).peekable();
            if answering.peek().is_none() {
                return Err(Missing::Model(name.chars().take(80).collect()));
            }
            let found = match version {
                None => answering.find(|entry| entry.state == PackageState::Serving),
                // Two releases may have the same version: the routed one is meant.
                Some(version) => answering
                    .filter(|entry| entry.served.is_version(version))
                    .min_by_key(|entry| entry.state != PackageState::Serving),
            };
            let asked = if version.is_none() { Asked::ByName } else { Asked::ByVersion };
            found.map(|entry| entry.served.hold_as(asked)).ok_or_else(|| match version {
                None => Missing::Model(name.to_owned()),
                Some(version) => Missing::Version {
                    name: name.to_owned(),
                    version: version.chars().take(80).collect(),
                    known: versions(entries).join(", "),
                },
            })
        })
    }

    /// Versions that answer under `name`, the routed one first.
    pub fn versions(&self, name: &str) -> Vec<String> {
        self.read(|packages| packages.get(name).map(|entries| versions(entries)).unwrap_or_default())
    }

    /// A package that is loaded with these settings and does not drain.
    pub fn loaded(&self, package: &PackageRef, settings: &BTreeMap<String, String>) -> Option<Arc<Served>> {
        self.read(|packages| {
            let of = |entry: &&Entry| {
                is(entry, package.digest)
                    && entry.state != PackageState::Draining
                    && entry.served.settings == *settings
            };
            let entry = packages.get(package.name.as_str())?.iter().find(of)?;
            Some(Arc::clone(&entry.served))
        })
    }

    /// Adds a package without routing it, unless it is here. Others of the same digest that were
    /// staged before go: the last one loaded is the one to be routed.
    pub fn stage(&self, served: Arc<Served>) -> Vec<Arc<Served>> {
        let package = served.reference();
        self.write(|packages| {
            let entries = packages.entry(package.name.as_str().to_owned()).or_default();
            let (before, kept) = entries.drain(..).partition(|entry: &Entry| {
                is(entry, package.digest)
                    && entry.state == PackageState::Staged
                    && !Arc::ptr_eq(&entry.served, &served)
            });
            *entries = kept;
            if !entries.iter().any(|entry| Arc::ptr_eq(&entry.served, &served)) {
                entries.push(Entry { served, state: PackageState::Staged });
            }
            let before: Vec<Entry> = before;
            before.into_iter().map(|entry| entry.served).collect()
        })
    }

    /// Whether the name is routed to this package, with these settings.
    pub fn is_serving(&self, package: &PackageRef, settings: &BTreeMap<String, String>) -> bool {
        self.read(|packages| {
            packages.get(package.name.as_str()).into_iter().flatten().any(|entry| {
                is(entry, package.digest)
                    && entry.state == PackageState::Serving
                    && entry.served.settings == *settings
            })
        })
    }

    /// Takes out what is staged of this package, and nothing that answers.
    pub fn unstage(&self, package: &PackageRef) -> Vec<Arc<Served>> {
        self.write(|packages| {
            let Some(entries) = packages.get_mut(package.name.as_str()) else { return Vec::new() };
            let staged = |entry: &mut Entry| is(entry, package.digest) && entry.state == PackageState::Staged;
            let out = entries.extract_if(.., staged).map(|entry| entry.served).collect();
            if entries.is_empty() {
                packages.remove(package.name.as_str());
            }
            out
        })
    }

    /// Routes the name to this package; gives those that drain from now on. `None`: not loaded.
    pub fn activate(&self, package: &PackageRef) -> Option<Vec<Arc<Served>>> {
        self.write(|packages| {
            let entries = packages.get_mut(package.name.as_str())?;
            // Staged first (it may be the same digest with new settings), then what is routed
            // already, then what drains and is wanted back.
            let at = [PackageState::Staged, PackageState::Serving, PackageState::Draining].iter().find_map(
                |&state| entries.iter().position(|entry| entry.state == state && is(entry, package.digest)),
            )?;
            let mut drained = Vec::new();
            for (index, entry) in entries.iter_mut().enumerate() {
                if index == at {
                    entry.state = PackageState::Serving;
                } else if entry.state == PackageState::Serving {
                    entry.state = PackageState::Draining;
                    drained.push(Arc::clone(&entry.served));
                }
            }
            let draining = entries.iter().filter(|entry| entry.state == PackageState::Draining);
            let before = draining.map(|entry| Arc::downgrade(&entry.served)).collect();
            entries[at].served.follow(before);
            entries[at].served.open_sequences();
            Some(drained)
        })
    }

    /// Takes the package off its route, and ends its sequences; gives what drains from now on, of that digest.
    pub fn retire(&self, package: &PackageRef) -> Vec<Arc<Served>> {
        let retired: Vec<Arc<Served>> = self.write(|packages| {
            let entries = packages.get_mut(package.name.as_str()).into_iter().flatten();
            entries
                .filter(|entry| is(entry, package.digest))
                .map(|entry| {
                    entry.state = PackageState::Draining;
                    entry.served.close_sequences();
                    Arc::clone(&entry.served)
                })
                .collect()
        });
        // Not under the lock, which every request takes.
        retired.iter().for_each(|served| served.end_closed());
        retired
    }

    /// Waits until a draining package is idle, at most for its deadline and some grace, and where it has sequences
    /// for as long as one may go without a request; takes it out and drops it; says whether it is gone. Ends at once
    /// when it is routed again.
    pub async fn drain(&self, served: Arc<Served>) -> bool {
        let patience = served.sequence_time() + served.deadline() + DRAIN_GRACE;
        let emptied = async {
            while !self.remove(&served, Idle::Required) {
                served.idle().await;
            }
        };
        if tokio::time::timeout(patience, emptied).await.is_err() {
            // Requests that hold it keep it alive until they end; new ones do not find it.
            self.remove(&served, Idle::Whatever);
        }
        let gone = self
            .read(|packages| !packages.values().flatten().any(|entry| Arc::ptr_eq(&entry.served, &served)));
        // Not where it is routed again.
        if gone {
            served.end_sequences();
        }
        // Freeing sessions and compiled code takes milliseconds: not on a thread that serves.
        dispose(served).await;
        gone
    }

    /// Takes a draining package out; whether it is out, or drains no more.
    fn remove(&self, served: &Arc<Served>, idle: Idle) -> bool {
        let name = served.manifest().name.as_str();
        self.write(|packages| {
            let Some(entries) = packages.get_mut(name) else { return true };
            let Some(at) = entries.iter().position(|entry| Arc::ptr_eq(&entry.served, served)) else {
                return true;
            };
            if entries[at].state != PackageState::Draining {
                return true;
            }
            if idle == Idle::Required && !served.is_idle() {
                return false;
            }
            entries.remove(at);
            if entries.is_empty() {
                packages.remove(name);
            }
            true
        })
    }

    /// Every package, by name, in the order of loading.
    pub fn status(&self) -> Vec<PackageStatus> {
        let memory = memory::own();
        self.read(|packages| {
            packages.values().flatten().map(|entry| entry.served.status(entry.state, memory)).collect()
        })
    }

    /// Every package, whatever its state.
    pub fn all(&self) -> Vec<Arc<Served>> {
        self.read(|packages| packages.values().flatten().map(|entry| Arc::clone(&entry.served)).collect())
    }

    /// The longest deadline of any package.
    pub fn longest_deadline(&self) -> Duration {
        self.read(|packages| {
            packages.values().flatten().map(|entry| entry.served.deadline()).max().unwrap_or_default()
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.read(|packages| packages.values().map(Vec::len).sum())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Drops packages on a thread that may block, and gives their memory back to the system.
pub async fn dispose(packages: impl Send + 'static) {
    let freeing = tokio::task::spawn_blocking(move || {
        share::unloading(|| {
            drop(packages);
            memory::give_back();
        });
    });
    // Whether it panicked or not, there is nothing to be done about it.
    drop(freeing.await);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    Required,
    Whatever,
}

fn is(entry: &Entry, digest: Digest) -> bool {
    entry.served.predictor.digest() == digest
}

fn versions(entries: &[Entry]) -> Vec<String> {
    let of = |state| {
        entries
            .iter()
            .filter(move |entry| entry.state == state)
            .map(|entry| entry.served.version().to_owned())
    };
    of(PackageState::Serving).chain(of(PackageState::Draining)).collect()
}
