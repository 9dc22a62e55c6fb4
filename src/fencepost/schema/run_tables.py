"""Tables of what a run has besides its row, history and owners; `schema` has the others."""

from __future__ import annotations

# What runs are about: the names by which a start finds the run that its subject already has.
_SUBJECTS = """
CREATE TABLE IF NOT EXISTS fencepost_subjects (
  principal_kind TEXT NOT NULL,
  principal_id TEXT NOT NULL,
  stage TEXT NOT NULL,
  lookup_key TEXT NOT NULL CHECK (lookup_key LIKE 'change:%' OR lookup_key LIKE 'provisional:%'),
  run_id TEXT NOT NULL,
  PRIMARY KEY (principal_kind, principal_id, stage, lookup_key)
) STRICT, WITHOUT ROWID
"""
_SUBJECTS_BY_RUN = """
CREATE INDEX IF NOT EXISTS fencepost_subjects_by_run ON fencepost_subjects (run_id)
"""
# What was delivered at each gate, by the hash of its receipt; written once, never changed.
_BINDINGS = """
CREATE TABLE IF NOT EXISTS fencepost_bindings (
  run_id TEXT NOT NULL,
  revision INTEGER NOT NULL CHECK (revision BETWEEN 1 AND 9007199254740991),
  gate TEXT NOT NULL CHECK (gate IN ('a', 'b')),
  receipt_hash TEXT NOT NULL CHECK (
    length(receipt_hash) = 64 AND receipt_hash NOT GLOB '*[^0-9a-f]*'),
  -- Canonical JSON, so that equal proofs are equal texts.
  approval_proof TEXT CHECK (json_valid(approval_proof) AND json_type(approval_proof) = 'object'),
  created_at_ms INTEGER NOT NULL,
  -- In this order a list is sorted as it is stored.
  PRIMARY KEY (run_id, revision, gate)
) STRICT, WITHOUT ROWID
"""

# Named, leased, replayable steps inside a run. An outcome stays as long as its run.
_OPERATIONS = """
CREATE TABLE IF NOT EXISTS fencepost_operations (
  run_id TEXT NOT NULL,
  operation_id TEXT NOT NULL CHECK (
    length(operation_id) BETWEEN 1 AND 128 AND operation_id = lower(operation_id)),
  kind TEXT NOT NULL CHECK (kind = 'lease'),
  payload_fingerprint TEXT NOT NULL CHECK (length(payload_fingerprint) = 64),
  state TEXT NOT NULL CHECK (state IN ('running', 'committed', 'interrupted')),
  -- Names the last lease: the present one while the operation runs.
  lease_token TEXT NOT NULL,
  lease_expires_at_ms INTEGER,
  -- JSON; a committed null is the text null.
  outcome TEXT CHECK (json_valid(outcome)),
  write_token TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL CHECK (updated_at_ms >= created_at_ms),
  PRIMARY KEY (run_id, operation_id),
  CHECK ((state = 'running') = (lease_expires_at_ms IS NOT NULL)),
  CHECK ((state = 'committed') = (outcome IS NOT NULL))
) STRICT, WITHOUT ROWID
"""

# For the drain inventory.
_OPERATIONS_RUNNING = """
CREATE INDEX IF NOT EXISTS fencepost_operations_running
ON fencepost_operations (run_id, operation_id) WHERE state = 'running'
"""

STATEMENTS = (_SUBJECTS, _SUBJECTS_BY_RUN, _BINDINGS, _OPERATIONS, _OPERATIONS_RUNNING)
