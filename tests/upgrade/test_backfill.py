"""The backfill: nothing lost, nothing counted twice, stopped and throttled when asked."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import ConfigError, EncoderError, GalleryError, ImageError, SpaceMismatch
from midspan.gallery import Gallery, Item
from midspan.spaces import Embeddings
from midspan.upgrade import (
    Embed,
    Embedded,
    Latency,
    Settings,
    Upgrade,
    backfill,
    from_embeddings,
    judged_by,
)
from midspan.upgrade.throttle import Throttle
from midspan.upgrade.verdicts import Check, GateResult
from midspan.upgrade.worker import RENEWALS
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    STORES,
    STRANGER,
    accounted,
    all_hold,
    encoder,
    ids,
    make,
    picture,
    vectors,
)

ROOT = Path(__file__).parents[2]
MODEL = {id: picture(id) for id in ids(60)}


@pytest.fixture(params=STORES)
def upgrade(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrade]:
    with make(request.param, tmp_path) as gallery:
        yield Upgrade.start(gallery, to=NEW)


def watched(embed: Embed, upgrade: Upgrade, seen: list[list[str]]) -> Embed:
    """Counts must add up in the middle of every batch too."""

    def wrapped(items: Sequence[Item]) -> Embedded:
        accounted(upgrade.gallery)
        seen.append([item.id for item in items])
        return embed(items)

    return wrapped


def test_counts_add_up_at_every_step(upgrade: Upgrade) -> None:
    seen: list[list[str]] = []
    total, done = 60, 0
    embed = watched(encoder(NEW, corrupt=["i0007"], missing=["i0011"]), upgrade, seen)
    while (report := upgrade.run(embed, limit=7, settings=QUICK)).stopped == "limit":
        assert report.written + report.given_up == 7
        done += 7
        old, new, failed = accounted(upgrade.gallery)
        assert (report.old, report.new, report.failed, report.all) == (old, new, failed, total)
        assert new + failed == done
        status = upgrade.status()
        assert (status.old, status.new, status.failed, status.all) == (old, new, failed, total)
    assert report.stopped == "done"
    assert accounted(upgrade.gallery) == (0, 58, 2)
    worked = [id for batch in seen for id in batch]
    assert sorted(set(worked)) == ids(60)
    assert len(worked) == 61, "the missing one was tried twice, all others once"


def test_failures_are_listed_with_reasons_after_their_retries(upgrade: Upgrade) -> None:
    settings = Settings(batch=8, lease=5, retries=3, back_off=0.02)
    embed = encoder(NEW, missing=["i0011", "i0012"], corrupt=["i0007"])
    report = upgrade.run(embed, settings=settings)
    assert (report.written, report.given_up, report.put_off) == (57, 3, 4)
    failures = {f.id: f for f in upgrade.gallery.work.failures(after="", limit=10)}
    assert {id: f.reason for id, f in failures.items()} == {
        "i0007": "not an image",
        "i0011": "no such file",
        "i0012": "no such file",
    }
    assert (failures["i0007"].attempts, failures["i0011"].attempts) == (1, 3)
    assert failures["i0011"].uri == picture("i0011")
    assert upgrade.gallery.work.retry() == 3  # somebody mended the files
    assert upgrade.run(encoder(NEW), settings=QUICK).new == 60
    all_hold(upgrade.gallery, NEW, MODEL)


def test_one_image_that_breaks_the_batch_costs_only_itself(upgrade: Upgrade) -> None:
    good = encoder(NEW)

    def embed(items: Sequence[Item]) -> Embedded:
        if any(item.id == "i0005" for item in items):
            raise ImageError("i0005: cannot be decoded")
        made = good(items)
        if any(item.id == "i0006" for item in items):  # the encoder says NaN
            rows = made.vectors.vectors.copy()
            rows[made.vectors.ids == "i0006"] = np.nan
            return Embedded(Embeddings(made.vectors.ids, rows, NEW))
        return made

    upgrade.run(embed, settings=QUICK)
    assert accounted(upgrade.gallery) == (0, 58, 2)
    reasons = {f.id: f.reason for f in upgrade.gallery.work.failures(after="", limit=10)}
    assert reasons["i0005"] == "i0005: cannot be decoded"
    assert "NaN" in reasons["i0006"]


def test_items_that_the_encoder_forgets_are_failures(upgrade: Upgrade) -> None:
    good = encoder(NEW)

    def embed(items: Sequence[Item]) -> Embedded:
        made = good(items)
        return Embedded(made.vectors[made.vectors.ids != "i0009"])

    upgrade.run(embed, settings=QUICK)
    (failure,) = upgrade.gallery.work.failures(after="", limit=10)
    assert (failure.id, failure.reason) == ("i0009", "the encoder gave no vector")


def test_a_broken_encoder_stops_the_run_and_gives_its_items_back(upgrade: Upgrade) -> None:
    def embed(items: Sequence[Item]) -> Embedded:
        raise EncoderError("the device is gone")

    with pytest.raises(EncoderError, match="the device is gone"):
        upgrade.run(embed)
    assert accounted(upgrade.gallery) == (60, 0, 0)
    patient = Settings(batch=8, lease=1000)
    assert upgrade.run(encoder(NEW), settings=patient).new == 60  # no lease is left behind


def test_vectors_of_another_encoder_are_refused(upgrade: Upgrade) -> None:
    with pytest.raises(SpaceMismatch, match=r"'stranger'.*leads to 'new'"):
        upgrade.run(encoder(STRANGER))
    assert accounted(upgrade.gallery) == (60, 0, 0)


def test_vectors_from_a_file_by_id(upgrade: Upgrade) -> None:
    part = vectors(ids(50), NEW)
    report = upgrade.run(from_embeddings(part, source="new.npz"), settings=QUICK)
    assert (report.new, report.failed) == (50, 10)
    failure = upgrade.gallery.work.failures(after="", limit=1)[0]
    assert (failure.id, failure.reason) == ("i0050", "no vector for this id in new.npz")


@pytest.mark.parametrize("settings", [{"limit": 0}, {"max_rate": 0.0}, {"check_every": 0}])
def test_bad_settings_are_refused(upgrade: Upgrade, settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"expected .*(>= 1|above 0)"):
        upgrade.run(encoder(NEW), **settings)  # type: ignore[arg-type]


def test_a_pause_stops_every_worker_within_a_batch(upgrade: Upgrade) -> None:
    seen: list[list[str]] = []
    good = encoder(NEW)

    def embed(items: Sequence[Item]) -> Embedded:
        seen.append([item.id for item in items])
        if len(seen) == 3:
            upgrade.pause(reason="lunch")
        return good(items)

    report = upgrade.run(embed, settings=QUICK)
    assert (report.stopped, report.written, len(seen)) == ("paused", 24, 3)
    status = upgrade.status()
    assert (status.phase, status.reason) == ("paused", "lunch")
    assert upgrade.run(good, settings=QUICK).written == 0
    done = seen[0][0]
    assert upgrade.search(vectors([done], NEW), k=1)[0][0].id == done
    upgrade.pause()  # once more does no harm
    upgrade.resume()
    assert upgrade.status().reason is None
    assert upgrade.run(good, settings=QUICK).new == 60


def test_a_pause_ends_a_long_rest(upgrade: Upgrade) -> None:
    threading.Timer(0.3, upgrade.pause).start()
    started = time.monotonic()
    report = upgrade.run(encoder(NEW), max_rate=0.02, settings=QUICK)  # one, then 50 s of rest
    assert report.stopped == "paused"
    assert report.written <= 1
    assert time.monotonic() - started < 40


def test_a_rollback_while_a_batch_is_embedded_writes_nothing_more(upgrade: Upgrade) -> None:
    good = encoder(NEW)

    def embed(items: Sequence[Item]) -> Embedded:
        upgrade.rollback()
        return good(items)

    report = upgrade.run(embed, settings=QUICK)
    assert (report.stopped, report.written) == ("ended", 0)
    assert upgrade.gallery.count().stored["f-new"] == 0


def test_the_rate_is_kept(upgrade: Upgrade) -> None:
    started = time.monotonic()
    report = upgrade.run(encoder(NEW), max_rate=40, limit=30, settings=QUICK)
    seconds = time.monotonic() - started
    assert report.written == 30
    # The last batch of 6 is not waited for: 24 items at 40 a second.
    assert seconds >= 24 / 40
    assert report.rate <= 40 * 30 / 24 + 1


def test_slow_searches_slow_the_backfill_down(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    wait = Throttle.wait

    def noted(throttle: Throttle, go_on: Callable[[], bool]) -> None:
        wait(throttle, go_on)
        rests.append(throttle.rest)

    monkeypatch.setattr(Throttle, "wait", noted)

    def seconds(p99: float) -> float:
        started = time.monotonic()
        latency = Latency(p99=lambda: p99, ceiling=0.05)
        upgrade.run(encoder(NEW), limit=24, latency=latency, settings=Settings(batch=4, growth=1))
        return time.monotonic() - started

    seconds(0.01)
    assert set(rests) == {0.0}
    rests.clear()
    assert seconds(0.5) >= sum(0.01 * 2**n for n in range(6))
    assert rests[:6] == [0.01 * 2**n for n in range(6)]


def verdict(word: str) -> GateResult:
    check = Check("negative flips", 0.4, 0.3, 0.5, 0.01, word)  # type: ignore[arg-type]
    return GateResult(word, (check,), {}, True, "map", 10, ())  # type: ignore[arg-type]


def test_a_gate_that_fails_along_the_way_pauses(upgrade: Upgrade) -> None:
    asked: list[int] = []

    def check() -> GateResult:
        asked.append(accounted(upgrade.gallery)[1])
        return verdict("PASS" if len(asked) < 2 else "FAIL")

    report = upgrade.run(encoder(NEW), check=check, check_every=16, settings=QUICK)
    assert (report.stopped, asked) == ("paused", [16, 32])
    status = upgrade.status()
    assert (status.phase, status.gate) == ("paused", "FAIL")
    assert status.reason == "gate: negative flips 0.4000 (0.3000 to 0.5000), limit 0.01"
    with pytest.raises(GalleryError, match=r"the gate failed .*`override` \"reason\""):
        upgrade.resume()
    upgrade.resume(override="the flips are of one shop")
    assert upgrade.status().gate == "FAIL", "the verdict stays on record"
    override = upgrade.status().override
    assert override is not None
    assert (override["reason"], override["gate"]) == ("the flips are of one shop", "FAIL")
    upgrade.run(encoder(NEW), check=lambda: verdict("FAIL"), check_every=60, settings=QUICK)
    assert upgrade.status().new == 60
    with pytest.raises(GalleryError, match="last verdict of the gate is FAIL; expected PASS"):
        upgrade.finish(force=True)
    with pytest.raises(GalleryError, match="needs a reason"):
        upgrade.finish(override=" ")
    assert upgrade.finish(override="looked at each of them").left == 0
    said = [line.details.get("override") for line in upgrade.gallery.audit_log()]
    assert "looked at each of them" in said
    assert "the flips are of one shop" in said


def test_the_gate_is_asked_by_share_of_the_way(upgrade: Upgrade) -> None:
    asked: list[int] = []

    def check() -> GateResult:
        asked.append(accounted(upgrade.gallery)[1])
        return verdict("PASS")

    upgrade.run(encoder(NEW), check=check, settings=Settings(batch=1, growth=1))
    assert asked == [*range(3, 61, 3), 60]  # 20 looks, and the last word


def test_an_inconclusive_gate_does_not_pause_and_does_not_let_finish(upgrade: Upgrade) -> None:
    report = upgrade.run(encoder(NEW), check=lambda: verdict("INCONCLUSIVE"), settings=QUICK)
    assert report.stopped == "done"
    assert upgrade.status().phase == "running"
    with pytest.raises(GalleryError, match="is INCONCLUSIVE; expected PASS"):
        upgrade.finish()
    judged_by(upgrade.gallery, verdict("PASS"))
    assert upgrade.finish().left == 0


def test_status_has_the_rate_of_the_work_that_was_done(upgrade: Upgrade) -> None:
    assert upgrade.status().rate is None
    report = upgrade.run(encoder(NEW), limit=20, max_rate=50, settings=QUICK)
    status = upgrade.status()
    assert status.rate is not None
    assert status.rate == pytest.approx(report.rate, rel=0.5)
    assert status.seconds_left == pytest.approx(40 / status.rate)
    assert report.seconds_left == pytest.approx(40 / report.rate)


def test_an_expired_lease_is_taken_over_and_the_late_worker_does_no_harm(
    upgrade: Upgrade,
) -> None:
    gallery = upgrade.gallery
    late = gallery.work.claim(worker="late", limit=10, seconds=0.3)
    report = upgrade.run(encoder(NEW), settings=QUICK)
    assert (report.stopped, report.written) == ("done", 60)
    made = vectors([task.item.id for task in late], NEW)
    assert gallery.add_missing_vectors(made, revisions=[task.item.revision for task in late]) == 0
    all_hold(upgrade.gallery, NEW, MODEL)


def test_slow_batch_renews_its_lease_and_is_embedded_once(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch takes longer than its lease, while a second worker looks for work."""
    seen, renewed, see = list[str](), threading.Semaphore(0), encoder(NEW)
    work = upgrade.gallery.work
    renew = work.renew

    def counted(worker: str, *, seconds: float) -> int:
        count = renew(worker, seconds=seconds)
        renewed.release()
        return count

    monkeypatch.setattr(work, "renew", counted)

    def slow(items: Sequence[Item]) -> Embedded:
        seen.extend(item.id for item in items)
        for _ in range(2 * RENEWALS):  # two leases
            assert renewed.acquire(timeout=60)
        return see(items)

    settings = Settings(batch=60, growth=1, lease=1.5)
    other = threading.Thread(target=upgrade.run, args=(slow,), kwargs={"settings": settings})
    other.start()
    report = upgrade.run(slow, settings=settings)
    other.join()
    assert report.new == 60
    assert sorted(seen) == ids(60)


