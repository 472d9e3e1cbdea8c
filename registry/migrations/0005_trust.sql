-- Versions of the metadata that the device's last birth said that it has accepted, as JSON.
ALTER TABLE presence ADD COLUMN accepted TEXT NOT NULL DEFAULT '{}';

-- 1: the token of the newest enrolment file was not shown yet, and may replace the registered key.
ALTER TABLE targets ADD COLUMN token_replaces BIGINT NOT NULL DEFAULT 0;

-- When the target was revoked: it has no key then, and is told nothing until it is enrolled again.
ALTER TABLE targets ADD COLUMN revoked_ms BIGINT;

-- Keys of devices that are never registered again, under no name.
CREATE TABLE revoked_keys (
    public_key TEXT NOT NULL PRIMARY KEY,
    device TEXT NOT NULL,
    revoked_ms BIGINT NOT NULL
);

-- Certificates that the registry's authority has issued to devices. They outlive their target: the list
-- of revoked ones names them until they expire. `kind` is `bootstrap` (in an enrolment file) or `device`;
-- `public_key` is the device's ed25519 key that asked for it, `request` the digest of its request and
-- `chain` what was answered (hexadecimal DER with commas), all empty for a bootstrap one.
CREATE TABLE certificates (
    serial TEXT NOT NULL PRIMARY KEY,
    device TEXT NOT NULL,
    kind TEXT NOT NULL,
    public_key TEXT NOT NULL,
    request TEXT NOT NULL,
    chain TEXT NOT NULL,
    issued_ms BIGINT NOT NULL,
    not_after_ms BIGINT NOT NULL,
    revoked_ms BIGINT
);

CREATE INDEX certificates_of_device ON certificates (device, kind, not_after_ms);

-- Counts the keys that a target has had: a machine set up anew numbers its reports from the beginning.
ALTER TABLE targets ADD COLUMN life BIGINT NOT NULL DEFAULT 0;

CREATE TABLE events_by_life (
    device TEXT NOT NULL REFERENCES targets (name) ON DELETE CASCADE,
    life BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    received_ms BIGINT NOT NULL,
    clock TEXT NOT NULL,
    kind TEXT NOT NULL,
    package TEXT,
    what TEXT NOT NULL,
    PRIMARY KEY (device, life, epoch, sequence)
);

INSERT INTO events_by_life (device, life, epoch, sequence, at_ms, received_ms, clock, kind, package, what)
    SELECT device, 0, epoch, sequence, at_ms, received_ms, clock, kind, package, what FROM events;

DROP TABLE events;

ALTER TABLE events_by_life RENAME TO events;
