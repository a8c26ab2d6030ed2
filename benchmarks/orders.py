"""Backfill orders and calibrated mixing on real embeddings: curve, area and flips.

    python benchmarks/orders.py --old OLD.npz --new NEW.npz [--bridge ridge] [--out FILE.csv]

Every item is a query of the new encoder on all others. The gallery goes from old vectors (as they
are, or mapped by a bridge old → new) to new ones in each order, with plain scores and with those
that `choose_scores` takes, as an upgrade does by default. Class centres come from the gallery's
labels (`…`) or from clusters (`… (clusters)`). A sample of --sample items has both vectors: a
bridge is fitted on one half of it; on the other, bridge error and disagreement are learnt and
scores calibrated. The sets have no history: `newest` gets random times, `most_seen` counts in how
many first-ten results of the old service an item stands.

Some orders are also measured with other maps: `quantile` and `isotonic` make the scores themselves
agree, `neighbours` is what is taken without labels. `least_gain` is the smallest difference to
plain scores over all points and seeds. Numbers are means over --seeds draws of items and samples;
rows of other pairs in the CSV are kept.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from midspan.bridges import BRIDGES, Bridge, ScoreMap
from midspan.bridges.base import unit
from midspan.config import build
from midspan.evaluation import backfill_curve, evaluate, search_exact
from midspan.spaces import Embeddings, IntArray, Space
from midspan.upgrade import ORDERS, choose_scores, order_named
from midspan.upgrade.orders import CENTRES, LEARNT
from midspan.upgrade.priorities import hints_for
from midspan.upgrade.scores import MixedCurve, mixed_curve, part_scores

FRACTIONS = np.linspace(0.0, 1.0, 11)
COMPARED = ("random", "least_confidence")  # orders that all maps are tried with


@dataclass(frozen=True)
class World:
    """One draw: the gallery, its stale vectors, and rows that have both vectors."""

    old: Embeddings
    new: Embeddings
    bridge: Bridge | None
    stale: Embeddings  # old, or mapped
    known: IntArray
    before: Any  # (N,) was the old service right?
    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--bridge", help="kind of bridge old → new, for incompatible spaces")
    parser.add_argument("--items", type=int, default=1500, help="gallery items, drawn at random")
    parser.add_argument("--sample", type=int, default=600, help="items with both vectors")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "orders.csv"
    )
    given = parser.parse_args()
    old, new = Embeddings.load(given.old).paired_with(Embeddings.load(given.new))
    case = f"{old.space.name} → {new.space.name}" + (f" ({given.bridge})" if given.bridge else "")
    found: dict[tuple[str, str], list[MixedCurve]] = {}
    for seed in range(given.seeds):
        world = draw(old, new, given.bridge, items=given.items, sample=given.sample, seed=seed)
        for order, mixing, curve in measure(world):
            found.setdefault((order, mixing), []).append(curve)
            print(f"{seed} {order:28} {mixing:12} area {curve.area:.4f}", flush=True)
    rows = [
        {"case": case, "order": order, "mixing": mixing, **numbers(curves, found[order, "plain"])}
        for (order, mixing), curves in found.items()
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    kept: list[dict[str, Any]] = []
    if given.out.exists():
        with given.out.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if row["case"] != case]
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows([*kept, *rows])
    print(f"→ {given.out}")


def draw(
    old: Embeddings, new: Embeddings, kind: str | None, *, items: int, sample: int, seed: int
) -> World:
    chosen = np.random.default_rng(seed).permutation(len(old))[:items]
    old, new = old[chosen], new[chosen]
    drawn = np.random.default_rng(seed + 1).permutation(len(old))[:sample]
    fit, known = drawn[: sample // 2], drawn[sample // 2 :]
    bridge: Bridge | None = None
    if kind is not None:
        made: Bridge = build(BRIDGES, {"name": kind}, what="bridge")
        bridge = made.fit(old[fit], new[fit])
    return World(
        old=old,
        new=new,
        bridge=bridge,
        stale=old if bridge is None else bridge.transform(old),
        known=known,
        before=evaluate(old, metrics=["recall@1"]).per_query["recall@1"],
        seed=seed,
    )


def measure(world: World) -> Iterator[tuple[str, str, MixedCurve]]:
    """(order, mixing, curve) of all that is compared."""
    old, known = world.old, world.known
    labels = world.new.columns["labels"][known]
    choose = partial(
        choose_scores, old[known], world.new[known], bridge=world.bridge, seed=world.seed
    )
    mixings: dict[str, ScoreMap | None] = {
        "plain": None,
        "chosen": None,  # by order, below
        "neighbours": choose().scores,
    }
    before, after = part_scores(old[known], world.new[known], world.bridge)
    apart = ~np.eye(len(known), dtype=bool)
    for method in ("quantile", "isotonic"):
        mixings[method] = ScoreMap(method=method).fit(before[apart], after[apart])
    with_history = old.with_columns({**old.columns, **history(old, seed=world.seed)})
    without_labels = Embeddings(old.ids, old.vectors, old.space)
    orders = {name: with_history for name in ORDERS if name != "uncertainty"}  # an alias
    orders |= {f"{name} (clusters)": without_labels for name in CENTRES if name != "uncertainty"}
    for name, seen in orders.items():
        plain_name = name.removesuffix(" (clusters)")
        learnt_from = seen[known] if plain_name in LEARNT else seen
        hints = hints_for(
            plain_name, learnt_from, new=world.new[known], bridge=world.bridge, seed=world.seed
        )
        first = order_named(plain_name)(seen, hints)
        order = np.argsort(-first, kind="stable")
        mixings["chosen"] = choose(labels=labels, priorities=first[known]).scores
        for mixing, scores in mixings.items():
            if mixing in ("plain", "chosen") or name in COMPARED:
                yield name, mixing, curve(world, order, scores, line=len(_knots(scores)) == 2)


def history(old: Embeddings, *, seed: int) -> dict[str, Any]:
    _, shown = search_exact(old, old, k=10, exclude=np.arange(len(old)))
    return {
        "created": np.random.default_rng(seed).random(len(old)),
        "seen": np.bincount(shown.ravel(), minlength=len(old)).astype(np.float64),
    }


def curve(world: World, order: IntArray, scores: ScoreMap | None, *, line: bool) -> MixedCurve:
    """A line through the scores becomes one more dim, so that evaluation's own curve takes it."""
    if scores is not None and not line:
        return mixed_curve(
            world.old,
            world.new,
            bridge=world.bridge,
            labels=world.new.columns["labels"],
            order=order,
            fractions=FRACTIONS,
            scores=scores,
        )
    start, slope = 0.0, 1.0
    if scores is not None:
        slope = float(np.diff(scores.y_)[0] / np.diff(scores.x_)[0])
        start = float(scores.y_[0] - slope * scores.x_[0])
    space = Space("scores", world.new.space.dim + 1, metric="dot")
    query = _wider(world.new, 1.0, 1.0, space)
    found = backfill_curve(
        query=query,
        gallery_old=_wider(world.stale, slope, start, space),
        gallery_new=_wider(world.new, 1.0, 0.0, space),
        order=order,
        fractions=FRACTIONS,
        before=world.before,
    )
    return MixedCurve(found.fractions, found.values, found.negative_flips)


