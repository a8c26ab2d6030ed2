"""Live searches tell other processes how long they take, while there is work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.gallery import Gallery, search_log
from midspan.gallery.engines import ENGINES
from midspan.gallery.search_log import LatencyBeacon
from tests.gallery.elsewhere import SCHEME
from tests.gallery.samples import OLD, add, embed, start


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_log, "BEACON_SECONDS", 0.0)
    monkeypatch.setitem(ENGINES, SCHEME, "tests.gallery.elsewhere:Elsewhere")


def test_beacon_gives_the_p99_of_recent_searches(tmp_path: Path) -> None:
    writer, reader = LatencyBeacon(tmp_path / "g"), LatencyBeacon(tmp_path / "g")
    assert reader.p99() is None
    for number in range(search_log.FEWEST - 1):
        writer.note(number / 1000)
    assert reader.p99() is None  # too few to tell
    for number in range(200):
        writer.note(number / 1000)
    assert reader.p99() == pytest.approx(np.percentile(np.arange(200), 99) / 1000, abs=0.004)
    writer.close()
    assert reader.p99() is None
    assert list(tmp_path.iterdir()) == []


def test_beacon_stale_or_broken_file_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LatencyBeacon(tmp_path / "g")
    for _ in range(50):
        writer.note(0.01)
    assert writer.p99() == 0.01
    monkeypatch.setattr(search_log, "RECENT", -1.0)
    assert writer.p99() is None
    (tmp_path / "g-pulse").write_bytes(b"half")
    assert writer.p99() is None


def test_beacon_is_written_only_during_an_upgrade(tmp_path: Path) -> None:
    location = f"{SCHEME}:///lite/{tmp_path.name}?catalogue={tmp_path / 'shop.db'}"
    with Gallery.create(location, OLD) as gallery, Gallery.open(location) as other:
        add(gallery, ["a", "b"])
        for _ in range(30):
            gallery.search(embed(["q"]))
        assert other.live_p99() is None
        start(gallery)
        for _ in range(30):
            gallery.search(embed(["q"]))
        p99 = other.live_p99()
        assert p99 is not None
        assert 0 < p99 < 5
    assert not (tmp_path / "shop.db-pulse").exists()


def test_beacon_of_a_gallery_without_a_file_is_none() -> None:
    with Gallery.create("memory:", OLD) as gallery:
        start(gallery)
        for _ in range(30):
            gallery.search(embed(["q"]))
        assert gallery.live_p99() is None
