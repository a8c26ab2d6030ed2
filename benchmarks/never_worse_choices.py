"""Ways of merging and orders for a mixed gallery, compared on training classes alone.

    python -m benchmarks.never_worse_choices --case cub=OLD.npz,NEW.npz [--case …]

Files as for benchmarks.never_worse. Of each set only the training classes are used (`split` =
train; without that column, the half of the classes that seed 0 does not test), halved again into
classes of bridges and classes of the gallery. For every order:

  standardised   as the product does
  trusted        the scores of the old part times the slope of new on old standardised scores among
                 the sample's high ones (z > 3), at most 1: what the old part promises and keeps
  isotonic       the chance of a match by score, fitted with labels on the classes of the bridges
  expected       the standardised new score that a pair with this score has on average: a rising
                 curve for the old part, fitted on the sample's pairs, without labels
  promising      the same of exp(new score): a pair that may be a match is not drawn to the mean

The order `stratified` takes from each cluster of old vectors at the same pace.

Area: what is gained over random order and plain scores, as a share of the area to the all-new
line. Lowest: the least distance to min(old service, start), in points.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.never_worse import (
    Floats,
    Scores,
    World,
    draw,
    on_one_scale,
    place,
    qualities,
    scores_of,
    stale_scores,
)

from midspan.bridges.base import unit
from midspan.gallery.routing import SAMPLE, moments, standardise
from midspan.spaces import Embeddings
from midspan.upgrade.priorities import class_centres

RESULTS = Path(__file__).parent / "results" / "never_worse_choices.csv"
SHARES = np.linspace(0.0, 1.0, 11)
ORDERS = ("random", "uncertainty", "disagreement", "traffic", "half", "stratified")
HIGH = 3.0  # deviations above the usual
FEWEST = 20  # pairs that a slope is read from
LABELLED = 1500  # items that the isotonic curves and their bridges are fitted on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", required=True, metavar="NAME=OLD,NEW")
    parser.add_argument("--items", type=int, default=3000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in given.case:
        name, _, files = case.partition("=")
        old, new = (Embeddings.load(Path(file)) for file in files.split(","))
        rows += compare(name, *training(old, new), given)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def training(old: Embeddings, new: Embeddings) -> tuple[Embeddings, Embeddings]:
    old, new = old.paired_with(new)
    columns = {**old.columns, **new.columns}
    labels = columns["labels"].astype(np.str_)
    split = columns.get("split", np.array([])).astype(np.str_)
    kept = split == "train"
    if {"train", "test"} - set(split.tolist()):
        names = np.unique(labels)
        kept = ~np.isin(labels, np.random.default_rng(0).permutation(names)[: len(names) // 2])
    rows = np.flatnonzero(kept)
    mine: dict[str, Any] = {
        name: columns[name][rows] for name in ("labels", "cameras") if name in columns
    }
    parts = [Embeddings(one.ids[rows], one.vectors[rows], one.space, mine) for one in (old, new)]
    return parts[0], parts[1]


def compare(
    name: str, old: Embeddings, new: Embeddings, given: argparse.Namespace
) -> list[dict[str, Any]]:
    curves: dict[tuple[str, str, str], list[Any]] = {}
    before = []
    for seed in range(given.seeds):
        world = draw(old, new, items=given.items, queries=given.queries, seed=seed)
        before.append(qualities(world, world.before))
        places = {order: place(world, order) for order in ORDERS[:4]}
        turns = np.minimum(2 * places["random"], 2 * places["disagreement"] + 1)
        places["half"] = np.argsort(np.argsort(turns, kind="stable"))
        places["stratified"] = stratified(world)
        fitted = isotonic(world, old, new)
        for mode, stale in world.stale.items():
            ways = {"plain": (stale, world.fresh), **merges(world, stale, fitted[mode])}
            for order, places_of in places.items():
                for way, scores in ways.items():
                    if way == "plain" and order != "random":
                        continue
                    curves.setdefault((mode, order, way), []).append(
                        [qualities(world, mixed(scores, places_of, share)) for share in SHARES]
                    )
    old_self = np.mean(before, axis=0)
    found = []
    for (mode, order, way), draws in curves.items():
        row = {"case": name, "mode": mode, "order": order, "merge": way, "seeds": given.seeds}
        curve = np.mean(draws, axis=0)
        base = np.mean(curves[mode, "random", "plain"], axis=0)
        for column, metric in enumerate(("p_at_10", "map")):
            mine, plain = curve[:, column], base[:, column]
            room = np.trapezoid(mine[-1] - plain, SHARES)
            gained = np.trapezoid(mine - plain, SHARES)
            floor = min(old_self[column], mine[0])
            row[f"{metric}_area"] = f"{gained / room:.3f}"
            row[f"{metric}_lowest"] = f"{100 * (mine - floor).min():.2f}"
            row[f"{metric}_mean"] = f"{mine.mean():.5f}"
        found.append(row)
        print(*row.values(), flush=True)
    return found


def mixed(scores: tuple[Floats, Floats], places: Any, share: float) -> Floats:
    refreshed = places < round(share * len(places))
    return np.where(refreshed, scores[1], scores[0])


def merges(world: World, stale: Floats, fitted: Any) -> dict[str, tuple[Floats, Floats]]:
    scaled: Scores = on_one_scale(world, stale)
    assert scaled is not None
    mine, fresh = (scores[:, world.sample] for scores in scaled)
    high = (mine > HIGH) & ~world.junk[:, world.sample]
    slope = 1.0
    if high.sum() > FEWEST:
        slope = min(1.0, float((mine[high] * fresh[high]).sum() / (mine[high] ** 2).sum()))
    chances = [
        (curve.predict(scores.ravel()).reshape(scores.shape) + 1e-4 * scores).astype(np.float32)
        for curve, scores in zip(fitted, scaled, strict=True)
    ]
    return {
        "standardised": scaled,
        "trusted": (np.float32(slope) * scaled[0], scaled[1]),
        "isotonic": (chances[0], chances[1]),
        "expected": expected(world, scaled, of=lambda z: z, back=lambda z: z),
        "promising": expected(world, scaled, of=np.exp, back=np.log),
    }


def expected(
    world: World,
    scaled: tuple[Floats, Floats],
    *,
    of: Callable[[Floats], Floats],
    back: Callable[[Floats], Floats],
) -> tuple[Floats, Floats]:
    """back(E[of(new score) | score of the old part]) by isotonic regression over the sample."""
    from sklearn.isotonic import IsotonicRegression

    others = ~world.junk[:, world.sample]
    mine, fresh = (scores[:, world.sample][others] for scores in scaled)
    curve = IsotonicRegression(out_of_bounds="clip").fit(mine, of(np.minimum(fresh, 30)))
    fitted = curve.predict(scaled[0].ravel()).reshape(scaled[0].shape)
    beyond = np.maximum(scaled[0] - np.sort(mine)[-FEWEST], 0)  # few pairs: rise slowly
    return (back(fitted) + 0.3 * beyond + 0.02 * scaled[0]).astype(np.float32), scaled[1]


def stratified(world: World) -> Any:
    """(G,) places: clusters of old vectors advance at the same pace."""
    bare = Embeddings(world.old.ids, world.old.vectors, world.old.space)
    rows, rng = unit(bare.vectors), np.random.default_rng(world.seed)
    cluster = np.argmax(rows @ unit(class_centres(bare, seed=world.seed)).T, axis=1)
    pace = np.empty(len(rows))
    for one in np.unique(cluster):
        mine = rng.permutation(np.flatnonzero(cluster == one))
        pace[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
    return np.argsort(np.argsort(pace, kind="stable"))


def isotonic(world: World, old: Embeddings, new: Embeddings) -> dict[str, list[Any]]:
    """By mode, the curves of the old and of the new part, on classes that the gallery has not."""
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(world.seed + 7)
    labels = old.columns["labels"].astype(np.str_)
    assert world.old.labels is not None
    rows = rng.permutation(np.flatnonzero(~np.isin(labels, world.old.labels)))[:LABELLED]
    fit, asked = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    matches = labels[asked][:, None] == labels[asked][None, :]
    others = ~np.eye(len(asked), dtype=bool)
    sample = rng.permutation(len(asked))[:SAMPLE]
    fresh = scores_of(new, asked, new, asked)
    found = {}
    for mode, stale in stale_scores(old, new, asked, asked, fit).items():
        scaled = [standardise(part, moments(part[:, sample])) for part in (stale, fresh)]
        found[mode] = [
            IsotonicRegression(out_of_bounds="clip").fit(part[others], matches[others])
            for part in scaled
        ]
    return found


if __name__ == "__main__":
    main()
