"""The upgrade's own record: JSON in the gallery's state row, so every process reads the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np

from midspan.bridges import ScoreMap
from midspan.errors import FormatError, GalleryError, StateChanged
from midspan.gallery import Entry, Gallery, State

Mode = Literal["direct", "map-query", "map-gallery"]
Phase = Literal["mapping", "running", "paused", "finishing"]

MODES: tuple[str, ...] = get_args(Mode)
CHANGES = 20  # tries to change the state before somebody else does


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """`old`, `new` and `mapped` are fingerprints; `mapped` only in the mode map-gallery.

    mapping: the stored vectors are being mapped, the old service still answers.
    running, paused: the new encoder answers; the backfill may go on, or may not.
    finishing: the old vectors are being dropped, there is no way back.
    """

    mode: Mode
    old: str
    new: str
    phase: Phase
    started: float  # seconds since 1970
    rollback: bool = True  # promised: new items are to bring an old vector too
    order: str | None = None  # once its priorities are written
    mapped: str | None = None
    bridge: str | None = None  # folder
    digest: str | None = None  # of the bridge: another one in the folder is refused
    scores: Mapping[str, Any] | None = None  # ScoreMap, as `score_map` reads it
    mixing: Mapping[str, Any] | None = None  # what was tried and chosen
    reason: str | None = None  # why it is paused
    gate: str | None = None  # the last verdict

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, state: State) -> Record | None:
        """The open upgrade, if there is one."""
        if state.upgrade is None:
            return None
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            record = cls(**{name: value for name, value in state.upgrade.items() if name in known})
        except TypeError as error:
            raise FormatError(
                f"the gallery's upgrade record is not readable ({error}); was it written by "
                "another version of midspan?"
            ) from error
        if record.mode not in MODES or record.phase not in get_args(Phase):
            raise FormatError(
                f"the gallery's upgrade record has mode {record.mode!r} and phase "
                f"{record.phase!r}; this version knows {MODES} and {get_args(Phase)}"
            )
        return record

    def score_map(self) -> ScoreMap | None:
        if self.scores is None:
            return None
        made = ScoreMap(method=self.scores["method"], knots=int(self.scores["knots"]))
        made.x_ = np.array(self.scores["x"], dtype=np.float64)
        made.y_ = np.array(self.scores["y"], dtype=np.float64)
        return made


def score_map_json(scores: ScoreMap) -> dict[str, Any]:
    return {
        "method": scores.method,
        "knots": scores.knots,
        "x": scores.x_.tolist(),
        "y": scores.y_.tolist(),
    }


def open_record(gallery: Gallery) -> Record:
    record = Record.of(gallery.state)
    if record is None:
        raise GalleryError(
            f"{gallery.location}: no upgrade is open; begin one with midspan upgrade start"
        )
    return record


def change(
    gallery: Gallery,
    step: Callable[[State], State],
    *,
    what: str,
    details: Mapping[str, Any] | None = None,
) -> State:
    """One transaction with its line in the trail; `step` looks again if somebody was faster."""
    entry = Entry(who=gallery.who, what=what, details=details or {})
    for _ in range(CHANGES):
        try:
            return gallery.store.change(step(gallery.state), entry=entry)
        except StateChanged:
            continue
    raise StateChanged(f"{gallery.location}: the state changed {CHANGES} times; try again")
