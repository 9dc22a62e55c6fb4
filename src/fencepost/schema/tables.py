"""The tables. `schema_guard.ensure` creates them; `migrations` knows their earlier shapes.

`schema/schema.sql` holds the same text for `wrangler d1 execute` (a test compares).
Every table defends itself: a CHECK ties each state to its columns. Times are milliseconds of
the database's clock.
"""

from __future__ import annotations

from fencepost.schema import run_tables

_FENCE = """
CREATE TABLE IF NOT EXISTS fencepost_fence (
  id TEXT PRIMARY KEY CHECK (id = 'deployment'),
  -- No CHECK on the values of state: a newer build may know more of them, and a build that
  -- does not know one must find it here and stay closed.
  state TEXT NOT NULL,
  revision INTEGER NOT NULL DEFAULT 0 CHECK (revision BETWEEN 0 AND 9007199254740991),
  proof_key TEXT,
  proof_run_id TEXT,
  -- The last transition that came with an Idempotency-Key, so that its retry converges.
  transition_key TEXT,
  transition_receipt TEXT CHECK (length(transition_receipt) <= 512),
  updated_at_ms INTEGER NOT NULL,
  CHECK ((state = 'proof-only') = (proof_key IS NOT NULL)),
  CHECK (proof_run_id IS NULL OR proof_key IS NOT NULL),
  CHECK ((transition_key IS NULL) = (transition_receipt IS NULL))
) STRICT, WITHOUT ROWID
"""

_RESERVATIONS = """
CREATE TABLE IF NOT EXISTS fencepost_reservations (
  key TEXT PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 200),
  owner_kind TEXT NOT NULL CHECK (owner_kind IN ('human', 'service', 'agent', 'system')),
  owner_id TEXT NOT NULL CHECK (length(owner_id) BETWEEN 1 AND 200),
  target_kind TEXT NOT NULL CHECK (target_kind IN ('workflow', 'agent')),
  target_id TEXT NOT NULL,
  thread_id TEXT,
  fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
  run_id TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('reserved', 'started', 'terminal')),
  attempt INTEGER NOT NULL CHECK (attempt >= 1),
  -- Names the attempt that holds the claim.
  claim_nonce TEXT,
  -- How the run ended, once terminal.
  outcome TEXT,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL CHECK (updated_at_ms >= created_at_ms),
  -- The key joined the run of its subject, which another key had started.
  joined INTEGER NOT NULL CHECK (joined IN (0, 1)),
  subject_sha256 TEXT CHECK (length(subject_sha256) = 64),
  CHECK ((target_kind = 'agent') = (thread_id IS NOT NULL)),
  CHECK (state <> 'reserved' OR claim_nonce IS NULL),
  CHECK (state <> 'started' OR claim_nonce IS NOT NULL),
  CHECK (outcome IS NULL OR state = 'terminal')
) STRICT, WITHOUT ROWID
"""

# The drain inventory and settling look at unsettled reservations only; once settled, a
# reservation moves to the indexes that look it up by run, and by age for the purge.
_RESERVATIONS_UNSETTLED = """
CREATE INDEX IF NOT EXISTS fencepost_reservations_unsettled
ON fencepost_reservations (run_id) WHERE state <> 'terminal'
"""
_RESERVATIONS_TERMINAL = """
CREATE INDEX IF NOT EXISTS fencepost_reservations_terminal
ON fencepost_reservations (run_id) WHERE state = 'terminal'
"""
_RESERVATIONS_BY_AGE = """
CREATE INDEX IF NOT EXISTS fencepost_reservations_by_age
ON fencepost_reservations (updated_at_ms) WHERE state = 'terminal'
"""

