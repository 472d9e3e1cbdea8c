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
-- `public_key` is the device's ed25519 key that asked for it, empty for a bootstrap one.
CREATE TABLE certificates (
    serial TEXT NOT NULL PRIMARY KEY,
    device TEXT NOT NULL,
    kind TEXT NOT NULL,
    public_key TEXT NOT NULL,
    issued_ms BIGINT NOT NULL,
    not_after_ms BIGINT NOT NULL,
    revoked_ms BIGINT
);

CREATE INDEX certificates_of_device ON certificates (device, kind, not_after_ms);
