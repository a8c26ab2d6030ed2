"""A collection of an application in Qdrant, adopted where it is; Qdrant's local mode."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midspan.errors import GalleryError
from midspan.gallery import Gallery
from midspan.gallery.adoption import collection
from midspan.gallery.adoption.collection import (
    CollectionBinding,
    adopt_collection,
    detach_collection,
    reconcile_collection,
    survey_collection,
)
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.engines.qdrant_connection import QdrantConnection, qdrant_location
from midspan.gallery.filters import Eq, Range
from midspan.gallery.location import parse_location
from midspan.upgrade import Upgrade
from tests.cli.conftest import Command, midspan  # noqa: F401
from tests.gallery.adoption.shop import backfill
from tests.gallery.samples import DIM, NEW, OLD, embed, found, start

models = pytest.importorskip("qdrant_client").models


class Application:
    """What the application itself does with its collection."""

    def __init__(self, folder: Path, *, named: bool = True) -> None:
        name = "g" + uuid.uuid4().hex[:10]
        self.location = f"qdrant+local://:memory:/{name}?catalogue={folder / name}.db"
        self.name, self.vector = f"p{name}", "image" if named else ""
        place = parse_location(self.location)
        self.server = QdrantConnection(qdrant_location(place), shown="application")
        params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
        other = models.VectorParams(size=3, distance=models.Distance.DOT)
        vectors = {"image": params, "text": other} if named else params
        self.server.client.create_collection(self.name, vectors_config=vectors)
        self.clock = 0

    @property
    def binding(self) -> CollectionBinding:
        return CollectionBinding(
            self.name, self.vector, 1, uri="url", payload=("brand", "price"), watermark="at"
        )

    def put(self, *keys: int, seed: int = 0, brand: str = "acme") -> None:
        self.clock += 1
        points = []
        for key in keys:
            vector = embed([str(key)], OLD, seed=seed).vectors[0].tolist()
            points.append(
                models.PointStruct(
                    id=key,
                    vector={"image": vector} if self.vector else vector,
                    payload={"brand": brand, "price": key, "url": f"img/{key}", "at": self.clock},
                )
            )
        self.server.client.upsert(self.name, points)

    def delete(self, *keys: int) -> None:
        self.server.client.delete(self.name, models.PointIdsList(points=list(keys)))

    def points(self) -> Any:
        return self.server.client.scroll(self.name, limit=100, with_vectors=True)

    def collections(self) -> list[str]:
        return [one.name for one in self.server.client.get_collections().collections]

    def adopt(self) -> Gallery:
        return adopt_collection(self.location, self.binding, space_name="old", space=OLD)


class MilvusApplication(Application):
    """The same in Milvus Lite."""

    def __init__(self, folder: Path, *, index_type: str = "FLAT") -> None:
        pymilvus = pytest.importorskip("pymilvus")
        pytest.importorskip("milvus_lite")
        from midspan.gallery.engines import milvus_connection, milvus_location

        name = "g" + uuid.uuid4().hex[:10]
        self.location = f"milvus+lite://{folder}/vectors.db/{name}?catalogue={folder / name}.db"
        self.name, self.vector, self.clock = f"p{name}", "image", 0
        place = milvus_location.milvus_location(parse_location(self.location))
        self.milvus = milvus_connection.MilvusConnection(place, shown="application")
        client, kinds = self.milvus.client, pymilvus.DataType
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.INT64, is_primary=True)
        schema.add_field("image", kinds.FLOAT_VECTOR, dim=DIM)
        schema.add_field("brand", kinds.VARCHAR, max_length=64)
        schema.add_field("price", kinds.INT64)
        schema.add_field("url", kinds.VARCHAR, max_length=64)
        schema.add_field("at", kinds.INT64)
        index = client.prepare_index_params()
        params = {"nlist": 128} if index_type == "IVF_FLAT" else {}
        index.add_index("image", index_type=index_type, metric_type="COSINE", params=params)
        client.create_collection(self.name, schema=schema, index_params=index)

    def put(self, *keys: int, seed: int = 0, brand: str = "acme") -> None:
        self.clock += 1
        rows = [
            {
                "id": key,
                "image": embed([str(key)], OLD, seed=seed).vectors[0].tolist(),
                "brand": brand,
                "price": key,
                "url": f"img/{key}",
                "at": self.clock,
            }
            for key in keys
        ]
        self.milvus.client.upsert(self.name, rows)

    def delete(self, *keys: int) -> None:
        self.milvus.client.delete(self.name, ids=list(keys))

    def points(self) -> Any:
        rows = self.milvus.client.query(self.name, filter="id >= 0", output_fields=["*"])
        return sorted((row["id"], row["brand"], tuple(row["image"])) for row in rows)

    def collections(self) -> list[str]:
        return list(self.milvus.client.list_collections())


@pytest.fixture(
    params=["named", "unnamed", pytest.param("milvus+lite", marks=pytest.mark.slow)],
)
def application(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    if request.param == "milvus+lite":
        made = MilvusApplication(tmp_path)
        yield made
        made.milvus.close()
        return
    yield Application(tmp_path, named=request.param == "named")


@pytest.fixture
def gallery(application: Application) -> Iterator[Gallery]:
    application.put(*range(1, 31))
    application.put(7, 9, brand="rare")
    with application.adopt() as made:
        made._session.maintenance.close()  # looks are the tests' own here
        yield made


def best(gallery: Gallery, key: int, *, seed: int = 0, **more: Any) -> list[str]:
    of = NEW if gallery.space.fingerprint == NEW.fingerprint else OLD
    return found(gallery.search(embed([str(key)], of, seed=seed), **{"k": 3, **more}))[0]


def test_adopted_collection_is_searched_with_its_payload(gallery: Gallery) -> None:
    assert len(gallery) == 30
    assert best(gallery, 5)[0] == "5"
    assert sorted(best(gallery, 5, k=10, filter=Eq("brand", "rare"))) == ["7", "9"]
    assert best(gallery, 5, k=10, filter=Range("price", gte=5, lte=5)) == ["5"]
    assert gallery.get("7").payload == {"brand": "rare", "price": 7}
    assert gallery.verify().ok
    assert gallery.owner is not None
    with pytest.raises(GalleryError, match="change and delete them there"):
        gallery.delete(["1"])


def test_an_upgrade_over_a_collection_serves_both_spaces_and_rolls_back(
    application: Application, gallery: Gallery
) -> None:
    start(gallery)
    tasks = gallery.work.claim(worker="w", limit=10, seconds=60)
    made = embed([task.item.id for task in tasks], NEW, seed=7)
    gallery.add_missing_vectors(made, revisions=[1] * 10)
    first = tasks[0].item.id
    assert best(gallery, int(first), seed=7)[0] == first
    left = next(str(key) for key in range(1, 31) if str(key) not in made.ids)
    assert best(gallery, int(left), seed=0, k=30)[0] is not None
    hits = gallery.search(embed([left], OLD), k=30)[0]
    assert sorted(hit.id for hit in hits) == sorted(str(key) for key in range(1, 31))
    gallery.work.release("w")
    backfill(gallery)
    Upgrade(gallery).finish(override="vectors are random here")
    assert best(gallery, 3, seed=7)[0] == "3"
    Upgrade(gallery).rollback()
    assert best(gallery, 3)[0] == "3"
    assert len(gallery) == 30


def test_writes_since_are_found_by_the_watermark_and_deletes_by_reconcile(
    application: Application, gallery: Gallery
) -> None:
    start(gallery)
    backfill(gallery)
    application.put(100)
    application.put(4, seed=9)
    application.delete(5)
    engine: Any = gallery._session.engine

    assert engine.catch_up() == 2
    assert NEW.fingerprint not in gallery.get("4").spaces
    assert gallery.count().pending == 2
    done = reconcile_collection(gallery)
    assert (done.added, done.replaced, done.removed) == (0, 0, 1)
    assert backfill(gallery) == 2
    assert reconcile_collection(gallery).total == 0
    assert gallery.garbage() == 0


def test_sync_without_changes_writes_nothing(
    application: Application, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = gallery._session.engine
    application.put(4, seed=9)
    assert engine.catch_up() == 1
    before, written = gallery.sequence(), list[Any]()
    write = Catalogue.write

    def counted(*given: Any, **more: Any) -> Any:
        written.append(given)
        return write(*given, **more)

    monkeypatch.setattr(Catalogue, "write", counted)
    assert [engine.catch_up() for _ in range(3)] == [0, 0, 0]
    assert (gallery.sequence(), written) == (before, [])


def test_sync_watermark_follows_changes_older_than_the_margin(
    application: Application, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is younger than the overlap is read again, in this process and in others."""
    engine: Any = gallery._session.engine
    parts, read = engine.source.parts, list[str]()

    def counted(*given: Any, **more: Any) -> Any:
        for part in parts(*given, **more):
            read.extend(part.ids)
            yield part

    monkeypatch.setattr(engine.source, "parts", counted)
    for key in range(100, 110):
        application.put(key)
        assert engine.catch_up() == 1
    assert len(read) > 50, "within the overlap everything is read again"
    monkeypatch.setattr(collection, "OVERLAP", 0.0)
    engine.catch_up()
    engine.catch_up()
    read.clear()
    application.put(110)
    assert (engine.catch_up(), read) == (1, ["109", "110"])
    assert reconcile_collection(gallery).total == 0