_RUNS = """
CREATE TABLE IF NOT EXISTS fencepost_runs (
  run_id TEXT PRIMARY KEY CHECK (length(run_id) BETWEEN 1 AND 200),
  principal_kind TEXT NOT NULL CHECK (principal_kind IN ('human', 'service', 'agent', 'system')),
  principal_id TEXT NOT NULL,
  target_kind TEXT NOT NULL CHECK (target_kind IN ('workflow', 'agent')),
  target_id TEXT NOT NULL,
  thread_id TEXT,
  status TEXT NOT NULL CHECK (
    status IN ('pending', 'running', 'suspended', 'completed', 'failed', 'cancelled')),
  owner_host_id TEXT,
  owner_pid INTEGER CHECK (owner_pid BETWEEN 0 AND 9007199254740991),
  owner_nonce TEXT,
  -- The fencing token: +1 at every grant of ownership, never reused.
  generation INTEGER NOT NULL CHECK (generation >= 0),
  heartbeat_at_ms INTEGER,
  -- The run's own lease length; the lease itself ends at lease_expires_at_ms.
  lease_ms INTEGER NOT NULL CHECK (lease_ms BETWEEN 1000 AND 3600000),
  lease_expires_at_ms INTEGER,
  claim_host_id TEXT,
  claim_pid INTEGER CHECK (claim_pid BETWEEN 0 AND 9007199254740991),
  claim_nonce TEXT,
  claimed_at_ms INTEGER,
  -- The owner's heartbeat when its run was stolen: a later one undoes the claim.
  claim_heartbeat_at_ms INTEGER,
  cancel_requested_at_ms INTEGER,
  cancel_acknowledged_at_ms INTEGER,
  parent_run_id TEXT,
  lineage_id TEXT,
  lineage_round INTEGER CHECK (lineage_round BETWEEN 0 AND 9007199254740991),
  -- The state machine that the run names, if any; the code says why it stands where it does.
  machine TEXT CHECK (length(machine) BETWEEN 1 AND 200),
  machine_state TEXT CHECK (length(machine_state) BETWEEN 1 AND 200),
  machine_code TEXT CHECK (length(machine_code) BETWEEN 1 AND 200),
  -- The last event of the run's history; its hash chains all events before it.
  head_sequence INTEGER NOT NULL CHECK (head_sequence >= 1),
  head_hash TEXT NOT NULL CHECK (length(head_hash) = 64),
  -- Names the last write to this row; minted for each attempt to write.
  write_token TEXT NOT NULL,
  -- When that write happened; the other rows of its batch take their time from here.
  updated_at_ms INTEGER NOT NULL,
  created_at_ms INTEGER NOT NULL,
  started_at_ms INTEGER,
  finished_at_ms INTEGER,
  CHECK ((target_kind = 'agent') = (thread_id IS NOT NULL)),
  CHECK ((status = 'running') = (owner_host_id IS NOT NULL)),
  CHECK ((owner_host_id IS NULL) = (owner_pid IS NULL)),
  CHECK ((owner_host_id IS NULL) = (owner_nonce IS NULL)),
  CHECK ((owner_host_id IS NULL) = (heartbeat_at_ms IS NULL)),
  CHECK ((owner_host_id IS NULL) = (lease_expires_at_ms IS NULL)),
  CHECK ((claim_host_id IS NULL) = (claim_pid IS NULL)),
  CHECK ((claim_host_id IS NULL) = (claim_nonce IS NULL)),
  CHECK ((claim_host_id IS NULL) = (claimed_at_ms IS NULL)),
  CHECK ((status IN ('completed', 'failed', 'cancelled')) = (finished_at_ms IS NOT NULL)),
  CHECK (claim_host_id IS NULL OR finished_at_ms IS NULL),
  CHECK (claim_heartbeat_at_ms IS NULL OR (claim_host_id IS NOT NULL AND status = 'running')),
  CHECK (cancel_acknowledged_at_ms IS NULL OR cancel_requested_at_ms IS NOT NULL),
  CHECK ((lineage_id IS NULL) = (lineage_round IS NULL)),
  CHECK ((machine IS NULL) = (machine_state IS NULL)),
  CHECK (machine_code IS NULL OR machine IS NOT NULL)
) STRICT, WITHOUT ROWID
"""

