-- The facts of turns. docs/ledger.md says what each table holds, when it is written and how long it
-- is kept. Times are microseconds since 1970 in UTC, NULL for none. What a trigger or a check refuses
-- here, no version of the program may do by mistake.

-- One row per turn. It changes with the turn's state, and never again once it is settled.
CREATE TABLE turns (
  seq                  INTEGER PRIMARY KEY,
  ref                  TEXT NOT NULL UNIQUE CHECK (ref <> ''),
  identity             TEXT NOT NULL,
  agent                TEXT NOT NULL,
  binding              TEXT NOT NULL,
  binding_digest       TEXT NOT NULL,
  profile              TEXT NOT NULL,
  profile_generation   INTEGER NOT NULL,
  reserved_tokens      INTEGER NOT NULL CHECK (reserved_tokens BETWEEN 0 AND 9007199254740991),
  reserved_cost_micros INTEGER NOT NULL CHECK (reserved_cost_micros BETWEEN 0 AND 9007199254740991),
  reserved_wall_ms     INTEGER NOT NULL CHECK (reserved_wall_ms BETWEEN 0 AND 9007199254740991),
  reserved_steps       INTEGER NOT NULL CHECK (reserved_steps BETWEEN 0 AND 9007199254740991),
  deadline             INTEGER,
  reserved_at          INTEGER NOT NULL,
  state                TEXT NOT NULL CHECK (state IN ('reserved', 'dispatched', 'suspended', 'settled')),
  version              INTEGER NOT NULL CHECK (version >= 1),
  last_seq             INTEGER NOT NULL CHECK (last_seq >= 0),
  dispatched_at        INTEGER,
  updated_at           INTEGER NOT NULL,
  running              INTEGER,            -- the part whose stream is being made
  awaiting             TEXT,               -- a JSON array of the observations that are outstanding
  CHECK ((state IN ('reserved', 'dispatched')) = (running IS NOT NULL)),
  CHECK (state <> 'reserved' OR dispatched_at IS NULL),
  CHECK (state NOT IN ('dispatched', 'suspended') OR dispatched_at IS NOT NULL),
  CHECK (state <> 'suspended' OR awaiting IS NOT NULL),
  CHECK (state NOT IN ('reserved', 'settled') OR awaiting IS NULL)
) STRICT;

CREATE INDEX turns_open ON turns (seq) WHERE state <> 'settled';

CREATE TRIGGER turns_settled_for_good BEFORE UPDATE ON turns WHEN OLD.state = 'settled'
BEGIN SELECT RAISE(ABORT, 'a settled turn never changes'); END;

CREATE TRIGGER turns_change_one_by_one BEFORE UPDATE ON turns WHEN NEW.version <> OLD.version + 1
BEGIN SELECT RAISE(ABORT, 'a change makes the next version'); END;

CREATE TRIGGER turns_kept BEFORE DELETE ON turns WHEN OLD.state <> 'reserved'
BEGIN SELECT RAISE(ABORT, 'only a reserved turn is released'); END;

-- One row per settled turn: how it ended and what it costs.
CREATE TABLE outcomes (
  turn                INTEGER PRIMARY KEY REFERENCES turns (seq),
  ref                 TEXT NOT NULL,
  status              TEXT NOT NULL CHECK (status IN ('completed', 'refused', 'failed', 'cancelled', 'unknown')),
  reason              TEXT NOT NULL CHECK (reason <> ''),
  retryability        TEXT NOT NULL CHECK (retryability IN ('terminal', 'retryable', 'reconciliation-required')),
  charged_tokens      INTEGER NOT NULL CHECK (charged_tokens BETWEEN 0 AND 9007199254740991),
  charged_cost_micros INTEGER NOT NULL CHECK (charged_cost_micros BETWEEN 0 AND 9007199254740991),
  charged_wall_ms     INTEGER NOT NULL CHECK (charged_wall_ms BETWEEN 0 AND 9007199254740991),
  charged_steps       INTEGER NOT NULL CHECK (charged_steps BETWEEN 0 AND 9007199254740991),
  fidelity            TEXT NOT NULL CHECK (fidelity IN ('authoritative', 'host-measured', 'estimated', 'unavailable')),
  product             TEXT,
  product_digest      TEXT,
  at                  INTEGER NOT NULL,
  document            BLOB,
  CHECK ((status = 'completed') = (product IS NOT NULL)),
  CHECK ((product IS NULL) = (product_digest IS NULL)),
  CHECK ((status = 'unknown') = (retryability = 'reconciliation-required'))
) STRICT;

CREATE TRIGGER outcomes_of_settled BEFORE INSERT ON outcomes
WHEN (SELECT state FROM turns WHERE seq = NEW.turn) IS NOT 'settled'
BEGIN SELECT RAISE(ABORT, 'only a settled turn has an outcome'); END;

CREATE TRIGGER outcomes_for_good BEFORE UPDATE ON outcomes
BEGIN SELECT RAISE(ABORT, 'an outcome never changes'); END;

