"""The encoders that a service has, by the fingerprint of their space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from midspan.data.decode import Pixels
from midspan.errors import EncoderError
from midspan.gallery import State
from midspan.gallery.routing import Arm, arm_of
from midspan.service.errors import InvalidRequest, NotPossible
from midspan.spaces import FloatArray, Space
from midspan.upgrade import Record

if TYPE_CHECKING:
    from midspan.encoders.load import Embedder
    from midspan.encoders.preprocessing import Preprocessing
    from midspan.encoders.runtimes import Runtime


class Loaded:
    """An encoder with its space worked out once: the weights of a service do not change."""

    def __init__(self, encoder: Embedder) -> None:
        self.encoder = encoder
        self.space: Space = encoder.space
        self.box: Preprocessing = encoder.preprocessing
        self.takes_text = encoder.takes_text

    def vectors(self, images: Sequence[Pixels]) -> FloatArray:
        """(N, D)."""
        made = self.encoder.embed(np.stack(images), progress=False)
        return made.vectors

    def text(self, text: str) -> FloatArray:
        """(1, D); an encoder without a text tower is no fault of the service."""
        try:
            return self.encoder.embed_text([text]).vectors
        except EncoderError as error:
            raise InvalidRequest(str(error)) from error


Shelf = dict[tuple[str, str], Loaded]  # by name and runtime


class Encoders:
    def __init__(self, loaded: Sequence[Loaded] = ()) -> None:
        self._by_space = {one.space.fingerprint: one for one in loaded}

    @classmethod
    def load(
        cls, names: Sequence[str], *, runtime: Runtime = "auto", shelf: Shelf | None = None
    ) -> Encoders:
        """shelf: those that are loaded already; new ones are put there."""
        from midspan.encoders import load_embedder

        shelf = {} if shelf is None else shelf
        for name in names:
            if (name, runtime) in shelf:
                continue
            encoder = load_embedder(name, runtime=runtime, now=True)
            if not encoder.takes_images:
                raise EncoderError(
                    f"{name} embeds vectors, not images; serve without it, and search by vector"
                )
            shelf[name, runtime] = Loaded(encoder)
        return cls([shelf[name, runtime] for name in names])

    @property
    def loaded(self) -> list[Loaded]:
        """In the order they were given."""
        return list(self._by_space.values())

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._by_space

    def get(self, fingerprint: str | None) -> Loaded | None:
        return None if fingerprint is None else self._by_space.get(fingerprint)

    def for_search(self, state: State, *, key: bytes) -> tuple[list[Loaded], Arm]:
        """Those that embed this query, and the way that answers it.

        During an upgrade the share of traffic decides between the encoder of before and the new
        way, which takes both encoders in mode both.
        """
        record = Record.of(state)
        if record is None or record.phase not in ("running", "paused"):
            mapping = record is not None and record.phase == "mapping"
            return [self.for_query(state)], "old" if mapping else "new"
        old, new = self._by_space.get(record.old), self._by_space.get(record.new)
        arm: Arm = arm_of(key, record.traffic)
        if arm == "old" and old is not None:
            return [old], arm
        if record.mode == "both" or arm == "old":
            if old is None:
                why = "is in mode both" if arm == "new" else f"has traffic {record.traffic:g}"
                raise NotPossible(
                    f"the upgrade {why} and this service has no encoder for "
                    f"{state.spaces[record.old]}; start it with both `encoder` and `new_encoder`"
                )
            return ([new, old], arm) if new is not None else ([old], "old")
        return [self.for_query(state)], "new" if new is not None else "old"

    def for_query(self, state: State) -> Loaded:
        """The one whose vectors a query should come in now: during an upgrade the target's.

        While only the old one is at hand, its queries are still answered.
        """
        for fingerprint in query_spaces(state):
            if (found := self._by_space.get(fingerprint)) is not None:
                return found
        names = " or ".join(str(state.spaces[name]) for name in query_spaces(state))
        raise NotPossible(
            f"this service has no encoder for {names}, so it cannot embed images; start it with "
            "`encoder` (or `new_encoder` for the target of an upgrade), or search by "
            "vector or item"
        )


def query_spaces(state: State) -> tuple[str, ...]:
    """Fingerprints of the spaces that queries may come in, the best first."""
    record = Record.of(state)
    if record is None:
        return state.live[:1]
    if record.phase == "mapping":
        return (record.old,)
    if record.phase in ("finished", "forgetting"):
        return (record.new,)
    return (record.new, record.old)
