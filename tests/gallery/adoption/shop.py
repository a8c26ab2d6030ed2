"""A shop's own table in PostgreSQL, as an application would have made it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from midspan.gallery import Gallery
from midspan.gallery.adoption.postgres_adopt import adopt_table
from midspan.gallery.adoption.postgres_table import TableColumns
from midspan.spaces import FloatArray
from tests.gallery.postgres import Postgres
from tests.gallery.samples import DIM, OLD, embed

COLUMNS = TableColumns(id="id", vector="embedding", uri="image_url", payload=("brand", "price"))


def text(vector: FloatArray) -> str:
    return "[" + ",".join(map(repr, np.asarray(vector).tolist())) + "]"


def vector_of(key: object, *, seed: int = 0) -> str:
    return text(embed([str(key)], OLD, seed=seed).vectors[0])


class Shop:
    """Everything here is what the application itself does, on a connection of its own."""

    def __init__(self, postgres: Postgres, *, id: str = "bigint", vector: str = f"vector({DIM})"):
        self.postgres, self.name = postgres, "p" + uuid.uuid4().hex[:10]
        self.gallery_name = "g" + uuid.uuid4().hex[:10]
        self.connection = psycopg.connect(postgres.url(), autocommit=True)
        self.run("CREATE EXTENSION IF NOT EXISTS vector")
        self.run(
            f"CREATE TABLE {self.name} (id {id} PRIMARY KEY, embedding {vector}, image_url text, "
            "brand text, price numeric, stock int)"
        )

    @property
    def location(self) -> str:
        return self.postgres.location(self.gallery_name)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def insert(self, *keys: Any, seed: int = 0, brand: str = "acme") -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {self.name} VALUES (%s, %s, %s, %s, 5, 1)",
                [(key, vector_of(key, seed=seed), f"img/{key}.jpg", brand) for key in keys],
            )

    def change(self, key: Any, *, seed: int) -> None:
        self.run(
            f"UPDATE {self.name} SET embedding = %s WHERE id = %s", vector_of(key, seed=seed), key
        )

    def delete(self, *keys: Any) -> None:
        self.run(f"DELETE FROM {self.name} WHERE id = ANY(%s)", list(keys))

    def index(self, operators: str = "vector_cosine_ops", method: str = "hnsw") -> None:
        self.run(f"CREATE INDEX ON {self.name} USING {method} (embedding {operators})")

    def adopt(self, columns: TableColumns = COLUMNS, **settings: Any) -> Gallery:
        space = settings.pop("space", OLD)
        return adopt_table(
            self.location, self.name, columns, space_name="old", space=space, **settings
        )

    def leftovers(self) -> list[str]:
        """What a gallery left in the database."""
        found = self.run(
            "SELECT relname FROM pg_class WHERE relname LIKE %s UNION ALL "
            "SELECT proname FROM pg_proc WHERE proname LIKE %s UNION ALL "
            "SELECT tgname FROM pg_trigger WHERE tgrelid = to_regclass(%s)",
            *[f"{self.gallery_name}%"] * 2,
            self.name,
        )
        return [name for (name,) in found]

    def dump(self) -> list[tuple[Any, ...]]:
        return self.run(f"SELECT * FROM {self.name} ORDER BY id")

    def close(self) -> None:
        self.connection.close()


def backfill(gallery: Gallery, *, limit: int = 10_000, ids: Sequence[str] | None = None) -> int:
    """What `upgrade run` does, for all that is on the work list."""
    from tests.gallery.samples import NEW

    done = 0
    while tasks := gallery.work.claim(worker="w", limit=limit, seconds=60):
        made = embed([task.item.id for task in tasks], NEW, seed=7)
        done += gallery.add_missing_vectors(made, revisions=[task.item.revision for task in tasks])
    return done