CREATE TRIGGER outcomes_kept BEFORE DELETE ON outcomes
BEGIN SELECT RAISE(ABORT, 'an outcome is kept for good'); END;

-- One row per request of a turn.
CREATE TABLE parts (
  seq        INTEGER PRIMARY KEY,
  key        TEXT NOT NULL UNIQUE CHECK (key <> ''),
  turn       INTEGER NOT NULL REFERENCES turns (seq),
  digest     TEXT NOT NULL,
  mode       TEXT NOT NULL CHECK (mode IN ('start', 'continue')),
  answers    TEXT,
  started_at INTEGER NOT NULL,
  CHECK ((mode = 'continue') = (answers IS NOT NULL))
) STRICT;

CREATE INDEX parts_turn ON parts (turn);

-- One row per request whose stream has ended, with the stream's bytes until they are swept.
CREATE TABLE ends (
  part     INTEGER PRIMARY KEY REFERENCES parts (seq),
  at       INTEGER NOT NULL,
  status   TEXT,
  reason   TEXT,
  last_seq INTEGER NOT NULL,
  size     INTEGER NOT NULL CHECK (size >= 0),
  keeping  TEXT NOT NULL CHECK (keeping IN ('none', 'kept', 'swept', 'oversized')),
  expires  INTEGER,
  lines    BLOB,
  CHECK ((keeping = 'kept') = (lines IS NOT NULL)),
  CHECK ((status IS NULL) = (reason IS NULL))
) STRICT;

CREATE INDEX ends_expiring ON ends (expires) WHERE keeping = 'kept' AND expires IS NOT NULL;

-- One row per completed turn, with the content until it is swept.
CREATE TABLE products (
  turn           INTEGER PRIMARY KEY REFERENCES turns (seq),
  ref            TEXT NOT NULL UNIQUE,
  digest         TEXT NOT NULL,
  content_digest TEXT NOT NULL,
  size           INTEGER NOT NULL CHECK (size >= 0),
  at             INTEGER NOT NULL,
  keeping        TEXT NOT NULL CHECK (keeping IN ('kept', 'swept')),
  expires        INTEGER,
  document       BLOB NOT NULL,
  content        BLOB,
  CHECK ((keeping = 'kept') = (content IS NOT NULL))
) STRICT;

CREATE INDEX products_expiring ON products (expires) WHERE keeping = 'kept' AND expires IS NOT NULL;

-- One row per binding that ever had a session.
CREATE TABLE sessions (
  binding            TEXT PRIMARY KEY,
  version            INTEGER NOT NULL CHECK (version >= 1),
  agent              TEXT NOT NULL,
  agent_binding      TEXT NOT NULL,
  binding_digest     TEXT NOT NULL,
  profile_generation INTEGER NOT NULL,
  epoch              TEXT NOT NULL,
  open               INTEGER NOT NULL CHECK (open IN (0, 1)),
  opened_at          INTEGER,
  updated_at         INTEGER NOT NULL,
  closed_at          INTEGER,
  vals               BLOB,
  CHECK (open = 1 OR vals IS NULL),
  CHECK ((open = 1) = (closed_at IS NULL))
) STRICT;

-- One row per profile and binding: what is admitted, withdrawn or not.
CREATE TABLE admissions (
  kind         TEXT NOT NULL CHECK (kind IN ('profile', 'binding')),
  ref          TEXT NOT NULL,
  generation   INTEGER NOT NULL,
  digest       TEXT NOT NULL,
  source       TEXT NOT NULL CHECK (source IN ('operator', 'directory')),
  version      INTEGER NOT NULL CHECK (version >= 1),
  admitted_at  INTEGER NOT NULL,
  withdrawn_at INTEGER,
  document     BLOB NOT NULL,
  PRIMARY KEY (kind, ref)
) STRICT;

CREATE TRIGGER admissions_kept BEFORE DELETE ON admissions
BEGIN SELECT RAISE(ABORT, 'what was admitted is remembered for good'); END;

-- One row per document that was replaced.
CREATE TABLE superseded (
  kind       TEXT NOT NULL CHECK (kind IN ('profile', 'binding')),
  ref        TEXT NOT NULL,
  digest     TEXT NOT NULL,
  generation INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  PRIMARY KEY (kind, ref, digest)
) STRICT, WITHOUT ROWID;

-- One row per remembered Keiki turn id.
CREATE TABLE claims (
  seq      INTEGER PRIMARY KEY,
  agent    TEXT NOT NULL,
  turn     TEXT NOT NULL,
  state    TEXT NOT NULL CHECK (state IN ('running', 'ended', 'lost')),
  at       INTEGER NOT NULL,
  ended_at INTEGER,
  expires  INTEGER NOT NULL,
  UNIQUE (agent, turn),
  CHECK ((state = 'running') = (ended_at IS NULL))
) STRICT;

CREATE INDEX claims_expiring ON claims (expires);
CREATE INDEX claims_running ON claims (seq) WHERE state = 'running';
CREATE INDEX claims_idle ON claims (seq) WHERE state <> 'running';
