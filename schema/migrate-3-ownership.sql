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
  -- Whose start the proof is, if the transition named one.
  proof_principal_kind TEXT CHECK (
    proof_principal_kind IN ('human', 'service', 'agent', 'system')),
  proof_principal_id TEXT,
  -- The last revision under which a run was started.
  last_admitted_revision INTEGER CHECK (last_admitted_revision BETWEEN 0 AND revision),
  -- Where to go, once the deployment is sealed.
  moved_to TEXT,
  CHECK ((state = 'sealed') = (moved_to IS NOT NULL)),
  CHECK ((state = 'proof-only') = (proof_key IS NOT NULL)),
  CHECK (proof_run_id IS NULL OR proof_key IS NOT NULL),
  CHECK ((proof_principal_kind IS NULL) = (proof_principal_id IS NULL)),
  CHECK (proof_principal_kind IS NULL OR proof_key IS NOT NULL)
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_fence_next (id, state, revision, proof_key, proof_run_id, updated_at_ms, last_admitted_revision) SELECT id, state, revision, proof_key, proof_run_id, updated_at_ms, CASE WHEN EXISTS (SELECT 1 FROM fencepost_reservations) THEN revision END FROM fencepost_fence;

DROP TABLE fencepost_fence;

ALTER TABLE fencepost_fence_next RENAME TO fencepost_fence;

SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_reservations'))
  = 'key,owner_kind,owner_id,target_kind,target_id,thread_id,fingerprint,run_id,state,attempt,claim_nonce,outcome,created_at_ms,updated_at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_reservations_next (
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
  -- The revision of the fence that admitted it, or its last attempt; NULL in rows of old builds.
  admitted_revision INTEGER CHECK (admitted_revision BETWEEN 0 AND 9007199254740991),
  CHECK ((target_kind = 'agent') = (thread_id IS NOT NULL)),
  CHECK (state <> 'reserved' OR claim_nonce IS NULL),
  CHECK (state <> 'started' OR claim_nonce IS NOT NULL),
  CHECK (outcome IS NULL OR state = 'terminal')
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_reservations_next (key, owner_kind, owner_id, target_kind, target_id, thread_id, fingerprint, run_id, state, attempt, claim_nonce, outcome, created_at_ms, updated_at_ms, joined) SELECT key, owner_kind, owner_id, target_kind, target_id, thread_id, fingerprint, run_id, state, attempt, claim_nonce, outcome, created_at_ms, updated_at_ms, 0 FROM fencepost_reservations;

DROP TABLE fencepost_reservations;

ALTER TABLE fencepost_reservations_next RENAME TO fencepost_reservations;

SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_runs'))
  = 'run_id,principal_kind,principal_id,target_kind,target_id,thread_id,status,owner_host_id,owner_pid,owner_nonce,generation,heartbeat_at_ms,lease_ms,lease_expires_at_ms,claim_host_id,claim_pid,claim_nonce,claimed_at_ms,claim_heartbeat_at_ms,cancel_requested_at_ms,cancel_acknowledged_at_ms,parent_run_id,lineage_id,lineage_round,head_sequence,head_hash,write_token,updated_at_ms,created_at_ms,started_at_ms,finished_at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_runs_next (
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
  -- The trace context (W3C) of the request that started it.
  traceparent TEXT CHECK (length(traceparent) BETWEEN 55 AND 200),
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
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_runs_next (run_id, principal_kind, principal_id, target_kind, target_id, thread_id, status, owner_host_id, owner_pid, owner_nonce, generation, heartbeat_at_ms, lease_ms, lease_expires_at_ms, claim_host_id, claim_pid, claim_nonce, claimed_at_ms, claim_heartbeat_at_ms, cancel_requested_at_ms, cancel_acknowledged_at_ms, parent_run_id, lineage_id, lineage_round, head_sequence, head_hash, write_token, updated_at_ms, created_at_ms, started_at_ms, finished_at_ms) SELECT run_id, principal_kind, principal_id, target_kind, target_id, thread_id, status, owner_host_id, owner_pid, owner_nonce, generation, heartbeat_at_ms, lease_ms, lease_expires_at_ms, claim_host_id, claim_pid, claim_nonce, claimed_at_ms, claim_heartbeat_at_ms, cancel_requested_at_ms, cancel_acknowledged_at_ms, parent_run_id, lineage_id, lineage_round, head_sequence, head_hash, write_token, updated_at_ms, created_at_ms, started_at_ms, finished_at_ms FROM fencepost_runs;

DROP TABLE fencepost_runs;

ALTER TABLE fencepost_runs_next RENAME TO fencepost_runs;

SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_events'))
  = 'run_id,sequence,type,payload,prior_hash,hash,created_at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_events_next (
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
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_events_next (run_id, sequence, type, payload, prior_hash, hash, created_at_ms, write_token) SELECT run_id, sequence, type, payload, prior_hash, hash, created_at_ms, '' FROM fencepost_events;

DROP TABLE fencepost_events;

ALTER TABLE fencepost_events_next RENAME TO fencepost_events;

SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_ownership'))
  = 'run_id,sequence,type,owner_host_id,owner_pid,owner_nonce,generation,granted_at_ms,write_token,at_ms'
  THEN '{}' ELSE 'another shape' END);

