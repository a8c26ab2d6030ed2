"""Whether a connection may be used: it was not closed, and not inherited by a fork."""

from __future__ import annotations

import os

from midspan.errors import StoreError


class Handle:
    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._process = os.getpid()
        self.open = True

    def check(self) -> None:
        if not self.open:
            raise StoreError(f"{self._shown}: this gallery is closed")
        if os.getpid() != self._process:
            raise StoreError(
                f"{self._shown}: opened by another process; open it again after a fork"
            )
