"""Backfill orders and calibrated mixing on real embeddings: curve, area and flips.

    python benchmarks/orders.py --old OLD.npz --new NEW.npz [--bridge ridge] [--out FILE.csv]

Every item is a query of the new encoder on all others. The gallery goes from old vectors (as they
are, or mapped by a bridge old → new) to new ones in each order. Class centres come from the
gallery's labels (`…`, and from clusters without labels: `… (clusters)`). A sample of --sample items
has both vectors: a bridge is fitted on one half of it; bridge error and disagreement are learnt and
scores calibrated (`fit_scores`) on the other. `calibrated` are the same curves with the scores of
the old part mapped, `chosen` what `choose_scores` takes. Rows of other pairs of files in the CSV
are kept.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from midspan.bridges import BRIDGES, Bridge
from midspan.bridges.base import unit
from midspan.config import build
from midspan.evaluation import backfill_curve, evaluate
from midspan.spaces import Embeddings
from midspan.upgrade import ORDERS, choose_scores, fit_scores, order_named
from midspan.upgrade.orders import CENTRES
from midspan.upgrade.priorities import hints_for

FRACTIONS = np.linspace(0.0, 1.0, 11)
SKIPPED = ("newest", "most_seen", "uncertainty")  # want a history; the last is an alias


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--bridge", help="kind of bridge old → new, for incompatible spaces")
    parser.add_argument("--items", type=int, default=2000, help="gallery items, drawn at random")
    parser.add_argument("--sample", type=int, default=600, help="items with both vectors")
    parser.add_argument("--metric", default="map")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "orders.csv"
    )
    given = parser.parse_args()
    old, new = Embeddings.load(given.old).paired_with(Embeddings.load(given.new))
    chosen = np.random.default_rng(given.seed).permutation(len(old))[: given.items]
    old, new = old[chosen], new[chosen]
    case = f"{old.space.name} → {new.space.name}" + (f" ({given.bridge})" if given.bridge else "")
    found = measure(
        old, new, given.bridge, sample=given.sample, metric=given.metric, seed=given.seed
    )
    rows = [{"case": case, **row} for row in found]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    kept: list[dict[str, Any]] = []
    if given.out.exists():
        with given.out.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if row["case"] != case]
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows([*kept, *rows])
    for row in rows:
        print(
            f"{row['order']:28} {row['mixing']:18} area {row['area']:.4f}  "
            f"worst flips {row['most_negative_flips']:.4f}  "
            + " ".join(f"{row[f'at_{share:.1f}']:.3f}" for share in FRACTIONS[::2])
        )
    print(f"→ {given.out}")


def measure(
    old: Embeddings,
    new: Embeddings,
    kind: str | None,
    *,
    sample: int,
    metric: str,
    seed: int,
) -> list[dict[str, Any]]:
    assert new.labels is not None
    drawn = np.random.default_rng(seed + 1).permutation(len(old))[:sample]
    fit, known = drawn[: sample // 2], drawn[sample // 2 :]
    bridge: Bridge | None = None
    if kind is not None:
        made: Bridge = build(BRIDGES, {"name": kind}, what="bridge")
        bridge = made.fit(old[fit], new[fit])
    stale = old if bridge is None else bridge.transform(old)
    before = evaluate(old, metrics=["recall@1"]).per_query["recall@1"]
    unlabelled = Embeddings(old.ids, old.vectors, old.space)
    orders = {name: old for name in ORDERS if name not in SKIPPED}
    orders |= {f"{name} (clusters)": unlabelled for name in CENTRES if name not in SKIPPED}
    rows = []
    for name, seen in orders.items():
        plain = name.removesuffix(" (clusters)")
        learnt_from = seen[known] if plain in ("bridge_error", "disagreement") else seen
        hints = hints_for(plain, learnt_from, new=new[known], bridge=bridge, seed=seed)
        order = np.argsort(-order_named(plain)(seen, hints), kind="stable")
        curve = backfill_curve(
            query=new,
            gallery_old=stale,
            gallery_new=new,
            order=order,
            metric=metric,
            fractions=FRACTIONS,
            before=before,
        )
        rows.append(_row(name, "plain", metric, curve.values, curve.negative_flips))
        if plain not in ("random", "least_confidence", "bridge_error") or seen is unlabelled:
            continue
        check, _ = mixed(stale, new, order, before, scores=None)
        assert metric != "map" or np.allclose(check, curve.values, atol=1e-6)
        for method in ("quantile", "isotonic"):
            scores = fit_scores(old[known], new[known], bridge=bridge, method=method)
            values, flips = mixed(stale, new, order, before, scores=scores)
            rows.append(_row(name, f"calibrated {method}", "map", values, flips))
        found = choose_scores(old[known], new[known], bridge=bridge, labels=new.labels[known])
        values, flips = mixed(stale, new, order, before, scores=found.scores)
        rows.append(_row(name, f"chosen: {found.chosen}", "map", values, flips))
    return rows


def mixed(stale: Embeddings, new: Embeddings, order: Any, before: Any, *, scores: Any) -> Any:
    """(mAP, negative flips) at each fraction, the plain way: every score, every ranking."""
    assert new.labels is not None
    same = new.labels[:, None] == new.labels[None, :]
    query = unit(new.vectors)
    fresh, old = query @ query.T, query @ unit(stale.vectors).T
    if scores is not None:
        old = scores(old).astype(np.float32)
    by_id = np.argsort(new.ids, kind="stable")  # equal scores stand in the order of the ids
    same, fresh, old = same[:, by_id], fresh[:, by_id], old[:, by_id]
    place = np.empty(len(new), dtype=np.int64)
    place[order] = np.arange(len(new))
    place = place[by_id]
    own = np.argsort(by_id, kind="stable")
    values, flips = [], []
    for share in FRACTIONS:
        both = np.where(place < np.floor(share * len(new) + 1e-9), fresh, old)
        both[np.arange(len(new)), own] = -np.inf
        ranked = np.argsort(-both, axis=1, kind="stable")[:, :-1]
        right = np.take_along_axis(same, ranked, axis=1)
        total = right.sum(axis=1)
        some = total > 0
        precision = np.cumsum(right, axis=1) / np.arange(1, right.shape[1] + 1)
        ap = (precision * right).sum(axis=1)[some] / total[some]
        values.append(ap.mean())
        flips.append(((before == 1) & ~right[:, 0])[some].mean())
    return np.array(values), np.array(flips)


def _row(order: str, mixing: str, metric: str, values: Any, flips: Any) -> dict[str, Any]:
    area = float((np.diff(FRACTIONS) * (values[1:] + values[:-1]) / 2).sum())
    return {
        "order": order,
        "mixing": mixing,
        "metric": metric,
        "area": round(area, 6),
        "most_negative_flips": round(float(flips.max()), 6),
        "mean_negative_flips": round(float(flips.mean()), 6),
        **{
            f"at_{share:.1f}": round(float(value), 6)
            for share, value in zip(FRACTIONS, values, strict=True)
        },
    }


if __name__ == "__main__":
    main()
