"""Indexes are built in the background; a failure is logged, shown everywhere, and tried again."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from midspan.gallery import Gallery
from midspan.gallery import maintenance as module
from midspan.gallery.engines import ENGINES
from tests.gallery.elsewhere import SCHEME, Elsewhere
from tests.gallery.samples import NEW, OLD, add, embed, start


class Indexed(Elsewhere):
    """Needs an index from three rows on, and fails to build it as often as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.failures_left, self.built = 0, dict[int, int]()
        self.tried = threading.Event()

    def needs_index(self, number: int) -> bool:
        return self.count(number) >= 3 and number not in self.built

    def build_index(self, number: int) -> None:
        self.tried.set()
        if self.failures_left:
            self.failures_left -= 1
            raise MemoryError("no room for the index")
        self.built[number] = self.count(number)


@pytest.fixture
def location(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ENGINES, SCHEME, "tests.gallery.test_maintenance:Indexed")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.05)
    name = str(tmp_path).rpartition("/")[2]
    return f"{SCHEME}:///lite/{name}?catalogue={tmp_path}/shop.db"


def engine_of(gallery: Gallery) -> Indexed:
    engine = gallery._session.engine
    assert isinstance(engine, Indexed)
    return engine


def wait_until(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_maintenance_builds_an_index_when_a_space_has_grown(location: str) -> None:
    with Gallery.create(location, OLD) as gallery:
        engine = engine_of(gallery)
        add(gallery, ["a", "b"])
        gallery._session.maintenance.look()
        assert engine.built == {}
        add(gallery, ["c"])
        wait_until(lambda: engine.built == {1: 3})


def test_maintenance_builds_the_new_index_during_the_backfill(location: str) -> None:
    ids = ["a", "b", "c", "d"]
    with Gallery.create(location, OLD) as gallery:
        add(gallery, ids)
        start(gallery)
        gallery.add_missing_vectors(embed(ids[:3], NEW), revisions=[1, 1, 1])
        wait_until(lambda: set(engine_of(gallery).built) == {1, 2})
        assert gallery.work.pending_exists()


def test_maintenance_long_load_keeps_the_index_waiting(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOADED_ROWS", 1)
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
    with Gallery.create(location, OLD) as gallery:
        maintenance = gallery._session.maintenance
        maintenance.stop()  # its rounds are made here
        add(gallery, [f"i{number}" for number in range(40)])
        assert maintenance._filling(1)
        add(gallery, ["j1", "j2"])  # a twentieth, but faster than anything but a load
        assert maintenance._filling(1)
        add(gallery, ["k"])
        assert not maintenance._filling(1)


def test_maintenance_failed_build_is_logged_and_retried(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Gallery.create(location, OLD) as gallery, Gallery.open(location) as other:
        engine = engine_of(gallery)
        engine.failures_left = 2
        with caplog.at_level(logging.ERROR, logger="midspan.gallery"):
            add(gallery, ["a", "b", "c"])
            wait_until(lambda: engine.tried.is_set() and caplog.records)
            status = other.index_status()[OLD.fingerprint]
            if engine.failures_left:  # not yet tried again
                assert status.state == "failed"
                assert status.failure == "MemoryError: no room for the index"
                assert status.failed_at == pytest.approx(time.time(), abs=60)
            wait_until(lambda: engine.built == {1: 3})
        assert "building the index of space 1 failed (MemoryError: no room" in caplog.text
        wait_until(lambda: other.index_status()[OLD.fingerprint].failure is None)


def test_info_shows_a_failed_build_until_one_succeeds(location: str) -> None:
    with Gallery.create(location, OLD) as gallery:
        add(gallery, ["a"])
        engine = engine_of(gallery)
        engine.failures_left = 1
        with pytest.raises(MemoryError):
            gallery.optimise()
        index = gallery.info().spaces[0]["index"]
        assert (index["state"], index["failure"]) == (
            "failed",
            "MemoryError: no room for the index",
        )
        gallery.optimise()
        index = gallery.info().spaces[0]["index"]
        assert (index["state"], index["failure"], index["rows"]) == ("none", None, 1)


def test_maintenance_pauses_between_attempts_grow(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 30.0)
    with Gallery.create(location, OLD) as gallery:
        session = gallery._session
        pauses = []
        for _ in range(9):
            session.maintenance._failed(1, MemoryError("x"))
            pauses.append(session.maintenance._not_before[1] - time.monotonic())
        assert pauses[:3] == pytest.approx([30, 60, 120], abs=5)
        assert pauses[-1] == pytest.approx(module.LONGEST_PAUSE, abs=5)


def test_maintenance_finishes_interrupted_writes(location: str) -> None:
    with Gallery.create(location, OLD) as gallery:
        add(gallery, ["a", "b"])
        engine = engine_of(gallery)
        engine.fail_at = "delete"
        gallery.delete(["a"])
        assert engine.count(1) == 2
        engine.fail_at = None
        gallery._session.maintenance.wrote()
        wait_until(lambda: engine.count(1) == 1)


def test_close_ends_the_maintenance_thread(location: str) -> None:
    with Gallery.create(location, OLD) as gallery:
        add(gallery, ["a"])
        assert any(one.name == "midspan-maintenance" for one in threading.enumerate())
    assert not any(one.name == "midspan-maintenance" for one in threading.enumerate())


def test_maintenance_waits_while_a_space_grows_fast(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Maintenance, "wrote", lambda _: None)  # the test looks by itself
    with Gallery.create(location, OLD) as gallery:
        engine, look = engine_of(gallery), gallery._session.maintenance.look
        for first in range(0, 40, 10):
            add(gallery, [f"i{number}" for number in range(first, first + 10)])
            look()
            assert engine.built == {}
        add(gallery, ["one more"])
        look()
        assert engine.built == {1: 41}
