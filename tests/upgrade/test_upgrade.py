"""Whole upgrades, from the first query to the last old vector, and back at every stage."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.errors import (
    ConfigError,
    EvidenceFailed,
    GalleryError,
    ItemError,
    MidspanError,
    SpaceMismatch,
    StateChanged,
)
from midspan.evidence import Evidence
from midspan.gallery import AuditEvent, Gallery, Hit, State
from midspan.gallery.routing import sample_kind
from midspan.spaces import Embeddings, Space
from midspan.upgrade import MODES, Mode, Upgrade, from_embeddings
from midspan.upgrade.finish import forget_if_due
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
    asked_in,
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
    upgrade = Upgrade.start(
        gallery, to=new, mode=mode, bridge=map_, order="random", embed=encoder(new)
    )
    assert accounted(gallery) == (60, 0, 0)
    assert [space.name for space in upgrade.wanted_spaces()] == [new.name, "old"]

    embed = encoder(new)
    assert upgrade.run(embed, limit=20, settings=QUICK).stopped == "limit"
    assert accounted(gallery) == (40, 20, 0)

    add(gallery, ["both"], new, OLD)  # as promised
    add(gallery, ["only-old"], OLD)  # by a client that knows nothing of the upgrade
    with pytest.raises(ItemError, match=r"without a vector in 'old'.*promises a rollback"):
        add(gallery, ["only-new"], new)
    items = gallery.get_many(ids(60))
    done = next(item.id for item in items if new.fingerprint in item.spaces)
    waiting = next(item.id for item in items if new.fingerprint not in item.spaces)
    add(gallery, [done, waiting], OLD, version=2, replace=True)
    gone = [id for id in ids(60) if id not in (done, waiting)][:5]
    assert gallery.delete(gone) == 5
    model |= {id: picture(id) for id in ("both", "only-old")}
    model |= {id: picture(id, 2) for id in (done, waiting)}
    for id in gone:
        del model[id]
    accounted(gallery)

    found = upgrade.search(asked_in(mode, ["both"], new), k=1)
    assert [hits[0].id for hits in found] == ["both"]
    assert upgrade.status().would_vanish == 0
    report = upgrade.run(embed, settings=QUICK)
    assert (report.stopped, report.old, report.new, report.failed) == ("done", 0, len(model), 0)
    all_hold(gallery, new, model)

    finished = upgrade.finish()
    assert (finished.left, gallery.state.live) == (0, (new.fingerprint,))
    assert finished.kept == len(model)
    assert upgrade.status().phase == "finished"
    all_hold(gallery, new, model)
    assert upgrade.forget().dropped >= len(model)
    assert set(gallery.state.spaces) == {new.fingerprint}
    assert gallery.state.upgrade is None
    assert gallery.state.target is None
    all_hold(gallery, new, model)
    assert gallery.verify().ok
    found = gallery.search(vectors(["both"], new), k=3)
    assert found[0][0].id == "both"
    done_steps = [line.what for line in reversed(gallery.audit_log())]
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
    upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_, embed=encoder(new))
    for part in (0, 20, 20, 20):
        if part:
            upgrade.run(encoder(new), limit=part, settings=QUICK)
        now = rights(names, upgrade.search(asked_in(mode, names, new), k=10))
        assert now >= before - 3, f"{now} after a further {part}, {before} before"
    assert now > before > 50, "the new encoder is the better one, and both know something"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stage", ["start", "half", "paused", "done", "finished"])
def test_rollback_restores_the_exact_old_results(
    gallery: Gallery, tmp_path: Path, mode: Mode, stage: str
) -> None:
    new, map_ = settings_for(mode, tmp_path)
    old_queries = vectors(ids(10, first=900), OLD)
    before = answers(gallery, old_queries)
    upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_, embed=encoder(new))
    if stage != "start":
        upgrade.run(
            encoder(new), limit=None if stage in ("done", "finished") else 25, settings=QUICK
        )
    if stage == "paused":
        upgrade.pause()
    if stage == "finished":
        upgrade.finish()
    version = gallery.state.version
    rolled = upgrade.rollback()
    assert (rolled.space, rolled.without) == ("f-old", 0)
    assert gallery.state.version == version + 2, "one row that counts, then the work list"
    assert gallery.state.live == ("f-old",)
    assert answers(gallery, old_queries) == before
    assert gallery.search(old_queries) == gallery.search(old_queries)
    assert accounted(gallery)[0] == 0

    again = Upgrade.start(
        gallery, to=new, mode=mode, bridge=map_, embed=encoder(new)
    )  # finds what was made before
    expected = {"start": 0, "half": 25, "paused": 25, "done": 60, "finished": 60}[stage]
    assert accounted(gallery) == (60 - expected, expected, 0)
    again.rollback(drop=True)
    assert set(gallery.state.spaces) == {"f-old"}
    assert answers(gallery, old_queries) == before
    assert gallery.verify().ok


def test_rollback_lists_items_that_came_without_an_old_vector(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW, rollback=False)
    add(gallery, ["fresh"], NEW)
    assert upgrade.status().would_vanish == 1
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
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=map_, embed=encoder(new))
        upgrade.run(encoder(new), limit=30, settings=QUICK)
        now = [[(hit.id, hit.score) for hit in hits] for hits in upgrade.search(queries)]
        assert now == before
        upgrade.rollback(drop=True)


def test_finish_waits_for_the_last_item_whatever_the_flag(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    embed = encoder(NEW, corrupt=["i0003"])
    with pytest.raises(GalleryError, match="60 of 60 items would be left without a vector"):
        upgrade.finish(force=True)
    upgrade.run(embed, limit=30, settings=QUICK)
    with pytest.raises(GalleryError, match=r"30 of 60 items have no new vector.*upgrade run"):
        upgrade.finish()
    upgrade.run(embed, settings=QUICK)
    assert accounted(gallery) == (0, 59, 1)
    with pytest.raises(GalleryError, match=r": 1 of 60 items failed; .*failures `delete`"):
        upgrade.finish()
    with pytest.raises(GalleryError, match="1 of 60 items would be left without a vector"):
        upgrade.finish(force=True, override="whatever")
    assert gallery.count().stored["f-old"] == 60
    assert upgrade.status().phase == "running"
    gallery.delete(["i0003"])
    assert upgrade.finish().kept == 59
    assert upgrade.forget().dropped == 59
    assert gallery.verify().ok


def test_a_forced_finish_keeps_mapped_vectors(gallery: Gallery, tmp_path: Path) -> None:
    upgrade = Upgrade.start(
        gallery, to=WIDE, mode="map-gallery", bridge=bridge(tmp_path, OLD, WIDE)
    )
    upgrade.run(encoder(WIDE), limit=10, settings=QUICK)
    with pytest.raises(GalleryError, match="requires a PASS of the gate, which was not asked"):
        upgrade.finish(force=True)
    assert upgrade.finish(force=True, override="the encoder is gone").left == 50
    assert gallery.count().without == 0
    assert len(gallery.search(vectors(["x"], WIDE), k=60)[0]) == 60
    upgrade.forget()
    with pytest.raises(GalleryError, match="mapped vectors of an earlier upgrade"):
        Upgrade.start(gallery, to=NEW)
    assert upgrade.run(encoder(WIDE), settings=QUICK).new == 60
    assert gallery.state.live == ("f-wide",)
    Upgrade.start(gallery, to=OLD, mode="map-query", bridge=bridge(tmp_path, OLD, WIDE))


def test_forget_continues_after_a_stop_and_forbids_the_way_back(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    with pytest.raises(GalleryError, match="is running; only a finished upgrade can be forgotten"):
        upgrade.forget()
    upgrade.finish()
    for step in (upgrade.pause, upgrade.resume):
        with pytest.raises(GalleryError, match="the upgrade is finished"):
            step()
    with pytest.raises(GalleryError, match="this upgrade is finished"):
        upgrade.finish()
    with pytest.raises(GalleryError, match="its old vectors are kept"):
        Upgrade.start(gallery, to=STRANGER, mode="map-query", bridge="anything")

    def dies(space: str, *, event: AuditEvent) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gallery, "drop_vectors", dies)
        with pytest.raises(KeyboardInterrupt):
            upgrade.forget()
    assert upgrade.status().phase == "forgetting"
    assert gallery.count().stored["f-old"] == 60
    assert upgrade.search(vectors(["i0001"], NEW), k=1)[0][0].id == "i0001"
    with pytest.raises(GalleryError, match="no way back"):
        upgrade.rollback()
    assert upgrade.forget().dropped == 60
    assert set(gallery.state.spaces) == {"f-new"}


def test_items_of_the_grace_period_are_counted_as_those_that_would_vanish(
    gallery: Gallery,
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    upgrade.finish()
    assert [space.name for space in upgrade.wanted_spaces()] == ["new"]
    add(gallery, ["late"], NEW)
    assert upgrade.status().would_vanish == 1
    rolled = upgrade.rollback()
    assert rolled.without == 1
    assert len(gallery.search(vectors(["x"], OLD), k=100)[0]) == 60
    upgrade.run(encoder(OLD), settings=QUICK)
    assert len(gallery.search(vectors(["x"], OLD), k=100)[0]) == 61


def test_old_vectors_are_kept_as_long_as_was_said(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    with pytest.raises(GalleryError, match="expected 0 or more seconds"):
        upgrade.finish(keep_old=-1)
    finished = upgrade.finish(keep_old=3600)
    assert finished.keep_until == pytest.approx(time.time() + 3600, abs=60)
    assert forget_if_due(gallery) is None
    upgrade.rollback()
    again = Upgrade.start(gallery, to=NEW)
    again.finish(keep_old=0)
    forgotten = forget_if_due(gallery)
    assert forgotten is not None
    assert forgotten.dropped == 60
    assert forget_if_due(gallery) is None


@pytest.mark.parametrize("replace", [False, True])
def test_an_item_that_a_rollback_would_lose_is_refused(gallery: Gallery, replace: bool) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    names = ["i0001"] if replace else ["fresh"]
    for _ in range(2):
        with pytest.raises(ItemError, match=r"1 of 1 items come without a vector in 'old'"):
            add(gallery, names, NEW, replace=replace)
        upgrade.pause()
    add(gallery, names, NEW, OLD, replace=replace)
    assert upgrade.status().would_vanish == 0
    assert upgrade.rollback().without == 0


def test_forget_returns_the_disk(tmp_path: Path) -> None:
    space = {name: Space(name, 256, fingerprint=name) for name in ("a", "b")}
    b = replace(space["b"], compatible_with=("a",))
    rows = np.random.default_rng(0).standard_normal((3000, 256)).astype(np.float32)
    names = np.array(ids(3000))
    path = tmp_path / "shop.midspan"
    with Gallery.create(path, space["a"]) as gallery:
        gallery.add(Embeddings(names, rows, space["a"]))
    plain = path.stat().st_size
    with Gallery.open(path) as gallery:
        upgrade = Upgrade.start(gallery, to=b, order="random")
        upgrade.run(from_embeddings(Embeddings(names, rows, b)))
        upgrade.finish()
        assert path.stat().st_size + Path(f"{path}-wal").stat().st_size > 1.8 * plain
        number = gallery._session.catalogue.snapshot().numbers["a"]
        index = Path(f"{path}-index") / f"{number}-0123"
        index.mkdir(parents=True)
        (index / "vectors.f32").write_bytes(b"0" * 100)
        upgrade.forget()
        assert not index.exists(), "the snapshots of the dropped space go too"
        assert len(gallery.search(rows[:1], space=b, k=5)[0]) == 5
    assert path.stat().st_size < 1.15 * plain


def test_an_item_that_comes_in_the_moment_of_finish_is_not_lost(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    change = gallery.change

    def late(state: State, *, event: AuditEvent) -> State:
        if event.what == "upgrade finish":
            add(gallery, ["late"], OLD)
        return change(state, event=event)

    monkeypatch.setattr(gallery, "change", late)
    with pytest.raises(GalleryError, match="1 of 61 items have no new vector"):
        upgrade.finish()
    assert accounted(gallery) == (1, 60, 0)
    assert upgrade.status().phase == "running"
    monkeypatch.undo()
    upgrade.run(encoder(NEW), settings=QUICK)
    assert upgrade.finish().left == 0
    assert len(gallery) == 61


def test_items_that_come_and_go_in_the_moment_of_finish_are_told_of(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item is gone again when finish looks why it was there: it says to try once more."""
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    change = gallery.change

    def late(state: State, *, event: AuditEvent) -> State:
        if event.what == "upgrade finish":
            add(gallery, ["late"], OLD)
        made = change(state, event=event)
        if event.what == "upgrade finish undone":
            gallery.delete(["late"])
        return made

    monkeypatch.setattr(gallery, "change", late)
    with pytest.raises(StateChanged, match="items came concurrently; finish again"):
        upgrade.finish()
    monkeypatch.undo()
    assert upgrade.finish().left == 0


