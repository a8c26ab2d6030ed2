"""From galleries without a catalogue (SQLite files of format 1, PostgreSQL alike) to the first one.

Items keep their numbers as rows and vectors stay where they are; only a column is renamed. The rest
is created from what exists: `stored` from the tables of vectors, `audit` from `trail`. New
galleries are created at the last revision and never come here.
"""

from __future__ import annotations

import json

from alembic import op
from sqlalchemy import Connection, text

from midspan.errors import FormatError
from midspan.gallery.catalogue.tables import Tables

revision = "0001"
down_revision = None

GALLERY = """
CREATE TABLE "{p}gallery" (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    version {int} NOT NULL DEFAULT 0,
    live TEXT NOT NULL,
    target TEXT,
    upgrade TEXT,
    settings TEXT NOT NULL DEFAULT '{{}}',
    next_space {int} NOT NULL DEFAULT 1,
    next_row {int} NOT NULL DEFAULT 1,
    sequence {int} NOT NULL DEFAULT 0
);
"""
NEW = """
CREATE TABLE "{p}stored" (
    space {int} NOT NULL, "row" {int} NOT NULL, PRIMARY KEY (space, "row")
) {without_rowid};
CREATE TABLE "{p}work" (
    "row" {int} NOT NULL PRIMARY KEY,
    priority {float} NOT NULL DEFAULT 0,
    due {float} NOT NULL DEFAULT 0,
    worker TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    failed BOOLEAN NOT NULL DEFAULT {false},
    reason TEXT NOT NULL DEFAULT '',
    moment {float} NOT NULL DEFAULT 0
);
CREATE INDEX "{p}work_next" ON "{p}work" (priority DESC, "row") WHERE failed = {false};
CREATE INDEX "{p}work_worker" ON "{p}work" (worker) WHERE worker IS NOT NULL;
CREATE INDEX "{p}work_failed" ON "{p}work" ("row") WHERE failed = {true};
CREATE TABLE "{p}audit" (
    line {serial},
    moment {float} NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX "{p}audit_what" ON "{p}audit" (what);
CREATE TABLE "{p}blobs" (digest TEXT NOT NULL PRIMARY KEY, kind TEXT NOT NULL, bytes {bytes});
CREATE TABLE "{p}outbox" (
    sequence {serial}, kind TEXT NOT NULL, "row" {int} NOT NULL, due {float} NOT NULL
);
CREATE INDEX "{p}outbox_row" ON "{p}outbox" ("row");
CREATE INDEX "{p}outbox_due" ON "{p}outbox" (due);
ALTER TABLE "{p}spaces" ADD COLUMN index_failure TEXT;
ALTER TABLE "{p}spaces" ADD COLUMN index_failed_at {float};
ALTER TABLE "{p}spaces" ADD COLUMN index_attempts {int} NOT NULL DEFAULT 0;
"""
WORDS = {
    "sqlite": {
        "int": "INTEGER",
        "float": "DOUBLE",
        "serial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
        "bytes": "BLOB NOT NULL",
        "false": "0",
        "true": "1",
        "without_rowid": "WITHOUT ROWID",
    },
    "postgresql": {
        "int": "BIGINT",
        "float": "DOUBLE PRECISION",
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "bytes": "BYTEA NOT NULL",
        "false": "false",
        "true": "true",
        "without_rowid": "",
    },
}


def upgrade() -> None:
    """In the transaction of `database.migrate`: all of it or nothing."""
    config = op.get_context().config
    assert config is not None
    tables: Tables = config.attributes["tables"]
    run = _Runner(op.get_bind(), tables)
    if not run.exists("trail"):
        shown = config.attributes["shown"]
        raise FormatError(
            f"{shown}: expected a gallery of midspan, got other tables or a damaged one"
        )
    if tables.dialect == "sqlite":
        _sqlite(run)
    else:
        _postgresql(run)


def downgrade() -> None:
    """A gallery of this revision cannot be read by the versions before it."""
    raise NotImplementedError


class _Runner:
    def __init__(self, connection: Connection, tables: Tables) -> None:
        self.connection, self.tables = connection, tables
        self._words = {"p": tables.prefix, **WORDS[tables.dialect]}

    def __call__(self, statements: str, **values: object) -> None:
        for statement in statements.format(**self._words).split(";"):
            if statement.strip():
                self.connection.execute(text(statement), values)

    def one(self, statement: str, **values: object) -> object:
        return self.connection.execute(text(statement.format(**self._words)), values).scalar()

    def exists(self, table: str) -> bool:
        name = f"{self.tables.prefix}{table}"
        if self.tables.dialect == "sqlite":
            return self.one("SELECT 1 FROM sqlite_master WHERE name = :n", n=name) is not None
        return self.one("SELECT to_regclass(:n)", n=f'"{name}"') is not None

    def numbers(self) -> list[int]:
        statement = 'SELECT number FROM "{p}spaces"'.format(**self._words)
        return [int(number) for (number,) in self.connection.execute(text(statement))]

    def stored_and_work(self) -> None:
        """From the tables of vectors, whose column is renamed, and from the former work list."""
        for number in self.numbers():
            self(f'ALTER TABLE "{{p}}vectors_{number}" RENAME COLUMN item TO "row"')
            self(f'INSERT INTO "{{p}}stored" SELECT {number}, "row" FROM "{{p}}vectors_{number}"')
        self(
            'INSERT INTO "{p}work" '
            '("row", priority, due, worker, attempts, failed, reason, moment) '
            "SELECT item, priority, due, worker, attempts, failed, reason, moment "
            'FROM "{p}old_work"'
        )
        self('DROP TABLE "{p}old_work"')


