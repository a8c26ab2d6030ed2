"""Is the retention that `bridge compare` estimates the one that unseen classes show?

    OMP_NUM_THREADS=1 python benchmarks/bridge_estimate.py --data DIR

DIR holds the embeddings of the same flower photographs by two encoders
(flowers-efficientnet-lite0.npz and -lite2.npz). Half of the classes are the user's pairs, on which
ridge is compared by cross-validation over classes; the other half are the truth: ridge fitted on
all pairs, new queries on the mapped gallery against new queries on the true new gallery. Three
splits of the classes in both directions. Writes benchmarks/results/bridge_estimate.csv.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from midspan.bridges import Ridge
from midspan.bridges.compare import compare_bridges
from midspan.evaluation import evaluate
from midspan.spaces import Embeddings, Space

RESULTS = Path(__file__).parent / "results" / "bridge_estimate.csv"
NAMES = ("lite0", "lite2")
SEEDS = 3
LEAST = 0.95  # the gate's limit that the verdicts are against


def load(folder: Path, name: str) -> Embeddings:
    with np.load(folder / f"flowers-efficientnet-{name}.npz", allow_pickle=False) as file:
        vectors = file["vectors"].astype(np.float32)
        return Embeddings(
            ids=file["ids"].astype(np.str_),
            vectors=vectors,
            space=Space(name, vectors.shape[1], fingerprint=f"flowers-{name}"),
            columns={"labels": file["labels"].astype(np.str_)},
        )


def truth(source: Embeddings, target: Embeddings, rows: np.ndarray) -> float:
    """Retention of a ridge fitted on the rows, on all other classes."""
    bridge = Ridge().fit(source[rows], target[rows])
    new = target[~rows]
    mapped = bridge.transform(source[~rows]).with_columns(new.columns)
    kept = evaluate(new, mapped, metrics=["map"]).mean("map")
    best = evaluate(new, metrics=["map"]).mean("map")
    return float(kept / best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    settings = parser.parse_args()
    sides = {name: load(settings.data, name) for name in NAMES}
    lines = []
    for source, target in (NAMES, NAMES[::-1]):
        old, new = sides[source].paired_with(sides[target])
        for seed in range(SEEDS):
            assert old.labels is not None
            classes = np.random.default_rng(seed).permutation(np.unique(old.labels))
            rows = np.isin(old.labels, classes[: len(classes) // 2])
            size = int((~rows).sum())
            found = compare_bridges(
                old[rows], new[rows], candidates=["ridge"], gallery_size=size, seed=seed
            )
            row = found.row("ridge")
            line = {
                "from": source,
                "to": target,
                "seed": seed,
                "measured_at": found.measured_at,
                "measured": round(row.retention, 4),
                "gallery_size": size,
                "estimate": round(row.estimate, 4),
                "low": round(row.estimate_low, 4),
                "high": round(row.estimate_high, 4),
                "true": round(truth(old, new, rows), 4),
            }
            line["verdict_before"] = "PASS" if row.low >= LEAST else "not PASS"
            line["verdict"] = (
                "PASS"
                if row.estimate_low >= LEAST
                else "FAIL"
                if row.estimate_high < LEAST
                else "INCONCLUSIVE"
            )
            print(line, flush=True)
            lines.append(line)
    with settings.results.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
