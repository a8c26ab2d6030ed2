"""Divide & Conquer and URL against plain training, at one budget, on classes none of them saw.

    python -m benchmarks.better_encoders --data glyphs28.npz --runs runs/better --out RESULTS.csv

Small encoders (small-resnet, width 8, 16 px, 64 dims) on an image set with test classes; each arm
has the same backbone, dims, epochs and batch size, and is trained with three seeds. Parts:

  learners   recall@1 of D&C (K = 4 and 8) and of its baselines, alone and together; correlation
  damage     URL against CosFace: clean, and blurred, occluded, low-resolution queries
  templates  5 views of an item, 2 of them bad: plain mean, fusion by variance, mutual likelihood
  joined     advbct with a D&C and with a URL encoder against an old plain one: P_1; larger encoders
             and more steps (--data gtsrb32.npz: items of the query's track are left out)
  cost       time of a step against plain training, arms in turns (wants a quiet machine)
  tune       how URL's decorrelation weights were found: validation classes, half of the epochs

Stopped, it goes on where it was: finished runs are kept in --runs, results in --out.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.better_encoders_cost import step_ratios
from benchmarks.damage import LEVELS, damaged, spoiled_views

from midspan.config import build
from midspan.data import DATASETS, ImageSet
from midspan.encoders import Encoder
from midspan.encoders.uncertainty import embed_judged
from midspan.evaluation import evaluate, search_exact
from midspan.evaluation.compatibility import p_scores
from midspan.evaluation.learners import judge_learners
from midspan.evaluation.likelihood import rescore
from midspan.evaluation.views import fuse_views
from midspan.image_size import ImageSize
from midspan.reports.learners_page import learners_page
from midspan.spaces import Embeddings
from midspan.training import RunConfig, RunResult, train
from midspan.training.uncertainty import fit_uncertainty
from midspan.training.variations import Variations

RESULTS = Path(__file__).parent / "results" / "better_encoders.csv"
DIM, SIZE = 64, 16
COSFACE = {"name": "cosface", "scale": 24.0, "margin": 0.2}
# CosFace's scale and margin in the units of the logits (24 · 0.2), and URL's confidences from there
URL = {"name": "url", "margin": 5.0, "regulariser": 0.001}
CONFIDENT = {"sub_embeddings": 8, "confident": True, "first_confidence": 24.0}
AUGMENT_ONLY = {"variation_weight": 0.0, "confusion_weight": 0.0}
# 0.1 from validation classes of the glyphs: the paper's 2 leaves little of the identities here
DECORRELATED = {"variation_weight": 0.1, "confusion_weight": 0.1}
BALANCED = {"sampler": "balanced", "classes_per_batch": 32, "images_per_class": 4}

Row = dict[str, Any]
Section = Mapping[str, Mapping[str, Any]]

# arm → what it changes of the plain run
ARMS: dict[str, Section] = {
    "cosface": {},
    "cosface, 4 learners": {"train": {"learners": 4, "conquer": 0.25}},
    "cosface, 8 learners": {"train": {"learners": 8, "conquer": 0.25}},
    "margin": {"loss": {"name": "margin"}, "train": BALANCED},
    "margin, 4 learners": {
        "loss": {"name": "margin"},
        "train": {**BALANCED, "learners": 4, "conquer": 0.25},
    },
    "cosface, variations": {"variations": AUGMENT_ONLY},
    "url, variations": {"encoder": CONFIDENT, "loss": URL, "variations": AUGMENT_ONLY},
    "url": {"encoder": CONFIDENT, "loss": URL, "variations": DECORRELATED},
    "url, weights 2": {"encoder": CONFIDENT, "loss": URL, "variations": {}},
}
LEARNERS = {"cosface": 4, "cosface, 4 learners": 4, "cosface, 8 learners": 8}
LEARNERS |= {"margin": 4, "margin, 4 learners": 4}
DAMAGE = ("cosface", "cosface, variations", "url, variations", "url")
TEMPLATES = ("cosface, variations", "url, variations", "url")
# Found on validation classes of traffic signs and letters: smaller encoders, trained for fewer
# steps, fail with plain advbct too, and learners that meet only at the end do with it.
LARGER: Section = {
    "encoder": {"dim": 128, "size": 32, "settings": {"width": 16}},
    "train": {"epochs": 8, "batch_size": 64, "lr": 2e-3, "augment": ["affine", "light"]},
    "evaluate": {"exclude_column": "track"},
}
JOINED: dict[str, Section] = {
    "cosface": {},
    "cosface, 4 learners, half together": {"train": {"learners": 4, "conquer": 0.5}},
    "url, variations": ARMS["url, variations"],
}
TUNED: dict[str, Section] = {
    f"url, weights {weight:g}": {
        "encoder": CONFIDENT,
        "loss": URL,
        "variations": {"variation_weight": weight, "confusion_weight": weight},
    }
    for weight in (0.0, 0.1, 2.0)
}
PARTS = ("learners", "damage", "templates", "joined", "cost", "tune")


def run_file(data: Mapping[str, Any], changes: Section, *, seed: int, epochs: int) -> RunConfig:
    plain: dict[str, dict[str, Any]] = {
        "data": dict(data),
        "encoder": {
            "backbone": "small-resnet",
            "dim": DIM,
            "size": SIZE,
            "settings": {"width": 8},
        },
        "loss": dict(COSFACE),
        "train": {"epochs": epochs, "batch_size": 128, "lr": 3e-3, "augment": ["affine"]},
        "evaluate": {"metrics": ["recall@1", "map"]},
    }
    for name, section in changes.items():
        if name in ("loss", "method", "old", "allocation"):
            plain[name] = dict(section)
        else:
            plain[name] = {**plain.get(name, {}), **section}
    return RunConfig.from_dict({"seed": seed, **plain})


class Bench:
    """The runs and results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.data: Mapping[str, Any] = (
            {"name": "glyphs"}
            if arguments.data is None
            else {"name": "npz", "path": str(arguments.data)}
        )
        self.runs: Path = arguments.runs
        self.out: Path = arguments.out
        self.epochs: int = arguments.epochs
        self.steps: int = arguments.uncertainty_steps
        self.limit: int = arguments.test_images
        self.rows: list[Row] = []
        if self.out.exists():
            with self.out.open(newline="") as file:
                self.rows = list(csv.DictReader(file))
        self._test: ImageSet | None = None

    def has(self, part: str, arm: str, seed: int) -> bool:
        key = (part, arm, str(seed))
        return any((row["part"], row["arm"], str(row["seed"])) == key for row in self.rows)

    def add(self, part: str, arm: str, seed: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            row = {"part": part, "arm": arm, "seed": seed, "what": name, "value": f"{value:.4f}"}
            self.rows.append(row)
            print(", ".join(map(str, row.values())), flush=True)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with self.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=["part", "arm", "seed", "what", "value"])
            writer.writeheader()
            writer.writerows(self.rows)

    def trained(
        self, arm: str, changes: Section, *, seed: int, epochs: int | None = None
    ) -> RunResult:
        folder = self.runs / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}"
        config = run_file(self.data, changes, seed=seed, epochs=epochs or self.epochs)
        return train(config, out=folder, progress=False)

    @property
    def test(self) -> ImageSet:
        """Test images at the encoder's size; at most `limit`, drawn once."""
        if self._test is None:
            images: ImageSet = build(DATASETS, self.data, what="data").test
            rng = np.random.default_rng(0)
            kept = np.sort(rng.permutation(len(images))[: self.limit])
            self._test = images[kept]
        return self._test

    def pixels(self, encoder: Encoder) -> np.ndarray[Any, np.dtype[np.uint8]]:
        wanted = encoder.preprocessing
        return self.test.load(
            np.arange(len(self.test)), ImageSize(wanted.height, wanted.width, wanted.channels)
        )

    def embed(self, encoder: Encoder, pixels: np.ndarray[Any, Any]) -> Embeddings:
        """These pixels under the ids and labels of the test images."""
        labels = self.test.labels
        assert labels is not None
        if encoder.confidence is None:
            found = encoder.embed(pixels, ids=self.test.ids, progress=False)
        else:
            found = embed_judged(encoder, pixels, ids=self.test.ids, progress=False)
        return found.with_columns({"labels": labels})


