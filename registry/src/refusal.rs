//! What a caller is told when a request is refused: one table of statuses and reason codes.
//!
//! The registry's own failures are told as `internal` and no more; their cause goes to the log.

use std::fmt::Display;
use std::time::Duration;

use selvedge_package::{DeviceId, Digest, NameError, PackageName};

use crate::error::Error;
use crate::selector::SelectorError;
use crate::store::deployments::{IN_FORCE, SELECTORS};

/// A refused request.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// No bearer token.
    #[error(
        "this registry wants a bearer token: send the contents of its `token` file as `Authorization: Bearer …`"
    )]
    NoToken,
    /// Not the token of this registry.
    #[error("the bearer token is not the one of this registry")]
    WrongToken,
    /// No route.
    #[error("there is nothing at this path; see docs/registry-api.md")]
    NoRoute,
    /// The route knows other methods.
    #[error("this path does not know that method")]
    Method,
    /// Something in the request is malformed.
    #[error("{what}: {why}")]
    Malformed {
        /// Which part.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The body is larger than the route takes.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// The client stopped sending.
    #[error("the body ended early or stopped arriving: {why}")]
    Interrupted {
        /// What happened.
        why: String,
    },
    /// Too many of these at once.
    #[error("too many {what} at once; try again in a moment")]
    Busy {
        /// Of what.
        what: &'static str,
    },
    /// Not a workspace.
    #[error("there is no workspace `{0}`")]
    NoWorkspace(String),
    /// Not a target.
    #[error("there is no target `{0}`; `selvedge targets` lists them")]
    NoTarget(String),
    /// The name is taken.
    #[error("there is a target `{0}` already; target names are unique over the whole registry")]
    TargetExists(DeviceId),
    /// A kind that this registry cannot manage.
    #[error("`{0}` is not a kind of target that this registry knows: device, local")]
    Kind(String),
    /// Not a package, or it has no such release.
    #[error("there is no {what}; `selvedge packages` lists what is released")]
    NoPackage {
        /// The package, with the release that was asked for.
        what: String,
    },
    /// Not a deployment.
    #[error("there is no deployment `{0}`")]
    NoDeployment(String),
    /// The blob is not here.
    #[error("there is no blob {0}")]
    NoBlob(Digest),
    /// Not a metadata file.
    #[error("there is no metadata file `{0}`")]
    NoMetadata(String),
    /// A release needs a blob that was not uploaded.
    #[error("the package needs the blob {digest}, which was not uploaded")]
    MissingBlob {
        /// Which.
        digest: Digest,
    },
    /// A stored blob is not what the package says.
    #[error("the blob {digest} does not fit to the package: {why}")]
    BlobMismatch {
        /// Which.
        digest: Digest,
        /// What is wrong.
        why: String,
    },
    /// Uploaded bytes are not what their digest says.
    #[error("the uploaded bytes have the digest {actual}, not {expected}")]
    WrongDigest {
        /// As the path said.
        expected: Digest,
        /// As it is.
        actual: Digest,
    },
    /// Not a valid package.
    #[error("{digest} is not a valid package: {why}")]
    Package {
        /// Its OCI manifest.
        digest: Digest,
        /// What is wrong.
        why: String,
    },
    /// The uploaded targets metadata is not signed by who may release.
    #[error("the targets metadata is refused: {why}")]
    Untrusted {
        /// What is wrong.
        why: String,
    },
    /// The uploaded targets metadata does not follow the last one.
    #[error("the role {role} has version {got}; the next one is {want}: fetch the newest and sign again")]
    TargetsVersion {
        /// `targets`, or a bin.
        role: String,
        /// As uploaded.
        got: u64,
        /// As it should be.
        want: u64,
    },
    /// The uploaded root does not follow the newest one.
    #[error(
        "the {repository} root has version {got}; the next one is {want}: fetch the newest and sign again"
    )]
    RootVersion {
        /// `image` or `director`.
        repository: &'static str,
        /// As uploaded.
        got: u64,
        /// As it should be.
        want: u64,
    },
    /// A root names keys that this registry does not hold, for roles that it signs.
    #[error("the root cannot be published: {why}")]
    OnlineKeys {
        /// What is missing.
        why: String,
    },
    /// Entries of earlier releases are gone or changed.
    #[error(
        "the targets metadata drops or changes the earlier release `{target}`: fetch the newest and sign again"
    )]
    TargetsLost {
        /// The entry.
        target: String,
    },
    /// The signed entry does not fit to the package.
    #[error("the signed entry `{target}` does not fit to the package: {why}")]
    EntryMismatch {
        /// The entry.
        target: String,
        /// What differs.
        why: String,
    },
    /// The release counter must grow.
    #[error("{package} has release {last} already; a new one needs a larger counter than {got}")]
    ReleaseNotGrowing {
        /// Of which package.
        package: PackageName,
        /// As uploaded.
        got: u64,
        /// The last one.
        last: u64,
    },
    /// This version was released before.
    #[error("{package} {version} was released before; a version is released once")]
    VersionExists {
        /// Of which package.
        package: PackageName,
        /// The version.
        version: String,
    },
    /// No more deployments may be in force.
    #[error(
        "the workspace has as many deployments in force as it may ({IN_FORCE}, of which {SELECTORS} by selector); \
         end some first"
    )]
    TooManyDeployments,
    /// Not a selector.
    #[error("the selector is refused: {0}")]
    Selector(#[from] SelectorError),
    /// A rollback to what is deployed.
    #[error("release {release} is what deployment `{id}` deploys already")]
    SameRelease {
        /// The deployment.
        id: String,
        /// Its release.
        release: u64,
    },
    /// No release to roll back to.
    #[error("{package} has no release below {release}")]
    NoEarlier {
        /// The package.
        package: PackageName,
        /// What is deployed.
        release: u64,
    },
    /// Floors forbid a rollback.
    #[error("{package} cannot go back to {wanted}: {why}")]
    Floor {
        /// The package.
        package: PackageName,
        /// What was asked for.
        wanted: String,
        /// Which targets forbid it.
        why: String,
    },
    /// The target is not there to be asked.
    #[error("{target} is offline; `selvedge targets` says when it was heard last")]
    Offline {
        /// Which target.
        target: DeviceId,
    },
    /// The registry cannot send.
    #[error(
        "the registry has no connection to the broker, or too much waits to be sent; try again in a moment"
    )]
    NoBroker,
    /// No answer came in time.
    #[error("{target} did not answer within {} ms", after.as_millis())]
    Deadline {
        /// Which target.
        target: DeviceId,
        /// How long it had.
        after: Duration,
    },
    /// Too many questions to devices wait.
    #[error("{device} requests wait for this target and {all} in all; wait for answers before asking more")]
    TooMany {
        /// For this target.
        device: usize,
        /// In all.
        all: usize,
    },
    /// The agent is too old for this.
    #[error("the agent on {target} does not know how to answer {what}; update it")]
    Unsupported {
        /// Which target.
        target: DeviceId,
        /// What was asked for.
        what: &'static str,
    },
    /// The device refused.
    #[error("the target refused ({reason}): {what}")]
    Declined {
        /// A word for programs.
        reason: String,
        /// For people.
        what: String,
    },
    /// The device's answer cannot be handed on.
    #[error("the target's answer cannot be used: {why}")]
    BadAnswer {
        /// What is wrong with it.
        why: String,
    },
    /// The target was revoked.
    #[error(
        "{target} is revoked; `selvedge target enrol {target} --again` makes a file by which it comes back"
    )]
    Revoked {
        /// Which target.
        target: DeviceId,
    },
    /// Nothing can be signed for devices yet.
    #[error("nothing was released yet, so that nothing can be signed for a device")]
    NothingReleased,
    /// A setting that the package does not declare, or one that is too long.
    #[error("the setting `{key}` is refused: {why}")]
    Setting {
        /// Its name.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// The target cannot run the package.
    #[error("{target} cannot run {package}: {why}")]
    Unfit {
        /// Which target.
        target: DeviceId,
        /// Which package.
        package: PackageName,
        /// Why not.
        why: String,
    },
    /// The registry failed.
    #[error("the registry failed; its log says why")]
    Fault(#[from] Error),
}

impl Refusal {
    /// HTTP status and reason code. The codes are listed in `docs/registry-api.md`.
    pub fn status_and_reason(&self) -> (u16, &'static str) {
        match self {
            Self::NoToken => (401, "no-token"),
            Self::WrongToken => (401, "wrong-token"),
            Self::NoRoute => (404, "no-route"),
            Self::Method => (405, "method"),
            Self::Malformed { .. } => (400, "malformed"),
            Self::TooLarge { .. } => (413, "too-large"),
            Self::Interrupted { .. } => (408, "interrupted"),
            Self::Busy { .. } => (503, "busy"),
            Self::NoWorkspace(_) => (404, "no-workspace"),
            Self::NoTarget(_) => (404, "no-target"),
            Self::TargetExists(_) => (409, "target-exists"),
            Self::Kind(_) => (422, "unknown-kind"),
            Self::NoPackage { .. } => (404, "no-package"),
            Self::NoDeployment(_) => (404, "no-deployment"),
            Self::NoBlob(_) => (404, "no-blob"),
            Self::NoMetadata(_) => (404, "no-metadata"),
            Self::MissingBlob { .. } => (422, "missing-blob"),
            Self::BlobMismatch { .. } => (422, "blob-mismatch"),
            Self::WrongDigest { .. } => (422, "wrong-digest"),
            Self::Package { .. } => (422, "invalid-package"),
            Self::Untrusted { .. } => (422, "untrusted"),
            Self::TargetsVersion { .. } => (409, "targets-version"),
            Self::TargetsLost { .. } => (409, "targets-lost"),
            Self::RootVersion { .. } => (409, "root-version"),
            Self::OnlineKeys { .. } => (422, "online-keys"),
            Self::EntryMismatch { .. } => (422, "entry-mismatch"),
            Self::ReleaseNotGrowing { .. } => (409, "release-not-growing"),
            Self::VersionExists { .. } => (409, "version-exists"),
            Self::TooManyDeployments => (409, "too-many-deployments"),
            Self::Selector(_) => (400, "selector"),
            Self::SameRelease { .. } => (409, "same-release"),
            Self::NoEarlier { .. } => (404, "no-package"),
            Self::Floor { .. } => (422, "unfit"),
            Self::Offline { .. } | Self::NoBroker => (503, "offline"),
            Self::Deadline { .. } => (504, "deadline"),
            Self::TooMany { .. } => (429, "too-many"),
            Self::Unsupported { .. } => (422, "unsupported"),
            Self::Declined { .. } => (502, "refused"),
            Self::BadAnswer { .. } => (502, "bad-answer"),
            Self::Revoked { .. } => (409, "revoked"),
            Self::NothingReleased => (409, "nothing-released"),
            Self::Setting { .. } => (422, "setting"),
            Self::Unfit { .. } => (422, "unfit"),
            Self::Fault(_) => (500, "internal"),
        }
    }

    /// A malformed part of a request, with the library's words.
    pub fn malformed(what: &'static str) -> impl FnOnce(NameError) -> Self {
        move |error| Self::Malformed { what, why: error.to_string() }
    }

    /// A malformed part of a request.
    pub fn because(what: &'static str, why: impl Display) -> Self {
        Self::Malformed { what, why: why.to_string() }
    }
}
