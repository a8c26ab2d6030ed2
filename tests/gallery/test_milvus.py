"""What is Milvus' own: locations, filters, the move to an index, compaction, its death."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.errors import GalleryError, StoreError
from midspan.gallery import Draft, Gallery
from midspan.gallery.engines import milvus as engine_module
from midspan.gallery.engines import milvus_connection
from midspan.gallery.engines.milvus import MilvusEngine
from midspan.gallery.engines.milvus_connection import MILVUS, MilvusConnection
from midspan.gallery.engines.milvus_location import KINDS, MilvusLocation, milvus_location
from midspan.gallery.engines.remote import translate
from midspan.gallery.filters import And, Eq, Exists, In, Not, Or
from midspan.gallery.location import parse_location
from midspan.gallery.maintenance import Maintenance
from midspan.spaces import Embeddings
from tests.gallery.conftest import in_milvus, in_milvus_lite
from tests.gallery.milvus import Milvus, wheel
from tests.gallery.samples import OLD, add, embed, unit, view

pytest.importorskip("pymilvus")
ON_SERVER = [pytest.mark.server, pytest.mark.slow, pytest.mark.milvus]

PLACES = [
    pytest.param(in_milvus_lite, marks=pytest.mark.slow, id="lite"),
    pytest.param(in_milvus, marks=ON_SERVER, id="server"),
]
Place = Callable[[pytest.FixtureRequest, str], str]


@pytest.fixture(params=PLACES)
def location(request: pytest.FixtureRequest) -> str:
    place: Place = request.param
    return place(request, "g" + uuid.uuid4().hex[:12])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maintenance, "_begin", lambda self: None)


def located(text: str) -> MilvusLocation:
    join = "&" if "?" in text else "?"
    return milvus_location(parse_location(f"{text}{join}catalogue=memory:"))


def engine_of(gallery: Gallery) -> MilvusEngine:
    engine = gallery._session.engine
    assert isinstance(engine, MilvusEngine)
    return engine


# ---- without a server


def test_milvus_location_gives_server_database_and_gallery() -> None:
    place = located("milvus://me:s%40cret@db/shop?database=photos")
    assert (place.uri, place.token, place.name) == ("http://db:19530", "me:s@cret", "shop")
    assert (place.database, place.local) == ("photos", False)
    assert located("milvus://[::1]:19531/a_b?tls=true").uri == "https://[::1]:19531"
    for bad in ("db:1/", "db/a__b", "db/Shop", "db/1a", "db/a/b", "db/" + "a" * 41, "db/a_", "/a"):
        with pytest.raises(GalleryError, match="expected milvus://host:19530/NAME"):
            located(f"milvus://{bad}")
    with pytest.raises(GalleryError, match="unknown setting 'table'"):
        located("milvus://db/shop?table=x")
    place = located("milvus+lite:///data/my%20vectors.db/shop")
    assert (place.uri, place.name, place.local) == ("/data/my vectors.db", "shop", True)
    for bad in ("/data/shop", "data/a.db/shop", "/a.db/", "/a.db/Shop"):
        with pytest.raises(GalleryError, match=r"expected milvus\+lite:///FOLDER/FILE.db/NAME"):
            located(f"milvus+lite://{bad}")
    with pytest.raises(GalleryError, match="unknown setting 'shards'"):
        located("milvus+lite:///a.db/shop?shards=2")


def test_milvus_index_settings_depend_on_the_kind() -> None:
    place = located("milvus://db/shop?index=HNSW&M=32&breadth=64&shards=4&partitions=16")
    assert place.index(8) == {"index_type": "HNSW", "params": {"M": 32, "efConstruction": 200}}
    assert (place.shards, place.partitions, place.breadth) == (4, 16, 64)
    assert place.recorded == {"index": "HNSW", "M": "32", "shards": "4", "partitions": "16"}
    assert (place.search_params(10), place.search_params(100)) == ({"ef": 64}, {"ef": 200})
    place = located("milvus://db/shop?index=IVF_PQ&nlist=4096&oversampling=10")
    assert place.index(64)["params"] == {"nlist": 4096, "m": 16, "nbits": 8}
    assert (place.oversampling, place.search_params(500)) == (10, {"nprobe": 64})
    for bad, message in (
        ("index=FLAT", "expected HNSW or IVF_FLAT or IVF_SQ8 or IVF_PQ or DISKANN"),
        ("index=IVF_SQ8&M=32", "unknown setting 'M'"),
        ("index=DISKANN&nlist=4", "unknown setting 'nlist'"),
        ("shards=0", "expected 1 to 64"),
        ("consistency=none", "expected strong or bounded or eventually"),
    ):
        with pytest.raises(GalleryError, match=message):
            located(f"milvus://db/shop?{bad}")


def test_milvus_filters_translate_only_when_equivalent() -> None:
    assert translate(Eq("a.b", "x"), MILVUS) == 'payload["a"]["b"] == "x"'
    assert translate(In("a", (1, 2.5, True)), MILVUS) == (
        '(payload["a"] == 1) or (payload["a"] == 2.5) or (payload["a"] == true)'
    )
    assert translate(And((Eq("a", 1), Exists("b"))), MILVUS) == '(payload["a"] == 1)'
    for filter in (
        Eq("a", None),
        Eq("a", 2**53),
        Exists("a"),
        Not(Eq("a", 1)),
        Eq("a", 'quoted "text"'),
        Eq("0", 1),
        In("a", ()),
        Or((Eq("a", 1), Exists("b"))),
    ):
        assert translate(filter, MILVUS) is None


def test_milvus_unreachable_server_raises_without_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_connection, "SECONDS", 0.5)
    file = tmp_path / "shop.db"
    with pytest.raises(StoreError, match="cannot be reached or broke off") as caught:
        Gallery.create(f"milvus://me:secret@127.0.0.1:1/shop?catalogue={file}", OLD)
    assert "secret" not in str(caught.value)
    assert not file.exists()


# ---- the index


def many(count: int, seed: int = 0) -> Embeddings:
    ids = np.array([f"i{number:05}" for number in range(count)])
    return Embeddings(ids=ids, vectors=unit(np.random.default_rng(seed), count), space=OLD)


@pytest.mark.usefixtures("quiet")
def test_milvus_index_build_during_writes_keeps_all_rows(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gallery.create(f"{location}&index_from=1500&index=IVF_FLAT&nlist=16", OLD) as gallery:
        given, queries = many(2000), unit(np.random.default_rng(1), 8)
        ids = given.ids.tolist()
        gallery.add(given, payloads=[{"n": n % 10} for n in range(2000)])
        engine = engine_of(gallery)
        before = gallery.search(queries, space=OLD, k=10)
        assert engine.index_status(1).kind == "flat"
        assert engine.needs_index(1)
        wait = engine._wait_for_index
        old_handle = Gallery.open(location)

        def write_meanwhile(name: str) -> None:
            old_handle.delete(ids[:5])
            old_handle.set_payload({ids[7]: {"n": 77}})
            old_handle.add(embed(["late"]))
            wait(name)
            assert gallery.search(embed(["late"]), k=1)[0][0].id == "late"

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_wait_for_index", write_meanwhile)
            engine.build_index(1)
        status = engine.index_status(1)
        assert (status.rows, status.kind, status.state) == (1996, "ivf_flat", "ready")
        assert not engine.needs_index(1)
        assert engine._collections(1) == [f"{engine._collection(1)}_index"]
        engine.build_index(1)  # again does no harm
        for one in (gallery, old_handle):
            assert one.search(embed(["late"]), k=1)[0][0].id == "late"
            hit = one.search(given.vectors[7:8], space=OLD, k=1, filter={"n": 77})[0][0]
            assert hit.id == ids[7]
        exact = gallery.search(queries, space=OLD, k=10, exact=True)
        gone = set(ids[:5])
        for now, then in zip(exact, before, strict=True):
            kept = [hit for hit in then if hit.id not in gone]
            assert [hit.id for hit in now if hit.id in {h.id for h in kept}] == [h.id for h in kept]
        rough = gallery.search(queries, space=OLD, k=10)
        shares = [
            len({hit.id for hit in one} & {hit.id for hit in other}) / 10
            for one, other in zip(rough, exact, strict=True)
        ]
        assert np.mean(shares) >= 0.9
        (hits,) = gallery.search(queries[:1], space=OLD, k=500, filter={"n": 3})
        assert len(hits) == 199  # all there are, also behind an index
        verified = gallery.verify()
        assert (verified.ok, verified.missing) == (True, 0)
        old_handle.close()


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("moment", ["copied", "moved"])
def test_milvus_write_begun_before_the_move_is_kept(
    location: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gallery.create(f"{location}&index_from=20", OLD) as gallery:
        gallery.add(many(40))
        engine = engine_of(gallery)
        upsert, index = MilvusConnection.upsert, f"{engine._collection(1)}_index"

        with monkeypatch.context() as patch:

            def build_first(server: MilvusConnection, name: str, rows: Any) -> None:
                patch.undo()
                if moment == "moved":
                    engine.build_index(1)  # the collection that is about to be written is dropped
                else:
                    shape = engine._shape(1)
                    engine._make(index, shape, engine._location.index(shape.dim))
                    engine._copy(name, index)
                upsert(server, name, rows)

            patch.setattr(MilvusConnection, "upsert", build_first)
            add(gallery, ["late"])
        engine.build_index(1)
        assert engine.count(1) == 41
        assert gallery.search(embed(["late"]), k=1)[0][0].id == "late"


@pytest.mark.usefixtures("quiet")
def test_milvus_two_concurrent_builders_fill_one_collection(location: str) -> None:
    with Gallery.create(f"{location}&index_from=1000", OLD) as gallery:
        gallery.add(many(1500))
        with Gallery.open(f"{location}&index_from=1000") as other:
            builders = [engine_of(one) for one in (gallery, other)]
            failed = list[Exception]()

            def build(engine: MilvusEngine) -> None:
                try:
                    engine.build_index(1)
                except Exception as error:
                    failed.append(error)

            threads = [threading.Thread(target=build, args=(one,)) for one in builders]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failed == []
            for engine in builders:
                assert (engine.count(1), engine.index_status(1).kind) == (1500, "hnsw")
                assert engine._collections(1) == [f"{engine._collection(1)}_index"]


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.milvus
@pytest.mark.usefixtures("quiet")
# HNSW, the default, is built by the test above
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "HNSW"])
def test_milvus_every_index_kind_is_accepted(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's server cannot build DISKANN: it takes it, and builds nothing."""
    name = "g" + uuid.uuid4().hex[:12]
    settings = f"index={kind}&index_from=1000" + ("&nlist=8" if "IVF" in kind else "")
    with Gallery.create(f"{in_milvus(request, name)}&{settings}", OLD) as gallery:
        given = many(engine_module.SMALL + 100)
        gallery.add(given)
        engine = engine_of(gallery)
        if kind == "DISKANN":
            monkeypatch.setattr(engine_module, "INDEX_SECONDS", 1.0)
            with pytest.raises(StoreError, match="the index DISKANN was not built"):
                engine.build_index(1)
            assert engine.index_status(1).state == "building"
        else:
            engine.build_index(1)
            assert engine.index_status(1).kind == kind.lower()
        hits = gallery.search(given.vectors[:5], space=OLD, k=3)
        assert [one[0].id for one in hits] == given.ids[:5].tolist()