def recall(query: Embeddings, gallery: Embeddings | None = None) -> float:
    return evaluate(query, gallery, metrics=("recall@1",)).mean("recall@1")


def learners(bench: Bench, arm: str, seed: int) -> dict[str, float]:
    run = bench.trained(arm, ARMS[arm], seed=seed)
    count = LEARNERS[arm]
    found = judge_learners(run.encoder.embed(bench.test, progress=False), count=count)
    return {
        "recall@1": float(found.together[-1]),
        "alone": float(found.alone.mean()),
        "correlation": found.correlation,
        "seconds": run.metrics["train_seconds"],
    }


def damage(bench: Bench, arm: str, seed: int) -> dict[str, float]:
    encoder = bench.trained(arm, ARMS[arm], seed=seed).encoder
    pixels = bench.pixels(encoder)
    clean = bench.embed(encoder, pixels)
    values = {"clean": recall(clean)}
    levels: dict[str, list[Embeddings]] = {}
    for kind, strengths in LEVELS.items():
        for strength in strengths:
            bad = bench.embed(encoder, damaged(pixels, kind=kind, strength=strength, seed=seed))
            values[f"{kind} {strength:g}"] = recall(bad, clean)
            levels.setdefault(kind, []).append(bad)
    values["damaged, mean"] = float(np.mean([v for name, v in values.items() if name != "clean"]))
    if arm == "url" and seed == 0:
        page = bench.runs / "url.html"
        learners_page(clean, page, count=8, images=bench.test, degraded=levels)
        print(f"page: {page}", flush=True)
    return values


