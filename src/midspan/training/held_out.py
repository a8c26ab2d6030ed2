"""Choose settings: each is trained without a fifth of the classes and scored on those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from midspan.data import hold_out_classes
from midspan.errors import ConfigError
from midspan.evaluation import evaluate
from midspan.spaces import Embeddings, FloatArray, IntArray, Space

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeldOutChoice:
    """The best of the candidates, and the mAP of each on classes that its training left out."""

    name: str
    scores: Mapping[str, float]


def best_on_held_out(
    labels: IntArray,
    candidates: Mapping[str, T],
    *,
    trial: Callable[[T, IntArray, IntArray], FloatArray],
    seed: int = 0,
) -> HeldOutChoice:
    """Which of several settings is best on classes that training has not seen.

    labels: of the training images alone. `trial(candidate, kept, held)` trains on the rows `kept`
    and returns the vectors of the rows `held`, which are of other classes. They are searched among
    themselves, each without itself. The score is self, not cross: the old encoder may have learnt
    the held-out classes, and then a cross score favours any copy of it. Of equal scores the
    first wins.
    """
    if not candidates:
        raise ConfigError("expected at least one candidate, got none; name the settings to try")
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    kept, held = hold_out_classes(codes, seed=seed)
    scores: dict[str, float] = {}
    for name, candidate in candidates.items():
        vectors = trial(candidate, kept, held)
        embeddings = Embeddings(
            held.astype(np.str_),
            vectors,
            Space("trial", vectors.shape[1]),
            {"labels": codes[held]},
        )
        result = evaluate(
            embeddings, embeddings, metrics=("map",), exclude_same_id=True, direct=True
        )
        scores[name] = float(result.mean("map"))
    return HeldOutChoice(max(scores, key=lambda name: scores[name]), scores)
