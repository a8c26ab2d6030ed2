"""The contract, third part: state, audit trail, and the work that a target makes."""

from __future__ import annotations

import dataclasses
import time

import pytest

from midspan.errors import GalleryError, SpaceMismatch, StateChanged
from midspan.gallery import AuditEvent, Failed, Gallery
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, WIDE, add, drafts, embed, event, start


def test_create_gives_one_live_space_and_an_audit_event(gallery: Gallery) -> None:
    state = gallery.state
    assert (state.spaces, state.live) == ({OLD.fingerprint: OLD}, (OLD.fingerprint,))
    assert (state.target, state.upgrade) == (None, None)
    assert [line.what for line in gallery.audit_log(limit=10)] == ["create"]
    counts = gallery.count()
    assert (counts.items, counts.stored, counts.live) == (
        0,
        {OLD.fingerprint: 0},
        {OLD.fingerprint: 0},
    )


def test_change_from_a_stale_version_raises(gallery: Gallery) -> None:
    state = gallery.state
    after = gallery.change(
        dataclasses.replace(state, upgrade={"n": 1, "who": "first"}), event=event("one")
    )
    assert after.version > state.version
    assert gallery.state == after
    with pytest.raises(StateChanged, match="read the state again"):
        gallery.change(dataclasses.replace(state, upgrade={"n": 2}), event=event("two"))
    assert gallery.state.upgrade == {"n": 1, "who": "first"}
    assert [line.what for line in gallery.audit_log(limit=10)] == ["one", "create"]


def test_change_to_an_invalid_state_raises(gallery: Gallery) -> None:
    state = gallery.state
    for live in ((), (OLD.fingerprint, OLD.fingerprint)):
        with pytest.raises(GalleryError, match="at least one, each once"):
            gallery.change(dataclasses.replace(state, live=live), event=event("x"))
    with pytest.raises(SpaceMismatch, match="does not know the space"):
        gallery.change(dataclasses.replace(state, target="f-x"), event=event("x"))
    with pytest.raises(GalleryError, match="stands under the fingerprint"):
        gallery.change(
            dataclasses.replace(state, spaces={**state.spaces, "f-y": NEW}), event=event("x")
        )
    wrong = dataclasses.replace(OLD, dim=9)
    with pytest.raises(SpaceMismatch, match="is known as"):
        gallery.change(
            dataclasses.replace(state, spaces={OLD.fingerprint: wrong}), event=event("x")
        )
    assert gallery.state == state


def test_audit_log_has_who_when_and_what_newest_first(gallery: Gallery) -> None:
    before = time.time()
    for number in range(5):
        gallery.record(AuditEvent(who="ann", what="gate", details={"n": number, "ok": True}))
    lines = gallery.audit_log(limit=3)
    assert [line.details["n"] for line in lines] == [4, 3, 2]
    assert (lines[0].who, lines[0].what) == ("ann", "gate")
    assert before - 0.01 <= lines[0].when <= time.time() + 0.01


def test_create_at_an_existing_gallery_raises(locate: Locate) -> None:
    location = locate()
    if location.startswith("memory:"):
        with pytest.raises(GalleryError, match="cannot be opened again"):
            Gallery.open(location)
        return
    with pytest.raises(GalleryError, match="no gallery"):
        Gallery.open(location)
    made = Gallery.create(location, OLD)
    add(made, ["a"], payloads=[{"x": 1}])
    start(made)
    with pytest.raises(GalleryError, match="already"):
        Gallery.create(location, NEW)
    made.close()
    again = Gallery.open(location)
    assert again.get("a").payload == {"x": 1}
    assert again.state.live == (NEW.fingerprint, OLD.fingerprint)
    assert again.state.spaces == {OLD.fingerprint: OLD, NEW.fingerprint: NEW}
    again.close()


# ---- work


def names(
    gallery: Gallery, *, limit: int = 100, seconds: float = 60, worker: str = "w"
) -> list[str]:
    return [
        task.item.id for task in gallery.work.claim(worker=worker, limit=limit, seconds=seconds)
    ]


def test_claim_without_a_target_is_empty(gallery: Gallery) -> None:
    add(gallery, ["a"])
    assert names(gallery) == []
    assert (gallery.count().pending, gallery.count().done) == (0, 1)


def test_target_queues_every_item_by_priority_then_age(gallery: Gallery) -> None:
    add(gallery, ["d", "b"])
    add(gallery, ["a", "c"])
    start(gallery)
    gallery.work.prioritise(["c", "b", "nobody"], [5.0, -1.0, 9.0])
    assert names(gallery, limit=2) == ["c", "d"]
    assert names(gallery) == ["a", "b"]
    assert names(gallery) == []
    assert gallery.count().pending == 4


def test_work_filled_items_leave_it_and_counts_add_up(gallery: Gallery) -> None:
    ids = [f"i{number}" for number in range(6)]
    add(gallery, ids)
    start(gallery)
    gallery.add_missing_vectors(embed(ids[:2], NEW), revisions=[1, 1])
    gallery.work.fail([Failed("i2", 1, "no such file")], retry_after=None)
    counts = gallery.count()
    assert (counts.items, counts.done, counts.pending, counts.failed) == (6, 2, 3, 1)
    assert counts.live == {NEW.fingerprint: 2, OLD.fingerprint: 4}
    assert counts.stored == {NEW.fingerprint: 2, OLD.fingerprint: 6}
    assert sorted(names(gallery)) == ["i3", "i4", "i5"]