def test_without_waiting_a_worker_leaves_the_rest_to_the_others(upgrade: Upgrade) -> None:
    upgrade.gallery.work.claim(worker="other", limit=10, seconds=1000)
    report = upgrade.run(encoder(NEW), settings=Settings(batch=8, wait=False))
    assert (report.stopped, report.written, report.old) == ("idle", 50, 10)


@pytest.mark.slow
def test_two_worker_processes_share_the_work(tmp_path: Path) -> None:
    with make("sqlite", tmp_path, count=300) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW)
        command = [sys.executable, "-m", "tests.upgrade.worker", gallery.location]
        workers = [
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        written = []
        for worker in workers:
            out, _ = worker.communicate(timeout=240)
            assert worker.returncode == 0
            written.append(int(out.split()[-1]))
        assert sum(written) == 300, "each item was written by one of them"
        assert upgrade.status().new == 300
        all_hold(gallery, NEW, {id: picture(id) for id in ids(300)})
        told = [line for line in gallery.audit_log() if line.what == "upgrade run"]
        assert sum(line.details["written"] for line in told) == 300


def test_a_gallery_of_items_without_vectors_of_the_old_space_is_no_trap(tmp_path: Path) -> None:
    """Adds that bring new vectors only are done from the beginning."""
    with make("memory", tmp_path, count=5) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="uncertainty", rollback=False)
        gallery.add(vectors(["n1", "n2"], NEW))
        assert accounted(gallery) == (5, 2, 0)
        assert upgrade.run(encoder(NEW), settings=QUICK).written == 5
        assert gallery.search(vectors(["n1"], OLD), k=7)[0]