# ---- the server


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.milvus
@pytest.mark.usefixtures("quiet")
def test_milvus_rows_revived_by_compaction_are_in_no_answer(request: pytest.FixtureRequest) -> None:
    """Milvus 2.3.5 brings deleted rows back now and then; here it compacts after each round."""
    name = "g" + uuid.uuid4().hex[:12]
    memory = Gallery.create(f"memory:{name}", OLD)
    with memory, Gallery.create(in_milvus(request, name), OLD) as gallery:
        engine, ids = engine_of(gallery), [f"i{number:03}" for number in range(300)]
        for number in range(4):
            part = ids if number == 0 else random.Random(number).sample(ids, 150)
            for one in (memory, gallery):
                one.put_drafts([Draft(id) for id in part], [embed(part, seed=number)], mode="put")
                one.delete(part[:10])
            client = engine._server.client
            client.flush(f"{engine._collection(1)}_flat")
            client.compact(f"{engine._collection(1)}_flat")
        queries = embed(ids[:9], seed=3).vectors
        assert gallery.count() == memory.count()
        assert view(gallery, queries, k=400) == view(memory, queries, k=400)
        verified = gallery.verify()
        assert (verified.ok, verified.missing) == (True, 0)
        gallery.optimise()
        assert view(gallery, queries, k=400) == view(memory, queries, k=400)


