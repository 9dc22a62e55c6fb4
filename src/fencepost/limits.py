"""Every limit by name, with its unit last and its reason."""

# What D1 takes (Cloudflare D1 limits).
PARAMETERS_MAX = 100  # bound parameters a statement
SQL_BYTES_MAX = 100_000  # text of one statement
VALUE_BYTES_MAX = 2_000_000  # one string, and one whole row; not enforced by the local D1

# Statements kept prepared, by their text; this service has some forty.
PREPARED_MAX = 256

# What a JavaScript number holds exactly: D1 answers are JSON numbers.
INTEGER_MAX = 2**53 - 1

# Identifiers: keys, runs, targets, threads, lineages (contracts 1.1).
IDENTIFIER_CHARS_MAX = 200
# Owner fields (contracts 3); UTF-16 units.
OWNER_FIELD_UNITS_MAX = 1024

# Request bodies (design 11). A start's input becomes the first state of its run.
BODY_BYTES_MAX = 1_048_576
JSON_DEPTH_MAX = 128
JSON_VALUES_MAX = 100_000
STATE_BYTES_MAX = 1_048_576
# State and result share a row: together they must stay under VALUE_BYTES_MAX.
RESULT_BYTES_MAX = 900_000

# Bearer tokens longer than this are refused unhashed (contracts 1.7).
TOKEN_CHARS_MAX = 256

# Leases (design 11): long enough for one slow heartbeat, short enough to notice a death.
LEASE_MS_DEFAULT = 30_000
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 3_600_000

# Operations (contracts 4): a name; a lease of at most a day, since a step is no run.
OPERATION_ID_CHARS_MAX = 128
OPERATION_TTL_MS_MAX = 86_400_000

# Waiting for the end of a run (design 6): one request must not outlive a client's patience.
WAIT_S_MAX = 30
# Pauses between two looks at D1 while waiting; the last one repeats.
WAIT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
# What Retry-After says while a run is alive (its lease may end sooner).
PENDING_RETRY_AFTER_S = 5
# What Retry-After says when the fence is closed or the database is not answering.
UNAVAILABLE_RETRY_AFTER_S = 5

# Pages (contracts 1.5).
PAGE_ITEMS_DEFAULT = 100
PAGE_ITEMS_MAX = 200
CURSOR_CHARS_MAX = 1024
# How far an inventory counts: D1 bills the rows that it reads, and a drain asks again and again.
COUNT_MAX = 1_000
# Other names of a provisional subject (contracts 4).
ALIASES_MAX = 4
# Events that an integrity check reads at a time.
INTEGRITY_PAGE_ITEMS = 500
# The canonical payload of one event; it shares a row with two hashes.
PAYLOAD_BYTES_MAX = 1_048_576

# Retention (contracts 1.6): a month to look at what ran, a year in which a key stays spent.
RUN_RETENTION_DAYS_DEFAULT = 30
KEY_RETENTION_DAYS_DEFAULT = 365
RETENTION_DAYS_MAX = 36_500
# Rows purged in one transaction, which must end well before D1's 30 s.
PURGE_CHUNK_ROWS = 100
PURGE_ROWS_DEFAULT = 1_000
PURGE_ROWS_MAX = 10_000

# Delivery bindings: one transaction each request; a proof is evidence, not the thing itself.
BINDINGS_MAX = 50
APPROVAL_PROOF_BYTES_MAX = 16_384

# An operator's note (UTF-16 units do not matter here: it is for people).
NOTE_CHARS_MAX = 1_000

# How often a write that lost a race for the head of a history, or for a reservation,
# reads again and retries before it tells the caller (design 8).
RACE_ATTEMPTS_MAX = 3
