"""One gallery: views for readers, turns for writers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from midspan.errors import StateChanged, StoreError
from midspan.gallery.stores.turns.engine import Engine, Refused
from midspan.gallery.stores.turns.head import HELP_AFTER, Head, pause, read_head, take
from midspan.gallery.stores.turns.records import Known
from midspan.gallery.stores.turns.turn import Turn, clear
from midspan.gallery.stores.turns.view import View, read_known

TRIES = 6  # views that a reader takes before it asks the writers to wait

Result = TypeVar("Result")


class Access:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._mine = threading.RLock()  # the threads of this process take their turns here
        self._known: tuple[int, Known] | None = None

    def head(self) -> Head:
        """Not `done`: what it replaced is gone."""
        begun = time.monotonic()
        while (head := read_head(self.engine)).phase == "done":
            if time.monotonic() - begun > HELP_AFTER:
                clear(self.engine, head)
            pause()
        return head

    def known(self, head: Head) -> Known:
        """It changes seldom, and the head says when."""
        kept = self._known
        if kept is None or kept[0] != head.state:
            kept = head.state, read_known(self.engine, head)
            self._known = kept
        return kept[1]

    def view(self) -> View:
        while True:
            head = self.head()
            try:
                return View(self.engine, head, self.known(head))
            except StateChanged:
                if read_head(self.engine).state == head.state:
                    raise

    def read(self, look: Callable[[View], Result], *, records: bool = True) -> Result:
        """An answer out of one piece: if something was removed meanwhile, look again.

        Not `records`: whether a record was removed is the looker's own care.
        """
        for _ in range(TRIES):
            view = self.view()
            try:
                result = look(view)
            except (StateChanged, Refused):
                if view.undisturbed():
                    raise
                continue
            if view.undisturbed(records=records):
                return result
        with self.turn() as turn:
            return look(turn.view)

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        """Alone with the gallery. What happens inside counts when it ends well, or not at all."""
        with self._mine:
            while (head := take(self.engine)).phase == "done":
                self.head()
            turn: Turn | None = None
            try:
                turn = Turn(self.engine, head, self.known(head))
                yield turn
                turn.commit()
            except BaseException:
                with suppress(StoreError):  # if the server is gone, the lease will end
                    if turn is not None:
                        turn.give_up()
                raise
