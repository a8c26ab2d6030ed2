"""Searches during an upgrade against brute force over what each item's live vector is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.bridges import load_bridge
from midspan.errors import SpaceMismatch
from midspan.gallery import Gallery
from midspan.gallery.engines.base import Candidates, SearchRequest
from midspan.gallery.routing import PairedSample, parts
from midspan.spaces import Space
from midspan.upgrade import MODES, Mode, Record, Upgrade
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    STRANGER,
    WIDE,
    asked_in,
    encoder,
    ids,
    label,
    picture,
    settings_for,
    vectors,
)

QUERIES = ids(8, first=900)


Scored = dict[str, tuple[float, float]]  # id → (score, rank score)


def reference(gallery: Gallery, query: str, folder: Path | None, *, new: Space) -> Scored:
    """From the definition of the mode, one item at a time."""
    record = Record.of(gallery.state)
    assert record is not None
    bridge = None if folder is None else load_bridge(folder)
    sample = None
    if record.sample is not None:
        sample = PairedSample.from_bytes(gallery.blobs.get(record.sample))
    q = {space.fingerprint: vectors([query], space).vectors[0] for space in (OLD, new)}

    def cosine(stored: Any, *, fresh: bool) -> float:
        asked = q[record.new]
        if not fresh and record.mode == "both":
            asked = q[record.old]
        elif not fresh and record.mode == "map-query":
            assert bridge is not None
            asked = bridge.apply(asked)
        elif not fresh and record.mode == "map-gallery":
            assert bridge is not None
            stored = bridge.apply(stored)
        asked, stored = asked.astype(float), stored.astype(float)
        return float(asked @ stored / np.sqrt((asked @ asked) * (stored @ stored)))

    found: Scored = {}
    for item in gallery.scan(limit=1000):
        fresh = record.new in item.spaces
        space = record.new if fresh else record.old
        score = cosine(gallery.vectors([item.id], space=space).vectors[0], fresh=fresh)
        rank = score
        if sample is not None:
            side = sample.new if fresh else sample.old
            usual = sorted(cosine(row, fresh=fresh) for row in side)[:-1]
            mean = float(np.mean(usual))
            above = [(one - mean) ** 2 for one in usual if one > mean]
            rank = (score - mean) / float(np.sqrt(np.mean(above)))
        found[item.id] = (score, rank)
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [0, 40])
def test_results_are_those_of_brute_force(
    gallery: Gallery, tmp_path: Path, mode: Mode, size: int
) -> None:
    if mode == "both" and not size:
        pytest.skip("mode both has a sample")
    new, folder = settings_for(mode, tmp_path)
    sample = vectors(ids(60), new)
    upgrade = Upgrade.start(gallery, to=sample, mode=mode, bridge=folder, sample_size=size)
    query = asked_in(mode, QUERIES[:1], new)
    for _ in range(3):
        wanted = reference(gallery, QUERIES[0], folder, new=new)
        best = sorted(wanted, key=lambda id: (-wanted[id][1], id))
        (hits,) = upgrade.search(query, k=15)
        assert [hit.id for hit in hits] == best[:15]
        found = [(hit.score, hit.rank_score) for hit in hits]
        np.testing.assert_allclose(found, [wanted[id] for id in best[:15]], atol=2e-5)
        middle = sorted(score for score, _ in wanted.values())[-20] - 1e-4
        (close,) = upgrade.search(query, k=15, threshold=middle)
        assert [hit.id for hit in close] == [id for id in best if wanted[id][0] >= middle][:15]
        (alike,) = upgrade.search(query, k=60, filter={"labels": 2})
        assert [hit.id for hit in alike] == [id for id in best if label(picture(id)) == 2]
        upgrade.run(encoder(new), limit=30, settings=QUICK)


def test_a_search_costs_one_look_where_scores_are_merged_as_they_are_and_two_with_a_sample(
    gallery: Gallery, tmp_path: Path
) -> None:
    plain = {"direct": 1, "map-query": 2, "map-gallery": 1, "both": 2}
    modes: tuple[Mode, ...] = ("direct", "map-query", "map-gallery", "both")
    for mode in modes:
        for size in (0, 40):
            if mode == "both" and not size:
                continue
            new, folder = settings_for(mode, tmp_path)
            sample = vectors(ids(60), new)
            Upgrade.start(gallery, to=sample, mode=mode, bridge=folder, sample_size=size)
            found = parts(gallery.state, [new, OLD], bridge_of=gallery._session.searcher.bridge_of)
            assert len(found) == (2 if size else plain[mode])
            assert found[-1].among[0] == new.fingerprint, "the fresh part is searched last"
            Upgrade(gallery).rollback()


def test_an_item_refreshed_between_the_two_searches_is_found_once(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, folder = settings_for("map-query", tmp_path)
    upgrade = Upgrade.start(gallery, to=new, mode="map-query", bridge=folder)
    search, calls = gallery._session.engine.search, 0

    def between(request: SearchRequest) -> list[Candidates]:
        nonlocal calls
        calls += 1
        if calls == 2:
            upgrade.run(encoder(new), settings=QUICK)
        return search(request)

    monkeypatch.setattr(gallery._session.engine, "search", between)
    (hits,) = upgrade.search(vectors(QUERIES[:1], new), k=60)
    assert calls == 2
    assert sorted(hit.id for hit in hits) == ids(60)
    assert {hit.space.fingerprint for hit in hits} == {"f-wide"}, "the better score counts"


def test_a_state_that_changes_during_the_search_is_lived_through(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    search, calls = gallery._session.engine.search, 0

    def finished(request: SearchRequest) -> list[Candidates]:
        nonlocal calls
        calls += 1
        if calls == 1:
            upgrade.finish()
            upgrade.forget()
        return search(request)

    monkeypatch.setattr(gallery._session.engine, "search", finished)
    (hits,) = upgrade.search(vectors(["i0007"], NEW), k=5)
    assert hits[0].id == "i0007"
    assert len(hits) == 5


@pytest.mark.parametrize("calls_before", [1, 2])
def test_a_rollback_between_two_searches_hides_nothing(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    """The other process of a fleet rolls back, and another thread's search has seen it already."""
    upgrade = Upgrade.start(gallery, to=vectors(ids(60), NEW), mode="direct")
    upgrade.run(encoder(NEW), limit=30, settings=QUICK)
    search, calls = gallery._session.engine.search, 0

    def rolled_back(request: SearchRequest) -> list[Candidates]:
        nonlocal calls
        calls += 1
        if calls == calls_before:
            upgrade.rollback()
            gallery.state  # noqa: B018 — another thread of this process reads it
        return search(request)

    monkeypatch.setattr(gallery._session.engine, "search", rolled_back)
    (hits,) = gallery.search(vectors(QUERIES[:1], NEW), k=60)
    assert calls >= calls_before
    assert sorted(hit.id for hit in hits) == ids(60)


