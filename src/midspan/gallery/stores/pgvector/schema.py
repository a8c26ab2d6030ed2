"""The tables of a gallery in PostgreSQL: the same nouns as in a gallery file."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from midspan.errors import GalleryError
from midspan.gallery.records import Entry, State
from midspan.gallery.stores.pgvector.server import Server
from midspan.spaces import Metric, Space

if TYPE_CHECKING:
    from midspan.gallery.stores.pgvector.server import Connection

INDEX_FROM = 20_000  # vectors; comparing fewer of them is fast enough, and exact
INDEX_DIMS = {False: 2000, True: 4000}  # more dimensions HNSW does not take, of two bytes
PLAIN_BYTES = 7800  # longer vectors do not fit into a page and are stored aside

OPERATORS: dict[Metric, tuple[str, str]] = {  # distance, class of operators
    "cosine": ("<=>", "cosine_ops"),
    "l2": ("<->", "l2_ops"),
    "dot": ("<#>", "ip_ops"),
}

TABLES = """
CREATE TABLE {gallery} (
    one int PRIMARY KEY CHECK (one = 1),
    version bigint NOT NULL,
    live jsonb NOT NULL,
    target text,
    upgrade jsonb,
    settings jsonb NOT NULL
);
CREATE TABLE {spaces} (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint text NOT NULL UNIQUE,
    json text NOT NULL
);
CREATE TABLE {items} (
    item bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    uri text,
    payload jsonb NOT NULL,
    revision bigint NOT NULL,
    created float8 NOT NULL,
    changed float8 NOT NULL
);
CREATE TABLE {work} (
    item bigint PRIMARY KEY REFERENCES {items} ON DELETE CASCADE,
    priority float8 NOT NULL DEFAULT 0,
    due float8 NOT NULL DEFAULT 0,
    worker text,
    attempts int NOT NULL DEFAULT 0,
    failed boolean NOT NULL DEFAULT false,
    id text COLLATE "C",
    reason text NOT NULL DEFAULT '',
    moment float8 NOT NULL DEFAULT 0
);
CREATE INDEX ON {work} (priority DESC, item) WHERE NOT failed;
CREATE INDEX ON {work} (worker) WHERE worker IS NOT NULL;
CREATE INDEX ON {work} (id) WHERE failed;
CREATE TABLE {trail} (
    line bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    moment float8 NOT NULL,
    who text NOT NULL,
    what text NOT NULL,
    details jsonb NOT NULL
);
CREATE SEQUENCE {sequence};
"""


def exists(connection: Connection, server: Server) -> bool:
    row = connection.execute("SELECT to_regclass(%s)", (f'"{server.table}_gallery"',)).fetchone()
    return row is not None and row[0] is not None


def settings(connection: Connection, server: Server) -> dict[str, str] | None:
    """What the gallery was made with; None if there is none."""
    if not exists(connection, server):
        return None
    row = connection.execute(server.sql("SELECT settings::text FROM {gallery}")).fetchone()
    assert row is not None
    found: dict[str, str] = json.loads(row[0])
    return found


def create_tables(server: Server, state: State, *, entry: Entry) -> None:
    import psycopg

    with server.errors():
        connection = server.connect(vectors=False)
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            with connection.transaction():
                if exists(connection, server):
                    raise GalleryError(f"there is a gallery at {server.shown} already; open it")
                for statement in TABLES.split(";"):
                    if statement.strip():
                        connection.execute(server.sql(statement))
                connection.execute(
                    server.sql("INSERT INTO {gallery} VALUES (1, %s, %s, NULL, NULL, %s)"),
                    (state.version, json.dumps(state.live), json.dumps(server.place.settings)),
                )
                for space in state.spaces.values():
                    add_space(connection, server, space)
                add_line(connection, server, entry)
                connection.execute(server.sql("SELECT nextval('{sequence}')"))
        except (psycopg.errors.DuplicateTable, psycopg.errors.UniqueViolation) as error:
            raise GalleryError(f"there is a gallery at {server.shown} already; open it") from error
        finally:
            connection.close()


def add_space(connection: Connection, server: Server, space: Space) -> int:
    row = connection.execute(
        server.sql("INSERT INTO {spaces} (fingerprint, json) VALUES (%s, %s) RETURNING number"),
        (space.fingerprint, space.to_json()),
    ).fetchone()
    assert row is not None
    number = int(row[0])
    table, partitions = server.vectors(number), server.place.partitions
    connection.execute(
        server.sql(
            "CREATE TABLE {vectors} (item bigint PRIMARY KEY REFERENCES {items} ON DELETE CASCADE, "
            "vector vector({dim}) NOT NULL) {parts}",
            vectors=table,
            dim=space.dim,
            parts="PARTITION BY HASH (item)" if partitions else "",
        )
    )
    for part in range(partitions):
        connection.execute(
            f"CREATE TABLE {server.part(number, part)} PARTITION OF {table} "
            f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part})".encode()
        )
    if 4 * space.dim <= PLAIN_BYTES:  # in the row itself: read without a detour
        connection.execute(f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN".encode())
    return number


def drop_space(connection: Connection, server: Server, number: int) -> None:
    connection.execute(server.sql("DROP TABLE {vectors}", vectors=server.vectors(number)))
    connection.execute(server.sql("DELETE FROM {spaces} WHERE number = %s"), (number,))


def indexed(server: Server, column: str, dim: int) -> tuple[str, str]:
    """(expression that the index holds, prefix of its class of operators)."""
    return (f"({column}::halfvec({dim}))", "halfvec") if server.place.half else (column, "vector")


def build_index(server: Server, number: int, space: Space) -> None:
    """HNSW for a space that has grown large and has none. Searches and writes go on meanwhile.

    Each partition has its own: none of them needs the memory of the whole.
    """
    if space.dim > INDEX_DIMS[server.place.half]:
        return
    with server.asking() as connection:
        many = connection.execute(
            server.sql("SELECT 1 FROM {t} OFFSET %s LIMIT 1", t=server.vectors(number)),
            (INDEX_FROM,),
        ).fetchone()
        if many is None:
            return
        name = f"{server.table}_hnsw_{number}"
        if not server.place.partitions:
            _build(connection, server, name, server.vectors(number), space)
        for part in range(server.place.partitions):
            _build(connection, server, f"{name}_{part}", server.part(number, part), space)


def _build(connection: Connection, server: Server, name: str, table: str, space: Space) -> None:
    row = connection.execute(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f'"{name}"',)
    ).fetchone()
    if row is not None and row[0]:
        return
    if row is not None:  # an attempt that was interrupted
        connection.execute(f'DROP INDEX CONCURRENTLY "{name}"'.encode())
    expression, kind = indexed(server, "vector", space.dim)
    connection.execute(
        f'CREATE INDEX CONCURRENTLY "{name}" ON {table} '
        f"USING hnsw ({expression} {kind}_{OPERATORS[space.metric][1]})".encode()
    )


def add_line(connection: Connection, server: Server, entry: Entry) -> None:
    connection.execute(
        server.sql("INSERT INTO {trail} (moment, who, what, details) VALUES (%s, %s, %s, %s)"),
        (
            entry.when or time.time(),
            entry.who,
            entry.what,
            json.dumps(entry.details, ensure_ascii=False),
        ),
    )
