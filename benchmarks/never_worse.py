"""Is a search ever worse than the day before? Quality along a backfill, on real vectors.

    python -m benchmarks.never_worse --case cub=OLD.npz,NEW.npz [--case …] [--out FILE.csv]

Old and new vectors of the same images (`midspan embed`), with labels. A column `split` names the
training classes (train) that bridges are fitted on; without one, half of the classes. A column
`part` separates queries from the gallery; without one every test image is a query, itself left
out. A column `cameras` (Market-1501): the same label in the same camera is taken out.

For each mode the gallery goes from old to new vectors in steps of 5 %, in the default order with
standardised scores (`midspan.gallery.routing`, over a random sample of 300 items of the gallery)
and in random order with plain scores; precision@10, mean average precision, and the queries whose
first result was right in the old service and is wrong now. Means over --seeds draws of classes,
items, queries and samples. Then the criteria, as PASS or FAIL:

  floor      never more than 0.5 points below min(old service, start)
  rising     never more than 0.5 points below an earlier point of the curve
  area       area gained over random order and plain scores ≥ 30 % of the area to the all-new line

--orders compares all orders instead (both scores); --merges compares ways of merging.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.average_precision import average_precision
from midspan.bridges import Ridge
from midspan.evaluation import search_exact
from midspan.gallery.routing import SAMPLE, moments, standardise
from midspan.spaces import Embeddings, FloatArray, IntArray
from midspan.upgrade import ORDERS, order_named
from midspan.upgrade.orders import LEARNT, default_order
from midspan.upgrade.plan import all_scores
from midspan.upgrade.priorities import hints_for

RESULTS = Path(__file__).parent / "results" / "never_worse.csv"
SHARES = np.linspace(0.0, 1.0, 21)
TRAIN = 2000  # items of training classes that bridges are fitted on
SLACK = 0.005  # half a point
AREA = 0.3

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Row = dict[str, Any]
Scores = tuple[Floats, Floats] | None  # None: from the parts at each point


@dataclass(frozen=True)
class World:
    """One draw. Rows of `old` and `new` are the gallery; scores are (Q, G)."""

    old: Embeddings
    new: Embeddings
    matches: Bools
    junk: Bools  # taken out for a query
    before: Floats  # old queries on old vectors
    ranks_before: list[IntArray]  # of the matches, there
    fresh: Floats  # new queries on new vectors
    stale: dict[str, Floats]  # by mode, on the part that is not refreshed
    sample: IntArray  # columns
    known: tuple[Embeddings, Embeddings]  # the sample in both spaces
    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", required=True, metavar="NAME=OLD,NEW")
    parser.add_argument("--items", type=int, default=8000, help="of the gallery, at most")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--orders", action="store_true")
    parser.add_argument("--merges", action="store_true")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[Row] = []
    for case in given.case:
        name, _, files = case.partition("=")
        old, new = (Embeddings.load(Path(file)) for file in files.split(","))
        rows += measure(name, old, new, given)
    write(given.out, rows)
    if not given.orders and not given.merges:
        print_criteria(rows)
    if given.figure is not None:
        draw_figure(given.figure, rows)


def measure(name: str, old: Embeddings, new: Embeddings, given: argparse.Namespace) -> list[Row]:
    curves: dict[tuple[str, str, str], list[Any]] = {}
    references: list[Any] = []
    for seed in range(given.seeds):
        world = draw(old, new, items=given.items, queries=given.queries, seed=seed)
        references.append(qualities(world, world.before))
        for key, points in seed_curves(world, given):
            curves.setdefault(key, []).append(points)
    found: list[Row] = []
    old_self = np.mean(references, axis=0)
    for (mode, order, merge), draws in curves.items():
        mean, spread = np.mean(draws, axis=0), np.std(draws, axis=0)  # (21, 3)
        for share, values, deviations in zip(SHARES, mean, spread, strict=True):
            found.append(
                {
                    "case": name,
                    "mode": mode,
                    "order": order,
                    "merge": merge,
                    "share": f"{share:.2f}",
                    "p_at_10": f"{values[0]:.5f}",
                    "map": f"{values[1]:.5f}",
                    "negative_flips": f"{values[2]:.5f}",
                    "p_at_10_std": f"{deviations[0]:.5f}",
                    "map_std": f"{deviations[1]:.5f}",
                    "old_p_at_10": f"{old_self[0]:.5f}",
                    "old_map": f"{old_self[1]:.5f}",
                    "seeds": given.seeds,
                }
            )
        line = " ".join(f"{100 * value:.1f}" for value in mean[::2, 0])
        print(f"{name:10} {mode:12} {order:18} {merge:14} {line}", flush=True)
    return found


def seed_curves(
    world: World, given: argparse.Namespace
) -> Iterator[tuple[tuple[str, str, str], npt.NDArray[np.float64]]]:
    """((mode, order, merge), (21, 3) points)."""
    orders = {name: place(world, name) for name in ORDERS}
    for mode, stale in world.stale.items():
        plain: Scores = (stale, world.fresh)
        scaled: Scores = on_one_scale(world, stale)
        chosen: list[tuple[str, str, Scores]]
        if given.orders:
            chosen = [(order, "standardised", scaled) for order in orders]
        elif given.merges:
            ways: dict[str, Scores] = {"plain": plain, "standardised": scaled, "in parts": None}
            shown = ("random", default_order(mode, sampled=True))
            chosen = [(order, way, scores) for order in shown for way, scores in ways.items()]
        else:
            usual = default_order(mode, sampled=True)
            chosen = [("random", "plain", plain), (usual, "standardised", scaled)]
        for order, merge, scores in chosen:
            points = []
            for share in SHARES:
                refreshed = orders[order] < round(share * len(world.old))
                one, two = scores or parts_scaled(stale, world.fresh, refreshed)
                points.append(qualities(world, np.where(refreshed, two, one)))
            yield (mode, order, merge), np.array(points)


def on_one_scale(world: World, stale: Floats) -> tuple[Floats, Floats]:
    """As a gallery merges two spaces."""
    pair = [
        standardise(scores, moments(scores[:, world.sample])).astype(np.float32)
        for scores in (stale, world.fresh)
    ]
    return pair[0], pair[1]


def parts_scaled(stale: Floats, fresh: Floats, refreshed: Bools) -> tuple[Floats, Floats]:
    """For comparison: moments of what each part holds at this point."""
    pair = [
        standardise(scores, moments(scores[:, rows])).astype(np.float32)
        if rows.sum() > 1
        else scores
        for scores, rows in ((stale, ~refreshed), (fresh, refreshed))
    ]
    return pair[0], pair[1]


def qualities(world: World, scores: Floats) -> npt.NDArray[np.float64]:
    """precision@10, mean average precision, negative flips."""
    found = match_ranks(scores, world)
    was_right = np.array([ranks[0] == 0 for ranks in world.ranks_before])
    right = np.array([ranks[0] == 0 for ranks in found])
    return np.array(
        [
            np.mean([(ranks < 10).sum() / 10 for ranks in found]),
            np.mean([average_precision(r[None], np.array([len(r)])) for r in found]),
            (was_right & ~right).mean(),
        ]
    )


def match_ranks(scores: Floats, world: World) -> list[IntArray]:
    """For each query the ranks of its matches, from 0, best first."""
    below = np.where(world.junk, np.float32(np.inf), -scores)
    in_order = np.sort(below, axis=1)
    return [
        np.searchsorted(line, np.sort(mine[matches])).astype(np.int64)
        for line, mine, matches in zip(in_order, below, world.matches, strict=True)
    ]


# ---- one draw ------------------------------------------------------------------------------------


def draw(old: Embeddings, new: Embeddings, *, items: int, queries: int, seed: int) -> World:
    old, new = old.paired_with(new)
    rng = np.random.default_rng(seed)
    columns = {**old.columns, **new.columns}
    labels = columns["labels"].astype(np.str_)
    split = columns.get("split", np.array([])).astype(np.str_)
    test = split == "test"
    if {"train", "test"} - set(split.tolist()):
        names = np.unique(labels)
        test = np.isin(labels, rng.permutation(names)[: len(names) // 2])
    part = columns.get("part")
    asking = test if part is None else test & (part == "query")
    searched = test if part is None else test & (part != "query")
    gallery = rng.permutation(np.flatnonzero(searched))[:items]
    asked = np.flatnonzero(asking & np.isin(labels, labels[gallery]))
    if part is None:
        asked = asked[np.isin(asked, gallery)]
    asked = rng.permutation(asked)[:queries]
    junk = asked[:, None] == gallery[None, :]
    matches = labels[asked][:, None] == labels[gallery][None, :]
    if "cameras" in columns:
        cameras = columns["cameras"]
        junk = junk | (matches & (cameras[asked][:, None] == cameras[gallery][None, :]))
    matches &= ~junk
    able = matches.any(axis=1)
    asked, junk, matches = asked[able], junk[able], matches[able]
    sample = rng.permutation(len(gallery))[:SAMPLE]
    plain = (Embeddings(one.ids, one.vectors, one.space) for one in (old, new))
    old, new = (one.with_columns({"labels": labels}) for one in plain)
    fit = rng.permutation(np.flatnonzero(~test))[:TRAIN]
    world = World(
        old=old[gallery],
        new=new[gallery],
        matches=matches,
        junk=junk,
        before=scores_of(old, asked, old, gallery),
        fresh=scores_of(new, asked, new, gallery),
        stale=stale_scores(old, new, asked, gallery, fit),
        sample=sample,
        known=(old[gallery][sample], new[gallery][sample]),
        seed=seed,
        ranks_before=[],
    )
    return replace(world, ranks_before=match_ranks(world.before, world))


def stale_scores(
    old: Embeddings, new: Embeddings, asked: IntArray, gallery: IntArray, fit: IntArray
) -> dict[str, Floats]:
    if new.space.comparable_with(old.space):
        return {"direct": scores_of(new, asked, old, gallery, metric_of=old)}
    forward, backward = Ridge().fit(old[fit], new[fit]), Ridge().fit(new[fit], old[fit])
    mapped, asking = forward.transform(old[gallery]), backward.transform(new[asked])
    return {
        "both": scores_of(old, asked, old, gallery),
        "map-query": scores_of(asking, np.arange(len(asked)), old, gallery),
        "map-gallery": scores_of(new, asked, mapped, np.arange(len(gallery))),
    }


def scores_of(
    query: Embeddings,
    asked: IntArray,
    items: Embeddings,
    rows: IntArray,
    metric_of: Embeddings | None = None,
) -> Floats:
    metric = (metric_of or items).space.metric
    vectors: FloatArray = items.vectors[rows]
    return all_scores(query.vectors[asked], vectors, metric).astype(np.float32)


def place(world: World, order: str) -> IntArray:
    """(G,) the place of each item in the backfill. No order sees the labels."""
    old = Embeddings(world.old.ids, world.old.vectors, world.old.space)
    created = np.random.default_rng(world.seed).random(len(old))
    old = old.with_columns({"created": created})
    learnt = world.known[0] if order in LEARNT else old
    hints = hints_for(order, learnt, new=world.known[1], seed=world.seed)
    hints = replace(hints, returned=returned(world))
    ranked = np.argsort(-order_named(order)(old, hints), kind="stable")
    places = np.empty(len(ranked), dtype=np.int64)
    places[ranked] = np.arange(len(ranked))
    return places


def returned(world: World) -> dict[str, int]:
    """A search log: what the old service returned to other queries, the items of the sample."""
    _, shown = search_exact(world.old[world.sample], world.old, k=10)
    counts = np.bincount(shown.ravel(), minlength=len(world.old))
    return dict(zip(world.old.ids.tolist(), counts.tolist(), strict=True))


# ---- results -------------------------------------------------------------------------------------


def write(path: Path, rows: list[Row]) -> None:
    """Rows of other cases, modes, orders and merges in the file are kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ("case", "mode", "order", "merge", "share")
    mine = {tuple(str(row[name]) for name in names) for row in rows}
    kept: list[Row] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [
                row
                for row in csv.DictReader(file)
                if tuple(row[name] for name in names) not in mine
            ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows([*kept, *rows])


def print_criteria(rows: list[Row]) -> None:
    cells: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault((row["case"], row["mode"]), {}).setdefault(row["merge"], []).append(row)
    for (case, mode), by_merge in cells.items():
        ours, plain = by_merge["standardised"], by_merge["plain"]
        for metric in ("p_at_10", "map"):
            curve, base = (np.array([float(row[metric]) for row in some]) for some in (ours, plain))
            floor = min(float(ours[0][f"old_{metric}"]), curve[0])
            lowest = float((curve - floor).min())
            falls = float((curve - np.maximum.accumulate(curve)).min())
            room = float(np.trapezoid(curve[-1] - base, SHARES))
            gained = float(np.trapezoid(curve - base, SHARES))
            share = gained / room if room > 0 else float("nan")
            checks = {
                f"floor {100 * lowest:+.2f}": lowest >= -SLACK,
                f"rising {100 * falls:+.2f}": falls >= -SLACK,
                f"area {share:.0%}": bool(gained >= AREA * room),
            }
            words = ", ".join(f"{text} {'PASS' if ok else 'FAIL'}" for text, ok in checks.items())
            flips = max(float(row["negative_flips"]) for row in ours)
            end = 100 * (curve[-1] - floor)
            worse = f"; the new encoder itself is at {end:+.2f}" if end < 0 else ""
            print(f"{case:16} {mode:12} {metric:8} {words}; most flips {flips:.1%}{worse}")


def draw_figure(path: Path, rows: list[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = list(dict.fromkeys((row["case"], row["mode"]) for row in rows))
    figure, axes = pyplot.subplots(
        -(-len(cells) // 3), 3, figsize=(12, 3 * -(-len(cells) // 3)), squeeze=False
    )
    for axis, cell in zip(axes.ravel(), cells, strict=False):
        mine = [row for row in rows if (row["case"], row["mode"]) == cell]
        for merge, colour in (("plain", "tab:gray"), ("standardised", "tab:blue")):
            some = [row for row in mine if row["merge"] == merge]
            label = f"{some[0]['order']} order, {merge}"
            values = [100 * float(row["p_at_10"]) for row in some]
            axis.plot(100 * SHARES, values, color=colour, label=label)
        axis.axhline(
            100 * float(mine[0]["old_p_at_10"]), color="black", lw=0.8, ls="--", label="old service"
        )
        axis.set_title(f"{cell[0]}, {cell[1]}")
        axis.set_ylabel("precision@10, %")
        axis.set_xlabel("new vectors, %")
    for axis in axes.ravel()[len(cells) :]:
        axis.axis("off")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
