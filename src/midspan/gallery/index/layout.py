"""How a process holds its vectors: which codes find candidates, where the true vectors lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from midspan.gallery.index.shelf import Shelf
from midspan.gallery.quantise import Quantise


@dataclass(frozen=True, slots=True)
class Layout:
    quantise: Quantise = "none"
    folder: Path | None = None  # for side files; wanted by all but "none"

    def __post_init__(self) -> None:
        assert self.quantise == "none" or self.folder is not None

    @property
    def place(self) -> Path | None:
        """The folder of the true vectors; None: in memory."""
        return None if self.quantise == "none" else self.folder

    def shelf(self, dim: int) -> Shelf:
        return Shelf(dim, folder=self.place)
