"""The contract, third part: state, audit trail, and the work that a target makes."""

from __future__ import annotations

import dataclasses
import time

import pytest

from midspan.errors import GalleryError, SpaceMismatch, StateChanged
from midspan.gallery.records import Entry, Failed
from midspan.gallery.stores import create_store, open_store
from midspan.gallery.stores.base import Store
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, WIDE, add, drafts, embed, entry, start


def test_a_new_gallery_has_one_live_space_and_a_trail(store: Store) -> None:
    state = store.state()
    assert (state.spaces, state.live) == ({OLD.fingerprint: OLD}, (OLD.fingerprint,))
    assert (state.target, state.upgrade) == (None, None)
    assert [line.what for line in store.trail(limit=10)] == ["create"]
    counts = store.count()
    assert (counts.items, counts.stored, counts.live) == (
        0,
        {OLD.fingerprint: 0},
        {OLD.fingerprint: 0},
    )


def test_two_changes_from_one_version_cannot_both_happen(store: Store) -> None:
    state = store.state()
    after = store.change(
        dataclasses.replace(state, upgrade={"n": 1, "who": "first"}), entry=entry("one")
    )
    assert after.version > state.version
    assert store.state() == after
    with pytest.raises(StateChanged, match="read the state again"):
        store.change(dataclasses.replace(state, upgrade={"n": 2}), entry=entry("two"))
    assert store.state().upgrade == {"n": 1, "who": "first"}
    assert [line.what for line in store.trail(limit=10)] == ["one", "create"]


def test_impossible_states_are_refused(store: Store) -> None:
    state = store.state()
    for live in ((), (OLD.fingerprint, OLD.fingerprint)):
        with pytest.raises(GalleryError, match="at least one, each once"):
            store.change(dataclasses.replace(state, live=live), entry=entry("x"))
    with pytest.raises(SpaceMismatch, match="does not know the space"):
        store.change(dataclasses.replace(state, target="f-x"), entry=entry("x"))
    with pytest.raises(GalleryError, match="stands under the fingerprint"):
        store.change(
            dataclasses.replace(state, spaces={**state.spaces, "f-y": NEW}), entry=entry("x")
        )
    wrong = dataclasses.replace(OLD, dim=9)
    with pytest.raises(SpaceMismatch, match="is known as"):
        store.change(dataclasses.replace(state, spaces={OLD.fingerprint: wrong}), entry=entry("x"))
    assert store.state() == state


def test_the_trail_keeps_who_when_and_what_newest_first(store: Store) -> None:
    before = time.time()
    for number in range(5):
        store.record(Entry(who="ann", what="gate", details={"n": number, "ok": True}))
    lines = store.trail(limit=3)
    assert [line.details["n"] for line in lines] == [4, 3, 2]
    assert (lines[0].who, lines[0].what) == ("ann", "gate")
    assert before - 0.01 <= lines[0].when <= time.time() + 0.01


def test_a_location_holds_one_gallery(locate: Locate) -> None:
    location = locate()
    if location.startswith("memory:"):
        with pytest.raises(GalleryError, match="cannot be opened again"):
            open_store(location)
        return
    with pytest.raises(GalleryError, match="no gallery"):
        open_store(location)
    made = create_store(location, OLD, entry=entry("create"))
    add(made, ["a"], payloads=[{"x": 1}])
    start(made)
    with pytest.raises(GalleryError, match="already"):
        create_store(location, NEW, entry=entry("create"))
    made.close()
    again = open_store(location)
    assert again.get(["a"])[0].payload == {"x": 1}
    assert again.state().live == (NEW.fingerprint, OLD.fingerprint)
    assert again.state().spaces == {OLD.fingerprint: OLD, NEW.fingerprint: NEW}
    again.close()


# ---- work


def names(store: Store, *, limit: int = 100, seconds: float = 60, worker: str = "w") -> list[str]:
    return [task.item.id for task in store.claim(worker=worker, limit=limit, seconds=seconds)]


def test_without_a_target_there_is_no_work(store: Store) -> None:
    add(store, ["a"])
    assert names(store) == []
    assert (store.count().pending, store.count().done) == (0, 1)


def test_a_target_puts_every_item_to_work_by_priority_then_by_age(store: Store) -> None:
    add(store, ["d", "b"])
    add(store, ["a", "c"])
    start(store)
    store.prioritise(["c", "b", "nobody"], [5.0, -1.0, 9.0])
    assert names(store, limit=2) == ["c", "d"]
    assert names(store) == ["a", "b"]
    assert names(store) == []
    assert store.count().pending == 4


def test_filled_items_leave_the_work_and_counts_add_up(store: Store) -> None:
    ids = [f"i{number}" for number in range(6)]
    add(store, ids)
    start(store)
    store.fill(embed(ids[:2], NEW), revisions=[1, 1])
    store.fail([Failed("i2", 1, "no such file")], retry_after=None)
    counts = store.count()
    assert (counts.items, counts.done, counts.pending, counts.failed) == (6, 2, 3, 1)
    assert counts.live == {NEW.fingerprint: 2, OLD.fingerprint: 4}
    assert counts.stored == {NEW.fingerprint: 2, OLD.fingerprint: 6}
    assert sorted(names(store)) == ["i3", "i4", "i5"]


