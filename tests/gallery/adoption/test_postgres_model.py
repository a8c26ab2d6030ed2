"""An application writes to its table while an upgrade runs: nothing is lost, nothing stale.

The model is a dictionary. Steps of the application (in transactions that commit or not, with
triggers on or off) are mixed with those of midspan (start, claim, embed, put, reconcile, rollback);
at the end the gallery must equal the table, and every new vector that of the item as it is now.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midspan.gallery import Gallery
from midspan.gallery.adoption.postgres_adopt import detach_table, reconcile_table
from midspan.spaces import Embeddings
from tests.gallery.adoption.shop import Shop, vector_of
from tests.gallery.postgres import Postgres
from tests.gallery.samples import NEW, OLD, embed, start

pytestmark = [pytest.mark.server, pytest.mark.slow]

KEYS = list(range(6))
SEEDS = st.integers(0, 3)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), SEEDS),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("null"), st.sampled_from(KEYS)),
    st.tuples(st.just("brand"), st.sampled_from(KEYS), SEEDS),
    st.tuples(st.just("move"), st.sampled_from(KEYS), st.sampled_from(KEYS)),
    st.tuples(st.just("truncate")),
    st.tuples(st.just("undone"), st.sampled_from(KEYS), SEEDS),
    st.tuples(st.just("unseen"), st.sampled_from(KEYS), SEEDS),
    st.tuples(st.just("claim")),
    st.tuples(st.just("write")),
    st.tuples(st.just("reconcile")),
)


@pytest.fixture(scope="module")
def play(postgres: Postgres) -> Iterator[Play]:
    shop = Shop(postgres)
    made = Play(shop)
    yield made
    detach_table(made.gallery)
    shop.close()


class Play:
    """One script: the application's table is the model of itself, as `expected` sees it."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.gallery = shop, shop.adopt()
        start(self.gallery)
        self.claimed: list[Any] = []

    def begin(self) -> None:
        self.claimed = []
        self.shop.run(f"TRUNCATE {self.shop.name}")
        self.shop.insert(0, 1, 2)

    def put(self, key: int, seed: int) -> None:
        self.shop.run(
            f"INSERT INTO {self.shop.name} (id, embedding, image_url) VALUES (%s, %s, %s) ON "
            "CONFLICT (id) DO UPDATE SET embedding = excluded.embedding",
            key,
            vector_of(key, seed=seed),
            f"img/{key}",
        )

    def delete(self, key: int) -> None:
        self.shop.delete(key)

    def null(self, key: int) -> None:
        self.shop.run(f"UPDATE {self.shop.name} SET embedding = NULL WHERE id = %s", key)

    def brand(self, key: int, seed: int) -> None:
        self.shop.run(f"UPDATE {self.shop.name} SET brand = %s WHERE id = %s", f"b{seed}", key)

    def move(self, key: int, to: int) -> None:
        if not self.shop.run(f"SELECT 1 FROM {self.shop.name} WHERE id = %s", to):
            self.shop.run(f"UPDATE {self.shop.name} SET id = %s WHERE id = %s", to, key)

    def truncate(self) -> None:
        self.shop.run(f"TRUNCATE {self.shop.name}")

    def undone(self, key: int, seed: int) -> None:
        with self.shop.connection.transaction(force_rollback=True):
            self.put(key, seed)

    def unseen(self, key: int, seed: int) -> None:
        self.shop.run("SET session_replication_role = replica")
        self.put(key, seed)
        self.shop.run("SET session_replication_role = origin")

    def claim(self) -> None:
        self.claimed += self.gallery.work.claim(worker="w", limit=3, seconds=0.0)

    def write(self) -> None:
        for task in self.claimed:
            vector = new_vector(self.gallery, task.item.id, task.item.uri)
            self.gallery.add_missing_vectors(vector, revisions=[task.item.revision])
        self.claimed = []

    def reconcile(self) -> None:
        reconcile_table(self.gallery)

    def check(self) -> None:
        self.write()
        reconcile_table(self.gallery)
        while tasks := self.gallery.work.claim(worker="w", limit=10, seconds=60):
            self.claimed = tasks
            self.write()
        rows = {
            str(key): (brand, vector)
            for key, brand, vector in self.shop.run(
                f"SELECT id, brand, embedding FROM {self.shop.name}"
            )
        }
        items = {item.id: item for item in self.gallery.scan(limit=100)}
        assert items.keys() == rows.keys()
        old = self.gallery.vectors(list(items), space=OLD.fingerprint)
        new = self.gallery.vectors(list(items), space=NEW.fingerprint)
        held = {id: vector for id, (_, vector) in rows.items() if vector is not None}
        assert set(old.ids.tolist()) == held.keys()
        for id, vector in zip(old.ids.tolist(), old.vectors, strict=True):
            assert np.array_equal(vector, parsed(held[id]))
        assert set(new.ids.tolist()) == rows.keys()
        for id, vector in zip(new.ids.tolist(), new.vectors, strict=True):
            assert np.array_equal(vector, made_from(id, rows[id][1]))  # of what it is now
        for id, item in items.items():
            assert item.payload.get("brand") == rows[id][0]
            expected = {NEW.fingerprint} | ({OLD.fingerprint} if id in held else set())
            assert set(item.spaces) == expected
        counts = self.gallery.count()
        assert (counts.items, counts.pending, counts.without) == (len(rows), 0, 0)
        assert self.gallery.garbage() == 0


