"""How small a gallery holds vectors: chosen once, kept in the file, followed by every process."""

from __future__ import annotations

import dataclasses
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import GalleryError
from midspan.gallery import Entry, Gallery, copy, create_store, open_store, set_quantise
from midspan.gallery.index import upkeep
from midspan.gallery.quantise import QUANTISE, Quantise
from midspan.gallery.stores.base import Store
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.spaces import Embeddings
from tests.gallery.samples import NEW, OLD, entry, near, start, unit

COUNT = 400
WORKER = Path(__file__).with_name("quantise_worker.py")
SMALLER: list[Quantise] = ["int8", "binary"]


@pytest.fixture(autouse=True)
def _index_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FLAT_UP_TO", 100 * OLD.dim)


def made(place: Path, quantise: str) -> Gallery:
    gallery = Gallery.create(place, OLD, quantise=quantise)
    gallery.add(vectors(), payloads=[{"n": number % 10} for number in range(COUNT)])
    return gallery


def vectors(*, new: bool = False) -> Embeddings:
    rows = unit(np.random.default_rng(0), COUNT)
    rows[1::50] = rows[0::50]  # equal scores stand in the order of the ids
    if new:
        rows = rows + 0.1 * unit(np.random.default_rng(1), COUNT)
    ids = np.array([f"i{number:04}" for number in range(COUNT)])
    return Embeddings(ids=ids, vectors=rows, space=NEW if new else OLD)


def held(store: Store) -> str:
    assert isinstance(store, SqliteStore)
    mirror = store._follower._mirror
    index = mirror.families[0].ivf
    assert index is not None
    assert not mirror.misplaced()
    return f"{mirror.layout.quantise}, {index.codes.name}"


def test_unknown_values_are_errors(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match=r"quantise = 'int4'; wanted one of none, int8, binary"):
        create_store(str(tmp_path / "a.midspan"), OLD, entry=entry("create"), quantise="int4")
    assert list(tmp_path.iterdir()) == []
    with made(tmp_path / "a.midspan", "none") as gallery:
        with pytest.raises(GalleryError, match="wanted one of"):
            set_quantise(gallery, "")
        assert gallery.info().quantise == "none"


def test_a_gallery_in_memory_is_exact_and_says_so() -> None:
    with pytest.raises(GalleryError, match="in memory is exact and holds float32"):
        create_store("memory:", OLD, entry=entry("create"), quantise="binary")
    with Gallery.create("memory:", OLD) as gallery:
        assert gallery.info().quantise is None
        with pytest.raises(GalleryError, match="in memory is exact"):
            set_quantise(gallery, "int8")


def test_servers_are_referred_to_their_own_settings() -> None:
    with pytest.raises(GalleryError, match="postgresql has settings of its own"):
        create_store("postgresql://h/db", OLD, entry=entry("create"), quantise="int8")


@pytest.mark.parametrize("kind", SMALLER)
def test_the_same_hits_scores_and_ties_as_without(tmp_path: Path, kind: Quantise) -> None:
    queries = vectors().vectors[:60]
    with made(tmp_path / "plain.midspan", "none") as plain, made(tmp_path / "s", kind) as small:
        for gallery in (plain, small):
            gallery.store.optimise()
        assert held(small.store) == f"{kind}, {'8 bits' if kind == 'int8' else '1 bit'}"
        for settings in ({}, {"filter": {"n": 0}}, {"threshold": 0.6}, {"k": 1}):
            both = [gallery.search(queries, space=OLD, **settings) for gallery in (small, plain)]
            same = np.mean([mine == theirs for mine, theirs in zip(*both, strict=True)])
            assert same >= 0.9, settings  # the rest may lack a hit, but never has a wrong score
            for mine, theirs in zip(*both, strict=True):
                scores = {hit.id: hit.score for hit in theirs}
                assert all(scores.get(hit.id, hit.score) == hit.score for hit in mine)
        exact = [g.search(queries, space=OLD, exact=True) for g in (small, plain)]
        assert exact[0] == exact[1]
        assert [hit.id for hit in exact[0][0][:2]] == ["i0000", "i0001"]


