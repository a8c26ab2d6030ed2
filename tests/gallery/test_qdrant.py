"""What is Qdrant's own: locations, settings, keys as numbers, vectors bit for bit, local mode."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.errors import GalleryError, StoreError
from midspan.gallery import Gallery
from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Range
from midspan.gallery.records import Failed
from midspan.gallery.stores import create_store, open_store
from midspan.gallery.stores.memory import MemoryStore
from midspan.gallery.stores.qdrant import schema
from midspan.gallery.stores.qdrant.connection import Connection
from midspan.gallery.stores.qdrant.keys import SIGNS, numbers, span
from midspan.gallery.stores.qdrant.order import next_keys
from midspan.gallery.stores.qdrant.place import KEY, split_location
from midspan.gallery.stores.qdrant.points import as_vector, vector_points
from midspan.gallery.stores.qdrant.server import Server
from midspan.gallery.stores.qdrant.where import means_the_same, translated
from midspan.gallery.stores.turns import view, writes
from midspan.gallery.stores.turns.engine import Sought
from midspan.gallery.stores.turns.keys import failed_key, item_key, trail_key, work_key
from midspan.gallery.stores.turns.store import TurnStore
from midspan.spaces import Metric, Space
from tests.gallery.samples import NEW, OLD, add, drafts, embed, entry, start
from tests.gallery.script import picture, same_search, step
from tests.gallery.test_crash import survive

# ---- locations


def test_a_location_names_a_server_or_a_folder() -> None:
    place = split_location("qdrant://db/shop?tls=true&lease=4")
    assert (place.url, place.folder, place.name) == ("https://db:6333", None, "shop")
    assert place.lease == 4.0
    assert split_location("qdrant://[::1]:7000/a_b").url == "http://[::1]:7000"
    place = split_location("qdrant+local:///data/my%20folder/shop")
    assert (place.url, place.folder, place.name) == (None, "/data/my folder", "shop")
    assert split_location("qdrant+local://:memory:/shop").folder == ":memory:"
    for bad in ("db:1/", "db/a__b", "db/Shop", "db/1a", "db/a/b", "/a", "db:port/a"):
        with pytest.raises(GalleryError, match="wanted qdrant://host:6333/NAME"):
            split_location(f"qdrant://{bad}")
    for bad in ("shop", "folder/shop", "/shop", ":memory:/a/shop", "//f/Shop"):
        with pytest.raises(GalleryError, match=r"wanted qdrant\+local:///FOLDER/NAME"):
            split_location(f"qdrant+local://{bad}")


def test_settings_of_a_location_are_strict() -> None:
    place = split_location(
        "qdrant://db/shop?shards=6&replicas=3&on_disk=true&quantisation=int8&oversampling=3&ef=64"
    )
    assert (place.layout.shards, place.layout.replicas, place.layout.write_consistency) == (6, 3, 2)
    assert (place.layout.on_disk, place.layout.int8) == (True, True)
    assert (place.look.ef, place.look.oversampling, place.look.rescore) == (64, 3.0, True)
    assert place.settings == {  # how it looks for something is not what it is
        "shards": "6",
        "replicas": "3",
        "on_disk": "true",
        "quantisation": "int8",
    }
    for bad, message in (
        ("shard=2", "unknown setting 'shard'; there are lease, tls, replicas"),
        ("shards=0", "wanted 1 to 4096"),
        ("replicas=2&write_consistency=3", "write_consistency=3; wanted 1 to 2"),
        ("on_disk=yes", "wanted false or true"),
        ("quantisation=int4", "wanted none or int8"),
    ):
        with pytest.raises(GalleryError, match=message):
            split_location(f"qdrant://db/shop?{bad}")
    with pytest.raises(GalleryError, match="shards means something on a server only"):
        split_location("qdrant+local://:memory:/shop?shards=2")


def test_a_key_is_not_taken_from_the_location() -> None:
    with pytest.raises(GalleryError, match=f"set {KEY}") as caught:
        split_location("qdrant://me:secret@db/shop")
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(StoreError, match="cannot be reached or broke off"):
        Gallery.open("qdrant://127.0.0.1:1/shop")


def test_a_server_without_conditional_updates_is_refused() -> None:
    connection = object.__new__(Connection)
    connection.shown = "qdrant://db/shop"
    connection._check_version("1.16.0")
    connection._check_version("1.17.1-dev")
    connection._check_version("2.0.0")
    with pytest.raises(StoreError, match=r"this is Qdrant 1\.15\.5; wanted 1\.16 or later"):
        connection._check_version("1.15.5")


# ---- keys


def some_keys(chance: random.Random, count: int) -> list[str]:
    """Of items with long common beginnings, of tasks with equal priorities, of the trail."""
    ids = ["".join(chance.choices("ab/é", k=chance.randint(1, 9))) for _ in range(count)]
    ids += [f"https://cdn.example.com/images/2024/{number:05}.jpg" for number in range(count)]
    keys = [item_key(id, chance.randrange(2**40)) for id in ids]
    keys += [work_key(7, chance.choice([0.0, 1.5]), n, n) for n in range(count)]
    keys += [failed_key(7, id, 1) for id in set(ids)] + [trail_key(n) for n in range(count)]
    return sorted(set(keys))


def test_numbers_stand_in_the_order_of_the_keys() -> None:
    assert list(SIGNS) == sorted(SIGNS)
    keys = some_keys(random.Random(0), 60)
    assert set("".join(keys)) <= set(SIGNS)
    assert sorted(keys, key=numbers) == keys
    assert max(max(numbers(key)) for key in keys) < 2**53
    for prefix in ("w/000000000007/a/", "w/000000000007/", "i/", "i/61"):
        whole, rest = span(prefix)
        for key in keys:
            own = numbers(key)
            shares = own[: len(whole)] == whole and (
                rest is None or rest[0] <= own[len(whole)] < rest[1]
            )
            assert shares == key.startswith(prefix), (prefix, key)


@pytest.mark.parametrize("limit", [1, 3, 50, 1000])
def test_a_walk_over_numbers_is_a_walk_over_keys(limit: int) -> None:
    """The reference is a sorted list; the reader answers as Qdrant does: equal numbers anyhow."""
    chance = random.Random(limit)
    keys, read = some_keys(chance, 60), 0
    rows = {key: numbers(key) for key in keys}

    def reader(fixed: Sequence[int], above: int, most: int) -> list[str]:
        nonlocal read
        level = len(fixed)
        found = [key for key in keys if rows[key][:level] == list(fixed)]
        found = [key for key in found if len(rows[key]) > level and rows[key][level] > above]
        chance.shuffle(found)
        found = sorted(found, key=lambda key: rows[key][level])[:most]
        read += len(found)
        return found

    for after in ["", *chance.sample(keys, 12), "i/", "w/"]:
        wanted = [key for key in keys if key > after][:limit]
        assert next_keys(reader, after=after, limit=limit) == wanted
    tasks = [key for key in keys if key.startswith("w/000000000007/a/")]
    keys, shared = tasks, span("w/000000000007/a/")[0]
    for after in ["", *chance.sample(tasks, 5)]:
        wanted = [key for key in tasks if key > after][:limit]
        assert next_keys(reader, after=after, limit=limit, shared=shared) == wanted
    assert read < 30 * 12 * (limit + 64)  # some pages, however many keys there are


# ---- vectors and filters


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_vectors_come_back_bit_for_bit(metric: Metric) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((40, 8)).astype(np.float32)
    rows[:20] /= np.linalg.norm(rows[:20], axis=1, keepdims=True)
    given = [{"pk": n, "row": n, "vector": row} for n, row in enumerate(rows)]
    points = [point for point, _ in vector_points(given, metric)]
    for row, point in zip(rows, points, strict=True):
        assert as_vector(point).tobytes() == row.tobytes()
        if metric == "cosine":  # as it is compared
            assert np.linalg.norm(np.asarray(point.vector)) == pytest.approx(1, abs=1e-5)
    kept_twice = [point for point in points if "raw" in (point.payload or {})]
    assert len(kept_twice) == (20 if metric == "cosine" else 0)


def test_only_what_means_the_same_is_translated() -> None:
    sure: list[Filter] = [Eq("a.b", "x"), Eq("a", 5), In("a", (1, 2.5, True)), Range("a", gt=1)]
    for filter in (*sure, And(tuple(sure)), Or(tuple(sure))):
        found = translated(filter)
        assert found.word is not None
        assert found.sure, filter
    for filter in (
        Eq("a", None),
        Eq("a", 2**53),
        Exists("a"),
        Not(Eq("a", 1)),
        Range("a", gte="2024"),
        Eq("a b", 1),
        Eq("0.1", "x"),
        Eq(("a.b",), 3),
        In("a", ()),
        Or((Eq("a", 1), Exists("b"))),
    ):
        found = translated(filter)
        assert (found.word, found.sure) == (None, False), filter
    half = translated(And((Eq("a", 1), Exists("b"))))
    assert half.word is not None
    assert not half.sure
    assert means_the_same({"a": {"b": 1}, "c": "x"})
    assert not means_the_same({"a": {"b": [1]}})  # Qdrant would look into the list


# ---- what a server is asked for


class Recorder:
    """Stands in for a client: keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: Any, **settings: Any) -> list[Any]:
            self.calls.append((verb, arguments, settings))
            return []

        return call


