"""Every limit by name, with its unit last and its reason."""

# What D1 takes: https://developers.cloudflare.com/d1/platform/limits/
PARAMETERS_MAX = 100  # bound parameters a statement
SQL_BYTES_MAX = 100_000  # text of one statement
VALUE_BYTES_MAX = 2_000_000  # one string, and one whole row; not enforced by the local D1

# Statements kept prepared, by their text. This service has about forty.
PREPARED_MAX = 256

# The largest integer that a JavaScript number holds exactly: D1 answers with JSON numbers.
INTEGER_MAX = 2**53 - 1

# Identifiers: keys, runs, targets, threads, lineages.
IDENTIFIER_CHARS_MAX = 200
# Owner fields, in UTF-16 units.
OWNER_FIELD_UNITS_MAX = 1024

# Request bodies. A start's input becomes the first state of its run.
BODY_BYTES_MAX = 1_048_576
JSON_DEPTH_MAX = 128
JSON_VALUES_MAX = 100_000
STATE_BYTES_MAX = 1_048_576
# State and result share a row: together they must stay under VALUE_BYTES_MAX.
RESULT_BYTES_MAX = 900_000

# Longer bearer tokens are refused before they are hashed.
TOKEN_CHARS_MAX = 256

# Leases: long enough for one slow heartbeat, short enough to notice soon that an owner died.
LEASE_MS_DEFAULT = 30_000
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 3_600_000

# Operations: the length of a name; a lease lasts at most a day, because a step is short.
OPERATION_ID_CHARS_MAX = 128
OPERATION_TTL_MS_MAX = 86_400_000

# Waiting for the end of a run: no longer than a client keeps a request open.
WAIT_S_MAX = 30
# Pauses between two looks at D1 while waiting; the last one repeats. With many that wait in this
# isolate they are longer: all of them together look some 67 times a second.
WAIT_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
WAIT_PAUSE_S_EACH = 0.015
# And as if this much of a run were read and sent in a second.
WAIT_BYTES_EACH_S = 25_000_000
# Who looks again so much later than it should is not waiting any more.
WAIT_LATE_S = 5
# Requests that may wait in an isolate at once.
WAITERS_MAX = 256
# Retry-After while a run is being executed; less if its lease ends sooner.
PENDING_RETRY_AFTER_S = 5
# Retry-After when the fence is closed or the database does not answer.
UNAVAILABLE_RETRY_AFTER_S = 5

# Pages of lists.
PAGE_ITEMS_DEFAULT = 100
PAGE_ITEMS_MAX = 200
# A cursor may hold a principal's id: 200 characters of four bytes each, in base64.
CURSOR_CHARS_MAX = 2048
# An inventory counts up to this: D1 bills the rows read, and a drain asks for the counts often.
COUNT_MAX = 1_000
# Aliases of a provisional subject.
ALIASES_MAX = 4
# Events that an integrity check reads at a time.
INTEGRITY_PAGE_ITEMS = 500
# A page ends here too, with one item at least: an isolate has 128 MB.
PAGE_BYTES_MAX = 4_194_304
# So much of a history is read in one trip: it is in the isolate several times over.
TRIP_BYTES_MAX = 1_048_576
# The canonical payload of one event. Its row also holds two hashes.
PAYLOAD_BYTES_MAX = 1_048_576

# Retention: runs are kept for a month; a key cannot be started again for a year.
RUN_RETENTION_DAYS_DEFAULT = 30
KEY_RETENTION_DAYS_DEFAULT = 365
RETENTION_DAYS_MAX = 36_500
# Rows purged in one transaction, which must end well before D1's 30 s.
PURGE_CHUNK_ROWS = 100
PURGE_ROWS_DEFAULT = 1_000
PURGE_ROWS_MAX = 10_000
# The cron's purge: 50 chunks of 12 statements, of the 1,000 that D1 takes an invocation.
PURGE_CRON_ROWS = 5_000

# Delivery bindings of one request, which is one transaction. A proof is evidence, so it is small.
BINDINGS_MAX = 50
APPROVAL_PROOF_BYTES_MAX = 16_384

# An operator's note, in characters.
NOTE_CHARS_MAX = 1_000

# A write that another one got ahead of tries again for so long, and with so many statements (D1
# takes 1,000 queries an invocation); then the caller gets CONTENDED. Pauses between two tries are
# random, up to a time that doubles from the least to the most; and that is as long as all that race
# in this isolate need one after the other.
RACE_MS = 5_000
RACE_STATEMENTS_MAX = 800
RACE_PAUSE_MS_MIN = 8
RACE_PAUSE_MS_MAX = 1_000
RACE_PAUSE_MS_EACH = 30

# A move: rows and bytes of a page (with one row at least), which is in the isolate several times
# over. A row may be twice as long in JSON. Pages that one request adds up: D1 takes 1,000 queries.
TRANSFER_PAGE_ROWS = 400
TRANSFER_PAGE_BYTES = 1_048_576
TRANSFER_BODY_BYTES_MAX = 8_388_608
TRANSFER_PAGES = 100
# Where a deployment has moved to.
URL_CHARS_MAX = 1_000
