"""What workers of a cluster load in tests; they find it by its name, so it is in a file of its own.

Each batch leaves a line in a file named after its worker: who embedded what, also before it died.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from midspan.errors import EncoderError, MissingDependency
from midspan.gallery import Item
from midspan.spaces import Space
from midspan.upgrade import Embed, Embedded
from tests.upgrade.world import NEW, encoder


@dataclass(frozen=True)
class Loader:
    """`make` of a pool: the small world's encoder, slow enough to be killed in the middle."""

    folder: Path
    space: Space = NEW
    seconds: float = 0.0  # a batch
    corrupt: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    deadly: str = ""  # the item that no worker survives
    broken: bool = False

    def __call__(self) -> tuple[Space, Embed]:
        if self.broken:
            raise MissingDependency("torch", extra="train", required_for="the encoder")
        see = encoder(self.space, corrupt=self.corrupt, missing=self.missing)
        name = self.folder / f"{os.getpid()}.batches"

        def embed(items: Sequence[Item]) -> Embedded:
            with name.open("a", encoding="utf-8") as file:
                file.write(" ".join(item.id for item in items) + "\n")
            time.sleep(self.seconds)
            if any(item.id == self.deadly for item in items):
                os._exit(1)
            if self.deadly == "device":
                raise EncoderError("the device is gone")
            return see(items)

        return self.space, embed


def batches(folder: Path) -> dict[int, list[list[str]]]:
    """Ids by worker process and batch."""
    return {
        int(file.stem): [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
        for file in folder.glob("*.batches")
    }
