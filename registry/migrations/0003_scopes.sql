-- Deployments for a target by name or for those that a selector matches, with a priority.
-- Rows of before are for one target by name, at priority 0.

CREATE TABLE deployments_by_scope (
    id TEXT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL UNIQUE,
    workspace TEXT NOT NULL REFERENCES workspaces (name),
    target TEXT,
    selector TEXT,
    priority BIGINT NOT NULL,
    package TEXT NOT NULL,
    release BIGINT NOT NULL,
    settings TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    ended TEXT,
    CHECK ((target IS NULL) <> (selector IS NULL)),
    FOREIGN KEY (workspace, package, release) REFERENCES packages (workspace, name, release)
);

INSERT INTO deployments_by_scope
    (id, number, workspace, target, selector, priority, package, release, settings, created_ms, ended_ms, ended)
    SELECT id, number, workspace, target, NULL, 0, package, release, settings, created_ms, ended_ms, ended
    FROM deployments;

DROP TABLE deployments;

ALTER TABLE deployments_by_scope RENAME TO deployments;

CREATE INDEX deployments_of_target ON deployments (target, ended_ms);

CREATE INDEX deployments_in_force ON deployments (workspace, ended_ms, number);

-- Counts changes of deployments and releases: what was read at one number is good while it stays.
ALTER TABLE workspaces ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;

-- For each package the release below which the target never goes again, as JSON.
ALTER TABLE targets ADD COLUMN floors TEXT NOT NULL DEFAULT '{}';