def test_queries_of_strangers_are_refused_in_every_state(gallery: Gallery, tmp_path: Path) -> None:
    stranger = vectors(QUERIES, STRANGER)
    with pytest.raises(SpaceMismatch):
        gallery.search(stranger)
    modes: tuple[Mode, ...] = ("direct", "map-query", "map-gallery")
    for mode in modes:
        new, folder = settings_for(mode, tmp_path)
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=folder)
        with pytest.raises(SpaceMismatch, match="'stranger'"):
            upgrade.search(stranger)
        for known in (OLD, new):
            with pytest.raises(SpaceMismatch, match=r"'stranger' .* is neither"):
                upgrade.search([vectors(QUERIES, known), stranger])
        upgrade.rollback()
    with pytest.raises(SpaceMismatch, match="'wide'"):
        gallery.search(vectors(QUERIES, WIDE))


def test_queries_in_two_spaces_that_are_not_the_same_queries_are_refused(gallery: Gallery) -> None:
    Upgrade.start(gallery, to=NEW)
    other = vectors(list(reversed(QUERIES)), NEW)
    with pytest.raises(SpaceMismatch, match="expected equal ids in order"):
        gallery.search([vectors(QUERIES, OLD), other])


def test_plain_numbers_want_their_space(gallery: Gallery) -> None:
    numbers = vectors(["i0004"], OLD).vectors[0]
    with pytest.raises(SpaceMismatch, match="space="):
        gallery.search(numbers)
    assert gallery.search(numbers, space=OLD, k=1)[0][0].id == "i0004"
    assert gallery.search(np.empty((0, 12), np.float32), space=OLD) == []
