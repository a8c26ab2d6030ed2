"""Orders written into the gallery: the work comes in their order."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from midspan.gallery import Gallery
from midspan.spaces import Embeddings
from midspan.upgrade import Upgrade
from midspan.upgrade.buckets import BUCKETS, Buckets
from midspan.upgrade.orders import order_named
from midspan.upgrade.priorities import embed_sample, hints_for, sample_items
from tests.upgrade.world import NEW, OLD, encoder, ids, label, picture, vectors


def work(gallery: Gallery) -> list[str]:
    tasks = gallery.store.claim(worker="looks", limit=1000, seconds=60)
    gallery.store.release("looks")
    return [task.item.id for task in tasks]


@pytest.mark.parametrize("name", ["random", "entropy", "class_distance"])
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


def test_most_seen_reads_the_payload_and_another_order_may_follow(gallery: Gallery) -> None:
    gallery.annotate({"i0003": {"seen": 9}, "i0001": {"seen": 4.5}, "i0002": {"seen": "often"}})
    upgrade = Upgrade.start(gallery, to=NEW, order="most_seen")
    assert work(gallery)[:2] == ["i0003", "i0001"]
    assert upgrade.reorder("newest") == 60
    created = {item.id: item.created for item in gallery.store.get(ids(60))}
    found = [created[id] for id in work(gallery)]
    assert found == sorted(found, reverse=True)
    assert upgrade.status().order == "newest"


def test_items_that_come_later_are_first_under_newest(gallery: Gallery) -> None:
    Upgrade.start(gallery, to=NEW, order="newest")
    gallery.add(vectors(["late"], OLD))
    assert work(gallery)[0] == "late"


@pytest.mark.parametrize("name", ["random", "most_seen", "entropy", "bridge_error"])
def test_a_large_gallery_gets_buckets_of_its_order(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.EXACT_UP_TO", 59)
    monkeypatch.setattr("midspan.upgrade.buckets.Buckets.fit", partial(Buckets.fit, count=4))
    monkeypatch.setattr("midspan.upgrade.priorities.PAGE", 7)
    gallery.annotate({id: {"seen": place % 13} for place, id in enumerate(ids(60))})
    sample = vectors(ids(60), NEW)
    Upgrade.start(gallery, to=sample, order=name)
    old = vectors(ids(60), OLD)
    columns = {"seen": np.arange(60.0) % 13}
    if name != "bridge_error":
        old = Embeddings(old.ids, old.vectors, OLD, columns)
    known = gallery.store.vectors(ids(60), space="f-old")
    exact = order_named(name)(old, hints_for(name, known, new=sample))
    found = work(gallery)
    assert sorted(found) == ids(60)
    by_id = dict(zip(ids(60), exact.tolist(), strict=True))
    shares = np.linspace(0, 1, 4, endpoint=False)
    learnt = np.arange(BUCKETS) / BUCKETS if name == "random" else exact
    floors = sorted(set(np.quantile(learnt, shares, method="lower").tolist()))
    bucket = {id: sum(floor <= value for floor in floors) for id, value in by_id.items()}
    assert found == sorted(ids(60), key=lambda id: (-max(bucket[id], 1), id))
    assert found != sorted(ids(60), key=lambda id: (-by_id[id], id)), "not the exact order"
    assert gallery.trail(limit=1)[0].details["buckets"] == len(floors)


def test_the_newest_stay_in_their_exact_order(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.EXACT_UP_TO", 0)
    Upgrade.start(gallery, to=NEW, order="newest")
    assert gallery.trail(limit=1)[0].details["buckets"] is None


def test_learnt_orders_take_the_sample(gallery: Gallery) -> None:
    sample = vectors(ids(60), NEW)
    for name in ("bridge_error", "disagreement"):
        upgrade = Upgrade.start(gallery, to=sample, order=name)
        old = gallery.store.vectors(ids(60), space="f-old")
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


def test_a_sample_is_embedded_from_the_gallery_s_own_items(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.PAGE", 7)
    made = embed_sample(gallery, encoder(NEW, missing=["i0004"]), space=NEW, count=60)
    assert made is not None
    assert set(made.ids.tolist()) == set(ids(60)) - {"i0004"}
    assert np.array_equal(made.vectors, vectors(made.ids.tolist(), NEW).vectors)
    part = embed_sample(gallery, encoder(NEW), space=NEW, count=20)
    assert part is not None
    assert 8 <= len(part) <= 34  # each by its own chance
    again = embed_sample(gallery, encoder(NEW), space=NEW, count=20)
    assert again is not None
    assert again.ids.tolist() == part.ids.tolist()
    assert embed_sample(gallery, encoder(NEW, corrupt=ids(60)), space=NEW, count=60) is None