def test_finish_waits_for_the_index_of_the_new_vectors(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    upgrade.run(encoder(NEW), settings=QUICK)
    monkeypatch.setattr(gallery, "indexes_due", lambda: ("f-new",))
    with pytest.raises(GalleryError, match="the index of the new vectors is not built yet"):
        upgrade.finish(override="whatever")
    assert upgrade.finish(force=True).left == 0


def test_rollback_with_drop_returns_the_disk(tmp_path: Path) -> None:
    wide = Space("wide", 512, fingerprint="f-512")
    rows = np.random.default_rng(0).standard_normal((600, 512)).astype(np.float32)
    path = tmp_path / "shop.midspan"
    with make("sqlite", tmp_path, count=600) as gallery:
        gallery.optimise()
    plain = path.stat().st_size
    with Gallery.open(path) as gallery:
        new = Embeddings(np.array(ids(600)), rows, wide)
        upgrade = Upgrade.start(gallery, to=new, mode="both", order="random")
        upgrade.run(from_embeddings(new))
        upgrade.rollback()
        Upgrade.start(gallery, to=new, mode="both", order="random")
        assert upgrade.rollback(drop=True).dropped == 600
        samples = gallery.blobs.of_kind(sample_kind("f-old"))
        kept = sum(len(gallery.blobs.get(one)) for one in samples)
    assert path.stat().st_size < plain + kept + 600_000, "the new vectors alone take 1.2 MB"


def test_mapping_goes_on_after_a_stop_and_the_old_service_answers_meanwhile(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_ = bridge(tmp_path, OLD, WIDE)
    queries = vectors(ids(5, first=900), OLD)
    before = answers(gallery, queries)
    monkeypatch.setattr("midspan.upgrade.start.PAGE", 10)
    fill, calls = gallery.add_missing_vectors, 0

    def dies(part: Any, *, revisions: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt
        return fill(part, revisions=revisions)

    def start() -> Upgrade:
        return Upgrade.start(gallery, to=WIDE, mode="map-gallery", bridge=map_)

    with monkeypatch.context() as patch:
        patch.setattr(gallery, "add_missing_vectors", dies)
        with pytest.raises(KeyboardInterrupt):
            start()
    assert Upgrade(gallery).status().phase == "mapping"
    assert [[(h.id, h.score) for h in hits] for hits in gallery.search(queries)] == before
    with pytest.raises(SpaceMismatch, match="still being mapped"):
        gallery.search(vectors(["q"], WIDE))
    with pytest.raises(GalleryError, match="repeat midspan upgrade start"):
        Upgrade(gallery).run(encoder(WIDE))
    with pytest.raises(GalleryError, match="is open"):
        Upgrade.start(gallery, to=NEW)
    upgrade = start()
    counts = gallery.count()
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
        ({"to": WIDE, "mode": "map-query"}, ConfigError, "requires a bridge from new to old"),
        ({"to": WIDE, "mode": "map-gallery"}, ConfigError, "requires a bridge from old to new"),
        ({"to": NEW, "order": "alphabetical"}, ConfigError, "order"),
        ({"to": NEW, "order": "disagreement"}, ConfigError, "new vectors of a sample"),
        ({"to": NEW, "sample": vectors(["a"], WIDE)}, SpaceMismatch, "the sample is in"),
    ],
)
def test_what_cannot_be_started_is_refused_and_nothing_changes(
    gallery: Gallery, settings: dict[str, Any], error: type[MidspanError], words: str
) -> None:
    before, lines = gallery.state, len(gallery.audit_log())
    with pytest.raises(error, match=words):
        Upgrade.start(gallery, **settings)
    assert gallery.state == before
    assert len(gallery.audit_log()) == lines


def test_start_after_a_failed_test_of_training_requires_a_reason(gallery: Gallery) -> None:
    found = Evidence.measured(
        old=OLD.fingerprint,
        metric="map",
        cross=0.4,
        old_self=0.5,
        low=-0.2,
        high=-0.05,
        queries=90,
        data="tests",
    )
    failed = replace(NEW, evidence=(found,))
    before = gallery.state
    with pytest.raises(EvidenceFailed, match=r"cross 40\.00 %.* with `override` \"reason\""):
        Upgrade.start(gallery, to=failed)
    with pytest.raises(GalleryError, match="an override needs a reason"):
        Upgrade.start(gallery, to=failed, override=" ")
    assert gallery.state == before
    Upgrade.start(gallery, to=failed, mode="both", sample=vectors(ids(60), failed)).rollback()
    Upgrade.start(gallery, to=failed, override="a trial", order="random")
    [started] = [one for one in gallery.audit_log(limit=3) if one.what == "upgrade start"]
    assert started.details["override"] == "a trial"
    assert started.details["evidence"].startswith("FAIL: cross 40.00 %")


def test_wrong_bridges_are_refused(gallery: Gallery, tmp_path: Path) -> None:
    forward, backward = bridge(tmp_path, OLD, WIDE), bridge(tmp_path, WIDE, OLD)
    other = bridge(tmp_path, STRANGER, WIDE)
    before = gallery.state
    with pytest.raises(SpaceMismatch, match="direction of mode map-gallery"):
        Upgrade.start(gallery, to=WIDE, mode="map-query", bridge=forward)
    with pytest.raises(SpaceMismatch, match="direction of mode map-query"):
        Upgrade.start(gallery, to=WIDE, mode="map-gallery", bridge=backward)
    with pytest.raises(SpaceMismatch, match="expected a bridge from 'old'"):
        Upgrade.start(gallery, to=WIDE, mode="map-gallery", bridge=other)
    with pytest.raises(ConfigError, match="takes no bridge"):
        Upgrade.start(gallery, to=NEW, bridge=forward)
    with pytest.raises(MidspanError, match="bridge"):
        Upgrade.start(gallery, to=WIDE, mode="map-query", bridge=tmp_path / "nothing")
    assert gallery.state == before


def test_a_bridge_is_found_without_the_folder_it_came_from(
    gallery: Gallery, tmp_path: Path
) -> None:
    folder = bridge(tmp_path, WIDE, OLD)
    upgrade = Upgrade.start(gallery, to=WIDE, mode="map-query", bridge=folder)
    queries = vectors(ids(5, first=900), WIDE)
    before = answers(gallery, queries)
    shutil.rmtree(folder)
    gallery._session.searcher._bridges.clear()  # as on another host
    assert answers(gallery, queries) == before
    upgrade.rollback()
    assert gallery.search(vectors(["i0001"], OLD), k=1)[0][0].id == "i0001"


def test_a_second_upgrade_waits_for_the_first(gallery: Gallery) -> None:
    upgrade = Upgrade.start(gallery, to=NEW)
    with pytest.raises(GalleryError, match=r"to 'new' .* is open; continue it with"):
        Upgrade.start(gallery, to=STRANGER, mode="map-query", bridge="anything")
    with pytest.raises(GalleryError, match=r"to 'new' .* is open; continue it with"):
        Upgrade.plan(gallery, to=NEW)
    upgrade.rollback()
    steps = (upgrade.rollback, upgrade.finish, upgrade.forget, upgrade.pause, upgrade.resume)
    for step in steps:
        with pytest.raises(GalleryError, match="no upgrade is open"):
            step()
    with pytest.raises(GalleryError, match="nothing is to be embedded"):
        upgrade.run(encoder(NEW))


def test_an_empty_gallery_can_be_upgraded(tmp_path: Path) -> None:
    with make("sqlite", tmp_path, count=0) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="uncertainty")
        assert upgrade.run(encoder(NEW)).stopped == "done"
        add(gallery, ["first"], NEW, OLD)
        with pytest.raises(GalleryError, match="expected 3 or more items that have both vectors"):
            upgrade.finish()
        assert upgrade.finish(override="one item").left == 0
        assert gallery.search(vectors(["first"], NEW), k=5)[0][0].id == "first"


def test_one_item_needs_no_order(tmp_path: Path) -> None:
    with make("memory", tmp_path, count=1) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="uncertainty")
        assert upgrade.run(encoder(NEW), settings=QUICK).new == 1


def test_an_order_that_cannot_be_learnt_is_refused_before_the_switch(tmp_path: Path) -> None:
    few = vectors(ids(4), NEW)
    with make("memory", tmp_path) as gallery:
        before = gallery.state
        with pytest.raises(MidspanError, match="pairs"):
            Upgrade.start(gallery, to=few, order="disagreement")
        assert gallery.state == before
