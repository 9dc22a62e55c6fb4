"""Checks that the rows of the database agree with each other, while the Worker is down.

Each invariant yields what breaks it. SQL by another SQLite than the product's, and the hashes of
`journal` over the texts as they are stored. `database_matches_answers` compares the
rows with what the clients were told.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fencepost.journal import GENESIS, Head, event_hash
from soak.answer_invariants import each_generation_is_activated_once
from soak.client_knowledge import ClientKnowledge

# Times of one row may run ahead of the clock by so much: some are "one more than before".
STAMP_SLACK_MS = 5


def opened(file: Path) -> sqlite3.Connection:
    """The database of a Worker that is down; closing it writes the log back, as SQLite does."""
    db = sqlite3.connect(file)
    # The product's SQLite has checked them; of NULL, an older one takes json_valid for false.
    db.execute("PRAGMA ignore_check_constraints = ON")
    db.row_factory = sqlite3.Row
    return db


def the_file_is_sound(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """SQLite finds no page and no index damaged."""
    try:
        yield from (said for (said,) in db.execute("PRAGMA integrity_check") if said != "ok")
    except sqlite3.DatabaseError as error:
        yield str(error)


_CHAIN = "SELECT * FROM fencepost_events ORDER BY run_id, sequence"
_HEADS = "SELECT run_id, head_sequence, head_hash FROM fencepost_runs"


def histories_are_linear(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """Each history counts from 1 without a gap, chained by hash, up to the head of its run."""
    heads = {
        row["run_id"]: Head(row["head_sequence"], row["head_hash"]) for row in db.execute(_HEADS)
    }
    chains = itertools.groupby(db.execute(_CHAIN), lambda row: row["run_id"])
    for run_id, events in chains:
        head = GENESIS
        for event in events:
            hash = event_hash(head, event["type"], event["payload"])
            named = (event["sequence"], event["prior_hash"], event["hash"])
            if named != (head.sequence + 1, head.hash, hash):
                yield f"{run_id}: event {event['sequence']} does not follow {head}"
                break
            head = Head(event["sequence"], event["hash"])
        last = heads.pop(run_id, None)
        if last != head:
            yield f"{run_id}: the history ends at {head}, its run says {last}"
    yield from (f"{run_id}: a run without a history" for run_id in heads)


_OWNED = "SELECT run_id, generation FROM fencepost_runs"
_FACTS = "SELECT run_id, type, generation FROM fencepost_ownership ORDER BY run_id, sequence"


def generations_are_given_once(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """Activations of a run count from 1 to its generation, each once and in order."""
    generations = {row["run_id"]: row["generation"] for row in db.execute(_OWNED)}
    for run_id, rows in itertools.groupby(db.execute(_FACTS), lambda row: row["run_id"]):
        facts = [dict(row) for row in rows]
        if text := each_generation_is_activated_once(facts):
            yield f"{run_id}: {text}"
        given = sum(fact["type"] == "activated" for fact in facts)
        if given != generations.pop(run_id, None):
            yield f"{run_id}: {given} activations and another generation"
    yield from (f"{run_id}: nobody was ever its owner" for run_id in generations)


_UNFIT_KEYS = """
SELECT held.key || ': ' || held.state || ' of a run that is ' || COALESCE(run.status, 'gone')
FROM fencepost_reservations AS held LEFT JOIN fencepost_runs AS run USING (run_id)
WHERE (held.state = 'terminal') <> (run.run_id IS NULL OR run.finished_at_ms IS NOT NULL)
  OR (held.state = 'reserved' AND run.status NOT IN ('pending', 'running', 'suspended'))
UNION ALL
SELECT run_id || ': started by ' || COUNT(key) || ' keys'
FROM fencepost_runs LEFT JOIN fencepost_reservations USING (run_id)
GROUP BY run_id HAVING COALESCE(SUM(joined = 0), 0) <> 1
"""


def one_key_a_run(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """Each run was started by one key (others may have joined it), and is settled as it ended."""
    yield from (text for (text,) in db.execute(_UNFIT_KEYS))


_ATTEMPTS = """
SELECT held.key || ': attempt ' || held.attempt || ', given back ' || given.back || ' times, begun '
  || given.begun || ' times, ' || given.attempts || ' of them as another attempt'
