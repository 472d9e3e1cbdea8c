//! What a target shall run: one pure function over what it is and the deployments in force.
//!
//! For each package apart: of the deployments in scope, those that the target cannot run are skipped,
//! and of the others the largest priority wins, then the newest. A target that is left with blocked
//! ones alone keeps what it was last told: nothing is removed by omission.

#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use selvedge_package::limits::MetadataLimits;
use selvedge_package::manifest::Requires;
use selvedge_package::trust::AssignedPackage;
use selvedge_package::{DeviceId, Digest, PackageName};
use serde::{Deserialize, Serialize};

use crate::selector::{Attributes, Match, Selector};

pub use verdict::{Block, By, Verdict};

/// Bytes of all assignments of a device, as far as they vary: below what it accepts as a whole.
const LARGEST: usize = MetadataLimits::DEVICE.assignment_bytes - (4 << 10);
/// Bytes of an assignment besides its settings, generously.
const FIXED: usize = 512;

/// Which targets a deployment is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One, by name.
    Target(DeviceId),
    /// Those that match.
    Selector(Selector),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(name) => write!(f, "target {name}"),
            Self::Selector(selector) => write!(f, "{selector}"),
        }
    }
}

/// What a device shall run, as far as its assignments go: one package of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assigned {
    /// The package.
    pub package: PackageName,
    /// Name of the signed target.
    pub target: String,
    /// Digest of the OCI manifest.
    pub digest: Digest,
    /// Its length in bytes.
    pub length: u64,
    /// Release counter.
    pub release: u64,
    /// Version for people; empty where it is not known.
    pub version: String,
    /// Settings: the overridden ones.
    pub settings: BTreeMap<String, String>,
}

/// A deployment in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Its id.
    pub id: String,
    /// Grows with every deployment.
    pub number: i64,
    /// For whom.
    pub scope: Scope,
    /// The larger one wins.
    pub priority: i32,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// What it assigns.
    pub assigned: Assigned,
    /// What a target must have for it.
    pub requires: Arc<Requires>,
}

impl Offer {
    /// What comes first has the better claim; by package.
    fn rank(&self) -> impl Ord + use<'_> {
        (&self.assigned.package, std::cmp::Reverse((self.priority, self.number)))
    }
}

/// Deployments in force, each list in the order of their claims, by package.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    selected: Vec<Arc<Offer>>,
    /// Those for one target, by its name: however many there are, each target looks at its own.
    named: BTreeMap<DeviceId, Vec<Arc<Offer>>>,
}

impl Offers {
    /// Sorts them.
    pub fn new(offers: Vec<Arc<Offer>>) -> Self {
        let mut sorted = Self::default();
        for offer in offers {
            match &offer.scope {
                Scope::Target(name) => sorted.named.entry(name.clone()).or_default().push(offer),
                Scope::Selector(_) => sorted.selected.push(offer),
            }
        }
        for list in sorted.named.values_mut().chain([&mut sorted.selected]) {
            list.sort_by(|a, b| a.rank().cmp(&b.rank()));
        }
        sorted
    }

    /// With one more, which replaces that of the same package, scope and priority. Gives that too.
    pub fn with(&self, offer: Offer) -> (Self, Option<Arc<Offer>>) {
        let same = |other: &Offer| {
            other.assigned.package == offer.assigned.package
                && other.scope == offer.scope
                && other.priority == offer.priority
        };
        let replaced = self.iter().find(|other| same(other)).cloned();
        let mut offers: Vec<_> = self.iter().filter(|other| !same(other)).cloned().collect();
        offers.push(Arc::new(offer));
        (Self::new(offers), replaced)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Offer>> {
        self.named.values().flatten().chain(&self.selected)
    }

    /// Those by selector, and those for this target, the best claim on each package first.
    fn about(&self, target: &str) -> Vec<&Offer> {
        // A name that is none has none.
        let name: Option<DeviceId> = target.parse().ok();
        let own = name.and_then(|name| self.named.get(&name)).into_iter().flatten();
        let mut offers: Vec<&Offer> = self.selected.iter().chain(own).map(Arc::as_ref).collect();
        offers.sort_by(|a, b| a.rank().cmp(&b.rank()));
        offers
    }
}

/// What a target is.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// What selectors see.
    pub attributes: Attributes<'a>,
    /// For each package the release below which it never goes again.
    pub floors: &'a BTreeMap<PackageName, u64>,
    /// What it was last told to run.
    pub told: &'a [AssignedPackage],
}

/// What a target shall run, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolution<'a> {
    /// By package: those of any deployment by selector, or for this target.
    pub packages: BTreeMap<&'a PackageName, Decision<'a>>,
}

/// About one package.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision<'a> {
    /// The one that wins.
    pub winner: Option<&'a Offer>,
    /// What it keeps, where all in scope are blocked.
    pub kept: Option<&'a AssignedPackage>,
    /// Every deployment of the package, the best claim first.
    pub verdicts: Vec<(&'a Offer, Verdict<'a>)>,
}

impl Decision<'_> {
    /// Whether any deployment is in scope.
    pub fn in_scope(&self) -> bool {
        self.verdicts.iter().any(|(_, verdict)| verdict.in_scope())
    }

    /// Package, digest of the manifest, and release.
    pub fn chosen(&self) -> Option<(&PackageName, &Digest, u64)> {
        let winner = self.winner.map(|offer| &offer.assigned);
        let winner = winner.map(|assigned| (&assigned.package, &assigned.digest, assigned.release));
        winner.or_else(|| self.kept.map(|kept| (&kept.package, &kept.digest, kept.release)))
    }
}

