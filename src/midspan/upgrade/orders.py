"""Backfill orders: which items get their true new vector first. The higher, the earlier.

Each order is a function (old vectors of some items with their columns, hints) → (N,) priorities
that look at one item at a time, so that a gallery of any size goes through it page by page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from midspan.bridges import Bridge, Confidence
from midspan.bridges.base import unit
from midspan.bridges.ensemble import disagreement as spread
from midspan.config import look_up
from midspan.errors import ConfigError
from midspan.spaces import Column, Embeddings, FloatArray, fingerprint

Float64 = npt.NDArray[np.float64]

TEMPERATURE = 0.05  # of the posterior over centres; own choice, no code was published


@dataclass(frozen=True, slots=True)
class Hints:
    """What an order may know beside the old vectors.

    centres: (C, D) one for each class, from labels or from clusters. centre_labels: (C,) the class
    of each, if there are labels. confidence: predicted error of the bridge. bridges: old → new,
    several that were fitted differently. sample: items of the gallery that this was learnt from.
    """

    centres: FloatArray | None = None
    centre_labels: Column | None = None
    confidence: Confidence | None = None
    bridges: tuple[Bridge, ...] = ()
    sample: Embeddings | None = None
    seed: int = 0
    now: float = 0.0  # seconds since 1970: items that come later are newer than all others


Order = Callable[[Embeddings, Hints], Float64]

ORDERS = {
    "random": "midspan.upgrade.orders:random",
    "newest": "midspan.upgrade.orders:newest",
    "most_seen": "midspan.upgrade.orders:most_seen",
    "least_confidence": "midspan.upgrade.orders:least_confidence",
    "margin": "midspan.upgrade.orders:margin",
    "entropy": "midspan.upgrade.orders:entropy",
    "uncertainty": "midspan.upgrade.orders:least_confidence",
    "bridge_error": "midspan.upgrade.orders:bridge_error",
    "disagreement": "midspan.upgrade.orders:disagreement",
    "class_distance": "midspan.upgrade.orders:class_distance",
}
LEARNT = ("bridge_error", "disagreement")  # from items that have both vectors
CENTRES = ("least_confidence", "margin", "entropy", "uncertainty", "class_distance")


def order_named(name: str) -> Order:
    found: Order = look_up(ORDERS, name, what="order")
    return found


def random(old: Embeddings, hints: Hints) -> Float64:
    """The baseline: the same place for an item however the pages fall."""
    return np.array([chance(id, hints.seed) for id in old.ids.tolist()], dtype=np.float64)


def chance(id: str, seed: int) -> float:
    """A number in [0, 1) that depends on the id and the seed only."""
    return int(fingerprint(id, str(seed))[:13], 16) / 16**13


def newest(old: Embeddings, hints: Hints) -> Float64:
    """Column `created`; never above 0, so that items added during the upgrade come first."""
    return np.asarray(_column(old, "created", of="newest"), dtype=np.float64) - hints.now


def most_seen(old: Embeddings, hints: Hints) -> Float64:
    """Column `seen`, a counter in the payload; an item without one was never seen."""
    return np.nan_to_num(np.asarray(_column(old, "seen", of="most_seen"), dtype=np.float64))


def least_confidence(old: Embeddings, hints: Hints) -> Float64:
    """1 − p₁ of the posterior over the centres (hot-refresh, ICLR 2022)."""
    best, _ = _two_best(_posterior(old, hints, of="least_confidence"))
    return 1.0 - best


def margin(old: Embeddings, hints: Hints) -> Float64:
    """1 − (p₁ − p₂)."""
    best, second = _two_best(_posterior(old, hints, of="margin"))
    return 1.0 - (best - second)


def entropy(old: Embeddings, hints: Hints) -> Float64:
    """− Σ p log p."""
    p = _posterior(old, hints, of="entropy")
    found: Float64 = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    return found


def bridge_error(old: Embeddings, hints: Hints) -> Float64:
    """The predicted error of the mapped vector (FastFill, ICLR 2023)."""
    if hints.confidence is None:
        raise ConfigError(
            "the order bridge_error wants the error of a bridge: give a bridge old → new and a "
            "sample of new vectors"
        )
    return hints.confidence.predict(old).astype(np.float64)


def disagreement(old: Embeddings, hints: Hints) -> Float64:
    """How far several bridges disagree about the item (WACV 2024, on maps of one old encoder)."""
    if len(hints.bridges) < 2:
        raise ConfigError(
            f"the order disagreement wants two bridges old → new or more, got "
            f"{len(hints.bridges)}: fit them on different parts of the sample"
        )
    total = sum(unit(bridge.transform(old).vectors).astype(np.float64) for bridge in hints.bridges)
    views = np.full(len(old), float(len(hints.bridges)))
    return spread(np.asarray(total) / len(hints.bridges), views).astype(np.float64)


def class_distance(old: Embeddings, hints: Hints) -> Float64:
    """1 − cosine to the centre of the item's own class, or to the nearest if it has none."""
    nearness = _cosines(old, hints, of="class_distance")  # (N, C)
    found: Float64 = 1.0 - nearness.max(axis=1)
    if old.labels is None or hints.centre_labels is None:
        return found
    places = {label: place for place, label in enumerate(hints.centre_labels.tolist())}
    for row, label in enumerate(old.labels.tolist()):
        if label in places:
            found[row] = 1.0 - nearness[row, places[label]]
    return found


def _cosines(old: Embeddings, hints: Hints, *, of: str) -> Float64:
    if hints.centres is None or len(hints.centres) < 2:
        raise ConfigError(
            f"the order {of} compares with class centres and got "
            f"{0 if hints.centres is None else len(hints.centres)}; wanted two or more"
        )
    # Directions, whatever the metric: a posterior over l2 distances would want a scale of its own.
    return unit(old.vectors).astype(np.float64) @ unit(hints.centres).astype(np.float64).T


def _posterior(old: Embeddings, hints: Hints, *, of: str) -> Float64:
    """(N, C) softmax of the cosines over the temperature."""
    logits = _cosines(old, hints, of=of) / TEMPERATURE
    logits -= logits.max(axis=1, keepdims=True)
    p: Float64 = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    return p


def _two_best(p: Float64) -> tuple[Float64, Float64]:
    best = np.partition(p, p.shape[1] - 2, axis=1)
    return best[:, -1], best[:, -2]


def _column(old: Embeddings, name: str, *, of: str) -> Column:
    if name not in old.columns:
        raise ConfigError(f"the order {of} wants the column {name!r}; there is none")
    return old.columns[name]
