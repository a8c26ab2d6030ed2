"""Orders written into the gallery: the work comes in their order."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from midspan.gallery import Gallery
from midspan.gallery.search_log import SearchLog
from midspan.spaces import Embeddings
from midspan.upgrade import Upgrade
from midspan.upgrade.orders import order_named
from midspan.upgrade.priorities import hints_for, priority_floors, rounded_down, sample_items
from tests.upgrade.world import NEW, OLD, ids, label, picture, vectors


def work(gallery: Gallery) -> list[str]:
    tasks = gallery.work.claim(worker="looks", limit=1000, seconds=60)
    gallery.work.release("looks")
    return [task.item.id for task in tasks]


@pytest.mark.parametrize("name", ["random", "uncertainty"])
def test_the_work_list_follows_the_order(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.PAGE", 7)  # many pages
    monkeypatch.setattr("midspan.upgrade.priorities.ROWS", 3)
    Upgrade.start(gallery, to=NEW, order=name)
    old = vectors(ids(60), OLD)
    old = old.with_columns({"labels": old.columns["labels"].astype(np.str_)})
    priorities = order_named(name)(old, hints_for(name, old))
    assert work(gallery) == [ids(60)[row] for row in np.argsort(-priorities, kind="stable")]
    assert Upgrade(gallery).status().order == name


def test_traffic_reads_the_search_log_and_another_order_may_follow(gallery: Gallery) -> None:
    log = SearchLog(gallery)
    log.note([*gallery.search(vectors(["i0003"], OLD), k=1)] * 3)
    log.note(gallery.search(vectors(["i0001"], OLD), k=1))
    log.flush()
    upgrade = Upgrade.start(gallery, to=NEW, order="traffic")
    assert work(gallery)[:2] == ["i0003", "i0001"]
    assert len(set(work(gallery))) == 60
    assert upgrade.reorder("newest") == 60
    created = {item.id: item.created for item in gallery.get_many(ids(60))}
    found = [created[id] for id in work(gallery)]
    assert found == sorted(found, reverse=True)
    assert upgrade.status().order == "newest"


def test_items_that_come_later_are_first_under_newest(gallery: Gallery) -> None:
    Upgrade.start(gallery, to=NEW, order="newest")
    gallery.add(vectors(["late"], OLD))
    assert work(gallery)[0] == "late"


@pytest.mark.parametrize("name", ["random", "uncertainty", "disagreement"])
def test_a_large_gallery_gets_few_levels_of_its_order(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.EXACT_UP_TO", 59)
    four = partial(priority_floors, levels=4)
    monkeypatch.setattr("midspan.upgrade.start.priority_floors", four)
    monkeypatch.setattr("midspan.upgrade.priorities.PAGE", 7)
    gallery.set_payload({id: {"seen": place % 13} for place, id in enumerate(ids(60))})
    sample = vectors(ids(60), NEW)
    Upgrade.start(gallery, to=sample, order=name)
    old = vectors(ids(60), OLD)
    columns = {"seen": np.arange(60.0) % 13}
    if name != "disagreement":
        old = Embeddings(old.ids, old.vectors, OLD, columns)
    known = gallery.vectors(ids(60), space="f-old")
    exact = order_named(name)(old, hints_for(name, known, new=sample))
    found = work(gallery)
    assert sorted(found) == ids(60)
    by_id = dict(zip(ids(60), exact.tolist(), strict=True))
    shares = np.linspace(0, 1, 4, endpoint=False)
    learnt = shares if name == "random" else np.quantile(exact, shares, method="lower")
    floors = sorted(set(learnt.tolist()))
    slack = 1e-6  # rounding differs from block to block
    bucket = {id: sum(floor <= value + slack for floor in floors) for id, value in by_id.items()}
    assert found == sorted(ids(60), key=lambda id: (-max(bucket[id], 1), id))
    assert found != sorted(ids(60), key=lambda id: (-by_id[id], id)), "not the exact order"
    assert gallery.audit_log(limit=1)[0].details["levels"] == len(floors)


def test_priorities_go_down_to_the_floor_of_their_level() -> None:
    found = rounded_down(np.array([-5.0, 0.0, 23.9, 24.0, 60.0, 1e9]), np.array([0.0, 24.0, 49.0]))
    assert found.tolist() == [0.0, 0.0, 0.0, 24.0, 49.0, 49.0]


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0])
def test_rounding_of_unit_vectors_moves_no_item_down_a_level(scale: float) -> None:
    """float32 sums over blocks of other sizes differ by some 1e-7, however small the range is."""
    floors = np.array([0.1, 0.4, 0.7]) * scale
    assert rounded_down(floors - 4e-7, floors).tolist() == floors.tolist()


def test_the_newest_stay_in_their_exact_order(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.EXACT_UP_TO", 0)
    Upgrade.start(gallery, to=NEW, order="newest")
    assert gallery.audit_log(limit=1)[0].details["levels"] is None


def test_learnt_orders_take_the_sample(gallery: Gallery) -> None:
    sample = vectors(ids(60), NEW)
    for name in ("disagreement",):
        upgrade = Upgrade.start(gallery, to=sample, order=name)
        old = gallery.vectors(ids(60), space="f-old")
        priorities = order_named(name)(old, hints_for(name, old, new=sample))
        assert work(gallery) == [ids(60)[row] for row in np.argsort(-priorities, kind="stable")]
        upgrade.rollback()


def test_a_sample_is_chosen_by_id_and_knows_the_labels(gallery: Gallery) -> None:
    whole = sample_items(gallery, space="f-old")
    assert whole.ids.tolist() == ids(60)
    assert whole.labels is not None
    assert whole.labels.tolist() == [str(label(picture(id))) for id in ids(60)]
    assert np.array_equal(whole.vectors, vectors(ids(60), OLD).vectors)
    part = sample_items(gallery, space="f-old", count=20)
    assert 8 <= len(part) <= 35
    assert part.ids.tolist() == sample_items(gallery, space="f-old", count=20).ids.tolist()
    assert part.ids.tolist() != sample_items(gallery, space="f-old", count=20, seed=1).ids.tolist()