ACKNOWLEDGED = 20  # writes before the server dies


@pytest.fixture
def mortal() -> Iterator[Milvus]:
    data = wheel()
    if data is None:
        pytest.skip("no Milvus: make setup installs it where there is a wheel (Linux, macOS)")
    server = Milvus(data, session=5)
    yield server
    server.stop()


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.milvus
def test_milvus_killed_server_loses_no_acknowledged_write(mortal: Milvus, tmp_path: Path) -> None:
    """However slow the machine is, the server dies in the midst of writes: after so many of them,
    and not after so many seconds."""
    gallery = Gallery.create(f"{mortal.location('shop')}?catalogue={tmp_path / 'shop.db'}", OLD)
    expected: dict[str, int] = {}
    enough = threading.Event()

    def kill() -> None:
        assert enough.wait(timeout=300)
        time.sleep(random.Random(3).uniform(0.0, 0.05))  # not at the beginning of a write
        mortal.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    for number in range(100_000):
        chance = random.Random(number)
        ids = [f"i{chance.randrange(60):02}" for _ in range(4)]
        ids = list(dict.fromkeys(ids))
        try:
            gallery.put_drafts([Draft(id) for id in ids], [embed(ids, seed=number)], mode="put")
        except StoreError as error:
            assert "cannot be reached or broke off" in str(error)  # noqa: PT017 (a loop)
            break
        expected |= dict.fromkeys(ids, number)
        if number == ACKNOWLEDGED:
            enough.set()
    enough.set()
    killer.join()
    assert number > ACKNOWLEDGED, "the server was given up while it was alive"
    mortal.start()
    wait_for(gallery)
    assert len(gallery) == len(expected)
    for id, seed in expected.items():
        (hits,) = view(gallery, embed([id], seed=seed).vectors, k=1)
        assert hits[0].id == id
        assert hits[0].score == pytest.approx(1, abs=1e-6)
    gallery.optimise()
    assert gallery.verify().garbage == 0
    assert engine_of(gallery).count(1) == len(expected)
    gallery.close()


