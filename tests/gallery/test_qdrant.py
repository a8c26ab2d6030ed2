"""What is Qdrant's own: locations, settings, vectors bit for bit, its index, local mode."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from midspan.errors import GalleryError, StoreError
from midspan.gallery import Gallery
from midspan.gallery.engines.base import SearchRequest
from midspan.gallery.engines.qdrant import QdrantEngine
from midspan.gallery.engines.qdrant_connection import (
    API_KEY,
    QDRANT,
    QdrantLocation,
    as_arrays,
    as_points,
    condition,
    qdrant_location,
)
from midspan.gallery.engines.remote import translate
from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Range
from midspan.gallery.location import parse_location
from midspan.spaces import Metric, Space
from tests.gallery.samples import OLD, add, embed, view

pytest.importorskip("qdrant_client")


def located(text: str) -> QdrantLocation:
    join = "&" if "?" in text else "?"
    return qdrant_location(parse_location(f"{text}{join}catalogue=memory:"))


# ---- locations


def test_qdrant_location_gives_server_or_folder() -> None:
    place = located("qdrant://db/shop?tls=true")
    assert (place.url, place.folder, place.name) == ("https://db:6333", None, "shop")
    assert located("qdrant://[::1]:7000/a_b").url == "http://[::1]:7000"
    place = located("qdrant+local:///data/my%20folder/shop")
    assert (place.url, place.folder, place.name) == (None, "/data/my folder", "shop")
    assert located("qdrant+local://:memory:/shop").folder == ":memory:"
    for bad in ("db:1/", "db/a__b", "db/Shop", "db/1a", "db/a/b", "/a", "db:port/a"):
        with pytest.raises(GalleryError, match="expected qdrant://host:6333/NAME"):
            located(f"qdrant://{bad}")
    for bad in ("shop", "folder/shop", "/shop", ":memory:/a/shop", "//f/Shop"):
        with pytest.raises(GalleryError, match=r"expected qdrant\+local:///FOLDER/NAME"):
            located(f"qdrant+local://{bad}")


def test_qdrant_unknown_location_setting_raises() -> None:
    place = located(
        "qdrant://db/shop?shards=6&replicas=3&on_disk=true&quantisation=int8&oversampling=3&ef=64"
    )
    assert (place.layout.shards, place.layout.replicas, place.layout.write_consistency) == (6, 3, 2)
    assert (place.layout.on_disk, place.layout.int8) == (True, True)
    assert (place.ef, place.oversampling, place.rescore) == (64, 3.0, True)
    recorded = {"shards": "6", "replicas": "3", "on_disk": "true", "quantisation": "int8"}
    assert place.recorded == recorded  # how it searches is not what it stores
    for bad, message in (
        ("shard=2", "unknown setting 'shard'; there are tls, replicas"),
        ("shards=0", "expected 1 to 4096"),
        ("replicas=2&write_consistency=3", "write_consistency=3; expected 1 to 2"),
        ("on_disk=yes", "expected false or true"),
        ("quantisation=int4", "expected none or int8"),
    ):
        with pytest.raises(GalleryError, match=message):
            located(f"qdrant://db/shop?{bad}")
    with pytest.raises(GalleryError, match=r"unknown setting .shards."):
        located("qdrant+local://:memory:/shop?shards=2")


def test_qdrant_gallery_keeps_its_settings() -> None:
    plain = parse_location("qdrant://db/shop?catalogue=memory:&ef=32")
    made = {"engine": "qdrant", "shards": "6", "replicas": "3"}
    place = qdrant_location(plain, created_with=made)
    assert (place.layout.shards, place.layout.write_consistency, place.ef) == (6, 2, 32)
    other = parse_location("qdrant://db/shop?catalogue=memory:&shards=2")
    with pytest.raises(GalleryError, match="this gallery was made with shards=6"):
        qdrant_location(other, created_with=made)


def test_qdrant_api_key_in_the_location_raises() -> None:
    with pytest.raises(GalleryError, match=f"set {API_KEY}") as caught:
        located("qdrant://me:secret@db/shop")
    assert "secret" not in str(caught.value)


def test_qdrant_unreachable_server_raises(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    with pytest.raises(StoreError, match="cannot be reached or broke off"):
        Gallery.create(f"qdrant://127.0.0.1:1/shop?catalogue={file}", OLD)
    assert not file.exists()


# ---- vectors and filters


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_qdrant_vectors_are_returned_bit_for_bit(metric: Metric) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((40, 8)).astype(np.float32)
    rows[:20] /= np.linalg.norm(rows[:20], axis=1, keepdims=True)
    made = as_points(range(40), rows, ["{}"] * 40, metric=metric)
    points = [point for point, _ in made]
    numbers, vectors = as_arrays(points, dim=8)
    assert numbers.tolist() == list(range(40))
    assert vectors.tobytes() == rows.tobytes()
    if metric == "cosine":  # as they are compared
        lengths = [np.linalg.norm(point.vector["cosine"]) for point in points]
        np.testing.assert_allclose(lengths, 1, atol=1e-5)
    kept_twice = [point for point in points if "raw" in point.payload]
    assert len(kept_twice) == (20 if metric == "cosine" else 0)


def test_qdrant_filters_translate_only_when_equivalent() -> None:
    exact: list[Filter] = [Eq("a.b", "x"), Eq("a", 5), In("a", (1, 2.5, True)), Range("a", gt=1)]
    for filter in (*exact, And(tuple(exact)), Or(tuple(exact)), And((Eq("a", 1), Exists("b")))):
        assert translate(filter, QDRANT) is not None
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
        assert translate(filter, QDRANT) is None


def test_qdrant_superseded_points_are_left_out() -> None:
    vectors = np.zeros((1, 2), np.float32)
    assert condition(SearchRequest(vectors, 1, (1,), (1,)), 1) is None
    found = condition(SearchRequest(vectors, 1, (3, 2, 1), (1,), Eq("a", 1)), 1)
    assert [one.key for one in found.must_not] == ["superseded_by_3", "superseded_by_2"]
    assert len(found.must) == 1
    found = condition(SearchRequest(vectors, 1, (3, 2, 1), (3,)), 3)
    assert found is None


# ---- what a server is asked for


class Recorder:
    """Stands in for a client: keeps what it is called with, and answers as it is told."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers = {"collection_exists": False, **answers}

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: Any, **settings: Any) -> Any:
            self.calls.append((verb, arguments, settings))
            answer = self.answers.get(verb, SimpleNamespace(collections=[], count=0))
            return answer(*arguments, **settings) if callable(answer) else answer

        return call

    def of(self, verb: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [call[1:] for call in self.calls if call[0] == verb]


def served(
    query: str, monkeypatch: pytest.MonkeyPatch, **answers: Any
) -> tuple[QdrantEngine, Recorder]:
    recorder = Recorder(**answers)
    monkeypatch.setattr("qdrant_client.QdrantClient", lambda **_: recorder)
    place = parse_location(f"qdrant://db/shop?{query}&catalogue=memory:")
    catalogue: Any = None
    return QdrantEngine.connect(place, catalogue, created_with=None), recorder


def info(**changes: Any) -> SimpleNamespace:
    params = SimpleNamespace(vectors={"l2": SimpleNamespace(size=8)})
    optimizer = SimpleNamespace(indexing_threshold=20_000)
    told = {
        "config": SimpleNamespace(params=params, optimizer_config=optimizer),
        "payload_schema": {},
        "status": "green",
        "optimizer_status": "ok",
        "points_count": 50_000,
        "indexed_vectors_count": 0,
        "segments_count": 4,
    }
    return SimpleNamespace(**(told | changes))


def test_qdrant_settings_are_sent_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(id=7, vector={"l2": [0.0] * 8}, payload={}, score=1.0)
    answer = [SimpleNamespace(points=[point])]
    engine, recorder = served(
        "shards=6&replicas=3&on_disk=true&quantisation=int8&m=32",
        monkeypatch,
        get_collection=info(),
        query_batch_points=answer,
    )
    engine.create_space(1, Space(name="s", dim=8, metric="l2"))
    (((name,), made),) = recorder.of("create_collection")
    assert (name, made["shard_number"], made["replication_factor"]) == ("shop__1", 6, 3)
    assert made["write_consistency_factor"] == 2
    vectors = made["vectors_config"]["l2"]
    assert (vectors.size, vectors.distance, vectors.on_disk) == (8, "Euclid", True)
    assert (vectors.hnsw_config.m, vectors.hnsw_config.on_disk) == (32, True)
    assert vectors.quantization_config.scalar.type == "int8"
    (found,) = engine.search(SearchRequest(np.ones((1, 8), np.float32), 5, (1,), (1,)))
    assert (found.rows.tolist(), found.scores.tolist(), found.complete) == ([7], [-8.0], True)
    first, second = recorder.of("query_batch_points")
    assert first[1] == {"consistency": "majority"}
    ((_, (request,)), _), ((_, (again,)), _) = first, second
    assert (request.params.hnsw_ef, request.params.exact, request.using) == (200, False, "l2")
    codes = request.params.quantization
    assert (codes.ignore, codes.rescore, codes.oversampling) == (False, True, 2.0)
    assert again.params.exact  # an index may end early: fewer than asked for is looked at again


def test_qdrant_index_is_due_by_unindexed_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = SimpleNamespace(count=50_000)
    engine, recorder = served("index_from=20000", monkeypatch, count=count, get_collection=info())
    assert engine.needs_index(1)
    assert engine.index_status(1).state == "none"
    told = iter([info(), info(), info(status="yellow"), info(indexed_vectors_count=49_000)])
    recorder.answers["get_collection"] = lambda name: next(told)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    engine.build_index(1)
    (((name,), changed),) = recorder.of("update_collection")
    assert name == "shop__1"
    assert changed["optimizers_config"].indexing_threshold == 50_000 * 32 // 1024 // 4 // 2
    recorder.answers["get_collection"] = info(indexed_vectors_count=49_000)
    status = engine.index_status(1)
    assert (status.kind, status.state, status.unindexed) == ("hnsw", "ready", 1000)
    assert not engine.needs_index(1)


def test_qdrant_failed_optimiser_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = info(status="red", optimizer_status=SimpleNamespace(error="disk is full"))
    count = SimpleNamespace(count=50_000)
    engine, _ = served("m=8", monkeypatch, count=count, get_collection=broken)
    assert engine.index_status(1).failure == "disk is full"
    with pytest.raises(StoreError, match="disk is full"):
        engine.build_index(1)


def test_qdrant_payload_index_follows_value_types_in_every_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = SimpleNamespace(id=7, payload={"payload": {"maker": {"country": "fr"}}})
    keyword = SimpleNamespace(data_type=SimpleNamespace(value="keyword"))
    there = SimpleNamespace(collections=[SimpleNamespace(name="shop__1")])
    engine, recorder = served(
        "m=8",
        monkeypatch,
        get_collections=there,
        scroll=([point], None),
        get_collection=info(payload_schema={"payload.maker.country": keyword, "raw": keyword}),
    )
    engine.index_payload(("maker", "country"))
    engine.create_space(2, Space(name="s", dim=8, metric="l2"))
    made = [(*names, how["field_schema"]) for names, how in recorder.of("create_payload_index")]
    assert made == [
        ("shop__1", "payload.maker.country", "keyword"),
        ("shop__2", "payload.maker.country", "keyword"),
    ]
    with pytest.raises(GalleryError, match="no index on 'a b'"):
        engine.index_payload(("a b",))


# ---- local mode


def test_qdrant_folder_persists_and_is_shared_in_a_process(tmp_path: Path) -> None:
    location = f"qdrant+local://{tmp_path}/vectors/shop?catalogue={tmp_path / 'shop.db'}"
    with Gallery.create(location, OLD) as gallery:
        add(gallery, ["a", "b", "c"])
        with Gallery.open(location) as other:
            other.delete(["c"])
        hits = view(gallery, embed(["a"]).vectors)
        assert hits[0][0].id == "a"
    with Gallery.open(location) as gallery:
        assert view(gallery, embed(["a"]).vectors) == hits
        assert len(gallery) == 2


def test_qdrant_collection_of_the_first_layout_raises_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = SimpleNamespace(collections=[SimpleNamespace(name="shop__1f0a9c33")])
    monkeypatch.setattr("qdrant_client.QdrantClient", lambda **_: Recorder(get_collections=left))
    place = parse_location("qdrant://db/shop?catalogue=memory:")
    with pytest.raises(GalleryError, match=r"of the first layout.*copy it to a file"):
        QdrantEngine.create(place, catalogue=None)  # type: ignore[arg-type]
    with pytest.raises(GalleryError, match=r"made without one has the first layout.*copy it to"):
        parse_location("qdrant://db/shop")