def templates(bench: Bench, arm: str, seed: int) -> dict[str, float]:
    """Items of 5 views, 2 of them heavily damaged; items search for items of their class."""
    encoder = bench.trained(arm, ARMS[arm], seed=seed).encoder
    wanted = encoder.preprocessing
    items: ImageSet = build(DATASETS, bench.data, what="data").train
    items = items.cached(ImageSize(wanted.height, wanted.width, wanted.channels))
    head = fit_uncertainty(
        encoder,
        items,
        steps=bench.steps,
        lr=1e-2,
        variations=Variations(("blur", "occlusion", "perspective"), 0.3),
        seed=seed,
        show_progress=False,
    )
    labels = bench.test.labels
    assert labels is not None
    pixels, groups = spoiled_views(bench.pixels(encoder), labels, bad=2, views=5, seed=seed)
    judged = embed_judged(
        encoder, pixels, uncertainty=head, ids=bench.test.ids, progress=False
    ).with_columns({"labels": labels})
    used = groups >= 0
    judged, groups = judged[used], groups[used]
    plain = Embeddings(
        judged.ids, judged.vectors, judged.space, {"labels": judged.columns["labels"]}
    )
    fused = fuse_views(judged, groups)
    _, rows = search_exact(
        fused.vectors, fused.vectors, k=20, metric="cosine", exclude=np.arange(len(fused))
    )
    first = rescore(fused, fused, rows)[0][:, 0]
    own = fused.columns["labels"]
    return {
        "one view": recall(plain),
        "plain mean": recall(fuse_views(plain, groups)),
        "by variance": recall(fused),
        "by variance, mutual likelihood": float((own[first] == own).mean()),
    }


