"""The pool and the backfill on it, with a Ray that dies, hangs and has no room when told to.

What a real cluster does is in test_cluster_real.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midspan.errors import (
    ClusterError,
    ConfigError,
    EncoderError,
    GalleryError,
    ImageError,
    MissingDependency,
    SpaceMismatch,
)
from midspan.gallery import Item
from midspan.spaces import Space
from midspan.upgrade import Embed, Embedded, Latency, Settings, Upgrade
from midspan.upgrade.cluster import Make, Workers, actor, backfill, connect, pool, run_on_cluster
from midspan.upgrade.worker import RENEWALS
from tests.upgrade.fake_ray import Die, FakeRay, Hang
from tests.upgrade.test_backfill import verdict
from tests.upgrade.world import (
    NEW,
    STORES,
    STRANGER,
    accounted,
    all_hold,
    encoder,
    ids,
    make,
    picture,
)

MODEL = {id: picture(id) for id in ids(60)}
SETTINGS = Settings(batch=8, growth=1, lease=1000, retries=2, back_off=0.02)
TWO = Workers("auto", count=2)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(connect, "ray_module", lambda: fake)
    monkeypatch.setattr(actor, "_node", lambda: "node")
    return fake


@pytest.fixture(params=STORES)
def upgrade(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrade]:
    with make(request.param, tmp_path) as gallery:
        yield Upgrade.start(gallery, to=NEW, order="newest")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Upgrade]:
    with make("memory", tmp_path) as gallery:
        yield Upgrade.start(gallery, to=NEW, order="newest")


def loading(
    embed: Embed, seen: list[list[str]] | None = None, *, space: Space = NEW
) -> Callable[[], tuple[Space, Embed]]:
    def watched(items: Sequence[Item]) -> Embedded:
        if seen is not None:
            seen.append([item.id for item in items])
        return embed(items)

    return lambda: (space, watched)


def run(upgrade: Upgrade, make: Make, **more: Any) -> backfill.ClusterReport:
    settings = {"workers": TWO, "settings": SETTINGS, **more}
    return run_on_cluster(upgrade.gallery, make, **settings)


def test_every_item_once_in_order_and_never_too_many_at_once(
    ray: FakeRay, upgrade: Upgrade
) -> None:
    wanted = [task.item.id for task in upgrade.gallery.work.claim(worker="w", limit=60, seconds=0)]
    seen: list[list[str]] = []
    report = run(upgrade, loading(encoder(NEW), seen))
    assert (report.report.stopped, report.report.written) == ("done", 60)
    assert (report.workers, report.nodes, report.lost, report.sent_again) == (2, 1, 0, 0)
    all_hold(upgrade.gallery, NEW, MODEL)
    place = {id: number for number, id in enumerate(wanted)}
    firsts = [place[batch[0]] for batch in seen]
    assert sorted(id for batch in seen for id in batch) == ids(60)
    # Two workers with two batches each: none is further than four from its turn.
    assert all(abs(first - 8 * turn) <= 3 * 8 for turn, first in enumerate(firsts))
    assert ray.most == 2
    assert not any(one.alive for one in ray.actors), "the workers are sent home"


def test_a_lost_worker_costs_only_its_batches(ray: FakeRay, upgrade: Upgrade) -> None:
    good, died = encoder(NEW), list[int]()

    def embed(items: Sequence[Item]) -> Embedded:
        if "i0030" in {item.id for item in items} and not died:
            died.append(len(items))
            raise Die
        return good(items)

    seen: list[list[str]] = []
    report = run(upgrade, loading(embed, seen))
    assert (report.report.written, report.lost) == (60, 1)
    assert report.sent_again in (8, 16)
    assert len([id for batch in seen for id in batch]) == 60 + died[0]
    all_hold(upgrade.gallery, NEW, MODEL)
    (told,) = [line for line in upgrade.gallery.audit_log() if line.what == "upgrade worker lost"]
    assert told.details["why"] == "ActorDied: the actor died"
    assert told.details["sent_again"] == report.sent_again


@pytest.mark.parametrize("batch", [1, 2, 8, 60])
def test_an_item_that_kills_every_worker_is_found_and_given_up(
    ray: FakeRay, small: Upgrade, batch: int
) -> None:
    good, deaths = encoder(NEW), list[int]()

    def embed(items: Sequence[Item]) -> Embedded:
        if "i0030" in {item.id for item in items}:
            deaths.append(len(items))
            raise Die
        return good(items)

    report = run(small, loading(embed), settings=replace(SETTINGS, batch=batch))
    assert (report.report.written, report.report.given_up) == (59, 1)
    (failure,) = small.gallery.work.failures(after="", limit=9)
    assert failure.id == "i0030"
    assert "every worker that embedded it died" in failure.reason
    assert report.lost == len(deaths) >= 4
    assert deaths[-1] == 1, "it was alone in the end"
    assert deaths == sorted(deaths, reverse=True)


def test_workers_that_always_die_end_the_run_and_leave_no_lease(
    ray: FakeRay, small: Upgrade
) -> None:
    def make() -> tuple[Space, Embed]:
        raise Die

    with pytest.raises(ClusterError, match=r"\d+ workers were lost one after another"):
        run(small, make)
    assert run(small, loading(encoder(NEW))).report.written == 60


def test_a_worker_that_hangs_is_replaced(ray: FakeRay, small: Upgrade) -> None:
    good, hung = encoder(NEW), list[str]()

    def embed(items: Sequence[Item]) -> Embedded:
        if not hung:
            hung.append(items[0].id)
            raise Hang
        return good(items)

    report = run(small, loading(embed), workers=replace(TWO, stuck=0.5))
    assert (report.report.written, report.lost) == (60, 1)
    all_hold(small.gallery, NEW, MODEL)


def test_a_cluster_without_room_is_named(ray: FakeRay, small: Upgrade) -> None:
    ray.places = 0
    workers = Workers("auto", count=2, gpus=1, patience=0.05)
    with pytest.raises(ClusterError, match=r"needs 1 CPU and 1 GPU, and the cluster has 2 CPU and"):
        run(small, loading(encoder(NEW)), workers=workers)
    ray.places = 1  # one of the two finds room: that is enough
    assert run(small, loading(encoder(NEW)), workers=replace(workers, gpus=0)).workers == 1


@pytest.mark.parametrize(
    ("has", "asked", "wanted"),
    [
        ((4.0, 0.0), Workers("auto"), (0, 4)),
        ((4.0, 2.0), Workers("auto"), (1, 2)),
        ((4.0, 2.0), Workers("auto", gpus=0.5), (0.5, 4)),
        ((4.0, 2.0), Workers("auto", gpus=0), (0, 4)),
        ((4.0, 2.0), Workers("auto", count=3), (1, 3)),
        ((0.0, 0.0), Workers("auto"), (0, 1)),  # one that grows when it is asked
    ],
)
def test_workers_by_gpus_or_cores(
    has: tuple[float, float], asked: Workers, wanted: tuple[float, int]
) -> None:
    ray = FakeRay(cpus=has[0], gpus=has[1])
    with pool.Pool(
        ray, loading(encoder(NEW)), workers=asked, welcome=lambda _: None, note=lambda _: None
    ):
        assert (ray.options["num_gpus"], len(ray.actors)) == wanted


@pytest.mark.parametrize("wrong", [{"count": 0}, {"gpus": -1.0}, {"ahead": 0}])
def test_bad_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Workers("auto", **wrong)


def test_errors_of_a_worker_are_those_of_the_local_run(ray: FakeRay, small: Upgrade) -> None:
    def gone(items: Sequence[Item]) -> Embedded:
        raise EncoderError("the device is gone")

    def torchless() -> tuple[Space, Embed]:
        raise MissingDependency("torch", extra="train", required_for="the encoder")

    def bug(items: Sequence[Item]) -> Embedded:
        raise KeyError("a bug")

    with pytest.raises(EncoderError, match=r"the device is gone \(on the worker "):
        run(small, loading(gone))
    with pytest.raises(MissingDependency, match=r"midspan\[train\]"):
        run(small, torchless)
    with pytest.raises(ClusterError, match="failed: KeyError"):
        run(small, loading(bug))
    with pytest.raises(SpaceMismatch, match=r"'stranger'.*leads to 'new'"):
        run(small, loading(encoder(STRANGER), space=STRANGER))
    assert accounted(small.gallery) == (60, 0, 0)
    assert run(small, loading(encoder(NEW))).report.written == 60  # no lease is left behind
    small.finish()
    with pytest.raises(GalleryError, match="midspan upgrade start"):
        run(small, loading(encoder(NEW)))


def test_another_version_of_midspan_is_refused(
    ray: FakeRay, small: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "__version__", "0.0.1")
    with pytest.raises(ClusterError, match=r"has midspan 0\.0\.1.*install the same version"):
        run(small, loading(encoder(NEW)))


def test_failures_are_listed_with_reasons_after_their_retries(
    ray: FakeRay, upgrade: Upgrade
) -> None:
    good = encoder(NEW, missing=["i0011"], corrupt=["i0007"])

    def embed(items: Sequence[Item]) -> Embedded:
        if any(item.id == "i0005" for item in items):
            raise ImageError("i0005: cannot be decoded")
        return good(items)

    report = run(upgrade, loading(embed)).report
    assert (report.written, report.given_up, report.put_off) == (57, 3, 2)
    found = {one.id: one.reason for one in upgrade.gallery.work.failures(after="", limit=9)}
    assert found == {
        "i0005": "i0005: cannot be decoded",
        "i0007": "not an image",
        "i0011": "no such file",
    }


def test_a_worker_that_sees_no_image_is_refused_if_this_machine_does(
    ray: FakeRay, small: Upgrade
) -> None:
    blind = loading(encoder(NEW, missing=ids(60)))
    with pytest.raises(ClusterError, match=r"can read none of 8 images.*`pack`"):
        run(small, blind, seen_here=lambda item: True)
    report = run(small, blind, seen_here=lambda item: False).report  # they are really gone
    assert (report.written, report.given_up) == (0, 60)


def test_limit_pause_rollback_and_gate_as_in_the_local_run(ray: FakeRay, upgrade: Upgrade) -> None:
    good = loading(encoder(NEW))
    for _ in range(2):
        report = run(upgrade, good, limit=7).report
        assert (report.stopped, report.written) == ("limit", 7)

    calls: list[str] = []

    def pausing(items: Sequence[Item]) -> Embedded:
        calls.append("batch")
        if len(calls) == 1:
            upgrade.pause(reason="lunch")
        return encoder(NEW)(items)

    report = run(upgrade, loading(pausing)).report
    assert report.stopped == "paused"
    assert report.written == sum(8 for _ in calls) <= 32, "what workers had is kept, no more"
    assert run(upgrade, good).report.written == 0
    upgrade.resume()

    report = run(upgrade, good, check=lambda: verdict("FAIL"), check_every=1, limit=10).report
    assert (report.stopped, upgrade.status().gate) == ("paused", "FAIL")


def test_a_rollback_while_batches_are_embedded_writes_nothing_more(
    ray: FakeRay, upgrade: Upgrade
) -> None:
    def rolling(items: Sequence[Item]) -> Embedded:
        if upgrade.status().phase == "running":
            upgrade.rollback()
        return encoder(NEW)(items)

    report = run(upgrade, loading(rolling)).report
    assert (report.stopped, report.written) == ("ended", 0)
    assert upgrade.gallery.count().stored["f-new"] == 0


def test_the_rate_is_kept_and_slow_searches_are_waited_for(ray: FakeRay, small: Upgrade) -> None:
    started = time.monotonic()
    report = run(small, loading(encoder(NEW)), max_rate=60, limit=30).report
    assert report.written == 30
    assert time.monotonic() - started >= 22 / 60
    slow = Latency(p99=lambda: 0.5, ceiling=0.05)
    started = time.monotonic()
    run(small, loading(encoder(NEW)), limit=30, latency=slow)
    assert time.monotonic() - started >= 0.01 + 0.02 + 0.04 + 0.08


def test_batches_of_quick_workers_grow(ray: FakeRay, small: Upgrade) -> None:
    seen: list[list[str]] = []
    settings = Settings(batch=2, growth=8, lease=1000)
    run(small, loading(encoder(NEW), seen), settings=settings)
    assert len(seen[0]) == 2
    assert max(len(batch) for batch in seen) > 4


def test_what_this_process_held_is_free_after_a_run(ray: FakeRay, small: Upgrade) -> None:
    run(small, loading(encoder(NEW)), limit=8)
    left = small.gallery.work.claim(worker="other", limit=100, seconds=1)
    assert len(left) == 52


def test_slow_batch_renews_its_lease_and_nobody_else_claims_it(
    ray: FakeRay, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch takes longer than its lease; meanwhile another run looks for work."""
    work, renewed, good = upgrade.gallery.work, threading.Semaphore(0), encoder(NEW)
    renew, stolen = work.renew, list[str]()

    def counted(worker: str, *, seconds: float) -> int:
        count = renew(worker, seconds=seconds)
        renewed.release()
        return count

    def slow(items: Sequence[Item]) -> Embedded:
        for _ in range(RENEWALS + 2):
            assert renewed.acquire(timeout=60)
        mine = {item.id for item in items}
        others = work.claim(worker="other", limit=60, seconds=60)
        stolen.extend(task.item.id for task in others if task.item.id in mine)
        work.release("other")
        return good(items)

    monkeypatch.setattr(work, "renew", counted)
    run(upgrade, loading(slow), settings=replace(SETTINGS, batch=30, lease=1.5))
    assert stolen == []
    all_hold(upgrade.gallery, NEW, MODEL)


@pytest.mark.parametrize("address", ["", "ray:/x", "http://host:1", "host", "host:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected auto, local, ray://host:10001 or host:6379"):
        connect._knock(address)


def test_a_closed_door_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(ClusterError, match=r"nobody listens at 127\.0\.0\.1:1 "):
            connect._knock(address)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError, match="nobody listens"):
        connect._knock("auto")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # a cluster that is gone left its address
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1\n", encoding="utf-8")
    with pytest.raises(ClusterError, match="nobody listens"):
        connect._knock("auto")