def wait_for(gallery: Gallery) -> None:
    """After a restart the server loads its collections again."""
    deadline = time.time() + 240
    while True:
        try:
            engine_of(gallery).count(1)
            return
        except StoreError:
            if time.time() > deadline:
                raise
            time.sleep(0.2)


@pytest.mark.parametrize("path", [("brand",), ("maker", "country")])
def test_milvus_payload_index_is_created_or_refused_with_a_remedy(
    location: str, path: tuple[str, ...]
) -> None:
    payload = {"brand": "acme", "maker": {"country": "se"}}
    with Gallery.create(location, OLD) as gallery:
        with pytest.raises(GalleryError, match=r"no item has .*; add some"):
            gallery.index_payload(path)
        add(gallery, ["a", "b"], payloads=[payload, {}])
        with pytest.raises(
            GalleryError, match=r"indexes on JSON since 2\.5\.11.*Update the server"
        ):
            gallery.index_payload(path)  # neither the server of the tests nor Milvus Lite has them


def test_milvus_collection_dropped_while_opening_is_left_out(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gallery.create(location, OLD) as gallery:
        add(gallery, ["a", "b"])
    listed = MilvusEngine._collections

    def with_one_that_is_gone(engine: MilvusEngine, number: int | None = None) -> list[str]:
        names = listed(engine) if number is None else listed(engine, number)
        return [*names, "dropped_meanwhile"] if number is None else names

    monkeypatch.setattr(MilvusEngine, "_collections", with_one_that_is_gone)
    with Gallery.open(location) as gallery:
        assert [hit.id for hit in gallery.search(embed(["a"]), k=1)[0]] == ["a"]
