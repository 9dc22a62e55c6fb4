SELECT json(CASE WHEN (SELECT group_concat(name) FROM pragma_table_info('fencepost_fence'))
  = 'id,state,revision,proof_key,proof_run_id,updated_at_ms,proof_principal_kind,proof_principal_id,last_admitted_revision'
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

INSERT INTO fencepost_fence_next (id, state, revision, proof_key, proof_run_id, updated_at_ms, proof_principal_kind, proof_principal_id, last_admitted_revision) SELECT id, state, revision, proof_key, proof_run_id, updated_at_ms, proof_principal_kind, proof_principal_id, last_admitted_revision FROM fencepost_fence;

DROP TABLE fencepost_fence;

ALTER TABLE fencepost_fence_next RENAME TO fencepost_fence;

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

CREATE UNIQUE INDEX IF NOT EXISTS fencepost_audit_by_origin
ON fencepost_audit (origin, origin_sequence) WHERE origin IS NOT NULL;
