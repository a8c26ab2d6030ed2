"""Searches beside a backfill: their times are true, and a slow one makes the backfill rest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from midspan.gallery import Gallery
from midspan.upgrade import Latency, Upgrade, throttle
from midspan.upgrade.throttle import Probe, watch_searches
from tests.upgrade.world import NEW, OLD, QUICK, encoder, ids, make


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "EVERY", 0.002)


def wait_for(watch: Probe, searches: int) -> None:
    deadline = time.time() + 120
    while len(watch._seconds) < searches and time.time() < deadline:
        time.sleep(0.005)
    assert len(watch._seconds) >= searches


def test_a_probe_measures_searches_of_the_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    plain = Gallery.more_like

    def slow(gallery: Gallery, id: str, **settings: Any) -> Any:
        asked.append(id)
        time.sleep(0.02)
        return plain(gallery, id, **settings)

    monkeypatch.setattr(Gallery, "more_like", slow)
    with make("sqlite", tmp_path) as gallery:
        watch = Probe(gallery)
        with watch.running():
            assert watch.p99() is None or watch.p99() >= 0.02  # type: ignore[operator]
            wait_for(watch, 5)
        p99 = watch.p99()
    assert p99 is not None
    assert p99 >= 0.02
    assert asked[:5] == ids(5)


def test_a_probe_with_nothing_to_ask_measures_nothing_and_after_deletions_what_is_left(
    tmp_path: Path,
) -> None:
    with make("sqlite", tmp_path, count=0) as gallery, (watch := Probe(gallery)).running():
        time.sleep(0.02)
        assert watch.p99() is None
    (tmp_path / "other").mkdir()
    with make("sqlite", tmp_path / "other") as gallery, (watch := Probe(gallery)).running():
        gallery.delete(ids(30))
        wait_for(watch, 5)


def test_slow_searches_slow_the_backfill_down(tmp_path: Path) -> None:
    with make("sqlite", tmp_path) as gallery, (watch := Probe(gallery)).running():
        wait_for(watch, 3)
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        assert gallery.state.live == (NEW.fingerprint, OLD.fingerprint)
        report = upgrade.run(
            encoder(NEW), latency=Latency(watch.p99, ceiling=1e-6), settings=QUICK, limit=40
        )
        slow = report.seconds
        report = upgrade.run(encoder(NEW), latency=Latency(watch.p99, ceiling=60), settings=QUICK)
        assert (report.stopped, report.new) == ("done", 60)
        # Five batches rest 10, 20, 40, 80 and 160 ms; with a high ceiling none does.
        assert slow > 0.3


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_gallery_whose_searchers_say_nothing_is_probed(tmp_path: Path, kind: str) -> None:
    """As on a server: nobody writes the latency of searches where a backfill could read it."""
    with make(kind, tmp_path) as gallery, watch_searches(gallery, watch=0.1) as latency:
        if kind == "sqlite":
            assert latency is None, "nobody searches, so nobody is in the way"
            return
        assert latency is not None
        now = latency.p99()
        assert now is not None
        assert latency.ceiling > 0
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        strict = Latency(latency.p99, ceiling=1e-9)
        slow = upgrade.run(encoder(NEW), latency=strict, settings=QUICK, limit=40).seconds
        assert slow > 0.3


def test_an_empty_gallery_is_not_probed(tmp_path: Path) -> None:
    with make("memory", tmp_path, count=0) as gallery, watch_searches(gallery) as latency:
        assert latency is None