def _wider(part: Embeddings, factor: float, last: float, space: Space) -> Embeddings:
    """(N, D + 1) unit vectors times a factor, and a constant."""
    assert part.space.metric == "cosine"
    rows = np.concatenate(
        [factor * unit(part.vectors), np.full((len(part), 1), last, np.float32)], axis=1
    )
    return Embeddings(part.ids, rows.astype(np.float32), space, part.columns)


def _knots(scores: ScoreMap | None) -> Any:
    return np.array([]) if scores is None else scores.x_


def numbers(curves: list[MixedCurve], plain: list[MixedCurve]) -> dict[str, Any]:
    areas = np.array([one.area for one in curves])
    values = np.stack([one.values for one in curves])  # (seeds, P)
    flips = np.stack([one.negative_flips for one in curves])
    gains = values - np.stack([one.values for one in plain])
    return {
        "metric": "map",
        "seeds": len(curves),
        "area": round(float(areas.mean()), 6),
        "area_sd": round(float(areas.std()), 6),
        "least_gain": round(float(gains.min()), 6),
        "most_negative_flips": round(float(flips.mean(axis=0).max()), 6),
        "mean_negative_flips": round(float(flips.mean()), 6),
        **{
            f"at_{share:.1f}": round(float(value), 6)
            for share, value in zip(FRACTIONS, values.mean(axis=0), strict=True)
        },
    }


if __name__ == "__main__":
    main()
