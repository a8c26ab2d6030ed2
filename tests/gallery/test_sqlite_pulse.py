"""Live searches tell other processes how long they take, while there is work."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from midspan.gallery import Gallery
from midspan.gallery.stores.sqlite import pulse
from midspan.gallery.stores.sqlite.pulse import Pulse
from midspan.upgrade import Upgrade
from midspan.upgrade.throttle import live_latency
from tests.upgrade.world import NEW, make, see


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.0)


def test_the_p99_of_recent_searches_is_told(tmp_path: Path) -> None:
    writer, reader = Pulse(tmp_path / "g"), Pulse(tmp_path / "g")
    assert reader.p99() is None
    for number in range(pulse.FEWEST - 1):
        writer.note(number / 1000)
    assert reader.p99() is None  # too few to tell
    for number in range(200):
        writer.note(number / 1000)
    assert reader.p99() == pytest.approx(np.percentile(np.arange(200), 99) / 1000, abs=0.004)
    writer.close()
    assert reader.p99() is None
    assert list(tmp_path.iterdir()) == []


def test_old_news_and_broken_news_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Pulse(tmp_path / "g")
    for _ in range(50):
        writer.note(0.01)
    assert writer.p99() == 0.01
    monkeypatch.setattr(pulse, "RECENT", -1.0)
    assert writer.p99() is None
    (tmp_path / "g-pulse").write_bytes(b"half")
    assert writer.p99() is None


def test_only_while_there_is_work(tmp_path: Path) -> None:
    query = see(["img/any"], NEW)
    with make("sqlite", tmp_path) as gallery, Gallery.open(gallery.location) as other:
        for _ in range(30):
            gallery.search(query, space=NEW)
        assert live_latency(other, watch=0.01) is None
        Upgrade.start(other, to=NEW, order="random")
        for _ in range(30):
            gallery.search(query, space=NEW)
        latency = live_latency(other, times=2.0, watch=0.01)
        assert latency is not None
        p99 = latency.p99()
        assert p99 is not None
        assert 0 < p99 < 5
        assert latency.ceiling == pytest.approx(2 * p99)
    assert not (tmp_path / "shop.midspan-pulse").exists()


def test_galleries_without_such_news(tmp_path: Path) -> None:
    started = time.monotonic()
    with make("memory", tmp_path) as gallery:
        assert live_latency(gallery) is None
    assert time.monotonic() - started < 4.5, "it watches an embedded one for 5 s"
