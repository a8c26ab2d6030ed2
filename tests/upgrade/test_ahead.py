"""Reading ahead and writing behind change when things are done, and nothing that was promised."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from midspan.errors import EncoderError, ImageError, StoreError
from midspan.gallery import Item
from midspan.spaces import Embeddings
from midspan.upgrade import Embedded, Latency, Settings, Staged, Upgrade
from midspan.upgrade.verdicts import Check, GateResult
from tests.upgrade.world import NEW, QUICK, STORES, accounted, all_hold, encoder, ids, make, picture

MODEL = {id: picture(id) for id in ids(60)}
CALM = Settings(batch=8, growth=1, lease=1000, retries=2, back_off=0.02)
WAIT = 10.0  # seconds until a test that hangs has failed


@pytest.fixture(params=STORES)
def upgrade(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrade]:
    with make(request.param, tmp_path) as gallery:
        yield Upgrade.start(gallery, to=NEW)


class Steps:
    """An encoder in two steps that keeps what was called in which order: ("read", first id) …"""

    def __init__(self, *, missing: Sequence[str] = ()) -> None:
        self.calls: list[tuple[str, str]] = []
        self.last_read: list[str] = []
        self.called = threading.Condition()
        self._see = encoder(NEW, missing=missing)

    @property
    def staged(self) -> Staged[list[Item]]:
        return Staged(read=self.read, embed=self.embed)

    def read(self, items: Sequence[Item]) -> list[Item]:
        self._note("read", items)
        return list(items)

    def embed(self, items: list[Item]) -> Embedded:
        self._note("embed", items)
        return self._see(items)

    def of(self, step: str) -> list[str]:
        return [first for name, first in self.calls if name == step]

    def wait_for(self, step: str, count: int) -> None:
        with self.called:
            assert self.called.wait_for(lambda: len(self.of(step)) >= count, WAIT), self.calls

    def _note(self, step: str, items: Sequence[Item]) -> None:
        with self.called:
            self.calls.append((step, items[0].id))
            if step == "read":
                self.last_read = [item.id for item in items]
            self.called.notify_all()


def test_the_next_batch_is_read_while_one_is_embedded(upgrade: Upgrade) -> None:
    class Waiting(Steps):
        def embed(self, items: list[Item]) -> Embedded:
            made = super().embed(items)
            number = len(self.of("embed"))
            if (
                2 <= number < 8
            ):  # how long the first takes is not known yet, nothing is after the last
                self.wait_for("read", number + 1)
            return made

    steps = Waiting()
    report = upgrade.run(steps.staged, settings=CALM)
    assert (report.stopped, report.written) == ("done", 60)
    assert steps.of("read") == steps.of("embed"), "each batch once, in order"
    all_hold(upgrade.gallery, NEW, MODEL)


def test_a_batch_is_written_while_the_next_one_is_embedded(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, steps = upgrade.gallery, Steps()
    fill, seen = gallery.add_missing_vectors, list[int]()

    def slow(vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        if not seen:  # the first write ends when the second batch is at the encoder
            steps.wait_for("embed", 2)
        seen.append(len(steps.of("embed")))
        return fill(vectors, revisions=revisions)

    monkeypatch.setattr(gallery, "add_missing_vectors", slow)
    assert upgrade.run(steps.staged, settings=CALM).new == 60
    assert seen[0] >= 2
    all_hold(upgrade.gallery, NEW, MODEL)


@pytest.mark.parametrize("step", ["pause", "rollback"])
def test_what_was_read_ahead_is_given_back_when_the_work_ends(upgrade: Upgrade, step: str) -> None:
    class Ending(Steps):
        def embed(self, items: list[Item]) -> Embedded:
            made = super().embed(items)
            if len(self.of("embed")) == 3:
                self.wait_for("read", 4)
                getattr(upgrade, step)()
            return made

    steps = Ending()
    report = upgrade.run(steps.staged, settings=CALM)
    assert (len(steps.of("read")), len(steps.of("embed"))) == (4, 3)
    if step == "rollback":
        assert (report.stopped, report.written) == ("ended", 16)
        assert upgrade.gallery.count().live == {"f-old": 60}
        return
    assert (report.stopped, report.written) == ("paused", 24)
    assert accounted(upgrade.gallery) == (36, 24, 0)
    upgrade.resume()
    free = upgrade.gallery.work.claim(worker="another", limit=60, seconds=0.01)
    assert len(free) == 36, "no lease is left behind"
    time.sleep(0.02)
    assert upgrade.run(encoder(NEW), settings=CALM).new == 60
    all_hold(upgrade.gallery, NEW, MODEL)


@pytest.mark.parametrize("limit", [1, 8, 20, 25, 59])
def test_the_limit_is_exact_though_some_must_be_tried_again(upgrade: Upgrade, limit: int) -> None:
    steps = Steps(missing=["i0003", "i0012", "i0013"])
    report = upgrade.run(steps.staged, limit=limit, settings=CALM)
    assert (report.stopped, report.written + report.given_up) == ("limit", limit)
    old, new, failed = accounted(upgrade.gallery)
    assert (old, new + failed) == (60 - limit, limit)
    assert len(upgrade.gallery.work.claim(worker="x", limit=60, seconds=9)) <= old
    assert upgrade.gallery.work.release("x") >= old - 3, "but for those that wait for their retry"


def alternate(steps: Steps) -> bool:
    return [name for name, _ in steps.calls] == ["read", "embed"] * (len(steps.calls) // 2)


@pytest.mark.parametrize(
    "brake",
    [
        {"max_rate": 400.0},
        {"latency": Latency(p99=lambda: 0.2, ceiling=0.1)},
        {"settings": Settings(batch=8, growth=1, lease=1e-9, back_off=0.01)},
    ],
    ids=["rate", "slow searches", "batches as long as a lease"],
)
def test_nothing_is_read_ahead_where_that_would_break_a_promise(
    upgrade: Upgrade, brake: dict[str, Any]
) -> None:
    steps = Steps()
    report = upgrade.run(steps.staged, limit=40, **{"settings": CALM, **brake})
    assert report.written == 40
    assert alternate(steps), steps.calls


def test_searches_that_become_slow_stop_the_reading_ahead(upgrade: Upgrade) -> None:
    now = [0.01]

    class Slowing(Steps):
        def embed(self, items: list[Item]) -> Embedded:
            made = super().embed(items)
            if 2 <= (number := len(self.of("embed"))) <= 4:
                self.wait_for("read", number + 1)
            if number == 4:
                now[0] = 0.2
            return made

    steps = Slowing()
    latency = Latency(p99=lambda: now[0], ceiling=0.1)
    upgrade.run(steps.staged, latency=latency, limit=56, settings=CALM)
    late = steps.calls[steps.calls.index(("embed", steps.of("embed")[4])) + 1 :]
    assert [step for step, _ in late] == ["read", "embed"] * 2


def test_the_gate_sees_all_that_was_made_and_nothing_is_leased_meanwhile(upgrade: Upgrade) -> None:
    asked: list[tuple[int, int]] = []
    work = upgrade.gallery.work

    def check() -> GateResult:
        old, new, _ = accounted(upgrade.gallery)
        asked.append((new, len(work.claim(worker="gate", limit=60, seconds=9)) - old))
        work.release("gate")
        check = Check("negative flips", 0.0, 0.0, 0.0, 0.01, "PASS")
        return GateResult("PASS", (check,), {}, True, "map", 10, ())

    class Waiting(Steps):
        def embed(self, items: list[Item]) -> Embedded:
            made = super().embed(items)
            if (number := len(self.of("embed"))) in (2, 4, 5):  # no gate is due after these
                self.wait_for("read", number + 1)
            return made

    upgrade.run(Waiting().staged, check=check, check_every=24, settings=CALM)
    assert asked == [(24, 0), (48, 0), (60, 0)]


def test_an_image_that_cannot_be_read_costs_only_itself(upgrade: Upgrade) -> None:
    class Breaking(Steps):
        def read(self, items: Sequence[Item]) -> list[Item]:
            if any(item.id == "i0030" for item in items):
                raise ImageError("i0030: cannot be decoded")
            return super().read(items)

    upgrade.run(Breaking().staged, settings=QUICK)
    assert accounted(upgrade.gallery) == (0, 59, 1)
    (failure,) = upgrade.gallery.work.failures(after="", limit=10)
    assert (failure.id, failure.reason) == ("i0030", "i0030: cannot be decoded")


@pytest.mark.parametrize("place", ["read", "embed", "write"])
def test_an_error_in_any_of_the_threads_stops_the_run_and_gives_the_items_back(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    class Breaking(Steps):
        def read(self, items: Sequence[Item]) -> list[Item]:
            if place == "read" and len(self.of("read")) == 3:
                raise EncoderError("the device is gone")
            return super().read(items)

        def embed(self, items: list[Item]) -> Embedded:
            if place == "embed" and len(self.of("embed")) == 3:
                raise EncoderError("the device is gone")
            return super().embed(items)

    gallery = upgrade.gallery
    fill, writes = gallery.add_missing_vectors, list[int]()

    def full(vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        writes.append(len(vectors))
        if place == "write" and len(writes) == 4:
            raise StoreError("the disk is full")
        return fill(vectors, revisions=revisions)

    monkeypatch.setattr(gallery, "add_missing_vectors", full)
    before = threading.active_count()
    with pytest.raises((EncoderError, StoreError), match=r"the device is gone|the disk is full"):
        upgrade.run(Breaking().staged, settings=CALM)
    assert threading.active_count() == before
    assert accounted(upgrade.gallery) == (36, 24, 0)
    assert len(gallery.work.claim(worker="another", limit=60, seconds=0.01)) == 36
    monkeypatch.undo()
    time.sleep(0.02)
    assert upgrade.run(Steps().staged, settings=CALM).new == 60
    all_hold(upgrade.gallery, NEW, MODEL)


def test_an_item_that_is_replaced_after_it_was_read_gets_the_vector_of_its_new_picture(
    upgrade: Upgrade,
) -> None:
    gallery, changed = upgrade.gallery, list[str]()

    class Replacing(Steps):
        def embed(self, items: list[Item]) -> Embedded:
            made = super().embed(items)
            if len(self.of("embed")) == 3:
                self.wait_for("read", 4)
                changed.extend(self.last_read[:2])
                old = gallery.vectors(changed[:1], space="f-old")
                gallery.replace(old, uris=[picture(changed[0], 2)])
                gallery.delete(changed[1:])
            return made

    report = upgrade.run(Replacing().staged, settings=CALM)
    assert (report.stopped, report.written, report.failed) == ("done", 59, 0)
    model = {**MODEL, changed[0]: picture(changed[0], 2)}
    del model[changed[1]]
    all_hold(gallery, NEW, model)