def asked(location: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Server, Recorder]:
    recorder = Recorder()
    monkeypatch.setattr("qdrant_client.QdrantClient", lambda **_: recorder)
    monkeypatch.setattr(Connection, "_check_version", lambda self, version: None)
    monkeypatch.setattr(Recorder, "info", lambda self: type("Info", (), {"version": ""}), False)
    server = Server(location)
    recorder.calls.clear()
    return server, recorder


def test_settings_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server, recorder = asked(
        "qdrant://db/shop?shards=6&replicas=3&on_disk=true&quantisation=int8&m=32", monkeypatch
    )
    server.make_vectors("v", Space(name="s", dim=8, metric="l2"))
    (_, _, made), *indexes = recorder.calls
    assert (made["shard_number"], made["replication_factor"]) == (6, 3)
    assert made["write_consistency_factor"] == 2
    vectors = made["vectors_config"]
    assert (vectors.size, vectors.distance, vectors.on_disk) == (8, "Euclid", True)
    assert (vectors.hnsw_config.m, vectors.hnsw_config.on_disk) == (32, True)
    assert vectors.quantization_config.scalar.type == "int8"
    assert [arguments[1] for _, arguments, _ in indexes] == ["pk", "row"]
    recorder.calls.clear()
    one = [np.ones(8, np.float32)]
    server.search("v", Sought(one, [], metric="l2", limit=5, index=None, exact=False, time=0))
    ((verb, (_, (request,)), settings),) = recorder.calls
    assert (verb, settings) == ("query_batch_points", {"consistency": "majority"})
    assert (request.params.hnsw_ef, request.params.exact) == (200, False)
    codes = request.params.quantization
    assert (codes.ignore, codes.rescore, codes.oversampling) == (False, True, 2.0)


