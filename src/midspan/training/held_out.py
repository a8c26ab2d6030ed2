"""Choose settings: each is trained without a fifth of the classes and scored on those.

The first candidate is the default. Another one replaces it only if it is better beyond chance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats

from midspan.data import hold_out_classes
from midspan.errors import ConfigError
from midspan.evaluation import evaluate
from midspan.evaluation.scores import FloatArray64
from midspan.spaces import Embeddings, FloatArray, IntArray, Space

T = TypeVar("T")

CONFIDENCE = 0.95  # two-sided, of the mean difference over the held-out classes


@dataclass(frozen=True, slots=True)
class HeldOutChoice:
    """The candidate to take, and the mAP of each on classes that its training left out."""

    name: str
    scores: Mapping[str, float]


def best_on_held_out(
    labels: IntArray,
    candidates: Mapping[str, T],
    *,
    trial: Callable[[T, IntArray, IntArray], FloatArray],
    seed: int = 0,
) -> HeldOutChoice:
    """Which of several settings serves classes that training has not seen.

    labels: of the training images alone. `trial(candidate, kept, held)` trains on the rows `kept`
    and returns the vectors of the rows `held`, which are of other classes. They are searched among
    themselves, each without itself. The score is self, not cross: the old encoder may have learnt
    the held-out classes, and then a cross score favours any copy of it.

    The first candidate is taken unless another one is better beyond chance: the 95 % interval of
    the paired difference, over the means of the held-out classes, must lie above 0. A few classes
    cannot tell close settings apart, and then the default is the better guess. Of several that
    pass, the best is taken.
    """
    if not candidates:
        raise ConfigError("expected at least one candidate, got none; name the settings to try")
    codes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    kept, held = hold_out_classes(codes, seed=seed)
    classes, class_of = np.unique(codes[held], return_inverse=True)
    sizes = np.bincount(class_of)
    by_class: dict[str, FloatArray64] = {}  # (C,) mean average precision
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
        by_class[name] = np.bincount(class_of, result.per_query["map"], len(classes)) / sizes
    default, *others = by_class
    better = [name for name in others if is_better(by_class[name], by_class[default])]
    scores = {name: float(np.average(values, weights=sizes)) for name, values in by_class.items()}
    return HeldOutChoice(max(better or [default], key=lambda name: scores[name]), scores)


def is_better(values: FloatArray64, reference: FloatArray64) -> bool:
    """Whether the interval of the mean paired difference lies above 0. Both (C,)."""
    if len(values) < 2:
        return False
    difference = values - reference
    spread = float(difference.std(ddof=1)) / np.sqrt(len(difference))
    margin = stats.t.ppf((1 + CONFIDENCE) / 2, len(difference) - 1) * spread
    return bool(difference.mean() - margin > 0)
