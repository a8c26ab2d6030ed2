"""A table of somebody else in PostgreSQL: what it is made of, and whether a gallery can read it.

Nothing is written here. Every refusal says what was expected and what to do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, get_args

from midspan.errors import GalleryError
from midspan.gallery.adoption.binding import TableBinding, VectorIndex, quoted
from midspan.gallery.adoption.survey import GRAPH_BYTES, ROW_BYTES, UNIT, Survey
from midspan.gallery.catalogue.database import Database, open_database
from midspan.gallery.location import Location
from midspan.gallery.records import ID_BYTES
from midspan.spaces import Metric

ID_TYPES = {"int2": "bigint", "int4": "bigint", "int8": "bigint", "text": "text",
            "varchar": "text", "uuid": "uuid"}  # fmt: skip
METRICS: dict[str, Metric] = {"cosine_ops": "cosine", "l2_ops": "l2", "ip_ops": "dot"}
OLDEST = (0, 8)
KINDS = {"v": "a view", "m": "a materialised view", "p": "a partitioned table",
         "f": "a foreign table", "S": "a sequence", "c": "a type"}  # fmt: skip
CAST = re.compile(r"::(?:[\w\"]+\.)?(halfvec|vector)\((\d+)\)\)*$")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """What the user names: columns of the table."""

    id: str
    vector: str
    uri: str | None = None
    payload: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignTable:
    binding: TableBinding
    dim: int | None  # None: the column does not say; its vectors may
    metric: Metric | None  # of its index; None: there is none
    index: VectorIndex | None


def find_table(database: Database, name: str, columns: TableColumns, *, shown: str) -> ForeignTable:
    """Refuses what cannot be read in place."""
    where = f"{shown}: table {name!r}"
    _check_extension(database, shown=shown)
    oid, schema, table, kind, child, temporary = _relation(database, name, where)
    if kind != "r" or child or temporary:
        what = "a partition or a child" if child else KINDS.get(kind, "a temporary table")
        raise GalleryError(
            f"{where} is {what}; expected an ordinary table. Adopt the table that the application "
            "writes to"
        )
    types = _types(database, oid)
    for column in (columns.id, columns.vector, columns.uri, *columns.payload):
        if column is not None and column not in types:
            raise GalleryError(
                f"{where} has no column {column!r}; it has {', '.join(sorted(types))}"
            )
    _check_payload(columns, where)
    id_type = _check_id(database, oid, columns.id, types, where)
    vector_type, dim = _check_vector(columns.vector, types, where)
    _check_rights(database, oid, where)
    index, metric = vector_index(database, oid, columns.vector, vector_type)
    binding = TableBinding(
        schema=schema,
        table=table,
        id=columns.id,
        id_type=id_type,
        vector=columns.vector,
        vector_type=vector_type,
        uri=columns.uri,
        payload=columns.payload,
    )
    return ForeignTable(binding, dim, metric, index)


def _check_extension(database: Database, *, shown: str) -> None:
    versions = database.ask("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    version = versions[0][0] if versions else "none"
    if not versions or tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise GalleryError(
            f"{shown}: expected pgvector {'.'.join(map(str, OLDEST))} or newer in this database, "
            f"got {version}; run ALTER EXTENSION vector UPDATE"
        )


def _relation(database: Database, name: str, where: str) -> tuple[Any, ...]:
    schema, dot, table = name.rpartition(".")
    named = "to_regclass(quote_ident(%s))" if not dot else (
        "to_regclass(quote_ident(%s) || '.' || quote_ident(%s))"
    )  # fmt: skip
    statement = (
        "SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relispartition OR EXISTS "
        "(SELECT 1 FROM pg_inherits WHERE inhrelid = c.oid OR inhparent = c.oid), "
        "c.relpersistence = 't' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        f"WHERE c.oid = {named}"
    )
    relations = database.ask(statement, (schema, table) if dot else (name,))
    if not relations:  # a name with a dot in it
        relations = database.ask(statement.replace(named, "to_regclass(quote_ident(%s))"), (name,))
    if not relations:
        raise GalleryError(
            f"{where} is not there; expected NAME or SCHEMA.NAME of a table in this database"
        )
    return relations[0]


def _types(database: Database, oid: int) -> dict[str, tuple[str, int, bool]]:
    """(type, its modifier, NOT NULL) by column."""
    columns = database.ask(
        "SELECT a.attname, t.typname, a.atttypmod, a.attnotnull FROM pg_attribute a JOIN pg_type t "
        "ON t.oid = a.atttypid WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped",
        (oid,),
    )
    return {name: rest for name, *rest in columns}  # type: ignore[misc]


def _check_payload(columns: TableColumns, where: str) -> None:
    for name in columns.payload:
        if columns.payload.count(name) > 1 or name == columns.vector:
            raise GalleryError(
                f"{where}: `payload` names {name!r} twice, or the vectors themselves; leave it out"
            )


def _check_id(
    database: Database, oid: int, column: str, types: dict[str, tuple[str, int, bool]], where: str
) -> str:
    kind, _, not_null = types[column]
    if kind not in ID_TYPES:
        raise GalleryError(
            f"{where}: the ids in {column!r} are {kind}; expected one of {', '.join(ID_TYPES)}"
        )
    unique = database.ask(
        "SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = "
        "i.indkey[0] WHERE i.indrelid = %s AND a.attname = %s AND i.indisunique AND i.indisvalid "
        "AND i.indimmediate AND i.indnkeyatts = 1 AND i.indpred IS NULL AND i.indexprs IS NULL",
        (oid, column),
    )
    if not unique or not not_null:
        raise GalleryError(
            f"{where}: {column!r} is no primary key; expected a column that is unique and NOT "
            f"NULL. Name it with `id`, or add one: ALTER TABLE … ADD PRIMARY KEY"
        )
    return ID_TYPES[kind]


def _check_vector(
    column: str, types: dict[str, tuple[str, int, bool]], where: str
) -> tuple[str, int | None]:
    kind, modifier, _ = types[column]
    if kind not in ("vector", "halfvec"):
        raise GalleryError(
            f"{where}: the vectors in {column!r} are of type {kind}; expected vector or halfvec of "
            f"pgvector. Convert them first: ALTER TABLE … ALTER COLUMN … TYPE vector(DIM) USING …"
        )
    return kind, None if modifier < 0 else modifier


def _check_rights(database: Database, oid: int, where: str) -> None:
    ((reads, triggers, creates, hidden, who),) = database.ask(
        "SELECT has_table_privilege(%s::oid, 'SELECT'), has_table_privilege(%s::oid, 'TRIGGER'), "
        "has_schema_privilege(current_schema(), 'CREATE'), row_security_active(%s::oid), "
        "current_user",
        (oid, oid, oid),
    )
    lacking = [
        right
        for right, there in (
            ("SELECT on the table", reads),
            ("TRIGGER on the table", triggers),
            ("CREATE in the schema of the gallery's tables", creates),
        )
        if not there
    ]
    if lacking:
        raise GalleryError(f"{where}: {who} lacks {' and '.join(lacking)}; grant it, then repeat")
    if hidden:
        raise GalleryError(
            f"{where} hides rows from {who} by row security; expected a role that sees all of them "
            "(BYPASSRLS)"
        )


def vector_index(
    database: Database, oid: int, column: str, vector_type: str
) -> tuple[VectorIndex | None, Metric | None]:
    """The index on the vectors that searches can use: over all rows, of a metric that we know."""
    indexes = database.ask(
        "SELECT c.relname, am.amname, o.opcname, i.indisvalid, pg_get_indexdef(c.oid, 1, true), "
        "a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid "
        "= c.relam JOIN pg_opclass o ON o.oid = i.indclass[0] LEFT JOIN pg_attribute a ON "
        "a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND i.indkey[0] > 0 "
        "WHERE i.indrelid = %s AND am.amname IN ('hnsw', 'ivfflat') AND i.indpred IS NULL "
        "ORDER BY NOT i.indisvalid, am.amname, c.relname",
        (oid,),
    )
    for name, method, operators, whole, definition, attribute in indexes:
        kind, _, metric = operators.partition("_")
        plain = attribute == column
        cast = attribute is None and CAST.search(definition) and column in definition
        if metric in METRICS and kind in ("vector", "halfvec") and (plain or cast):
            if plain and kind != vector_type:
                continue
            return VectorIndex(name, method, kind, whole), METRICS[metric]
    return None, None


def sample_dims(database: Database, table: ForeignTable) -> Sequence[tuple[int, int]]:
    """(dim, how many vectors), most first."""
    column = f'"{table.binding.vector}"'
    counted = database.ask(
        f"SELECT vector_dims({column}), count(*) FROM {table.binding.relation} "
        f"WHERE {column} IS NOT NULL GROUP BY 1 ORDER BY 2 DESC LIMIT 5"
    )
    return [(int(dim), int(count)) for dim, count in counted]


# ---- the dry run over a table in PostgreSQL: one pass, in one statement, in parallel if it likes -

FILL_RATE = 8_000.0  # rows a second: benchmarks/adoption.py on two busy cores


def survey_table(
    location: Location, table: str, columns: TableColumns, *, metric: Metric | None = None
) -> Survey:
    """Reads every row of the table; writes nothing."""
    place = location.catalogue
    if not place.in_postgresql or location.scheme != "postgresql":
        raise GalleryError(
            f"{location.shown}: a table is adopted by a gallery in the same database, whose tables "
            "stand next to it; expected postgresql://…/DATABASE?table=NAME"
        )
    with closing(open_database(place, shown=location.shown)) as database:
        foreign = find_table(database, table, columns, shown=location.shown)
        return look_at(database, foreign, metric=metric, shown=location.shown)


def chosen_metric(table: ForeignTable, metric: Metric | None) -> tuple[Metric, str]:
    """(metric, where it comes from)."""
    if metric is not None:
        if metric not in get_args(Metric):
            raise GalleryError(f"metric {metric!r}; expected one of {', '.join(get_args(Metric))}")
        if table.metric is not None and table.metric != metric:
            return metric, f"named; the index compares by {table.metric} and serves no search"
        return metric, "named"
    if table.metric is not None:
        return table.metric, "of its index"
    return "cosine", "default: there is no index that says another one"


def look_at(
    database: Database, table: ForeignTable, *, metric: Metric | None, shown: str
) -> Survey:
    started = time.perf_counter()
    dim, problems = _dim(database, table, shown)
    binding = table.binding
    kind, where = chosen_metric(table, metric)
    vector, id = quoted(binding.vector), f"{quoted(binding.id)}::text"
    norm = "vector_norm" if binding.vector_type == "vector" else "l2_norm"
    sent = "vector_send" if binding.vector_type == "vector" else "halfvec_send"
    control = r"'[\u0001-\u001f\u007f-\u009f]'"
    ((rows, without, zero, lengths, distinct, bad, texts),) = database.ask(
        f"SELECT count(*), count(*) FILTER (WHERE n IS NULL), count(*) FILTER (WHERE n = 0), "
        f"count(*) FILTER (WHERE abs(n - 1) > {UNIT}), count(DISTINCT digest), "
        f"count(*) FILTER (WHERE octet_length(id) NOT BETWEEN 1 AND {ID_BYTES} OR id ~ {control}), "
        f"coalesce(avg(octet_length(id)), 0)::float8 FROM (SELECT {id} AS id, {norm}({vector}) "
        f"AS n, md5({sent}({vector}))::uuid AS digest FROM {binding.relation}) AS looked"
    )
    if bad:
        problems.append(
            f"{bad:,} ids are empty, longer than {ID_BYTES} bytes or hold control characters: "
            "these rows would not be in the gallery"
        )
    if zero and kind == "cosine":
        problems.append(
            f"{zero:,} vectors are zero, which cosine cannot compare: these items would be in the "
            "gallery without a vector until an upgrade embeds them"
        )
    index = table.index
    serves = index is not None and index.whole and table.metric == kind
    named = f"{index.name} ({index.method}, {table.metric})" if index is not None else None
    if index is not None and not serves:
        problems.append(
            f"the index {index.name} serves no search: not complete, or of {table.metric}"
        )
    own = rows * (ROW_BYTES + 2 * texts + 90)
    return Survey(
        source=f"{shown}: {binding.shown}",
        rows=rows,
        dim=dim,
        metric=kind,
        metric_from=where,
        without=without,
        zero=zero,
        unusable=0,  # pgvector refuses them
        duplicates=rows - without - distinct,
        not_normalised=lengths,
        bad_ids=bad,
        index=named,
        in_place=True,
        own_bytes=int(own),
        new_space_bytes=rows * (2 * 4 * dim + GRAPH_BYTES + 40),
        seconds=rows / FILL_RATE,
        looked_seconds=time.perf_counter() - started,
        problems=tuple(problems),
    )


def _dim(database: Database, table: ForeignTable, shown: str) -> tuple[int, list[str]]:
    if table.dim is not None:
        return table.dim, []
    dims, binding = sample_dims(database, table), table.binding
    if not dims:
        raise GalleryError(
            f"{shown}: {binding.shown} holds no vector and its column does not say of how many "
            f"dimensions they are; declare it: ALTER TABLE … ALTER COLUMN … TYPE vector(DIM)"
        )
    if len(dims) > 1:
        counts = ", ".join(f"{count:,} of {dim}-d" for dim, count in dims)
        raise GalleryError(
            f"{shown}: {binding.shown} mixes dimensions ({counts}); expected vectors of one model "
            "in one column. Move the others elsewhere first"
        )
    return dims[0][0], [
        f"the column {binding.vector} does not declare its dimension; vectors of another one that "
        "the application writes later count as missing"
    ]
