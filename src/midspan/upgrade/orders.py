"""Backfill orders: which items get their true new vector first. The higher, the earlier.

Each order is a function (old vectors of some items with their columns, hints) → (N,) priorities
that look at one item at a time, so that a gallery of any size goes through it page by page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from midspan.bridges import Bridge
from midspan.bridges.base import unit
from midspan.bridges.ensemble import disagreement as spread
from midspan.config import look_up
from midspan.errors import ConfigError
from midspan.spaces import Column, Embeddings, FloatArray, fingerprint

Float64 = npt.NDArray[np.float64]

TEMPERATURE = 0.05  # of the posterior over centres; own choice, no code was published


@dataclass(frozen=True, slots=True)
class Hints:
    """What an order may know besides the old vectors.

    Args:
        centres: (C, D) one for each class, from labels or from clusters.
        bridges: Old → new, several that were fitted differently.
        sample: Items of the gallery that this was learnt from.
        returned: How often live queries returned each item.
        seed: Of the random order.
        now: Seconds since 1970: items that come later are newer than all others.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Hints, order_named
        >>> points = np.array([[1.0, 0.0], [1.0, 1.0]])
        >>> old = ms.Embeddings(np.array(["clear", "between"]), points, ms.Space("old", 2))
        >>> hints = Hints(centres=np.eye(2, dtype=np.float32))  # one for each class
        >>> clear, between = order_named("uncertainty")(old, hints)
        >>> bool(between > clear)  # so it is embedded first
        True
    """

    centres: FloatArray | None = None
    bridges: tuple[Bridge, ...] = ()
    sample: Embeddings | None = None
    returned: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    now: float = 0.0  # seconds since 1970: items that come later are newer than all others


Order = Callable[[Embeddings, Hints], Float64]

# No order is best everywhere: docs/benchmarks.md. `newest` has not been measured.
ORDERS = {
    "uncertainty": "midspan.upgrade.orders:uncertainty",
    "disagreement": "midspan.upgrade.orders:disagreement",
    "traffic": "midspan.upgrade.orders:traffic",
    "newest": "midspan.upgrade.orders:newest",
    "random": "midspan.upgrade.orders:random",
}
LEARNT = ("disagreement",)  # from items that have both vectors
CENTRES = ("uncertainty", "traffic")


def default_order(mode: str, *, sampled: bool) -> str:
    """What ranks best along the way: where a bridge maps, what bridges disagree about."""
    return "disagreement" if mode in ("map-query", "map-gallery") and sampled else "uncertainty"


def order_named(name: str) -> Order:
    """The order of this name in ORDERS.

    Args:
        name: Such as "newest".

    Returns:
        A function from old vectors and `Hints` to (N,) priorities; the higher, the earlier.

    Raises:
        ConfigError: No order has this name.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Hints, order_named
        >>> columns = {"created": np.array([100.0, 300.0])}
        >>> old = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("old", 2), columns)
        >>> order_named("newest")(old, Hints(now=400.0)).tolist()
        [-300.0, -100.0]
    """
    order: Order = look_up(ORDERS, name, what="order")
    return order


def random(old: Embeddings, hints: Hints) -> Float64:
    """The baseline: the same place for an item however the pages fall."""
    return np.array([chance(id, hints.seed) for id in old.ids.tolist()], dtype=np.float64)


def chance(id: str, seed: int) -> float:
    """A number in [0, 1) that depends on the id and the seed only."""
    return int(fingerprint(id, str(seed))[:13], 16) / 16**13


def newest(old: Embeddings, hints: Hints) -> Float64:
    """Column `created`; never above 0, so that items added during the upgrade come first."""
    return np.asarray(_column(old, "created", of="newest"), dtype=np.float64) - hints.now


def traffic(old: Embeddings, hints: Hints) -> Float64:
    """What live queries returned most; equal ones, and what was never returned, by uncertainty."""
    counts = np.array([hints.returned.get(id, 0) for id in old.ids.tolist()], dtype=np.float64)
    if hints.centres is None:
        return counts
    priorities: Float64 = counts + uncertainty(old, hints) / (1 + np.log(len(hints.centres)))
    return priorities


def uncertainty(old: Embeddings, hints: Hints) -> Float64:
    """Entropy of the posterior over the centres, − Σ p log p (hot-refresh, ICLR 2022)."""
    p = _posterior(old, hints, of="uncertainty")
    entropy: Float64 = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    return entropy


def disagreement(old: Embeddings, hints: Hints) -> Float64:
    """How far several bridges disagree about the item (WACV 2024, on maps of one old encoder)."""
    if len(hints.bridges) < 2:
        raise ConfigError(
            f"the order disagreement: expected at least two bridges old → new, got "
            f"{len(hints.bridges)}; fit them on different parts of the sample"
        )
    total = sum(unit(bridge.transform(old).vectors).astype(np.float64) for bridge in hints.bridges)
    views = np.full(len(old), float(len(hints.bridges)))
    return spread(np.asarray(total) / len(hints.bridges), views).astype(np.float64)


def _cosines(old: Embeddings, hints: Hints, *, of: str) -> Float64:
    if hints.centres is None or len(hints.centres) < 2:
        raise ConfigError(
            f"the order {of}: expected at least two class centres, got "
            f"{0 if hints.centres is None else len(hints.centres)}"
        )
    # Directions, whatever the metric: a posterior over l2 distances would need a scale of its own.
    return unit(old.vectors).astype(np.float64) @ unit(hints.centres).astype(np.float64).T


def _posterior(old: Embeddings, hints: Hints, *, of: str) -> Float64:
    """(N, C) softmax of the cosines over the temperature."""
    logits = _cosines(old, hints, of=of) / TEMPERATURE
    logits -= logits.max(axis=1, keepdims=True)
    p: Float64 = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    return p


def _column(old: Embeddings, name: str, *, of: str) -> Column:
    if name not in old.columns:
        raise ConfigError(f"the order {of} requires the column {name!r}, got none")
    return old.columns[name]