def parsed(text: str) -> Any:
    return np.array(text[1:-1].split(","), dtype=np.float32)


def made_from(id: str, old: str | None) -> Any:
    """The new encoder sees the image; here the old vector stands for it."""
    seed = 0 if old is None else int(abs(parsed(old)[0]) * 1e6) + 1
    return embed([id], NEW, seed=seed).vectors[0]


def new_vector(gallery: Gallery, id: str, uri: str | None) -> Embeddings:
    """By what the table holds at the time of embedding, like an image that is read then."""
    engine: Any = gallery._session.engine
    binding = engine.binding()
    found = gallery._session.catalogue.ask(
        f"SELECT embedding::text FROM {binding.relation} WHERE id = %s", (int(id),)
    )
    vector = made_from(id, found[0][0] if found else None)
    return Embeddings(ids=np.array([id]), vectors=vector[None], space=NEW)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=st.lists(STEPS, max_size=14))
def test_any_script_of_application_and_upgrade_equals_the_model(
    play: Play, script: list[tuple[Any, ...]]
) -> None:
    play.begin()
    for name, *arguments in script:
        getattr(play, name)(*arguments)
    play.check()


def test_concurrent_writers_lose_no_change(play: Play) -> None:
    """Threads of the application write in transactions of several rows while a backfill runs."""
    play.begin()
    shop = play.shop
    failures: list[BaseException] = []
    stop = threading.Event()

    def application(number: int) -> None:
        rng = np.random.default_rng(number)
        try:
            with psycopg.connect(shop.postgres.url()) as connection:
                for _ in range(25):
                    for key in rng.permutation(12)[:3].tolist():
                        if rng.random() < 0.3:
                            connection.execute(f"DELETE FROM {shop.name} WHERE id = %s", (key,))
                        else:
                            connection.execute(
                                f"INSERT INTO {shop.name} (id, embedding) VALUES (%s, %s) ON "
                                "CONFLICT (id) DO UPDATE SET embedding = excluded.embedding",
                                (key, vector_of(key, seed=int(rng.integers(1000)))),
                            )
                        connection.commit() if rng.random() < 0.6 else None
                    connection.commit()
        except psycopg.errors.DeadlockDetected:
            pass  # of two threads of the application, which lock rows in any order
        except BaseException as error:
            failures.append(error)

    def worker() -> None:
        try:
            while not stop.is_set():
                play.claim()
                play.write()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=application, args=(number,)) for number in range(3)]
    backfill = threading.Thread(target=worker)
    for thread in (*threads, backfill):
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    stop.set()
    backfill.join(timeout=60)
    assert not failures
    assert not any(thread.is_alive() for thread in (*threads, backfill))
    play.check()