CREATE TABLE fencepost_ownership_next (
  run_id TEXT NOT NULL,
  sequence INTEGER NOT NULL CHECK (sequence >= 1),
  type TEXT NOT NULL CHECK (type IN ('claimed', 'activated', 'released', 'stolen', 'expired',
    'cancel-requested', 'cancel-acknowledged')),
  owner_host_id TEXT,
  owner_pid INTEGER,
  owner_nonce TEXT,
  generation INTEGER NOT NULL CHECK (generation >= 0),
  granted_at_ms INTEGER,
  write_token TEXT NOT NULL,
  at_ms INTEGER NOT NULL,
  -- Who requested the cancel: a principal, where every other fact names a process.
  principal_kind TEXT CHECK (principal_kind IN ('human', 'service', 'agent', 'system')),
  principal_id TEXT,
  PRIMARY KEY (run_id, sequence),
  CHECK ((type = 'cancel-requested') = (owner_host_id IS NULL)),
  CHECK ((owner_host_id IS NULL) = (owner_pid IS NULL)),
  CHECK ((owner_host_id IS NULL) = (owner_nonce IS NULL)),
  CHECK ((type = 'cancel-requested') = (principal_kind IS NOT NULL)),
  CHECK ((principal_kind IS NULL) = (principal_id IS NULL))
) STRICT, WITHOUT ROWID;

INSERT INTO fencepost_ownership_next (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce, generation, granted_at_ms, write_token, at_ms) SELECT run_id, sequence, type, owner_host_id, owner_pid, owner_nonce, generation, granted_at_ms, write_token, at_ms FROM fencepost_ownership;

DROP TABLE fencepost_ownership;

ALTER TABLE fencepost_ownership_next RENAME TO fencepost_ownership;

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
  at_ms INTEGER NOT NULL,
  -- Of a row that a move has brought: the deployment that wrote it, and its sequence there.
  origin TEXT CHECK (length(origin) = 32),
  origin_sequence INTEGER CHECK (origin_sequence >= 1),
  CHECK ((origin IS NULL) = (origin_sequence IS NULL))
) STRICT;

INSERT INTO fencepost_audit_next (sequence, action, principal_kind, principal_id, subject, note, before, after, write_token, at_ms) SELECT sequence, action, principal_kind, principal_id, subject, note, before, after, write_token, at_ms FROM fencepost_audit;

DROP TABLE fencepost_audit;

ALTER TABLE fencepost_audit_next RENAME TO fencepost_audit;

CREATE TABLE IF NOT EXISTS fencepost_subjects (
  principal_kind TEXT NOT NULL,
  principal_id TEXT NOT NULL,
  stage TEXT NOT NULL,
  lookup_key TEXT NOT NULL CHECK (lookup_key LIKE 'change:%' OR lookup_key LIKE 'provisional:%'),
  run_id TEXT NOT NULL,
  PRIMARY KEY (principal_kind, principal_id, stage, lookup_key)
) STRICT, WITHOUT ROWID;

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
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS fencepost_operations (
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

CREATE TABLE IF NOT EXISTS fencepost_transfer (
  id TEXT PRIMARY KEY CHECK (id = 'deployment'),
  deployment_id TEXT NOT NULL CHECK (length(deployment_id) = 32),
  -- The deployment for which this one is sealed.
  target_id TEXT CHECK (length(target_id) = 32),
  -- The secret of the seal; the target has it from the first page that it takes.
  seal TEXT CHECK (length(seal) = 64),
  -- The revision at which the last command left the fence.
  revision INTEGER NOT NULL CHECK (revision BETWEEN 0 AND 9007199254740991),
  -- Rows and digests of the tables, as far as they are added up.
  manifest TEXT CHECK (json_valid(manifest)),
  CHECK (target_id IS NULL OR seal IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS fencepost_reservations_unsettled
ON fencepost_reservations (run_id) WHERE state <> 'terminal';

CREATE INDEX IF NOT EXISTS fencepost_reservations_terminal
ON fencepost_reservations (run_id) WHERE state = 'terminal';

CREATE INDEX IF NOT EXISTS fencepost_reservations_by_age
ON fencepost_reservations (updated_at_ms) WHERE state = 'terminal';

CREATE INDEX IF NOT EXISTS fencepost_runs_by_principal
ON fencepost_runs (principal_kind, principal_id, run_id);

CREATE INDEX IF NOT EXISTS fencepost_runs_by_status
ON fencepost_runs (status, principal_kind, principal_id, run_id);

CREATE INDEX IF NOT EXISTS fencepost_runs_by_lineage
ON fencepost_runs (lineage_id, principal_kind, principal_id, lineage_round, run_id)
WHERE lineage_id IS NOT NULL;

CREATE INDEX IF NOT EXISTS fencepost_runs_by_age
ON fencepost_runs (finished_at_ms) WHERE finished_at_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS fencepost_subjects_by_run ON fencepost_subjects (run_id);

CREATE INDEX IF NOT EXISTS fencepost_operations_running
ON fencepost_operations (run_id, operation_id) WHERE state = 'running';

CREATE UNIQUE INDEX IF NOT EXISTS fencepost_audit_by_origin
ON fencepost_audit (origin, origin_sequence) WHERE origin IS NOT NULL;
