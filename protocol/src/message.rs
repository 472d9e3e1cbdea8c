//! Bodies of messages. Each is carried by an envelope whose `ty` names it, except blocks.

use std::collections::BTreeMap;

use selvedge_package::{Digest, PackageName};
use serde::{Deserialize, Serialize};

/// `up/birth`: the device is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// Version of the agent program.
    pub agent: String,
    /// What it understands beyond the base protocol.
    pub capabilities: Vec<String>,
    /// Largest block that it can take, in bytes.
    pub largest_block: u32,
    /// The committed generation in force.
    pub generation: u64,
    /// Sequence of the desired state that it has accepted; 0: none.
    pub desired: u64,
    /// Version of the newest Image root and Director root that it trusts.
    pub image_root: u64,
    /// See `image_root`.
    pub director_root: u64,
    /// Echoed by the Director's next desired state: freshness without a clock.
    #[serde(with = "serde_bytes")]
    pub nonce: Vec<u8>,
    /// Versions of the metadata that it has accepted, for a Director that does not know the device
    /// yet. Not signed: a hint, to be believed within bounds.
    #[serde(default)]
    pub accepted: Accepted,
}

/// Versions of the metadata that a device has accepted; 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accepted {
    /// Image repository: timestamp, snapshot, targets.
    pub image: [u64; 3],
    /// Director: timestamp, snapshot, targets.
    pub director: [u64; 3],
}

/// A device that answers commands says so in [`Birth::capabilities`] by this word.
pub const COMMANDS: &str = "commands";
/// A device that answers remote inference says so by this word.
pub const INFER: &str = "infer";

/// `up/will`: left with the broker, which publishes it when the device is lost. The envelope's
/// epoch is all that it says; it counts only while that equals the last birth's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Will {}

/// `up/hb`: still here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The committed generation in force.
    pub generation: u64,
    /// Sequence of the desired state that it has accepted.
    pub desired: u64,
}

/// `dn/want`: the desired state as TUF metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// The bundle itself (CBOR of `MetadataBundle`).
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Too large for one packet: pull it as blocks.
    Pull {
        /// Digest of the bundle.
        digest: Digest,
        /// Its size in bytes.
        size: u64,
    },
}

/// `up/need`: blocks that the device lacks. Blocks number a blob in units of `block` bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    /// Number of the transfer, chosen by the device; echoed in every block.
    pub transfer: u32,
    /// The blob.
    pub digest: Digest,
    /// Block size in bytes: 4096, 8192, 16384, 32768 or 65536.
    pub block: u32,
    /// Number of the first block that the bitmap speaks of.
    pub first: u32,
    /// One bit a block from `first` on, lowest bit first; set: wanted.
    #[serde(with = "serde_bytes")]
    pub missing: Vec<u8>,
    /// How many blocks of those set, at most, are wanted now.
    pub count: u32,
}

/// `dn/blk` that is no block: why none comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Ask again after so many milliseconds.
    Busy {
        /// Milliseconds.
        retry_after_ms: u32,
    },
    /// The registry does not have this blob, or this device may not have it.
    Unknown,
}

/// The payload of a signed report: one outbox row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Grows at every start of the agent.
    pub epoch: u64,
    /// Grows within an epoch.
    pub sequence: u64,
    /// Milliseconds since 1970 by the device's clock.
    pub at_ms: i64,
    /// How far that clock is trusted.
    pub clock: Clock,
    /// What is reported.
    pub body: ReportBody,
}

/// How far a device's clock is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The kernel says that it is synchronised.
    Synchronised,
    /// It may be wrong.
    Free,
}

/// What is reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReportBody {
    /// What the device is: architecture, cores, memory, versions.
    Facts(BTreeMap<String, String>),
    /// Everything that it runs or is about to run; replaces what was reported before.
    State(DeviceState),
    /// Something that happened and should be kept.
    Event(DeviceEvent),
}

/// The whole state of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Committed generation.
    pub generation: u64,
    /// Sequence of the desired state that was accepted.
    pub desired: u64,
    /// Why the newest desired state was refused, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Whether the accepted one echoes a nonce of this run of the agent: proof that it was signed since,
    /// whatever the clock says. Absent where nothing was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fresh: Option<bool>,
    /// Every package.
    pub packages: Vec<PackageReport>,
}

/// One package of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageReport {
    /// Its name.
    pub name: PackageName,
    /// What answers: release and digest.
    pub committed: Option<ReleaseRef>,
    /// What is on its way, and how far.
    pub pending: Option<Pending>,
    /// Whether the host has it routed.
    pub serving: bool,
    /// The newest failure, with the release that it is about.
    pub failure: Option<Failure>,
}

/// A release of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRef {
    /// Release counter.
    pub release: u64,
    /// Version for people; empty until the manifest has arrived.
    pub version: String,
    /// Digest of the OCI manifest.
    pub digest: Digest,
}

/// A release on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Which.
    #[serde(flatten)]
    pub release: ReleaseRef,
    /// `fetching`, `staged` or `trial`.
    pub stage: String,
    /// Bytes that have arrived and been verified.
    pub bytes: u64,
    /// Bytes in all, as far as known.
    pub total: u64,
}

/// Why a release was not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which release.
    pub release: u64,
    /// A word for programs.
    pub reason: String,
    /// For people.
    pub what: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceEvent {
    /// A word for programs: `committed`, `rolled-back`, `host-died`, `corrupt-blob`, …
    pub kind: String,
    /// The package, where it is about one.
    pub package: Option<PackageName>,
    /// For people.
    pub what: String,
}

/// `up/state`: outbox rows, each a COSE_Sign1 by the device's key over a [`Report`] in CBOR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The rows, oldest first.
    pub rows: Vec<ByteString>,
}

/// The payload of a signed acknowledgement: these rows are stored, and no others. It names each one,
/// so that a broker which keeps rows back cannot make a device forget them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// The device that it is for.
    pub device: selvedge_package::DeviceId,
    /// Epoch and sequence of every row of one message that is stored.
    pub rows: Vec<(u64, u64)>,
    /// How many devices have this broker, about: they spread their return when it was away. 0: not known.
    #[serde(default)]
    pub fleet: u32,
}

/// `up/enrol`: the device's own public key, under the one-time token of its enrolment; later, without a
/// proof of one, a request for the next certificate. It travels sealed ([`crate::sealed`]) by that key,
/// which proves that the device has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrol {
    /// Proof that the device has the token, for this device and this key alone ([`Enrol::proof`]); empty: it
    /// has none to show. The token itself never travels: who carries this could put his own key in its place.
    #[serde(default, with = "serde_bytes")]
    pub proof: Vec<u8>,
    /// Ed25519 public key, 32 bytes.
    #[serde(with = "serde_bytes")]
    pub public_key: Vec<u8>,
    /// Certificate signing request (PKCS#10, DER) of the key that the device shows to its broker; empty
    /// where the link needs no certificate.
    #[serde(default, with = "serde_bytes")]
    pub csr: Vec<u8>,
}

/// `dn/enrol`: the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enrolled {
    /// The key is registered (saying it again with the same key is answered the same).
    Accepted,
    /// It is, and this is the certificate that was asked for: X.509 in DER, the device's own first, the
    /// authority not among them. It is worth what it proves: whoever gets it checks its chain, name and key.
    Certificate(Vec<ByteString>),
    /// It is not, and why.
    Refused(String),
}

/// Bytes as a CBOR byte string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteString(#[serde(with = "serde_bytes")] pub Vec<u8>);
