-- What the registry itself has noticed about a target, once each: `at_ms` is the newest time. Apart
-- from `events`, whose numbers belong to the device.
CREATE TABLE notices (
    device TEXT NOT NULL REFERENCES targets (name) ON DELETE CASCADE,
    kind TEXT NOT NULL,
    what TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (device, kind, what)
);
