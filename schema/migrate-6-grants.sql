SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_fence'))
  = 'id,state,revision,proof_key,proof_run_id,transition_key,transition_receipt,updated_at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_fence_next (
  id TEXT PRIMARY KEY CHECK (id = 'deployment'),
  -- No CHECK on the values of state: a newer build may know more of them, and a build that
  -- does not know one must find it here and stay closed.
  state TEXT NOT NULL,
  revision INTEGER NOT NULL DEFAULT 0 CHECK (revision BETWEEN 0 AND 9007199254740991),
  proof_key TEXT,
  proof_run_id TEXT,
  updated_at_ms INTEGER NOT NULL,
  CHECK ((state = 'proof-only') = (proof_key IS NOT NULL)),
  CHECK (proof_run_id IS NULL OR proof_key IS NOT NULL)
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_fence_next (id, state, revision, proof_key, proof_run_id, updated_at_ms) SELECT id, state, revision, proof_key, proof_run_id, updated_at_ms FROM fencepost_fence;

DROP TABLE fencepost_fence;

ALTER TABLE fencepost_fence_next RENAME TO fencepost_fence;

SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_operations'))
  = 'run_id,operation_id,kind,payload_fingerprint,state,lease_token,generation,lease_expires_at_ms,outcome,write_token,created_at_ms,updated_at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_operations_next (
  run_id TEXT NOT NULL,
  operation_id TEXT NOT NULL CHECK (
    length(operation_id) BETWEEN 1 AND 128 AND operation_id = lower(operation_id)),
  kind TEXT NOT NULL CHECK (kind = 'lease'),
  payload_fingerprint TEXT NOT NULL CHECK (length(payload_fingerprint) = 64),
  state TEXT NOT NULL CHECK (state IN ('running', 'committed', 'interrupted')),
  -- Names the last lease: the present one while the operation runs.
  lease_token TEXT NOT NULL,
  -- The run's generation in which that lease was granted: the lease ends with the generation.
  generation INTEGER NOT NULL CHECK (generation >= 0),
  lease_expires_at_ms INTEGER,
  -- Why it is interrupted: its holder ended the lease, or the lease was over.
  cause TEXT CHECK (cause IN ('holder', 'lapse')),
  -- JSON; a committed null is the text null.
  outcome TEXT CHECK (json_valid(outcome)),
  write_token TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL CHECK (updated_at_ms >= created_at_ms),
  PRIMARY KEY (run_id, operation_id),
  CHECK ((state = 'running') = (lease_expires_at_ms IS NOT NULL)),
  CHECK ((state = 'interrupted') = (cause IS NOT NULL)),
  CHECK ((state = 'committed') = (outcome IS NOT NULL))
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_operations_next (run_id, operation_id, kind, payload_fingerprint, state, lease_token, generation, lease_expires_at_ms, outcome, write_token, created_at_ms, updated_at_ms, cause) SELECT run_id, operation_id, kind, payload_fingerprint, state, lease_token, generation, lease_expires_at_ms, outcome, write_token, created_at_ms, updated_at_ms, CASE WHEN state = 'interrupted' THEN 'lapse' END FROM fencepost_operations;

DROP TABLE fencepost_operations;

ALTER TABLE fencepost_operations_next RENAME TO fencepost_operations;

SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_audit'))
  = 'sequence,action,principal_kind,principal_id,subject,note,before,after,write_token,at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_audit_next (
  sequence INTEGER PRIMARY KEY,
  -- A verb.
  action TEXT NOT NULL CHECK (length(action) BETWEEN 1 AND 64),
  principal_kind TEXT NOT NULL CHECK (principal_kind IN ('human', 'service', 'agent', 'system')),
  principal_id TEXT NOT NULL,
  -- The fence, a key, a run: what it was done to.
  subject TEXT NOT NULL,
  note TEXT,
  before TEXT CHECK (json_valid(before)),
  after TEXT CHECK (json_valid(after)),
  write_token TEXT NOT NULL,
  at_ms INTEGER NOT NULL
) STRICT;

INSERT INTO fencepost_audit_next (sequence, action, principal_kind, principal_id, subject, note, before, after, write_token, at_ms) SELECT sequence, action, principal_kind, principal_id, subject, note, before, after, write_token, at_ms FROM fencepost_audit;

DROP TABLE fencepost_audit;

ALTER TABLE fencepost_audit_next RENAME TO fencepost_audit;

CREATE TABLE IF NOT EXISTS fencepost_requests (
  -- Empty for a request of the deployment.
  run_id TEXT NOT NULL,
  principal_kind TEXT NOT NULL CHECK (principal_kind IN ('human', 'service', 'agent', 'system')),
  principal_id TEXT NOT NULL,
  key TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
  verb TEXT NOT NULL,
  fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
  outcome TEXT NOT NULL,
  -- What it granted or wrote, as far as the rows may not show it any more.
  answer TEXT NOT NULL CHECK (json_valid(answer) AND length(answer) <= 512),
  write_token TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  PRIMARY KEY (run_id, principal_kind, principal_id, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS fencepost_operations_running
ON fencepost_operations (run_id, operation_id) WHERE state = 'running';