FROM fencepost_reservations AS held JOIN (
  SELECT run_id,
    SUM(type IN ('run-released', 'run-resolved')
      AND COALESCE(json_extract(payload, '$.to'), 'pending') = 'pending') AS back,
    SUM(type IN ('run-created', 'run-restarted')) AS begun,
    COUNT(DISTINCT CASE type WHEN 'run-created' THEN 1
      WHEN 'run-restarted' THEN json_extract(payload, '$.attempt') END) AS attempts
  FROM fencepost_events GROUP BY run_id) AS given USING (run_id)
WHERE held.joined = 0 AND (held.attempt <> 1 + given.back OR given.begun <> given.attempts
  OR given.begun > held.attempt)
"""


def an_attempt_begins_once(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """By the history: each attempt began once at most, and followed one that was given back."""
    yield from (text for (text,) in db.execute(_ATTEMPTS))


# An event before the release that is not the beginning of the attempt; a step, or the
# acknowledgement of a cancel, in the generation that was released; a release by nobody.
_WORKED = """
SELECT gone.run_id || ': released at ' || gone.sequence || ', and recorded before: ' || before.type
FROM fencepost_events AS gone JOIN fencepost_events AS before USING (run_id)
WHERE gone.type = 'run-released' AND before.sequence = gone.sequence - 1
  AND before.type NOT IN ('run-created', 'run-restarted')
UNION ALL
SELECT gone.run_id || ': released at ' || gone.sequence || ' in generation '
  || COALESCE(fact.generation || ', and recorded: ' || COALESCE(operation_id, seen.type), 'unknown')
FROM fencepost_events AS gone
LEFT JOIN fencepost_ownership AS fact
  ON fact.run_id = gone.run_id AND fact.write_token = gone.write_token AND fact.type = 'released'
LEFT JOIN fencepost_operations AS step
  ON step.run_id = gone.run_id AND step.generation = fact.generation
LEFT JOIN fencepost_ownership AS seen ON seen.run_id = gone.run_id
  AND seen.generation = fact.generation AND seen.type = 'cancel-acknowledged'
WHERE gone.type = 'run-released'
  AND (fact.run_id IS NULL OR step.run_id IS NOT NULL OR seen.run_id IS NOT NULL)
"""


def a_released_attempt_recorded_nothing(
    db: sqlite3.Connection, knowledge: ClientKnowledge
) -> Iterator[str]:
    """What was given back was never begun: no event, no step, no acknowledgement in it."""
    yield from (text for (text,) in db.execute(_WORKED))


_CLAIMS = """
SELECT run_id, type, owner_host_id || ' ' || owner_pid || ' ' || owner_nonce AS owner
FROM fencepost_ownership WHERE type NOT IN ('cancel-requested', 'cancel-acknowledged')
ORDER BY run_id, sequence
"""
_CLAIMANTS = """
SELECT run_id, claim_host_id || ' ' || claim_pid || ' ' || claim_nonce AS owner FROM fencepost_runs
"""


def each_claim_ends_once(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """After the fact of a claim comes the fact that it became or that ended it; until then the
    run shows it.
    """
    claimants = {row["run_id"]: row["owner"] for row in db.execute(_CLAIMANTS)}
    for run_id, rows in itertools.groupby(db.execute(_CLAIMS), lambda row: row["run_id"]):
        standing = None
        for row in rows:
            claims = row["type"] in ("claimed", "stolen")
            if standing is not None and (claims or row["owner"] != standing):
                yield f"{run_id}: {row['type']} of {row['owner']} ends the claim of {standing}"
            standing = row["owner"] if claims else None
        if claimants.get(run_id) != standing:
            yield f"{run_id}: claimed by {claimants.get(run_id)}, by the facts by {standing}"


_ORPHANS = """
SELECT '{table} has rows of ' || run_id FROM fencepost_{table}
WHERE run_id <> '' AND run_id NOT IN (SELECT run_id FROM fencepost_runs) GROUP BY run_id
"""


def nothing_is_half_deleted(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """What a purge took, it took whole."""
    tables = ("snapshots", "events", "ownership", "operations", "bindings", "subjects", "requests")
    for table in tables:
        yield from (text for (text,) in db.execute(_ORPHANS.format(table=table)))


# --- The fence ---------------------------------------------------------------------------


class Interval(NamedTuple):
    """From one transition to the next."""

    state: str
    since_ms: int
    until_ms: int
    proof_run_id: str | None

    def admits(self, work: str, run_id: str) -> bool:
        if self.state == "proof-only":
            return run_id == self.proof_run_id
        return self.state == "open" or (self.state == "draining" and work == "run")


_MOVES = """
SELECT at_ms, json_extract(after, '$.state') AS state,
  LEAD(at_ms, 1, 1 << 62) OVER moves AS until_ms,
  LEAD(json_extract(before, '$.proof_run_id'), 1,
    (SELECT proof_run_id FROM fencepost_fence)) OVER moves AS proof