/// Decide what `subject` shall run.
pub fn resolve<'a>(subject: &Subject<'a>, offers: &'a Offers) -> Resolution<'a> {
    let mut packages: BTreeMap<&PackageName, Decision<'a>> = BTreeMap::new();
    for offer in offers.about(subject.attributes.name) {
        let decision = packages.entry(&offer.assigned.package).or_default();
        let verdict = match judge(subject, offer) {
            Some(verdict) => verdict,
            None => match decision.winner {
                None => {
                    decision.winner = Some(offer);
                    Verdict::Wins
                }
                Some(winner) if winner.priority > offer.priority => Verdict::Lost(winner, By::Priority),
                Some(winner) => Verdict::Lost(winner, By::Age),
            },
        };
        decision.verdicts.push((offer, verdict));
    }
    for (package, decision) in &mut packages {
        if decision.winner.is_none() {
            decision.kept = kept(subject, package, decision);
        }
    }
    fit(subject, &mut packages);
    Resolution { packages }
}

/// Why an offer cannot win; `None`: it may.
fn judge<'a>(subject: &Subject<'a>, offer: &'a Offer) -> Option<Verdict<'a>> {
    let target = &subject.attributes;
    let room = match &offer.scope {
        Scope::Target(_) => None,
        Scope::Selector(selector) => match selector.matches(target) {
            Match::Yes => None,
            Match::NoRoom(term) => Some(term),
            Match::No(term) => return Some(Verdict::NoMatch(term)),
        },
    };
    let blocked = |block| Some(Verdict::Blocked(block));
    if let Some(has) = wrong_architecture(subject, offer) {
        return blocked(Block::Architecture { has });
    }
    for (key, value) in &offer.requires.labels {
        if target.labels.get(key) != Some(value) {
            return blocked(Block::Label { key, value });
        }
    }
    let memory = target.facts.get("memory-mib").and_then(|mib| mib.parse::<u64>().ok());
    if let Some(has) = memory.filter(|has| *has < u64::from(offer.requires.ram_mib)) {
        return blocked(Block::Ram { has, wants: offer.requires.ram_mib });
    }
    let floor = subject.floors.get(&offer.assigned.package).copied().unwrap_or(0);
    if offer.assigned.release < floor {
        return blocked(Block::Floor(floor));
    }
    room.map(|term| Verdict::Blocked(Block::Room(term)))
}

fn wrong_architecture<'a>(subject: &Subject<'a>, offer: &Offer) -> Option<&'a str> {
    let has = subject.attributes.facts.get("architecture")?;
    let wanted = &offer.requires.architectures;
    (!wanted.is_empty() && !wanted.contains(has)).then_some(has.as_str())
}

/// What a target keeps of a package for which nothing wins: what it was told, if something is in scope
/// and blocked. What it could never run it does not keep.
fn kept<'a>(
    subject: &Subject<'a>,
    package: &PackageName,
    decision: &Decision<'a>,
) -> Option<&'a AssignedPackage> {
    if !decision.in_scope() {
        return None;
    }
    let told = subject.told.iter().find(|told| told.package == *package)?;
    let impossible = decision.verdicts.iter().any(|(offer, verdict)| {
        matches!(verdict, Verdict::Blocked(Block::Architecture { .. }))
            && offer.assigned.digest == told.digest
    });
    (!impossible).then_some(told)
}

/// Blocks what would be too many packages, or too many bytes of settings, for one device. What it was
/// told before comes first.
fn fit<'a>(subject: &Subject<'a>, packages: &mut BTreeMap<&'a PackageName, Decision<'a>>) {
    let told = |package: &PackageName| subject.told.iter().find(|told| told.package == *package);
    let (mut count, mut bytes) = (0, 0);
    for known in [true, false] {
        for (package, decision) in packages.iter_mut() {
            if told(package).is_some() != known || decision.chosen().is_none() {
                continue;
            }
            let settings = match decision.winner {
                Some(winner) => Some(&winner.assigned.settings),
                None => decision.kept.map(|kept| &kept.settings),
            };
            let size = FIXED + settings.map_or(0, written);
            if count < MetadataLimits::DEVICE.assignments && bytes + size <= LARGEST {
                (count, bytes) = (count + 1, bytes + size);
                continue;
            }
            block(decision);
            // What fitted before fits again, unless settings of others have grown.
            decision.kept = told(package).filter(|told| {
                count < MetadataLimits::DEVICE.assignments
                    && bytes + FIXED + written(&told.settings) <= LARGEST
            });
            if let Some(kept) = decision.kept {
                (count, bytes) = (count + 1, bytes + FIXED + written(&kept.settings));
            }
        }
    }
}

fn block(decision: &mut Decision<'_>) {
    decision.winner = None;
    for (_, verdict) in &mut decision.verdicts {
        if matches!(verdict, Verdict::Wins | Verdict::Lost(..)) {
            *verdict = Verdict::Blocked(Block::Full);
        }
    }
}

/// Bytes of settings in JSON, at most.
fn written(settings: &BTreeMap<String, String>) -> usize {
    let size = |text: &str| {
        3 + text.chars().map(|c| if c.is_control() { 6 } else { 1 + c.len_utf8() }).sum::<usize>()
    };
    settings.iter().map(|(key, value)| size(key) + size(value)).sum()
}