_RUNS_BY_PRINCIPAL = """
CREATE INDEX IF NOT EXISTS fencepost_runs_by_principal
ON fencepost_runs (principal_kind, principal_id, run_id)
"""
_RUNS_BY_STATUS = """
CREATE INDEX IF NOT EXISTS fencepost_runs_by_status
ON fencepost_runs (status, principal_kind, principal_id, run_id)
"""
_RUNS_BY_LINEAGE = """
CREATE INDEX IF NOT EXISTS fencepost_runs_by_lineage
ON fencepost_runs (lineage_id, principal_kind, principal_id, lineage_round, run_id)
WHERE lineage_id IS NOT NULL
"""
_RUNS_BY_AGE = """
CREATE INDEX IF NOT EXISTS fencepost_runs_by_age
ON fencepost_runs (finished_at_ms) WHERE finished_at_ms IS NOT NULL
"""

# Apart from the run, so that a heartbeat never rewrites a megabyte.
_SNAPSHOTS = """
CREATE TABLE IF NOT EXISTS fencepost_snapshots (
  run_id TEXT PRIMARY KEY,
  state TEXT NOT NULL CHECK (json_valid(state)),
  result TEXT CHECK (json_valid(result))
) STRICT, WITHOUT ROWID
"""

_EVENTS = """
CREATE TABLE IF NOT EXISTS fencepost_events (
  run_id TEXT NOT NULL,
  sequence INTEGER NOT NULL CHECK (sequence >= 1),
  type TEXT NOT NULL,
  payload TEXT NOT NULL CHECK (json_valid(payload)),
  prior_hash TEXT NOT NULL CHECK (length(prior_hash) = 64),
  hash TEXT NOT NULL CHECK (length(hash) = 64),
  -- Names the attempt that appended it: two callers may append the very same event.
  write_token TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (run_id, sequence)
) STRICT, WITHOUT ROWID
"""

# Who owned a run, and when: one row a grant, release or takeover; none for heartbeats.
_OWNERSHIP = """
CREATE TABLE IF NOT EXISTS fencepost_ownership (
  run_id TEXT NOT NULL,
  sequence INTEGER NOT NULL CHECK (sequence >= 1),
  type TEXT NOT NULL CHECK (type IN ('claimed', 'activated', 'released', 'stolen', 'expired')),
  owner_host_id TEXT NOT NULL,
  owner_pid INTEGER NOT NULL,
  owner_nonce TEXT NOT NULL,
  generation INTEGER NOT NULL CHECK (generation >= 0),
  granted_at_ms INTEGER,
  write_token TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (run_id, sequence)
) STRICT, WITHOUT ROWID
"""

# What operators did: who, when, what and why. Written in the batch of the deed; never purged.
_AUDIT = """
CREATE TABLE IF NOT EXISTS fencepost_audit (
  sequence INTEGER PRIMARY KEY,
  action TEXT NOT NULL CHECK (
    action IN ('fence-transition', 'resolve', 'purge', 'cancel', 'lineage-cancel')),
  principal_kind TEXT NOT NULL CHECK (principal_kind IN ('human', 'service', 'agent', 'system')),
  principal_id TEXT NOT NULL,
  -- The fence, a key, a run: what it was done to.
  subject TEXT NOT NULL,
  note TEXT,
  before TEXT CHECK (json_valid(before)),
  after TEXT CHECK (json_valid(after)),
  write_token TEXT NOT NULL,
  at_ms INTEGER NOT NULL
) STRICT
"""

TABLES = (
    "fencepost_fence",
    "fencepost_reservations",
    "fencepost_runs",
    "fencepost_snapshots",
    "fencepost_events",
    "fencepost_ownership",
    "fencepost_subjects",
    "fencepost_bindings",
    "fencepost_operations",
    "fencepost_audit",
)

STATEMENTS = tuple(
    ddl.strip()
    for ddl in (
        _FENCE,
        _RESERVATIONS,
        _RESERVATIONS_UNSETTLED,
        _RESERVATIONS_TERMINAL,
        _RESERVATIONS_BY_AGE,
        _RUNS,
        _RUNS_BY_PRINCIPAL,
        _RUNS_BY_STATUS,
        _RUNS_BY_LINEAGE,
        _RUNS_BY_AGE,
        _SNAPSHOTS,
        _EVENTS,
        _OWNERSHIP,
        *run_tables.STATEMENTS,
        _AUDIT,
    )
)


def as_sql_file() -> str:
    """The text of `schema/schema.sql`."""
    return "".join(f"{ddl};\n\n" for ddl in STATEMENTS).rstrip("\n") + "\n"