def test_work_includes_items_added_without_a_new_vector(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    add(gallery, ["both"], OLD, NEW)
    add(gallery, ["only-new"], NEW)
    add(gallery, ["only-old"], OLD)
    assert names(gallery) == ["a", "b", "only-old"]
    gallery.add_missing_vectors(embed(["a", "b"], NEW), revisions=[1, 1])
    gallery.put_drafts(drafts(["a"]), [embed(["a"], OLD, seed=3)], mode="replace")
    gallery.put_drafts(drafts(["b"]), [embed(["b"], NEW, seed=3)], mode="replace")
    assert names(gallery) == ["a"]  # claimed before, but this is another image
    gallery.delete(["a", "only-old"])
    assert gallery.count().pending == 0


def while_(gallery: Gallery) -> float:
    """Seconds in which a gallery can do a few things, on a busy machine too."""
    begun = time.monotonic()
    gallery.record(event("how long does this take"))
    return max(0.4, 8 * (time.monotonic() - begun))


def test_claim_is_exclusive_until_its_lease_ends(gallery: Gallery) -> None:
    add(gallery, ["a", "b", "c"])
    start(gallery)
    moment = while_(gallery)
    assert names(gallery, limit=2, seconds=moment, worker="one") == ["a", "b"]
    assert names(gallery, worker="two") == ["c"]
    time.sleep(moment + 0.05)
    assert names(gallery, worker="two") == ["a", "b"]
    assert (
        gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1]) == 1
    )  # the late worker does no harm
    assert gallery.add_missing_vectors(embed(["a"], NEW, seed=1), revisions=[1]) == 0


def test_release_returns_all_claims_of_a_worker(gallery: Gallery) -> None:
    add(gallery, ["a", "b", "c"])
    start(gallery)
    assert names(gallery, limit=2, worker="one") == ["a", "b"]
    assert names(gallery, worker="two") == ["c"]
    assert gallery.work.release("one") == 2
    assert names(gallery, worker="two") == ["a", "b"]


def test_failures_are_retried_later_then_failed_then_requeued(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    assert names(gallery) == ["a", "b"]
    moment = while_(gallery)
    gallery.work.fail([Failed("a", 1, "timeout\x00\n again")], retry_after=moment)
    gallery.work.fail(
        [Failed("b", 7, "another revision"), Failed("zz", 1, "gone")], retry_after=None
    )
    assert names(gallery) == []
    assert gallery.work.failures(after="", limit=10) == []
    time.sleep(moment + 0.05)
    tasks = gallery.work.claim(worker="w", limit=10, seconds=60)
    assert [(task.item.id, task.attempts) for task in tasks] == [("a", 1)]
    gallery.work.fail([Failed("a", 1, "timeout\x00\n again")], retry_after=None)
    gallery.work.fail([Failed("b", 1, "x" * 5000)], retry_after=None)
    first, second = gallery.work.failures(after="", limit=10)
    assert (first.id, first.uri, first.attempts) == ("a", "images/a.jpg", 2)
    assert first.reason == "timeout? again"
    assert len(second.reason) == 500
    assert [failure.id for failure in gallery.work.failures(after="a", limit=10)] == ["b"]
    assert gallery.count().failed == 2
    assert gallery.work.retry() == 2
    assert gallery.count().failed == 0
    assert names(gallery) == ["a", "b"]


def test_failed_item_that_gets_its_vector_is_no_failure(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    start(gallery)
    gallery.work.fail([Failed("a", 1, "x"), Failed("b", 1, "x")], retry_after=None)
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1])
    gallery.put_drafts(drafts(["b"]), [embed(["b"], NEW, seed=1)], mode="replace")
    assert gallery.work.failures(after="", limit=10) == []
    assert gallery.count().done == 2


def test_another_target_queues_other_items(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    state = start(gallery)
    add(gallery, ["c"], NEW)
    gallery.add_missing_vectors(embed(["a"], NEW), revisions=[1])
    gallery.work.fail([Failed("b", 1, "x")], retry_after=None)
    back = dataclasses.replace(state, live=(OLD.fingerprint,), target=OLD.fingerprint)
    gallery.change(back, event=event("rollback"))
    counts = gallery.count()
    assert (counts.pending, counts.failed, counts.without) == (1, 0, 1)
    assert names(gallery) == ["c"]
    gallery.add_missing_vectors(embed(["c"], OLD), revisions=[1])
    assert gallery.count().without == 0


def test_a_space_of_another_dim_can_be_the_target(gallery: Gallery) -> None:
    add(gallery, ["a", "b"])
    state = gallery.state
    gallery.change(  # filled before it is live
        dataclasses.replace(
            state, spaces={**state.spaces, WIDE.fingerprint: WIDE}, target=WIDE.fingerprint
        ),
        event=event("prepare"),
    )
    gallery.add_missing_vectors(embed(["a"], WIDE), revisions=[1])
    add(gallery, ["c"], WIDE, OLD)
    counts = gallery.count()
    assert counts.live == {OLD.fingerprint: 3}
    assert (counts.done, counts.pending) == (2, 1)


def test_prioritise_with_nan_raises(gallery: Gallery) -> None:
    add(gallery, ["a"])
    start(gallery)
    with pytest.raises(GalleryError, match="expected a finite number"):
        gallery.work.prioritise(["a"], [float("nan")])