FROM fencepost_audit WHERE action = 'fence-transition' WINDOW moves AS (ORDER BY sequence)
"""


def intervals(db: sqlite3.Connection) -> list[Interval]:
    """The states of the fence by the audit; open before the first transition."""
    moves = [
        Interval(row["state"], row["at_ms"], row["until_ms"], row["proof"])
        for row in db.execute(_MOVES)
    ]
    return [Interval("open", -(1 << 62), moves[0].since_ms if moves else 1 << 62, None), *moves]


# Everything that the fence gates and that leaves its time behind.
_GATED = """
SELECT 'start' AS work, run_id, created_at_ms AS at_ms, 'start of ' || key AS what
FROM fencepost_reservations
UNION ALL SELECT CASE type WHEN 'run-restarted' THEN 'start' ELSE 'run' END, run_id, created_at_ms,
  type FROM fencepost_events WHERE type NOT IN ('run-created', 'run-released', 'run-resolved')
    AND json_extract(payload, '$.from') IS NOT 'pending' -- the end by a cancel
UNION ALL SELECT 'run', run_id, at_ms, type FROM fencepost_ownership
  WHERE type IN ('claimed', 'stolen', 'activated', 'cancel-acknowledged')
UNION ALL SELECT 'run', run_id, heartbeat_at_ms, 'heartbeat' FROM fencepost_runs
  WHERE heartbeat_at_ms IS NOT NULL
UNION ALL SELECT 'run', run_id, cancel_acknowledged_at_ms, 'acknowledge' FROM fencepost_runs
  WHERE cancel_acknowledged_at_ms IS NOT NULL
UNION ALL SELECT 'run', run_id, created_at_ms, 'acquire' FROM fencepost_operations
UNION ALL SELECT 'run', run_id, updated_at_ms, state FROM fencepost_operations
UNION ALL SELECT 'run', run_id, created_at_ms, 'binding' FROM fencepost_bindings
"""


def the_fence_is_respected(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """No row that the fence gates has a time at which its state forbade it."""
    found = intervals(db)
    by_second: dict[int, list[Interval]] = defaultdict(list)
    for interval in found[1:-1]:
        for second in range(interval.since_ms // 1000, interval.until_ms // 1000 + 1):
            by_second[second].append(interval)
    for row in db.execute(_GATED):
        low, high = row["at_ms"] - STAMP_SLACK_MS, row["at_ms"] + STAMP_SLACK_MS
        near = {*by_second[low // 1000], *by_second[high // 1000], found[0], found[-1]}
        at = [each for each in near if each.since_ms <= high and low <= each.until_ms]
        if not any(each.admits(row["work"], row["run_id"]) for each in at):
            states = ", ".join(each.state for each in at)
            yield f"{row['what']} of {row['run_id']} at {row['at_ms']}: {states}"


INVARIANTS = (
    the_file_is_sound,
    histories_are_linear,
    generations_are_given_once,
    one_key_a_run,
    an_attempt_begins_once,
    a_released_attempt_recorded_nothing,
    each_claim_ends_once,
    nothing_is_half_deleted,
    the_fence_is_respected,
)
