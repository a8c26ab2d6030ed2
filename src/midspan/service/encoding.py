"""The encoders that a service has, by the fingerprint of their space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from midspan.data.decode import Pixels
from midspan.errors import EncoderError
from midspan.gallery import State
from midspan.service.errors import NotPossible
from midspan.spaces import FloatArray, Space
from midspan.upgrade import Record

if TYPE_CHECKING:
    from midspan.encoders import Encoder, OnnxEncoder
    from midspan.encoders.preprocessing import Preprocessing


class Loaded:
    """An encoder with its space worked out once: the weights of a service do not change."""

    def __init__(self, encoder: Encoder | OnnxEncoder) -> None:
        self.encoder = encoder
        self.space: Space = encoder.space
        self.box: Preprocessing = encoder.preprocessing

    def vectors(self, images: Sequence[Pixels]) -> FloatArray:
        """(N, D)."""
        made = self.encoder.embed(np.stack(images), progress=False)
        return made.vectors


class Encoders:
    def __init__(self, loaded: Sequence[Loaded] = ()) -> None:
        self._by_space = {one.space.fingerprint: one for one in loaded}

    @classmethod
    def load(cls, names: Sequence[str]) -> Encoders:
        from midspan.encoders import load_encoder

        loaded = []
        for name in names:
            encoder = load_encoder(name)
            if not encoder.takes_images:
                raise EncoderError(
                    f"{name} embeds vectors, not images; serve without it, and search by vector"
                )
            loaded.append(Loaded(encoder))
        return cls(loaded)

    @property
    def loaded(self) -> list[Loaded]:
        """In the order they were given."""
        return list(self._by_space.values())

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._by_space

    def get(self, fingerprint: str | None) -> Loaded | None:
        return None if fingerprint is None else self._by_space.get(fingerprint)

    def for_query(self, state: State) -> Loaded:
        """The one whose vectors a query should come in now: during an upgrade the target's.

        While only the old one is at hand, its queries are still answered.
        """
        for fingerprint in query_spaces(state):
            if (found := self._by_space.get(fingerprint)) is not None:
                return found
        wanted = " or ".join(str(state.spaces[name]) for name in query_spaces(state))
        raise NotPossible(
            f"this service has no encoder for {wanted}, so it cannot embed images; start it with "
            "--encoder RUN (or --new-encoder RUN for the target of an upgrade), or search by "
            "vector or item"
        )


def query_spaces(state: State) -> tuple[str, ...]:
    """Fingerprints of the spaces that queries may come in, the best first."""
    record = Record.of(state)
    if record is None:
        return state.live[:1]
    if record.phase == "mapping":
        return (record.old,)
    if record.phase == "finishing":
        return (record.new,)
    return (record.new, record.old)