@pytest.mark.parametrize("kind", SMALLER)
def test_it_is_kept_over_a_restart_and_leaves_no_file(tmp_path: Path, kind: Quantise) -> None:
    made(tmp_path / "shop.midspan", kind).close()
    with Gallery.open(tmp_path / "shop.midspan") as gallery:
        assert gallery.info().quantise == kind
        assert gallery.info().to_dict()["quantise"] == kind
        gallery.store.optimise()
        assert held(gallery.store).startswith(kind)
        assert len(gallery.search(vectors().vectors[:1], space=OLD)[0]) == 10
        assert gallery.verify().ok
    assert [path.name for path in tmp_path.iterdir()] == ["shop.midspan"]


def test_a_file_from_before_has_no_choice_until_one_is_made(tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    made(place, "none").close()
    connection = sqlite3.connect(place)
    connection.execute("DROP TABLE settings")
    connection.commit()
    connection.close()
    with Gallery.open(place) as gallery:
        assert gallery.info().quantise == "none"
        gallery.store.optimise()
        set_quantise(gallery, "binary")
        gallery.store.optimise()
        assert held(gallery.store) == "binary, 1 bit"
        line = gallery.trail(limit=1)[0]
        assert (line.what, line.details) == ("quantise", {"from": "none", "to": "binary"})


def test_a_copy_is_held_as_its_source(tmp_path: Path) -> None:
    with made(tmp_path / "a.midspan", "binary") as source:
        copy(source, tmp_path / "b.midspan")
        with Gallery.open(tmp_path / "b.midspan") as target:
            assert target.info().quantise == "binary"


@pytest.mark.parametrize("kind", SMALLER)
def test_an_upgrade_with_both_spaces_in_one_index(tmp_path: Path, kind: Quantise) -> None:
    queries = vectors(new=True).vectors[:50]
    new = vectors(new=True)
    with made(tmp_path / "shop.midspan", kind) as gallery:
        gallery.store.optimise()
        start(gallery.store)
        for share in (0.0, 0.5, 1.0):
            part = new[: int(share * COUNT)]
            gallery.store.fill(part, revisions=[1] * len(part))
            gallery.store.optimise()
            answers = [
                gallery.store.search(near(gallery.store, queries, exact=exact))
                for exact in (False, True)
            ]
            found, wanted = ([{hit.id for hit in hits} for hits in answer] for answer in answers)
            got = np.mean([len(a & b) / 10 for a, b in zip(found, wanted, strict=True)])
            assert got >= 0.97, share
            spaces = {hit.space.name for hits in answers[0] for hit in hits}
            assert spaces == {0.0: {"old"}, 0.5: {"old", "new"}, 1.0: {"new"}}[share]
        state = gallery.state
        back = dataclasses.replace(state, live=(OLD.fingerprint,), target=None, upgrade=None)
        gallery.store.change(back, entry=entry("rollback"))
        mine = gallery.search(queries, space=OLD, exact=True)
        assert {hit.space.name for hits in mine for hit in hits} == {"old"}


@pytest.mark.slow
def test_another_process_follows_a_change_and_dies_without_a_trace(tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    with made(place, "none") as gallery:
        worker = subprocess.Popen(
            [sys.executable, str(WORKER), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline().strip() == "none 8 bits None"
            set_quantise(gallery, "binary")
            assert worker.stdout.readline().strip() == f"binary 1 bit {tmp_path}"
            set_quantise(gallery, "int8")
            assert worker.stdout.readline().strip() == f"int8 8 bits {tmp_path}"
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
        assert {path.suffix for path in tmp_path.iterdir()} <= {
            ".midspan",
            ".midspan-wal",
            ".midspan-shm",
        }
        assert len(gallery.search(vectors().vectors[:1], space=OLD)[0]) == 10


def test_every_choice_has_words_for_people() -> None:
    assert list(QUANTISE) == ["none", "int8", "binary"]
    assert all(QUANTISE.values())


def test_the_record_keeps_the_vectors_as_they_came(tmp_path: Path) -> None:
    with made(tmp_path / "shop.midspan", "binary") as gallery:
        gallery.store.optimise()
        stored = open_store(str(tmp_path / "shop.midspan"))
        got = stored.vectors(vectors().ids.tolist(), space=OLD.fingerprint)
        np.testing.assert_array_equal(got.vectors, vectors().vectors)
        stored.record(Entry(who="t", what="t"))
        stored.close()
