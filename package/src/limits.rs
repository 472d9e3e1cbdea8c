//! How much of anything that comes from outside is accepted.
//!
//! Every limit is checked before what it bounds is parsed or stored. A package or metadata file
//! beyond a limit is refused, never cut down.

/// Limits of a package. Each field names the attack that it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the OCI manifest: a manifest that exhausts the memory of the device that parses it.
    pub oci_manifest_bytes: u64,
    /// Bytes of the package manifest: as above.
    pub config_bytes: u64,
    /// Files of a package: exhausting a file system's inodes, or a table of transfers.
    pub files: usize,
    /// Bytes of one blob: a transfer without end, an index too large to hold.
    pub blob_bytes: u64,
    /// Bytes of all blobs together: filling the disk.
    pub package_bytes: u64,
    /// ONNX models of a package: sessions that each cost memory before the first request.
    pub models: usize,
    /// Acceptance cases: a trial without end.
    pub cases: usize,
    /// Input tensors, and output tensors.
    pub tensors: usize,
    /// Dimensions of a tensor.
    pub rank: usize,
    /// Bytes of a tensor's name: filling reports and logs.
    pub tensor_name_bytes: usize,
    /// Settings: filling the environment of a guest.
    pub settings: usize,
    /// Bytes of a setting's key.
    pub setting_key_bytes: usize,
    /// Bytes of a setting's value.
    pub setting_value_bytes: usize,
    /// Web servers that have the blobs, too: connections to more and more hosts.
    pub sources: usize,
    /// Bytes of `description` and of `license`: filling tables and consoles.
    pub text_bytes: usize,
    /// Labels and architectures that a package may require, and labels' lengths.
    pub requirements: usize,
    /// Linear memory of one instance in MiB; wasm32 has no more than 4096.
    pub memory_mib: u32,
    /// Milliseconds of one request: holding a session for ever.
    pub deadline_ms: u32,
    /// Requests side by side: instances that exhaust the pool.
    pub concurrency: u32,
    /// MiB of tensors of one request.
    pub tensor_mib: u32,
    /// Sequences at once: instances that nobody else can use.
    pub sequences: u32,
    /// Seconds for which a sequence is kept without a request: memory held for ever.
    pub sequence_idle_seconds: u32,
    /// Threads of one session: starving everything else on the device.
    pub intra_op_threads: u32,
    /// Sessions of one model: copies of its weights.
    pub sessions: u32,
    /// Requests that wait for a package: memory that they hold meanwhile.
    pub queue: u32,
    /// Rows of one run: a tensor of all requests.
    pub batch: u32,
    /// Seconds of probation: a device that never commits.
    pub probation_seconds: u32,
    /// MiB of a budget for memory: a number that overflows where it is counted in bytes.
    pub budget_mib: u32,
    /// Warm-up passes over the cases: a start without end.
    pub warm_up: u32,
}

impl Limits {
    /// What every program of Selvedge uses.
    pub const PACKAGE: Self = Self {
        oci_manifest_bytes: 64 << 10,
        config_bytes: 64 << 10,
        files: 256,
        blob_bytes: 2 << 30,
        package_bytes: 8 << 30,
        models: 16,
        cases: 64,
        tensors: 64,
        rank: 16,
        tensor_name_bytes: 255,
        settings: 64,
        setting_key_bytes: 63,
        setting_value_bytes: 4 << 10,
        sources: 8,
        text_bytes: 1 << 10,
        requirements: 32,
        memory_mib: 4096,
        deadline_ms: 10 * 60 * 1000,
        concurrency: 256,
        tensor_mib: 2048,
        sequences: 1024,
        sequence_idle_seconds: 24 * 3600,
        intra_op_threads: 256,
        sessions: 16,
        queue: 65_536,
        batch: 1024,
        probation_seconds: 7 * 24 * 3600,
        budget_mib: 1 << 20,
        warm_up: 100,
    };
}

/// Limits of a metadata bundle. Each field names the attack that it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataLimits {
    /// Bytes of one root: endless data before any signature is known.
    pub root_bytes: usize,
    /// Roots in one bundle: a chain that keeps the device verifying for ever.
    pub roots: usize,
    /// Bytes of `timestamp.json`.
    pub timestamp_bytes: usize,
    /// Bytes of `snapshot.json`.
    pub snapshot_bytes: usize,
    /// Bytes of the Image repository's `targets.json`. A device pulls a whole bundle of at most 1 MiB, so
    /// that a registry refuses the release that would make the list too long for every device.
    pub image_targets_bytes: usize,
    /// Bytes of one delegated targets role.
    pub delegated_bytes: usize,
    /// Delegated roles in one bundle, and in what a device holds.
    pub delegated: usize,
    /// Delegated roles that the search for one target visits: a tree without end.
    pub visited: usize,
    /// Bytes of the name of a delegated role.
    pub role_name_bytes: usize,
    /// Bytes of the Director repository's `targets.json`: it lists one target.
    pub director_targets_bytes: usize,
    /// Bytes of `<device>.json`.
    pub assignment_bytes: usize,
    /// Packages assigned to one device.
    pub assignments: usize,
    /// Bytes of a nonce.
    pub nonce_bytes: usize,
}

impl MetadataLimits {
    /// What every program of Selvedge uses.
    pub const DEVICE: Self = Self {
        root_bytes: 64 << 10,
        roots: 32,
        timestamp_bytes: 16 << 10,
        snapshot_bytes: 64 << 10,
        image_targets_bytes: 640 << 10,
        delegated_bytes: 256 << 10,
        delegated: 256,
        visited: 32,
        role_name_bytes: 255,
        director_targets_bytes: 64 << 10,
        assignment_bytes: 64 << 10,
        assignments: 64,
        nonce_bytes: 64,
    };
}
