"""The dry run: true numbers, and nothing written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from midspan.errors import DataError, SpaceMismatch
from midspan.evaluation import backfill_curve
from midspan.gallery import Item
from midspan.upgrade import Embedded, Mode, Upgrade, gate
from tests.upgrade.world import (
    NEW,
    OLD,
    STRANGER,
    WIDE,
    bridge,
    encoder,
    ids,
    make,
    settings_for,
    vectors,
)


def test_nothing_is_written(tmp_path: Path) -> None:
    with make("sqlite", tmp_path) as gallery:
        before, sequence = gallery.state, gallery.sequence()
        Upgrade.plan(gallery, to=vectors(ids(60), NEW), embed=encoder(NEW))
        with pytest.raises(SpaceMismatch):
            Upgrade.plan(gallery, to=STRANGER)
        assert (gallery.state, gallery.sequence()) == (before, sequence)


def test_time_is_measured_on_the_gallery_s_own_items(tmp_path: Path) -> None:
    asked: list[str] = []
    good = encoder(NEW, missing=["i0030"])

    def slow(items: Sequence[Item]) -> Embedded:
        asked.extend(item.id for item in items)
        time.sleep(0.004 * len(items))
        return good(items)

    with make("memory", tmp_path) as gallery:
        started = time.monotonic()
        plan = Upgrade.plan(gallery, to=NEW, embed=slow, sample_size=0)
        most = (time.monotonic() - started) / 50  # 52 are timed, after a warm-up of 8
    assert asked == ids(60)
    assert plan.seconds_per_item is not None
    assert 0.004 <= plan.seconds_per_item <= most
    assert plan.seconds == pytest.approx(60 * plan.seconds_per_item)
    assert any("'i0030': no such file" in note for note in plan.notes)
    assert any("no gate evidence" in note for note in plan.notes)


def test_a_plan_whose_items_cannot_be_embedded_says_so_at_once(tmp_path: Path) -> None:
    with (
        make("memory", tmp_path) as gallery,
        pytest.raises(DataError, match="none of the first 4 items can be embedded"),
    ):
        Upgrade.plan(gallery, to=NEW, embed=encoder(NEW, corrupt=ids(60)))


def test_without_labels_the_new_ranking_is_the_measure(tmp_path: Path) -> None:
    old, new = (
        type(e)(e.ids, e.vectors, e.space) for e in (vectors(ids(60), s) for s in (OLD, NEW))
    )
    with make("memory", tmp_path) as gallery:
        gallery.set_payload({id: {} for id in ids(60)})
        plan = Upgrade.plan(gallery, to=new)
    wanted = gate(before=old, after=old, query=new, truth=new)
    assert plan.gate is not None
    assert not plan.gate["labelled"]
    assert [check["value"] for check in plan.gate["checks"]] == pytest.approx(
        [check.value for check in wanted.checks]
    )


def test_evidence_is_that_of_gate_and_curve(tmp_path: Path) -> None:
    old, new = vectors(ids(60), OLD), vectors(ids(60), NEW)
    with make("memory", tmp_path) as gallery:
        plan = Upgrade.plan(gallery, to=new, order="random")
    wanted = gate(before=old, after=old, query=new)
    assert plan.gate is not None
    assert plan.gate["verdict"] == wanted.verdict
    assert [check["value"] for check in plan.gate["checks"]] == pytest.approx(
        [check.value for check in wanted.checks]
    )
    ends = backfill_curve(
        query=new, gallery_old=old, gallery_new=new, order=list(range(60)), points=2
    )
    assert plan.curve is not None
    values = plan.curve["values"]
    assert [values[0], values[-1]] == pytest.approx(ends.values.tolist())


def test_labels_come_from_the_payload_if_the_sample_has_none(tmp_path: Path) -> None:
    new = vectors(ids(60), NEW)
    with make("memory", tmp_path) as gallery:
        plan = Upgrade.plan(gallery, to=NEW, sample=type(new)(new.ids, new.vectors, NEW))
    assert plan.gate is not None
    assert plan.gate["labelled"]
    assert plan.sample == 60


@pytest.mark.parametrize(
    ("mode", "searches", "encoders", "sets"),
    [("map-query", 2, 1, 1), ("map-gallery", 1, 1, 2), ("both", 2, 2, 1)],
)
def test_plans_of_spaces_that_are_not_compatible(
    tmp_path: Path, mode: Mode, searches: int, encoders: int, sets: int
) -> None:
    new, folder = settings_for(mode, tmp_path)
    with make("memory", tmp_path) as gallery:
        to = vectors(ids(60), new)
        plan = Upgrade.plan(gallery, to=to, mode=mode, bridge=folder)
        assert plan.standardised
        assert plan.searches_per_query == 2
        assert plan.encoders_per_query == encoders
        if mode != "both":
            plain = Upgrade.plan(gallery, to=to, mode=mode, bridge=folder, sample_size=0)
            assert not plain.standardised
            assert plain.searches_per_query == searches
    assert plan.disk_bytes == sets * 60 * (16 * 4 + 48)
    assert plan.gate is not None
    assert plan.curve is not None
    assert len(plan.curve["values"]) == 11


def test_vectors_that_are_there_already_are_counted(tmp_path: Path) -> None:
    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(
            gallery, to=WIDE, mode="map-query", bridge=bridge(tmp_path, WIDE, OLD)
        )
        upgrade.run(encoder(WIDE), limit=25)
        upgrade.rollback()
        plan = Upgrade.plan(gallery, to=WIDE, mode="map-query", bridge=tmp_path / "wide-old")
    assert plan.to_embed == 35
    assert any(note.startswith("25 items have a vector") for note in plan.notes)