def test_sync_point_missed_by_a_pass_is_not_deleted(
    application: Application, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application that deletes and writes a point again moves it behind the pass's back."""
    engine: Any = gallery._session.engine
    parts = engine.source.parts

    def without(*given: Any, **more: Any) -> Any:
        for part in parts(*given, **more):
            kept = [place for place, id in enumerate(part.ids) if id != "6"]
            yield part._replace(
                ids=[part.ids[place] for place in kept],
                vectors=part.vectors[kept],
                uris=[part.uris[place] for place in kept],
                payloads=[part.payloads[place] for place in kept],
            )

    monkeypatch.setattr(engine.source, "parts", without)
    application.delete(5)
    assert reconcile_collection(gallery).removed == 1
    assert gallery.get("6").id == "6"
    assert reconcile_collection(gallery).total == 0


def test_adopted_zero_vectors_count_where_the_metric_allows_them(tmp_path: Path) -> None:
    """As in galleries of files and of PostgreSQL: they have no cosine, but a dot product."""
    for distance, metric, stored in (
        ("DOT", "dot", 2),
        ("EUCLID", "l2", 2),
        ("COSINE", "cosine", 1),
    ):
        application = Application(tmp_path, named=False)
        client, name = application.server.client, application.name
        client.delete_collection(name)
        params = models.VectorParams(size=DIM, distance=models.Distance[distance])
        client.create_collection(name, vectors_config=params)
        client.upsert(
            name,
            [
                models.PointStruct(id=1, vector=[0.0] * DIM, payload={"at": 1}),
                models.PointStruct(id=2, vector=[1.0] * DIM, payload={"at": 1}),
            ],
        )
        survey = survey_collection(application.location, application.binding)
        assert (survey.zero, len(survey.problems)) == (1, 2 - stored)
        with adopt_collection(application.location, application.binding, space_name="x") as gallery:
            assert gallery.space.metric == metric
            assert len(gallery) == 2
            assert gallery.count().stored[gallery.space.fingerprint] == stored
            held = gallery.vectors(["1", "2"], space=gallery.space.fingerprint)
            assert held.ids.tolist() == ["1", "2"][2 - stored :]
            hits = gallery.search(np.ones((1, DIM), np.float32), space=gallery.space, k=5)[0]
            assert len(hits) == stored
            assert all(np.isfinite(hit.score) for hit in hits)


@pytest.mark.slow
def test_milvus_exact_and_filtered_searches_are_exact(tmp_path: Path) -> None:
    """With an index that loses hits: the k best by `exact`, and the k best that pass a filter."""
    application = MilvusApplication(tmp_path, index_type="IVF_FLAT")
    keys = list(range(1, 3001))
    application.put(*keys)
    application.put(*keys[::500], brand="rare")
    application.milvus.client.flush(application.name)
    with application.adopt() as gallery:
        stored = embed([str(key) for key in keys], OLD)
        queries = embed([f"q{number}" for number in range(30)], OLD)
        true = stored.vectors @ queries.vectors.T

        def wanted(place: int, k: int, passing: np.ndarray[Any, Any]) -> list[str]:
            order = np.argsort(-np.where(passing, true[:, place], -np.inf), kind="stable")
            return [str(keys[row]) for row in order[: min(k, int(passing.sum()))]]

        every = np.ones(len(keys), bool)
        guessed = found(gallery.search(queries, k=10))
        assert any(guessed[place] != wanted(place, 10, every) for place in range(30)), "no IVF here"
        for place, ids in enumerate(found(gallery.search(queries, k=10, exact=True))):
            assert ids == wanted(place, 10, every)
        for filter, passing in (
            (Eq("brand", "rare"), np.arange(len(keys)) % 500 == 0),
            (Range("price", gte=100, lt=130), (np.array(keys) >= 100) & (np.array(keys) < 130)),
        ):
            for exact in (False, True):
                asked = found(gallery.search(queries, k=10, filter=filter, exact=exact))
                assert asked == [wanted(place, 10, passing) for place in range(30)]
        whole = found(gallery.search(queries[:1], k=3000))
        assert whole == [wanted(0, 3000, every)]
    application.milvus.close()


def test_survey_and_detach_do_not_change_the_collection(application: Application) -> None:
    application.put(1, 2, 3)
    before = application.points()

    survey = survey_collection(application.location, application.binding)
    assert (survey.rows, survey.dim, survey.metric) == (3, DIM, "cosine")
    gallery = application.adopt()
    start(gallery)
    backfill(gallery)
    detach_collection(gallery)

    assert application.points() == before
    assert not any(name.startswith(application.name[1:]) for name in application.collections())
    with pytest.raises(GalleryError):
        Gallery.open(application.location)


def test_adopt_unfit_collection_raises(tmp_path: Path) -> None:
    application = Application(tmp_path)
    for binding, match in (
        (CollectionBinding("nowhere", "", 1), "there is no collection"),
        (CollectionBinding(application.name, "video", 1), "choose one with `vector_name`"),
    ):
        with pytest.raises(GalleryError, match=match):
            adopt_collection(application.location, binding, space_name="x")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Application, Gallery]]:
    application = Application(tmp_path_factory.mktemp("shared"))
    with application.adopt() as gallery:
        start(gallery)
        yield application, gallery


STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 5), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.integers(1, 5)),
    st.tuples(st.sampled_from(["claim", "write", "reconcile", "catch up"])),
)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=st.lists(STEPS, max_size=15))
def test_reconcile_after_any_script_equals_the_collection(
    shared: tuple[Application, Gallery], script: list[tuple[Any, ...]]
) -> None:
    application, gallery = shared
    seeds = {1: 0, 2: 0}
    application.delete(*range(1, 6))
    application.put(1, 2)
    reconcile_collection(gallery)
    claimed: list[Any] = []

    def write() -> None:
        for task in claimed:  # the image as it is at that moment
            seed = seeds.get(int(task.item.id), 0)
            made = embed([task.item.id], NEW, seed=seed + 100)
            gallery.add_missing_vectors(made, revisions=[task.item.revision])
        claimed.clear()

    for name, *arguments in script:
        if name == "put":
            application.put(arguments[0], seed=arguments[1])
            seeds[arguments[0]] = arguments[1]
        elif name == "delete":
            application.delete(arguments[0])
            seeds.pop(arguments[0], None)
        elif name == "claim":
            claimed += gallery.work.claim(worker="w", limit=2, seconds=0.0)
        elif name == "write":
            write()
        elif name == "catch up":
            gallery._session.engine.catch_up()  # type: ignore[attr-defined]
        else:
            reconcile_collection(gallery)
    write()
    reconcile_collection(gallery)
    while tasks := gallery.work.claim(worker="w", limit=10, seconds=60):
        claimed += tasks
        write()
    ids = [str(key) for key in sorted(seeds)]
    assert [item.id for item in gallery.scan(limit=99)] == ids
    for space, offset in ((OLD, 0), (NEW, 100)):
        held = gallery.vectors(ids, space=space.fingerprint)
        assert held.ids.tolist() == ids
        for id, vector in zip(ids, held.vectors, strict=True):
            expected = embed([id], space, seed=seeds[int(id)] + offset).vectors[0]
            assert np.allclose(vector, expected, atol=1e-6), (id, space.name)
    assert gallery.garbage() == 0
    assert gallery.count().pending == 0


def test_cli_adopts_and_detaches_a_collection(
    application: Application,
    midspan: Command,  # noqa: F811
) -> None:
    application.put(1, 2, 3)
    given = ("--collection", application.name, "--vector-name", application.vector)
    adopt = ("gallery", "adopt", application.location, *given, "--space-name", "old", "--json")
    code, out, _ = midspan(*adopt, "--dry-run")
    assert (code, json.loads(out)["rows"]) == (0, 3)
    code, out, _ = midspan(*adopt)
    assert (code, json.loads(out)["items"]) == (0, 3)
    application.put(4)
    code, out, _ = midspan("gallery", "reconcile", application.location, "--json")
    assert (code, json.loads(out)["added"]) == (0, 1)
    code, _, err = midspan("gallery", "detach", application.location)
    assert code == 0, err
