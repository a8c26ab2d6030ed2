"""Draw an upgrade in progress, from the folder that `midspan demo` wrote.

    midspan demo --out demo
    python examples/upgrade_picture.py demo docs/images/upgrade.png

The gallery of the demo's test images is upgraded in memory to 40 %. The picture shows the first
results of some new queries, by the space of each, and the quality along the way: mAP@300 of one
query of each class, as the demo itself measures it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

import midspan as ms
from midspan.cli.demo_upgrade import _queries, quality
from midspan.data import ImageSize, glyphs

SHARE = 0.4  # of the items that have new vectors in the picture
ROWS, RESULTS = 5, 9
OLD, NEW, WRONG = "#9aa5b1", "#2563eb", "#dc2626"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="folder that `midspan demo` wrote")
    parser.add_argument("out", type=Path, help="where to write the picture")
    given = parser.parse_args()
    old, new = (
        ms.Embeddings.load(given.demo / name / "test.npz") for name in ("old", "compatible")
    )
    images = glyphs().test
    if len(images) != len(old):
        raise SystemExit(f"{given.demo} holds {len(old):,} items, expected {len(images):,}")
    draw(old, new, images.load(np.arange(len(images)), ImageSize(28, 28, 1)), given.out)


def draw(old: ms.Embeddings, new: ms.Embeddings, pixels: np.ndarray[Any, Any], out: Path) -> None:
    mpl.use("agg")
    from matplotlib import pyplot as plt

    labels = dict(zip(old.ids.tolist(), old.columns["labels"].tolist(), strict=True))
    row_of = {id: row for row, id in enumerate(old.ids.tolist())}
    rng = np.random.default_rng(3)
    asked = new[rng.permutation(len(new))[:400]]
    sizes = Counter(labels.values())
    judged = _queries(new, seed=0)  # those of the demo
    gallery = ms.Gallery.create("memory:", old.space)
    gallery.add(old)
    before = quality(gallery, old[judged], sizes=sizes)
    upgrade = ms.Upgrade.start(gallery, to=new, order="uncertainty")
    points = [(0.0, quality(gallery, new[judged], sizes=sizes))]
    for share in np.arange(1, 11) / 10:
        upgrade.run(new, limit=round(share * len(old)) - upgrade.status().new)
        points.append((float(share), quality(gallery, new[judged], sizes=sizes)))
        if share == SHARE:
            chosen = asked[mixed(gallery, asked)[:ROWS]]
            shown = gallery.search(chosen, k=RESULTS + 1)
            counts = upgrade.status()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.1), width_ratios=(1.75, 1), layout="constrained"
    )
    left.set(xlim=(-1.4, RESULTS), ylim=(ROWS - 0.45, -0.95))
    left.axis("off")
    left.set_title(
        f"{counts.new:,} of {counts.all:,} items have new vectors; every search answers from both",
        fontsize=10,
        loc="left",
    )
    for row, (id, hits) in enumerate(zip(chosen.ids.tolist(), shown, strict=True)):
        place(left, pixels[row_of[id]], x=-1.3, y=row, colour="black")
        others = [hit for hit in hits if hit.id != id][:RESULTS]
        for column, hit in enumerate(others):
            colour = NEW if hit.space.same_as(new.space) else OLD
            place(left, pixels[row_of[hit.id]], x=column, y=row, colour=colour)
            if labels[hit.id] != labels[id]:
                left.text(column + 0.72, row - 0.3, "×", color=WRONG, fontsize=13, weight="bold")
    wrong = any(
        labels[hit.id] != labels[id]
        for id, hits in zip(chosen.ids.tolist(), shown, strict=True)
        for hit in hits
    )
    legend = [(-1.3, "query", "black"), (0, "found by its old vector", OLD)]
    legend.append((3.1, "found by its new vector", NEW))
    for x, text, colour in legend:
        left.plot([x + 0.08, x + 0.3], [-0.7, -0.7], color=colour, linewidth=5, clip_on=False)
        left.text(x + 0.4, -0.7, text, fontsize=9, va="center")
    if wrong:
        left.text(6.2, -0.7, "×", color=WRONG, fontsize=12, weight="bold", va="center")
        left.text(6.5, -0.7, "another character", fontsize=9, va="center")
    shares, values = zip(*points, strict=True)
    right.plot(100 * np.array(shares), 100 * np.array(values), color=NEW, marker="o", markersize=4)
    right.axhline(100 * before, color=OLD, linestyle="--")
    right.text(99, 100 * before + 0.2, "the old encoder alone", color=OLD, ha="right", va="bottom")
    right.axvline(100 * SHARE, color="black", linewidth=0.8)
    right.set_xlabel("items with new vectors, %")
    right.set_ylabel("mAP@300, %")
    right.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    print(f"{out}: before {before:.3f}, then {', '.join(f'{value:.3f}' for value in values)}")


def mixed(gallery: ms.Gallery, asked: ms.Embeddings) -> Sequence[int]:
    """Rows of queries whose results come from both spaces, in about equal parts first."""
    found = gallery.search(asked, k=RESULTS + 1)
    new = [sum(hit.space.same_as(asked.space) for hit in hits) for hits in found]
    return np.argsort(np.abs(np.array(new) - RESULTS / 2), kind="stable").tolist()


def place(axes: Any, image: np.ndarray[Any, Any], *, x: float, y: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    box = (x + 0.08, x + 0.92, y + 0.42, y - 0.42)
    axes.imshow(255 - image[..., 0], cmap="gray", vmin=0, vmax=255, extent=box, aspect="auto")
    axes.add_patch(
        Rectangle((x + 0.08, y - 0.42), 0.84, 0.84, fill=False, edgecolor=colour, linewidth=2.4)
    )


if __name__ == "__main__":
    main()
