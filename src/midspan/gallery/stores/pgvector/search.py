"""Search: PostgreSQL finds candidates in one statement, their scores are made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan.gallery.items import Hit
from midspan.gallery.records import Query, State
from midspan.gallery.scores import pair_scores, prepare
from midspan.gallery.stores.pgvector.rows import as_row, not_in, parse
from midspan.gallery.stores.pgvector.schema import OPERATORS, indexed
from midspan.gallery.stores.pgvector.server import Server
from midspan.gallery.stores.pgvector.where import where
from midspan.spaces import FloatArray, Metric, Space

if TYPE_CHECKING:
    from midspan.gallery.stores.pgvector.server import Connection

EXTRA = 16  # candidates beyond k, for equal scores
TOLERANCE = 1e-5  # by which the server's float32 distances may be off, relatively

Rows = list[
    tuple[str, str | None, str, Any, float, int]
]  # id, uri, payload, vector, distance, space


def search(
    connection: Connection, server: Server, query: Query, state: State, numbers: dict[str, int]
) -> list[list[Hit]]:
    spaces = {numbers[fingerprint]: state.spaces[fingerprint] for fingerprint in query.among}
    metric = state.spaces[query.among[0]].metric
    results = []
    for vector in query.vectors:
        fetch = query.k + EXTRA
        while True:
            statement, values = _statement(
                server, vector, query, metric=metric, numbers=numbers, fetch=fetch
            )
            rows: Rows = connection.execute(statement, values, binary=True).fetchall()
            hits = _hits(rows, vector, spaces, metric)
            if _complete(rows, hits, vector, k=query.k, fetch=fetch, metric=metric):
                break
            fetch *= 4
        results.append(
            [
                hit
                for hit in hits[: query.k]
                if query.threshold is None or hit.score >= query.threshold
            ]
        )
    return results


def _statement(
    server: Server,
    vector: FloatArray,
    query: Query,
    *,
    metric: Metric,
    numbers: dict[str, int],
    fetch: int,
) -> tuple[bytes, list[Any]]:
    """One part for each space: its vectors whose item has none in a better space."""
    operator, dim = OPERATORS[metric][0], query.vectors.shape[1]
    distance = f"v.vector {operator} %s"
    order = f"({distance}) + 0.0"  # no index knows the sum
    if not query.exact:
        expression, kind = indexed(server, "v.vector", dim)
        order = f"{expression} {operator} %s::{kind}({dim})"
    condition, conditions = ("true", []) if query.filter is None else where(query.filter)
    items = "" if query.filter is None else "JOIN {items} AS i USING (item)"
    parts, values = [], list[Any]()
    for fingerprint in query.among:
        better = [numbers[other] for other in query.live[: query.live.index(fingerprint)]]
        parts.append(
            f"(SELECT v.item, v.vector, {distance} AS distance, {numbers[fingerprint]} AS space "
            f"FROM {server.vectors(numbers[fingerprint])} AS v {items} "
            f"WHERE {not_in(server, better)} AND {condition} ORDER BY {order} LIMIT %s)"
        )
        values += [vector, *conditions, vector, fetch]
    statement = (
        "SELECT i.id, i.uri, i.payload::text, c.vector, c.distance, c.space "
        f"FROM ({' UNION ALL '.join(parts)}) AS c JOIN {{items}} AS i USING (item)"
    )
    return server.sql(statement), values


def _hits(rows: Rows, vector: FloatArray, spaces: Mapping[int, Space], metric: Metric) -> list[Hit]:
    """With true scores, best first, equal ones by id."""
    if not rows:
        return []
    gallery = np.array([as_row(row[3]) for row in rows], dtype=np.float32)
    query = prepare(vector[None], metric=metric)[0]
    scores = pair_scores(query, prepare(gallery, metric=metric), metric=metric)
    hits = [
        Hit(id, score, spaces[space], uri, parse(payload))
        for (id, uri, payload, _, _, space), score in zip(rows, scores.tolist(), strict=True)
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))


def _complete(
    rows: Rows, hits: list[Hit], vector: FloatArray, *, k: int, fetch: int, metric: Metric
) -> bool:
    """No vector that a part left out, being farther than its last, can be among the k best."""
    last: dict[int, list[float]] = {}
    for *_, distance, space in rows:
        last.setdefault(space, []).append(distance)
    cuts = [max(distances) for distances in last.values() if len(distances) >= fetch]
    if not cuts:
        return True
    if len(hits) < k:
        return False
    cut, worst = min(cuts), hits[k - 1].score
    length = float(np.linalg.norm(vector))
    if metric == "l2":
        return -(cut**2) < worst - TOLERANCE * (abs(worst) + cut**2)
    if metric == "dot":
        return -cut < worst - TOLERANCE * max(abs(worst), abs(cut), length)
    return 1 - cut < worst - TOLERANCE
