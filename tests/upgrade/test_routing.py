"""Searches during an upgrade against brute force over what each item's live vector is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.bridges import load_bridge
from midspan.errors import SpaceMismatch
from midspan.gallery import Gallery, Hit, Query
from midspan.gallery.index import search as index_search
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.spaces import Embeddings
from midspan.upgrade import MODES, Mixing, Mode, Record, Upgrade, choose_scores, routing
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    STRANGER,
    WIDE,
    encoder,
    ids,
    label,
    make,
    picture,
    settings_for,
    vectors,
)

QUERIES = ids(8, first=900)


@pytest.fixture(autouse=True)
def always_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where calibration is asked for there is a map, whether it ranks better or not."""

    def without_labels(old: Embeddings, new: Embeddings, **settings: Any) -> Mixing:
        return choose_scores(old, new, bridge=settings["bridge"])

    monkeypatch.setattr("midspan.upgrade.start.choose_scores", without_labels)


def reference(
    gallery: Gallery, query: Embeddings, folder: Path | None, *, calibrated: bool
) -> dict[str, float]:
    """Score of each item for the first query, from the definition of the mode."""
    record = Record.of(gallery.state)
    assert record is not None
    scores, q, found = record.score_map(), query.vectors[0], dict[str, float]()
    assert (scores is not None) == calibrated
    for item in gallery.store.scan(filter=None, missing=None, after="", limit=1000):
        fresh = record.new in item.spaces
        space = record.new if fresh else record.old
        vector = gallery.store.vectors([item.id], space=space).vectors[0]
        asked = q
        if not fresh and record.mode == "map-query":
            assert folder is not None
            asked = load_bridge(folder).apply(q)
        if not fresh and record.mode == "map-gallery":
            assert folder is not None
            vector = load_bridge(folder).apply(vector)
        score = float(asked.astype(float) @ vector.astype(float))
        if not fresh and scores is not None:
            score = float(scores(np.array([score]))[0])
        found[item.id] = score
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("calibrate", [False, True])
def test_results_are_those_of_brute_force(
    gallery: Gallery, tmp_path: Path, mode: Mode, calibrate: bool
) -> None:
    new, folder = settings_for(mode, tmp_path)
    sample = vectors(ids(60), new)
    upgrade = Upgrade.start(gallery, to=sample, mode=mode, bridge=folder, calibrate=calibrate)
    query = vectors(QUERIES[:1], new)
    for _ in range(3):
        wanted = reference(gallery, query, folder, calibrated=calibrate)
        best = sorted(wanted, key=lambda id: (-wanted[id], id))
        (hits,) = upgrade.search(query, k=15)
        assert [hit.id for hit in hits] == best[:15]
        assert [hit.score for hit in hits] == pytest.approx(
            [wanted[id] for id in best[:15]], abs=1e-5
        )
        middle = (wanted[best[6]] + wanted[best[7]]) / 2
        (close,) = upgrade.search(query, k=15, threshold=middle)
        assert [hit.id for hit in close] == best[:7]
        (alike,) = upgrade.search(query, k=60, filter={"labels": 2})
        assert [hit.id for hit in alike] == [id for id in best if label(picture(id)) == 2]
        upgrade.run(encoder(new), limit=30, settings=QUICK)


def test_a_search_costs_one_look_in_direct_mode_and_two_when_merged(
    gallery: Gallery, tmp_path: Path
) -> None:
    asked = []
    plain = {"direct": 1, "map-query": 2, "map-gallery": 1}
    modes: tuple[Mode, ...] = ("direct", "map-query", "map-gallery")
    for mode in modes:
        for calibrate in (False, True):
            new, folder = settings_for(mode, tmp_path)
            sample = vectors(ids(60), new)
            Upgrade.start(gallery, to=sample, mode=mode, bridge=folder, calibrate=calibrate)
            parts = routing.parts(gallery.state, new)
            asked.append(len(parts))
            assert len(parts) == (2 if calibrate else plain[mode])
            assert parts[-1].scores is None, "the fresh part is searched last, as it is"
            Upgrade(gallery).rollback()
    assert asked == [1, 2, 2, 2, 1, 2]