def test_longer_ids_get_their_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    server, recorder = asked("qdrant://db/shop", monkeypatch)
    monkeypatch.setattr(schema, "indexed_levels", lambda server, name: schema.LEVELS)
    row: dict[str, Any] = {"body": "{}", "weight": 0}
    server.insert("r", [{**row, "pk": item_key("a", 1)}], beat=lambda: None)
    assert [verb for verb, _, _ in recorder.calls] == ["upsert"]
    recorder.calls.clear()
    long = {**row, "pk": item_key("x" * 80, 1)}
    for _ in range(2):  # the second time they are there
        server.insert("r", [dict(long)], beat=lambda: None)
    made = [arguments[1] for verb, arguments, _ in recorder.calls if verb != "upsert"]
    assert made == [f"d{level}" for level in range(schema.LEVELS, len(numbers(long["pk"])))]


# ---- local mode


def test_a_folder_is_kept(tmp_path: Path) -> None:
    location = f"qdrant+local://{tmp_path}/data/shop"
    model = MemoryStore.create("memory:", OLD, entry=entry("create"))
    create_store(location, OLD, entry=entry("create")).close()
    for number in range(8):
        store = open_store(location)
        step(store, 3, number)
        step(model, 3, number)
        store.close()
    store = open_store(location)
    assert picture(store) == picture(model)
    same_search(store, model)
    assert store.check() == []
    with pytest.raises(GalleryError, match="already"):
        create_store(location, OLD, entry=entry("create"))
    other = create_store(f"qdrant+local://{tmp_path}/data/other", OLD, entry=entry("create"))
    add(other, ["a"])
    store.close()
    assert other.count().items == 1  # the folder is open as long as one of its galleries is
    other.close()


@pytest.mark.slow
def test_a_folder_survives_kill_9(tmp_path: Path) -> None:
    survive(f"qdrant+local://{tmp_path}/data/shop?lease=0.5", kills=2, steps=5)


def test_a_long_work_list_is_made_in_portions_and_by_whoever_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writes, "PORTION", 10)
    monkeypatch.setattr(view, "ROWS", 5)
    model = MemoryStore.create("memory:", OLD, entry=entry("create"))
    store = create_store("qdrant+local://:memory:/portions", OLD, entry=entry("create"))
    ids = [f"i{number:02}" for number in range(35)]
    for one in (store, model):
        add(one, ids[::-1])
    with monkeypatch.context() as patch:
        patch.setattr(TurnStore, "_list_work", lambda self: None)  # it dies after the first
        start(store)
    start(model)
    assert store.count() == model.count()  # they are known all the same
    for one in (store, model):  # before and behind the place where it stopped
        one.upsert(drafts(["i03", "i30", "z"]), [embed(["i03", "i30", "z"], seed=1)], mode="put")
        one.fill(embed(["i05", "i33"], NEW), revisions=[1, 1])
        one.delete(["i04", "i31"])
    assert store.count() == model.count()
    claims = [one.claim(worker="w", limit=50, seconds=60) for one in (store, model)]
    names = [[task.item.id for task in claim] for claim in claims]
    assert names[0] == names[1]
    assert len(names[0]) == len(set(names[0])) == store.count().pending == 32
    store.close()


def test_failures_stand_by_id_and_out_of_the_way(tmp_path: Path) -> None:
    store = create_store("qdrant+local://:memory:/failures", OLD, entry=entry("create"))
    ids = [f"i{number}" for number in (3, 1, 2, 10)]
    add(store, ids)
    start(store)
    store.fail([Failed(id, 1, "x") for id in ids[:3]], retry_after=None)
    assert [failure.id for failure in store.failures(after="", limit=2)] == ["i1", "i2"]
    assert [failure.id for failure in store.failures(after="i2", limit=9)] == ["i3"]
    assert [task.item.id for task in store.claim(worker="w", limit=9, seconds=9)] == ["i10"]
    store.fill(embed(["i1"], NEW), revisions=[1])
    assert [failure.id for failure in store.failures(after="", limit=9)] == ["i2", "i3"]
    assert (store.retry(), store.count().failed) == (2, 0)
    store.close()
