INSERT INTO fencepost_audit (action, principal_kind, principal_id, subject, note, before, after,
  write_token, at_ms)
SELECT 'fence-lock', 'system', 'wrangler', 'deployment', 'schema/lock.sql',
  json_object('state', state, 'revision', revision),
  json_object('state', 'migration-locked', 'revision', revision + 1),
  lower(hex(randomblob(16))),
  MAX(CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER), updated_at_ms + 1)
FROM fencepost_fence WHERE state IN ('open', 'draining', 'proof-only', 'migration-locked');

INSERT INTO fencepost_fence (id, state, revision, updated_at_ms)
VALUES ('deployment', 'migration-locked', 0, CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER))
ON CONFLICT (id) DO UPDATE SET state = 'migration-locked', revision = revision + 1,
  proof_key = NULL, proof_run_id = NULL, proof_principal_kind = NULL, proof_principal_id = NULL,
  updated_at_ms = MAX(excluded.updated_at_ms, updated_at_ms + 1)
WHERE state IN ('open', 'draining', 'proof-only', 'migration-locked');