def test_an_item_refreshed_between_the_two_searches_is_found_once(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, folder = settings_for("map-query", tmp_path)
    upgrade = Upgrade.start(gallery, to=new, mode="map-query", bridge=folder)
    search, calls = gallery.store.search, 0

    def between(query: Query) -> list[list[Hit]]:
        nonlocal calls
        calls += 1
        if calls == 2:
            upgrade.run(encoder(new), settings=QUICK)
        return search(query)

    monkeypatch.setattr(gallery.store, "search", between)
    (hits,) = upgrade.search(vectors(QUERIES[:1], new), k=60)
    assert calls == 2
    assert sorted(hit.id for hit in hits) == ids(60)
    assert {hit.space.fingerprint for hit in hits} == {"f-wide"}, "the better score counts"


def test_a_state_that_changes_during_the_search_is_lived_through(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    search, calls = gallery.store.search, 0

    def finished(query: Query) -> list[list[Hit]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            upgrade.finish()
        return search(query)

    monkeypatch.setattr(gallery.store, "search", finished)
    (hits,) = upgrade.search(vectors(["i0007"], NEW), k=5)
    assert hits[0].id == "i0007"
    assert len(hits) == 5


@pytest.mark.parametrize("calls_before", [1, 2])
def test_a_rollback_between_two_searches_hides_nothing(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    """The other process of a fleet rolls back, and another thread's search has seen it already."""
    upgrade = Upgrade.start(gallery, to=vectors(ids(60), NEW), mode="direct", calibrate=True)
    upgrade.run(encoder(NEW), limit=30, settings=QUICK)
    search, calls = gallery.store.search, 0

    def rolled_back(query: Query) -> list[list[Hit]]:
        nonlocal calls
        calls += 1
        if calls == calls_before:
            upgrade.rollback()
            live = gallery.state.live
            search(Query(vectors=query.vectors, k=1, live=live, among=live))
        return search(query)

    monkeypatch.setattr(gallery.store, "search", rolled_back)
    (hits,) = routing.search(gallery, vectors(QUERIES[:1], NEW), k=60)
    assert calls > calls_before
    assert sorted(hit.id for hit in hits) == ids(60)


def test_a_rollback_in_the_middle_of_a_scan_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows to compare are chosen, and then go back to the old space before they are compared."""
    with make("sqlite", tmp_path, count=60) as gallery:
        upgrade = Upgrade.start(gallery, to=vectors(ids(60), NEW), mode="direct", calibrate=True)
        upgrade.run(encoder(NEW), limit=30, settings=QUICK)
        scan, calls = index_search._by_scan, 0

        def late(*sources: Any, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:  # the part with the new vectors
                upgrade.rollback()
                live = gallery.state.live
                gallery.store.search(Query(vectors(["q"], OLD).vectors, k=1, live=live, among=live))
            return scan(*sources, **settings)

        monkeypatch.setattr(index_search, "_by_scan", late)
        (hits,) = routing.search(gallery, vectors(QUERIES[:1], NEW), k=60)
        assert calls > 2
        assert sorted(hit.id for hit in hits) == ids(60)


def test_a_change_between_the_counter_and_the_state_fails_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that a search read may be newer than the commits that its mirror has followed."""
    with make("sqlite", tmp_path, count=60) as gallery:
        store = gallery.store
        assert isinstance(store, SqliteStore)
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        upgrade.run(encoder(NEW), settings=QUICK)
        query = vectors(QUERIES[:1], NEW)
        upgrade.search(query)  # the mirror has followed so far
        store._seen = None
        commits, calls = store._database.commits, 0

        def late() -> int:
            nonlocal calls
            calls += 1
            count = commits()
            if calls == 1:
                upgrade.finish()
                store._seen = None
            return count

        monkeypatch.setattr(store._database, "commits", late)
        (hits,) = upgrade.search(query, k=60)
        assert calls > 1
        assert sorted(hit.id for hit in hits) == ids(60)


def test_queries_of_strangers_are_refused_in_every_state(gallery: Gallery, tmp_path: Path) -> None:
    stranger = vectors(QUERIES, STRANGER)
    with pytest.raises(SpaceMismatch):
        routing.search(gallery, stranger)
    modes: tuple[Mode, ...] = ("direct", "map-query", "map-gallery")
    for mode in modes:
        new, folder = settings_for(mode, tmp_path)
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=folder)
        with pytest.raises(SpaceMismatch, match="'stranger'"):
            upgrade.search(stranger)
        upgrade.rollback()
    with pytest.raises(SpaceMismatch, match="'wide'"):
        routing.search(gallery, vectors(QUERIES, WIDE))


def test_plain_numbers_want_their_space(gallery: Gallery) -> None:
    numbers = vectors(["i0004"], OLD).vectors[0]
    with pytest.raises(SpaceMismatch, match="space="):
        routing.search(gallery, numbers)
    assert routing.search(gallery, numbers, space=OLD, k=1)[0][0].id == "i0004"
    assert routing.search(gallery, np.empty((0, 12), np.float32), space=OLD) == []