def joined(bench: Bench, arm: str, seed: int) -> dict[str, float]:
    """An old plain encoder on 30 % of the classes, a new one on all of them, advbct between."""
    old = {**LARGER, "allocation": {"kind": "extended-class", "part": "old"}}
    new = {**over(LARGER, JOINED[arm]), "allocation": {"kind": "extended-class", "part": "new"}}
    before = bench.trained("old", old, seed=seed)
    upper = bench.trained(f"upper {arm}", new, seed=seed + 100)
    run = bench.trained(
        f"advbct {arm}",
        {
            **new,
            "method": {"name": "advbct"},
            "old": {"run": str(before.path)},
        },
        seed=seed + 100,
    )
    scores = run.metrics["detail"]
    old_self, cross = (scores[name]["map"] for name in ("old_self", "cross"))
    own, top = scores["self"]["map"], upper.metrics["detail"]["self"]["map"]
    found = p_scores(old=old_self, new=own, cross=cross, upper=top)
    return {
        "old self": old_self,
        "self": own,
        "cross": cross,
        "upper": top,
        "P_up": found.up,
        "P_comp": found.comp,
        "P_1": found.score,
    }


def over(first: Section, second: Section) -> dict[str, Mapping[str, Any]]:
    """The settings of both; the second's where both have one."""
    names = [*first, *(name for name in second if name not in first)]
    return {name: {**first.get(name, {}), **second.get(name, {})} for name in names}


def cost(bench: Bench, arm: str, seed: int) -> dict[str, float]:
    return step_ratios(ARMS[arm], run_file, turns=40)


def tune(bench: Bench, arm: str, seed: int) -> dict[str, float]:
    judged = {**TUNED[arm], "evaluate": {"validation": True}}
    run = bench.trained(f"tune {arm}", judged, seed=seed, epochs=bench.epochs // 2)
    return dict(run.metrics["detail"]["self"])


WORK: dict[str, tuple[tuple[str, ...], Callable[[Bench, str, int], dict[str, float]]]] = {
    "learners": (tuple(LEARNERS), learners),
    "damage": (DAMAGE, damage),
    "templates": (TEMPLATES, templates),
    "joined": (tuple(JOINED), joined),
    "tune": (tuple(TUNED), tune),
    "cost": (("cosface, 4 learners", "cosface, 8 learners", "url, variations", "url"), cost),
}


ONCE = ("cost", "tune")


def todo(
    bench: Bench, parts: tuple[str, ...], arms: list[str] | None, seeds: int
) -> Iterator[tuple[str, str, int]]:
    for seed in range(seeds):  # a whole seed first, so that a stopped table is still a fair one
        for part in parts:
            for arm in WORK[part][0]:
                wanted = arms is None or arm in arms
                if wanted and not (part in ONCE and seed) and not bench.has(part, arm, seed):
                    yield part, arm, seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=None, help="image set .npz; else the glyphs")
    parser.add_argument("--runs", type=Path, required=True, help="runs are kept here")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *JOINED], help="else all of the parts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--uncertainty-steps", type=int, default=300)
    parser.add_argument("--test-images", type=int, default=4000)
    arguments = parser.parse_args()
    bench = Bench(arguments)
    for part, arm, seed in todo(bench, tuple(arguments.parts), arguments.arms, arguments.seeds):
        bench.add(part, arm, seed, WORK[part][1](bench, arm, seed))
    summary(bench)


def summary(bench: Bench) -> None:
    """Mean and spread over the seeds."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in bench.rows:
        values.setdefault((row["part"], row["arm"], row["what"]), []).append(float(row["value"]))
    for (part, arm, what), found in values.items():
        spread = f" ± {np.std(found, ddof=1):.4f}" if len(found) > 1 else ""
        print(f"{part:10} {arm:22} {what:32} {np.mean(found):.4f}{spread}")


if __name__ == "__main__":
    main()
