"""How small a gallery holds vectors: chosen once, kept in the file, followed by every process."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import GalleryError
from midspan.gallery import Gallery, copy, set_quantise
from midspan.gallery.engines.embedded import build
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.gallery.rules import QUANTISE, Quantise
from midspan.spaces import Embeddings
from tests.gallery.samples import NEW, OLD, event, start, unit

COUNT = 400
SMALLER: list[Quantise] = ["int8", "binary"]


@pytest.fixture(autouse=True)
def _index_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAT_UP_TO", 100 * OLD.dim)


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


def held(gallery: Gallery) -> str:
    """As this process searches it."""
    engine = gallery._session.engine
    assert isinstance(engine, EmbeddedEngine)
    gallery.search(vectors().vectors[:1], space=OLD)
    snapshot = engine._replica.known.segments[1].snapshot
    assert snapshot is not None
    return f"{snapshot.record.quantise}, {snapshot.ivf.codes.name}"


def test_quantise_unknown_value_raises(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match=r"quantise = 'int4'; expected one of none, int8"):
        Gallery.create(tmp_path / "a.midspan", OLD, quantise="int4")
    assert list(tmp_path.iterdir()) == []
    with made(tmp_path / "a.midspan", "none") as gallery:
        with pytest.raises(GalleryError, match="expected one of"):
            set_quantise(gallery, "")
        assert gallery.info().quantise == "none"


def test_quantise_in_memory_raises() -> None:
    with pytest.raises(GalleryError, match="in memory is exact and holds float32"):
        Gallery.create("memory:", OLD, quantise="binary")
    with Gallery.create("memory:", OLD) as gallery:
        assert gallery.info().quantise is None
        with pytest.raises(GalleryError, match="in memory is exact"):
            set_quantise(gallery, "int8")


def test_quantise_on_a_server_raises_with_its_settings() -> None:
    with pytest.raises(GalleryError, match="postgresql has settings of its own"):
        Gallery.create("postgresql://h/db?table=t", OLD, quantise="int8")


@pytest.mark.parametrize("kind", SMALLER)
def test_quantise_hits_scores_and_ties_equal_full_precision(tmp_path: Path, kind: Quantise) -> None:
    queries = vectors().vectors[:60]
    with made(tmp_path / "plain.midspan", "none") as plain, made(tmp_path / "s", kind) as small:
        for gallery in (plain, small):
            gallery.optimise()
        assert held(small) == f"{kind}, {'8 bits' if kind == 'int8' else '1 bit'}"
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
def test_quantise_choice_survives_a_restart(tmp_path: Path, kind: Quantise) -> None:
    made(tmp_path / "shop.midspan", kind).close()
    with Gallery.open(tmp_path / "shop.midspan") as gallery:
        assert gallery.info().quantise == kind
        assert gallery.info().to_dict()["quantise"] == kind
        gallery.optimise()
        assert held(gallery).startswith(kind)
        assert len(gallery.search(vectors().vectors[:1], space=OLD)[0]) == 10
        assert gallery.verify().ok


def test_quantise_change_reaches_another_process(tmp_path: Path) -> None:
    place = tmp_path / "shop.midspan"
    with made(place, "none") as gallery, Gallery.open(place) as other:
        gallery.optimise()
        assert held(other) == "none, 8 bits"
        set_quantise(gallery, "binary")
        gallery.optimise()
        assert held(other) == held(gallery) == "binary, 1 bit"
        line = gallery.audit_log(limit=1)[0]
        assert (line.what, line.details) == ("quantise", {"from": "none", "to": "binary"})


def test_quantise_copy_keeps_the_choice(tmp_path: Path) -> None:
    with made(tmp_path / "a.midspan", "binary") as source:
        copy(source, tmp_path / "b.midspan")
        with Gallery.open(tmp_path / "b.midspan") as target:
            assert target.info().quantise == "binary"


@pytest.mark.parametrize("kind", ["none", *SMALLER])
def test_quantise_mixed_gallery_recall_holds_for_both_spaces(
    tmp_path: Path, kind: Quantise
) -> None:
    new, old = vectors(new=True), vectors()
    with made(tmp_path / "shop.midspan", kind) as gallery:
        gallery.optimise()
        start(gallery)
        for share in (0.0, 0.5, 1.0):
            part = new[: int(share * COUNT)]
            gallery.add_missing_vectors(part, revisions=[1] * len(part))
            gallery.optimise()
            for queries in (new, old):
                found, expected = (
                    [{hit.id for hit in hits} for hits in gallery.search(queries[:50], exact=exact)]
                    for exact in (False, True)
                )
                got = np.mean([len(a & b) / 10 for a, b in zip(found, expected, strict=True)])
                assert got >= 0.97, (share, queries.space.name)
        state = gallery.state
        back = dataclasses.replace(state, live=(OLD.fingerprint,), target=None, upgrade=None)
        gallery.change(back, event=event("rollback"))
        mine = gallery.search(old[:20], exact=True)
        assert {hit.space.name for hits in mine for hit in hits} == {"old"}


def test_quantise_every_choice_has_a_description() -> None:
    assert list(QUANTISE) == ["none", "int8", "binary"]
    assert all(QUANTISE.values())


def test_quantise_stored_vectors_stay_float32(tmp_path: Path) -> None:
    with made(tmp_path / "shop.midspan", "binary") as gallery:
        gallery.optimise()
        got = gallery.vectors(vectors().ids.tolist(), space=OLD.fingerprint)
        np.testing.assert_array_equal(got.vectors, vectors().vectors)
