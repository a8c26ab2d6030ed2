"""The thread that builds indexes and does what interrupted writers left.

It starts with the first write or search of a process. A failed build is logged, recorded in the
catalogue, where every process sees it, and tried again after a pause that doubles.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import select

from midspan.errors import MidspanError, StateChanged
from midspan.gallery.catalogue import outbox
from midspan.gallery.catalogue.items import one_of
from midspan.gallery.engines.base import Adopts
from midspan.gallery.filters import Path, Range

if TYPE_CHECKING:
    from midspan.gallery.session import Session

LOOK_SECONDS = 5.0  # between two looks at whether an index is due
GROWTH, LOADED_ROWS = 0.1, 10_000  # of a space between two looks, that make its index wait
FIRST_PAUSE = 30.0  # after a failed build
LONGEST_PAUSE = 3600.0
PAGE = 10_000  # rows compared at once
EXPIRE_SECONDS = 60.0  # between two looks at what has expired
EXPIRED = 1000  # items removed in one transaction
EXPIRES = "expires"  # setting: JSON, the path of the payload field that says when

log = logging.getLogger("midspan.gallery")


class Maintenance:
    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)  # a gallery that nobody closed can still go
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._not_before: dict[int, float] = {}  # by space, after a failure
        self._counts: dict[int, int] = {}  # vectors by space, at the last look
        self._expired = 0.0  # when that was looked at

    def wrote(self) -> None:
        self._begin()
        self._wake.set()

    def searched(self) -> None:
        if self._thread is None:
            self._begin()
            self._wake.set()

    def _begin(self) -> None:
        if self._thread is not None or self._stop.is_set():
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_work,
                    args=(self._session, self._wake, self._stop),
                    name="midspan-maintenance",
                    daemon=True,
                )
                self._thread.start()

    def stop(self) -> None:
        """Begin nothing further; `close` waits for what is under way."""
        self._stop.set()
        self._wake.set()

    def close(self) -> None:
        self.stop()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=60)

    # ---- one round

    def look(self) -> None:
        """What is due now, in the background: never raises."""
        session = self._session()
        if session is None:
            return
        try:
            session.queue.drain()
            if isinstance(session.engine, Adopts):
                session.engine.catch_up()
            if time.monotonic() - self._expired >= EXPIRE_SECONDS:
                self._expired = time.monotonic()
                self.expire()
            snapshot = session.catalogue.snapshot()
            for number in snapshot.spaces:
                if self._stop.is_set():
                    return
                if time.monotonic() >= self._not_before.get(number, 0.0):
                    self._try(number)
        except Exception as error:  # nothing that happens here may end the thread
            if not self._stop.is_set():
                log.warning("%s: maintenance failed: %s", session.location.shown, error)

    def _try(self, number: int) -> None:
        session = self._session()
        assert session is not None
        try:
            if not session.engine.needs_index(number) or self._filling(number):
                return
            session.engine.build_index(number)
            session.catalogue.index_failures.clear(number)
            self._not_before.pop(number, None)
        except StateChanged:
            return  # the space was dropped meanwhile
        except Exception as error:
            if self._stop.is_set():
                return
            self._failed(number, error)

    def _filling(self, number: int) -> bool:
        """The space grew much since the last look: a load is under way, and each of its vectors
        would take many times longer into an index than an index takes after it."""
        session = self._session()
        assert session is not None
        before, count = self._counts.get(number), session.engine.count(number)
        self._counts[number] = count
        return before is None or count - before > min(GROWTH * before, LOADED_ROWS)

    def _failed(self, number: int, error: Exception) -> None:
        session = self._session()
        assert session is not None
        message = f"{type(error).__name__}: {error}"
        attempts = 1
        with contextlib.suppress(MidspanError):
            attempts = session.catalogue.index_failures.add(number, message)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** max(0, attempts - 1))
        self._not_before[number] = time.monotonic() + pause
        log.error(
            "%s: building the index of space %d failed (%s); next attempt in %.0f s",
            session.location.shown,
            number,
            message,
            pause,
        )

    # ---- items with an end

    def expires_by(self) -> Path | None:
        session = self._session()
        assert session is not None
        path = json.loads(session.catalogue.settings().get(EXPIRES, "null"))
        return None if path is None else tuple(path)

    def expire(self) -> int:
        """Remove the items whose field holds a time (seconds since 1970) that has passed."""
        session, path, count = self._session(), self.expires_by(), 0
        assert session is not None
        if path is None:
            return 0
        past = Range(path, lte=time.time())
        while removed := session.items.delete_matching(past, limit=EXPIRED):
            count += removed
        return count

    # ---- asked for

    def garbage(self) -> int:
        """Rows in the engine that belong to no item."""
        session = self._session()
        assert session is not None
        numbers = session.catalogue.snapshot().spaces
        return sum(len(garbage_rows(session, number)) for number in numbers)

    def run_once(self) -> None:
        """Everything that is due, now; raises what fails, after recording it."""
        session = self._session()
        assert session is not None
        session.queue.drain()
        if isinstance(session.engine, Adopts):
            session.engine.catch_up()
        remove_garbage(session)
        session.engine.vacuum()
        for number in session.catalogue.snapshot().spaces:
            self.build(number)

    def build(self, number: int) -> None:
        """One index, now; raises what fails, after recording it."""
        session = self._session()
        assert session is not None
        try:
            session.engine.build_index(number)
        except StateChanged:
            return  # the space was dropped meanwhile
        except Exception as error:
            self._failed(number, error)
            raise
        session.catalogue.index_failures.clear(number)
        self._not_before.pop(number, None)


def _work(session: weakref.ref[Session], wake: threading.Event, stop: threading.Event) -> None:
    while not stop.is_set():
        wake.wait(timeout=LOOK_SECONDS)
        if stop.is_set():
            return
        wake.clear()
        here = session()
        if here is None:
            return
        here.maintenance.look()
        del here
        stop.wait(LOOK_SECONDS)  # many writes make one look


# ---- garbage -------------------------------------------------------------------------------------


def garbage_rows(session: Session, number: int) -> list[int]:
    """Rows of a space in the engine that are no item and that nobody is writing."""
    tables, garbage, after = session.catalogue.tables, list[int](), -1
    while len(rows := session.engine.rows(number, after=after, limit=PAGE)):
        after = int(rows[-1])
        # The engine was asked first: whoever puts a row there noted its intent before.
        with session.catalogue.reading() as connection:
            numbers = rows.tolist()
            known = set(
                connection.execute(
                    select(tables.items.c.row).where(one_of(tables, tables.items.c.row, numbers))
                ).scalars()
            )
            strange = [row for row in numbers if row not in known]
            if strange:
                writing = outbox.intended(connection, tables, strange)
                garbage += [row for row in strange if row not in writing]
    return garbage


def remove_garbage(session: Session) -> int:
    """Vectors of writes that were aborted, and notes of spaces that are gone."""
    catalogue, count = session.catalogue, 0
    for number in catalogue.snapshot().spaces:
        rows = garbage_rows(session, number)
        for start in range(0, len(rows), PAGE):
            part = np.array(rows[start : start + PAGE], dtype=np.int64)
            if session.engine.colocated:
                with catalogue.writing() as connection:
                    session.engine.delete(part, connection=connection)
            else:
                session.engine.delete(part)
        count += len(rows)
    stored = catalogue.tables.stored
    with catalogue.reading() as connection:
        noted = set(connection.execute(select(stored.c.space).distinct()).scalars())
        known = set(catalogue.read(connection).spaces)
    for number in noted - known:
        session.states.forget_presence(number)
    return count
