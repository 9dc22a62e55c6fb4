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
