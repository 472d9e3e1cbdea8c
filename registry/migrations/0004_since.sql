-- For each package that is assigned to a device the sequence since which its assignment is the same,
-- as JSON: what changes about one package says nothing about another.
ALTER TABLE directed ADD COLUMN since TEXT NOT NULL DEFAULT '{}';
