-- Plain SQL for SQLite and PostgreSQL. Times are milliseconds since 1970, binary is hexadecimal
-- text, JSON is text. The name of a target is unique over all workspaces, since it is the device's
-- topic segment and the name that the Director signs for.

CREATE TABLE workspaces (
    name TEXT NOT NULL PRIMARY KEY,
    created_ms BIGINT NOT NULL
);

INSERT INTO workspaces (name, created_ms) VALUES ('default', 0);

CREATE TABLE targets (
    name TEXT NOT NULL PRIMARY KEY,
    workspace TEXT NOT NULL REFERENCES workspaces (name),
    kind TEXT NOT NULL,
    labels TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    token_hash TEXT NOT NULL,
    public_key TEXT,
    enrolled_ms BIGINT,
    facts TEXT NOT NULL,
    facts_epoch BIGINT NOT NULL,
    facts_sequence BIGINT NOT NULL,
    reported TEXT,
    reported_ms BIGINT,
    reported_epoch BIGINT NOT NULL,
    reported_sequence BIGINT NOT NULL
);

CREATE INDEX targets_of_workspace ON targets (workspace, name);

-- What the last birth said, and when anything was heard.
CREATE TABLE presence (
    device TEXT NOT NULL PRIMARY KEY REFERENCES targets (name) ON DELETE CASCADE,
    epoch BIGINT NOT NULL,
    agent TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    largest_block BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    desired BIGINT NOT NULL,
    image_root BIGINT NOT NULL,
    director_root BIGINT NOT NULL,
    nonce TEXT NOT NULL,
    last_heard_ms BIGINT NOT NULL,
    gone BIGINT NOT NULL
);

-- Things that happened, as devices reported them; (device, epoch, sequence) drops copies.
CREATE TABLE events (
    device TEXT NOT NULL REFERENCES targets (name) ON DELETE CASCADE,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    received_ms BIGINT NOT NULL,
    clock TEXT NOT NULL,
    kind TEXT NOT NULL,
    package TEXT,
    what TEXT NOT NULL,
    PRIMARY KEY (device, epoch, sequence)
);

CREATE TABLE packages (
    workspace TEXT NOT NULL REFERENCES workspaces (name),
    name TEXT NOT NULL,
    release BIGINT NOT NULL,
    version TEXT NOT NULL,
    digest TEXT NOT NULL,
    length BIGINT NOT NULL,
    size BIGINT NOT NULL,
    min_release BIGINT NOT NULL,
    target TEXT NOT NULL UNIQUE,
    manifest TEXT NOT NULL,
    released_ms BIGINT NOT NULL,
    PRIMARY KEY (workspace, name, release)
);

-- Every blob of a release, its OCI manifest and indexes included: what its devices may fetch.
CREATE TABLE package_blobs (
    workspace TEXT NOT NULL,
    name TEXT NOT NULL,
    release BIGINT NOT NULL,
    digest TEXT NOT NULL,
    size BIGINT NOT NULL,
    PRIMARY KEY (workspace, name, release, digest),
    FOREIGN KEY (workspace, name, release) REFERENCES packages (workspace, name, release)
);

CREATE INDEX releases_of_blob ON package_blobs (digest);

-- Rows stay when a deployment ends: history answers what ran where and when.
CREATE TABLE deployments (
    id TEXT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL UNIQUE,
    workspace TEXT NOT NULL REFERENCES workspaces (name),
    target TEXT NOT NULL,
    package TEXT NOT NULL,
    release BIGINT NOT NULL,
    settings TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    ended TEXT,
    FOREIGN KEY (workspace, package, release) REFERENCES packages (workspace, name, release)
);

CREATE INDEX deployments_of_target ON deployments (target, ended_ms);

-- Signed metadata. The files under tuf/ are written from here. Device is empty for the Image
-- repository and for the Director's root.
CREATE TABLE metadata (
    repository TEXT NOT NULL,
    device TEXT NOT NULL,
    role TEXT NOT NULL,
    version BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    signed_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (repository, device, role, version)
);

-- What was last signed for a device. It outlives the target, so that a name used again never goes
-- back to a version or sequence that some device may have seen.
CREATE TABLE directed (
    device TEXT NOT NULL PRIMARY KEY,
    sequence BIGINT NOT NULL,
    assignments TEXT NOT NULL,
    nonce TEXT NOT NULL,
    body TEXT NOT NULL,
    signed_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
);

-- Append-only; hash covers the entry and the hash before it.
CREATE TABLE audit (
    number BIGINT NOT NULL PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);
