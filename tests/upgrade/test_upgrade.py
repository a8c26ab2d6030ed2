"""Whole upgrades, from the first query to the last old vector, and back at every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midspan.errors import ConfigError, GalleryError, MidspanError, SpaceMismatch
from midspan.gallery import Entry, Gallery, Hit, State
from midspan.upgrade import MODES, Mode, Upgrade, routing
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    STRANGER,
    WIDE,
    accounted,
    add,
    all_hold,
    answers,
    bridge,
    encoder,
    ids,
    label,
    make,
    picture,
    settings_for,
    vectors,
)


@pytest.mark.parametrize("mode", MODES)
def test_a_whole_upgrade_with_writes_in_between(
    gallery: Gallery, tmp_path: Path, mode: Mode
) -> None:
    new, map_ = settings_for(mode, tmp_path)
    model = {id: picture(id) for id in ids(60)}
    upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_, order="random")
    assert accounted(gallery) == (60, 0, 0)
    assert [space.name for space in upgrade.wanted_spaces()] == [new.name, "old"]

    embed = encoder(new)
    assert upgrade.run(embed, limit=20, settings=QUICK).stopped == "limit"
    assert accounted(gallery) == (40, 20, 0)

    add(gallery, ["both"], new, OLD)  # as promised
    add(gallery, ["only-old"], OLD)  # by a client that knows nothing of the upgrade
    add(gallery, ["only-new"], new)
    items = gallery.store.get(ids(60))
    done = next(item.id for item in items if new.fingerprint in item.spaces)
    waiting = next(item.id for item in items if new.fingerprint not in item.spaces)
    add(gallery, [done, waiting], OLD, version=2, replace=True)
    gone = [id for id in ids(60) if id not in (done, waiting)][:5]
    assert gallery.delete(gone) == 5
    model |= {id: picture(id) for id in ("both", "only-old", "only-new")}
    model |= {id: picture(id, 2) for id in (done, waiting)}
    for id in gone:
        del model[id]
    accounted(gallery)

    found = upgrade.search(vectors(["both", "only-new"], new), k=1)
    assert [hits[0].id for hits in found] == ["both", "only-new"]
    report = upgrade.run(embed, settings=QUICK)
    assert (report.stopped, report.old, report.new, report.failed) == ("done", 0, len(model), 0)
    all_hold(gallery, new, model)

    finished = upgrade.finish()
    assert (finished.left, gallery.state.live) == (0, (new.fingerprint,))
    assert set(gallery.state.spaces) == {new.fingerprint}
    assert gallery.state.upgrade is None
    assert gallery.state.target is None
    all_hold(gallery, new, model)
    assert gallery.verify().ok
    found = routing.search(gallery, vectors(["both"], new), k=3)
    assert found[0][0].id == "both"
    done_steps = [line.what for line in reversed(gallery.trail())]
    for what in ("upgrade start", "upgrade order", "upgrade run", "upgrade finish"):
        assert what in done_steps


def rights(names: list[str], found: list[list[Hit]]) -> int:
    """Queries whose first result is of their class, with k different results each."""
    right = 0
    for name, hits in zip(names, found, strict=True):
        assert len({hit.id for hit in hits}) == len(hits) == 10
        right += label(picture(hits[0].id)) == label(picture(name))
    return right


@pytest.mark.parametrize("mode", MODES)
def test_no_moment_is_worse_than_the_old_service(
    gallery: Gallery, tmp_path: Path, mode: Mode
) -> None:
    new, map_ = settings_for(mode, tmp_path)
    names = ids(100, first=900)
    before = rights(names, gallery.search(vectors(names, OLD), k=10))
    upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_)
    for part in (0, 20, 20, 20):
        if part:
            upgrade.run(encoder(new), limit=part, settings=QUICK)
        now = rights(names, upgrade.search(vectors(names, new), k=10))
        assert now >= before - 3, f"{now} after a further {part}, {before} before"
    assert now > before > 50, "the new encoder is the better one, and both know something"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", ["start", "half", "paused", "done"])
def test_rollback_restores_the_exact_old_results(
    gallery: Gallery, tmp_path: Path, mode: Mode, stage: str
) -> None:
    new, map_ = settings_for(mode, tmp_path)
    old_queries = vectors(ids(10, first=900), OLD)
    before = answers(gallery, old_queries)
    upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_)
    if stage != "start":
        upgrade.run(encoder(new), limit=None if stage == "done" else 25, settings=QUICK)
    if stage == "paused":
        upgrade.pause()
    version = gallery.state.version
    rolled = upgrade.rollback()
    assert (rolled.space, rolled.without) == ("f-old", 0)
    assert gallery.state.version == version + 2, "one row that counts, then the work list"
    assert gallery.state.live == ("f-old",)
    assert answers(gallery, old_queries) == before
    assert routing.search(gallery, old_queries) == gallery.search(old_queries)
    assert accounted(gallery)[0] == 0

    again = Upgrade.start(gallery, to=new, mode=mode, bridge=map_)  # finds what was made before
    expected = {"start": 0, "half": 25, "paused": 25, "done": 60}[stage]
    assert accounted(gallery) == (60 - expected, expected, 0)
    again.rollback(drop=True)
    assert set(gallery.state.spaces) == {"f-old"}
    assert answers(gallery, old_queries) == before
    assert gallery.verify().ok


def test_rollback_lists_items_that_came_without_an_old_vector(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    add(gallery, ["fresh"], NEW)
    assert upgrade.rollback().without == 1
    assert accounted(gallery) == (1, 60, 0)
    assert upgrade.status().phase == "none"
    assert upgrade.run(encoder(OLD), settings=QUICK).stopped == "done"
    assert gallery.state.target is None
    assert gallery.search(vectors(["fresh"], OLD), k=1)[0][0].id == "fresh"


def test_a_client_of_the_old_encoder_is_served_during_the_upgrade(
    gallery: Gallery, tmp_path: Path
) -> None:
    queries = vectors(ids(10, first=900), OLD)
    modes: tuple[Mode, ...] = ("direct", "map-query", "map-gallery")
    for mode in modes:
        new, map_ = settings_for(mode, tmp_path / mode)
        before = answers(gallery, queries)
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_)
        upgrade.run(encoder(new), limit=30, settings=QUICK)
        now = [[(hit.id, hit.score) for hit in hits] for hits in upgrade.search(queries)]
        assert now == before
        upgrade.rollback(drop=True)


def test_finish_waits_for_the_last_item_unless_forced(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    embed = encoder(NEW, corrupt=["i0003"])
    upgrade.run(embed, limit=30, settings=QUICK)
    with pytest.raises(GalleryError, match=r"30 of 60 items have no new vector.*--force|.*--force"):
        upgrade.finish()
    upgrade.run(embed, settings=QUICK)
    assert accounted(gallery) == (0, 59, 1)
    with pytest.raises(GalleryError, match="1 were given up"):
        upgrade.finish()
    assert gallery.store.count().stored["f-old"] == 60
    finished = upgrade.finish(force=True)
    assert (finished.dropped, finished.left) == (60, 1)
    assert accounted(gallery) == (0, 59, 1)  # still listed, with its reason
    assert gallery.store.failures(after="", limit=10)[0].reason == "not an image"
    assert gallery.store.retry() == 1
    assert upgrade.run(encoder(NEW), settings=QUICK).new == 60
    assert gallery.verify().ok


def test_a_forced_finish_keeps_mapped_vectors(gallery: Gallery, tmp_path: Path) -> None:
    upgrade = Upgrade.start(
        gallery, to=WIDE, mode="map-gallery", bridge=bridge(tmp_path, OLD, WIDE)
    )
    upgrade.run(encoder(WIDE), limit=10, settings=QUICK)
    assert upgrade.finish(force=True).left == 50
    assert gallery.store.count().without == 0
    assert len(gallery.search(vectors(["x"], WIDE), k=60)[0]) == 60
    with pytest.raises(GalleryError, match="mapped vectors of an earlier upgrade"):
        Upgrade.start(gallery, to=NEW)
    assert upgrade.run(encoder(WIDE), settings=QUICK).new == 60


def test_finish_goes_on_after_a_stop_and_forbids_the_way_back(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    drop, calls = gallery.store.drop, 0

    def dies(space: str, *, limit: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return drop(space, limit=20)

    with monkeypatch.context() as patch:
        patch.setattr(gallery.store, "drop", dies)
        with pytest.raises(KeyboardInterrupt):
            upgrade.finish()
    assert upgrade.status().phase == "finishing"
    assert gallery.store.count().stored["f-old"] == 20
    assert upgrade.search(vectors(["i0001"], NEW), k=1)[0][0].id == "i0001"
    with pytest.raises(GalleryError, match="no way back"):
        upgrade.rollback()
    assert upgrade.finish().dropped == 20
    assert set(gallery.state.spaces) == {"f-new"}


def test_an_item_that_comes_in_the_moment_of_finish_is_not_lost(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    change = gallery.store.change

    def late(state: State, *, entry: Entry) -> State:
        if entry.what == "upgrade finish":
            add(gallery, ["late"], OLD)
        return change(state, entry=entry)

    monkeypatch.setattr(gallery.store, "change", late)
    with pytest.raises(GalleryError, match="1 of 61 items have no new vector"):
        upgrade.finish()
    assert accounted(gallery) == (1, 60, 0)
    assert upgrade.status().phase == "running"
    monkeypatch.undo()
    upgrade.run(encoder(NEW), settings=QUICK)
    assert upgrade.finish().left == 0
    assert len(gallery) == 61


def test_mapping_goes_on_after_a_stop_and_the_old_service_answers_meanwhile(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_ = bridge(tmp_path, OLD, WIDE)
    queries = vectors(ids(5, first=900), OLD)
    before = answers(gallery, queries)
    monkeypatch.setattr("midspan.upgrade.mapping.PAGE", 10)
    fill, calls = gallery.store.fill, 0

    def dies(part: Any, *, revisions: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        return fill(part, revisions=revisions)

    def start() -> Upgrade:
        return Upgrade.start(gallery, to=WIDE, mode="map-gallery", bridge=map_)

    with monkeypatch.context() as patch:
        patch.setattr(gallery.store, "fill", dies)
        with pytest.raises(KeyboardInterrupt):
            start()
    assert Upgrade(gallery).status().phase == "mapping"
    assert [[(h.id, h.score) for h in hits] for hits in routing.search(gallery, queries)] == before
    with pytest.raises(SpaceMismatch, match="still being mapped"):
        routing.search(gallery, vectors(["q"], WIDE))
    with pytest.raises(GalleryError, match="repeat midspan upgrade start"):
        Upgrade(gallery).run(encoder(WIDE))
    with pytest.raises(GalleryError, match="is open"):
        Upgrade.start(gallery, to=NEW)
    upgrade = start()
    counts = gallery.store.count()
    assert counts.live[gallery.state.live[1]] == 60
    assert upgrade.status().phase == "running"
    assert counts.pending == 60


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"to": STRANGER}, SpaceMismatch, "not on record as compatible.*map-query"),
        ({"to": WIDE}, SpaceMismatch, "not on record as compatible"),
        ({"to": OLD}, SpaceMismatch, "already"),
        ({"to": NEW, "mode": "sideways"}, ConfigError, "direct, map-query, map-gallery"),
        ({"to": WIDE, "mode": "map-query"}, ConfigError, "wants a bridge from new to old"),
        ({"to": WIDE, "mode": "map-gallery"}, ConfigError, "wants a bridge from old to new"),
        ({"to": NEW, "order": "alphabetical"}, ConfigError, "order"),
        ({"to": NEW, "order": "bridge_error"}, ConfigError, "sample of new"),
        ({"to": NEW, "calibrate": True}, ConfigError, "sample of new"),
        ({"to": NEW, "sample": vectors(["a"], WIDE)}, SpaceMismatch, "the sample is in"),
    ],
)
def test_what_cannot_be_started_is_refused_and_nothing_changes(
    gallery: Gallery, settings: dict[str, Any], error: type[MidspanError], words: str
) -> None:
    before, lines = gallery.state, len(gallery.trail())
    with pytest.raises(error, match=words):
        Upgrade.start(gallery, **settings)
    assert gallery.state == before
    assert len(gallery.trail()) == lines


def test_wrong_bridges_are_refused(gallery: Gallery, tmp_path: Path) -> None:
    forward, backward = bridge(tmp_path, OLD, WIDE), bridge(tmp_path, WIDE, OLD)
    other = bridge(tmp_path, STRANGER, WIDE)
    before = gallery.state
    with pytest.raises(SpaceMismatch, match="direction of mode map-gallery"):
        Upgrade.start(gallery, to=WIDE, mode="map-query", bridge=forward)
    with pytest.raises(SpaceMismatch, match="direction of mode map-query"):
        Upgrade.start(gallery, to=WIDE, mode="map-gallery", bridge=backward)
    with pytest.raises(SpaceMismatch, match="wants one from 'old'"):
        Upgrade.start(gallery, to=WIDE, mode="map-gallery", bridge=other)
    with pytest.raises(ConfigError, match="takes no bridge"):
        Upgrade.start(gallery, to=NEW, bridge=forward)
    with pytest.raises(MidspanError, match="bridge"):
        Upgrade.start(gallery, to=WIDE, mode="map-query", bridge=tmp_path / "nothing")
    assert gallery.state == before


def test_a_bridge_that_was_exchanged_is_noticed(gallery: Gallery, tmp_path: Path) -> None:
    from midspan.bridges import Ridge
    from midspan.upgrade import mapping

    folder = bridge(tmp_path, WIDE, OLD)
    upgrade = Upgrade.start(gallery, to=WIDE, mode="map-query", bridge=folder)
    assert upgrade.search(vectors(["q"], WIDE), k=1)[0]
    pairs = ids(100, first=7000)
    Ridge(alpha=9.0).fit(vectors(pairs, WIDE), vectors(pairs, OLD)).save(folder)
    mapping._loaded.cache_clear()  # as in a new process
    with pytest.raises(MidspanError, match="not the bridge that the upgrade was started with"):
        upgrade.search(vectors(["q"], WIDE), k=1)
    upgrade.rollback()  # needs no bridge
    assert gallery.search(vectors(["i0001"], OLD), k=1)[0][0].id == "i0001"


def test_a_second_upgrade_waits_for_the_first(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    with pytest.raises(GalleryError, match="finish it or roll it back"):
        Upgrade.start(gallery, to=STRANGER, mode="map-query", bridge="anything")
    with pytest.raises(GalleryError, match="finish it or roll it back"):
        Upgrade.plan(gallery, to=NEW)
    upgrade.rollback()
    for step in (upgrade.rollback, upgrade.finish, upgrade.pause, upgrade.resume):
        with pytest.raises(GalleryError, match="no upgrade is open"):
            step()
    with pytest.raises(GalleryError, match="nothing is to be embedded"):
        upgrade.run(encoder(NEW))


def test_an_empty_gallery_can_be_upgraded(tmp_path: Path) -> None:
    with make("sqlite", tmp_path, count=0) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="uncertainty")
        assert upgrade.run(encoder(NEW)).stopped == "done"
        add(gallery, ["first"], NEW)
        assert upgrade.finish().left == 0
        assert gallery.search(vectors(["first"], NEW), k=5)[0][0].id == "first"


def test_one_item_needs_no_order(tmp_path: Path) -> None:
    with make("memory", tmp_path, count=1) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="entropy")
        assert upgrade.run(encoder(NEW), settings=QUICK).new == 1


def test_an_order_that_cannot_be_learnt_is_refused_before_the_switch(tmp_path: Path) -> None:
    few = vectors(ids(4), NEW)
    with make("memory", tmp_path) as gallery:
        before = gallery.state
        with pytest.raises(MidspanError, match="pairs"):
            Upgrade.start(gallery, to=few, order="bridge_error")
        assert gallery.state == before