def searching(gallery: Gallery, stop: threading.Event, errors: list[str]) -> None:
    queries = vectors(ids(3, first=900), NEW)
    upgrade = Upgrade(gallery)
    while not stop.is_set():
        for hits in upgrade.search(queries, k=20):
            found = [hit.id for hit in hits]
            if len(set(found)) < len(found) or len(found) < 20:
                errors.append(f"{len(found)} results, {len(set(found))} different")


def test_searches_from_threads_never_fail_during_a_whole_upgrade(upgrade: Upgrade) -> None:
    stop, errors = threading.Event(), list[str]()
    threads = [
        threading.Thread(target=searching, args=(upgrade.gallery, stop, errors)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    try:
        upgrade.run(encoder(NEW), settings=Settings(batch=2))
        upgrade.finish()
        upgrade.forget()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


def test_batches_of_a_quick_encoder_grow_and_those_of_a_slow_one_shrink(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    see_all = encoder(NEW)

    def embed(items: Sequence[Item]) -> Embedded:
        sizes.append(len(items))
        if len(sizes) == 5:
            monkeypatch.setattr(backfill, "QUICK", -1.0)  # from now on every batch is slow
        return see_all(items)

    upgrade.run(embed, settings=Settings(batch=2, growth=4))
    # The one that is read ahead was claimed before the time of the one before it was known.
    assert sizes[:8] == [2, 4, 4, 8, 8, 8, 4, 2]
    assert sum(sizes) == 60
    assert min(sizes[:-1]) >= 2
