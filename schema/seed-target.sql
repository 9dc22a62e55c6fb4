INSERT INTO fencepost_fence (id, state, revision, updated_at_ms)
VALUES ('deployment', 'importing', 0, CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER)) ON CONFLICT (id) DO NOTHING;
