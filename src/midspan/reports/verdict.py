"""The head of a page: the verdict in words, and the few numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PageVerdict:
    holds: bool
    headline: str  # one sentence
    sentence: str  # what else a reader in a hurry needs to know


@dataclass(frozen=True, slots=True)
class Tile:
    """One large number with its name above and a note below."""

    name: str
    value: str
    note: str
    tone: Literal["", "old", "new", "other"] = ""