def test_items_written_during_an_upgrade_join_the_work_if_they_must(store: Store) -> None:
    add(store, ["a", "b"])
    start(store)
    add(store, ["both"], OLD, NEW)
    add(store, ["only-new"], NEW)
    add(store, ["only-old"], OLD)
    assert names(store) == ["a", "b", "only-old"]
    store.fill(embed(["a", "b"], NEW), revisions=[1, 1])
    store.upsert(drafts(["a"]), [embed(["a"], OLD, seed=3)], mode="replace")
    store.upsert(drafts(["b"]), [embed(["b"], NEW, seed=3)], mode="replace")
    assert names(store) == ["a"]  # claimed before, but this is another image
    store.delete(["a", "only-old"])
    assert store.count().pending == 0


def while_(store: Store) -> float:
    """Seconds in which a store can do a few things, on a busy machine too."""
    begun = time.monotonic()
    store.record(entry("how long does this take"))
    return max(0.4, 8 * (time.monotonic() - begun))


def test_a_claim_is_exclusive_until_it_ends(store: Store) -> None:
    add(store, ["a", "b", "c"])
    start(store)
    moment = while_(store)
    assert names(store, limit=2, seconds=moment, worker="one") == ["a", "b"]
    assert names(store, worker="two") == ["c"]
    time.sleep(moment + 0.05)
    assert names(store, worker="two") == ["a", "b"]
    assert store.fill(embed(["a"], NEW), revisions=[1]) == 1  # the late worker does no harm
    assert store.fill(embed(["a"], NEW, seed=1), revisions=[1]) == 0


def test_a_worker_gives_back_what_it_holds(store: Store) -> None:
    add(store, ["a", "b", "c"])
    start(store)
    assert names(store, limit=2, worker="one") == ["a", "b"]
    assert names(store, worker="two") == ["c"]
    assert store.release("one") == 2
    assert names(store, worker="two") == ["a", "b"]


def test_failures_are_put_off_then_given_up_then_tried_again(store: Store) -> None:
    add(store, ["a", "b"])
    start(store)
    assert names(store) == ["a", "b"]
    moment = while_(store)
    store.fail([Failed("a", 1, "timeout\x00\n again")], retry_after=moment)
    store.fail([Failed("b", 7, "another revision"), Failed("zz", 1, "gone")], retry_after=None)
    assert names(store) == []
    assert store.failures(after="", limit=10) == []
    time.sleep(moment + 0.05)
    tasks = store.claim(worker="w", limit=10, seconds=60)
    assert [(task.item.id, task.attempts) for task in tasks] == [("a", 1)]
    store.fail([Failed("a", 1, "timeout\x00\n again")], retry_after=None)
    store.fail([Failed("b", 1, "x" * 5000)], retry_after=None)
    first, second = store.failures(after="", limit=10)
    assert (first.id, first.uri, first.attempts) == ("a", "images/a.jpg", 2)
    assert first.reason == "timeout? again"
    assert len(second.reason) == 500
    assert [failure.id for failure in store.failures(after="a", limit=10)] == ["b"]
    assert store.count().failed == 2
    assert store.retry() == 2
    assert store.count().failed == 0
    assert names(store) == ["a", "b"]


def test_a_failed_item_that_gets_its_vector_is_no_failure(store: Store) -> None:
    add(store, ["a", "b"])
    start(store)
    store.fail([Failed("a", 1, "x"), Failed("b", 1, "x")], retry_after=None)
    store.fill(embed(["a"], NEW), revisions=[1])
    store.upsert(drafts(["b"]), [embed(["b"], NEW, seed=1)], mode="replace")
    assert store.failures(after="", limit=10) == []
    assert store.count().done == 2


def test_another_target_makes_other_work(store: Store) -> None:
    add(store, ["a", "b"])
    state = start(store)
    add(store, ["c"], NEW)
    store.fill(embed(["a"], NEW), revisions=[1])
    store.fail([Failed("b", 1, "x")], retry_after=None)
    back = dataclasses.replace(state, live=(OLD.fingerprint,), target=OLD.fingerprint)
    store.change(back, entry=entry("rollback"))
    counts = store.count()
    assert (counts.pending, counts.failed, counts.without) == (1, 0, 1)
    assert names(store) == ["c"]
    store.fill(embed(["c"], OLD), revisions=[1])
    assert store.count().without == 0


def test_a_space_of_another_dim_can_be_the_target(store: Store) -> None:
    add(store, ["a", "b"])
    state = store.state()
    store.change(  # filled before it is live
        dataclasses.replace(
            state, spaces={**state.spaces, WIDE.fingerprint: WIDE}, target=WIDE.fingerprint
        ),
        entry=entry("prepare"),
    )
    store.fill(embed(["a"], WIDE), revisions=[1])
    add(store, ["c"], WIDE, OLD)
    counts = store.count()
    assert counts.live == {OLD.fingerprint: 3}
    assert (counts.done, counts.pending) == (2, 1)


def test_a_priority_must_be_a_number(store: Store) -> None:
    add(store, ["a"])
    start(store)
    with pytest.raises(GalleryError, match="wanted a finite number"):
        store.prioritise(["a"], [float("nan")])