def _sqlite(run: _Runner) -> None:
    quantise = run.exists("settings") and run.one(
        "SELECT value FROM settings WHERE name = 'quantise'"
    )
    settings = {"engine": "embedded", **({"quantise": quantise} if quantise else {})}
    run("ALTER TABLE work RENAME TO old_work; DROP INDEX IF EXISTS work_failed")
    run("DROP INDEX IF EXISTS work_worker; DROP INDEX IF EXISTS work_next")
    run("ALTER TABLE gallery RENAME TO old_gallery;" + GALLERY + NEW)
    last = "coalesce((SELECT seq FROM sqlite_sequence WHERE name = '{}'), 0) + 1"
    run(
        "INSERT INTO gallery SELECT 1, version, live, target, upgrade, :settings, "
        f"{last.format('spaces')}, {last.format('items')}, sequence FROM old_gallery",
        settings=json.dumps(settings),
    )
    run('ALTER TABLE items RENAME COLUMN item TO "row"')
    run.stored_and_work()
    run(
        "INSERT INTO audit (line, moment, who, what, details) "
        "SELECT line, moment, who, what, details FROM trail ORDER BY line"
    )
    run("DROP TABLE trail; DROP TABLE old_gallery; DROP TABLE IF EXISTS settings; DROP TABLE gone")


def _postgresql(run: _Runner) -> None:
    raw = run.one('SELECT settings::text FROM "{p}gallery"')
    settings = {"engine": "postgresql", **json.loads(str(raw))}
    spaces = run.one('SELECT coalesce(max(number), 0) FROM "{p}spaces"')
    identity = run.one("SELECT pg_get_serial_sequence('\"{p}spaces\"', 'number')")
    next_space = max(int(str(spaces)), int(str(run.one(f"SELECT last_value FROM {identity}")))) + 1
    identity = run.one("SELECT pg_get_serial_sequence('\"{p}items\"', 'item')")
    next_row = int(str(run.one(f"SELECT last_value FROM {identity}"))) + 1
    run('ALTER TABLE "{p}work" RENAME TO "{p}old_work"')
    run('ALTER TABLE "{p}gallery" RENAME TO "{p}old_gallery"')
    run('ALTER INDEX "{p}work_pkey" RENAME TO "{p}old_work_pkey"')
    run('ALTER INDEX "{p}gallery_pkey" RENAME TO "{p}old_gallery_pkey"')
    _free_index_names(run)
    run(GALLERY + NEW)
    run(f'CREATE SEQUENCE "{{p}}row_numbers" START {next_row}')
    run(
        'INSERT INTO "{p}gallery" SELECT 1, version, live::text, target, upgrade::text, :settings, '
        ':next, 1, 0 FROM "{p}old_gallery"',
        settings=json.dumps(settings),
        next=next_space,
    )
    run('ALTER TABLE "{p}items" ALTER COLUMN item DROP IDENTITY')
    run('ALTER TABLE "{p}items" RENAME COLUMN item TO "row"')
    run('ALTER TABLE "{p}items" ADD COLUMN sequence BIGINT NOT NULL DEFAULT 0')
    run('ALTER TABLE "{p}spaces" ALTER COLUMN number DROP IDENTITY')
    run('ALTER TABLE "{p}spaces" ALTER COLUMN number TYPE BIGINT')
    run.stored_and_work()
    for number in run.numbers():
        _drop_reference(run, number)
    run(
        'INSERT INTO "{p}audit" (moment, who, what, details) '
        'SELECT moment, who, what, details::text FROM "{p}trail" ORDER BY line'
    )
    run('DROP TABLE "{p}trail"; DROP TABLE "{p}old_gallery"')


def _free_index_names(run: _Runner) -> None:
    """The former work list's indices were named by the server."""
    names = run.connection.execute(
        text("SELECT indexname FROM pg_indexes WHERE tablename = :table"),
        {"table": f"{run.tables.prefix}old_work"},
    ).scalars()
    for name in list(names):
        if not name.endswith("old_work_pkey"):
            run.connection.execute(text(f'DROP INDEX "{name}"'))


def _drop_reference(run: _Runner, number: int) -> None:
    """Vectors are deleted with their item by the engine: a check of each row costs a look-up."""
    table = f"{run.tables.prefix}vectors_{number}"
    names = run.connection.execute(
        text(
            "SELECT conname FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 "
            "AND conrelid = to_regclass(:table)"
        ),
        {"table": f'"{table}"'},
    ).scalars()
    for name in list(names):
        run.connection.execute(text(f'ALTER TABLE "{table}" DROP CONSTRAINT "{name}"'))
