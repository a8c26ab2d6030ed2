"""`midspan demo`: an old encoder, two new ones, the proof, and a live upgrade of a gallery."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from midspan.cli.demo_upgrade import live_upgrade
from midspan.cli.output import JSON_OPTION, milliseconds, percent, print_json, print_table, text_bar
from midspan.cli.outputs import check_folder
from midspan.image_size import ImageSize

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.encoders import Encoder
    from midspan.reports import DemoResult, LiveUpgrade
    from midspan.spaces import Embeddings

METRIC = "map"
EPOCHS = 8
QUICK_EPOCHS, QUICK_FONTS = 4, 50
QUICK_REASON = "quick demo: trained too briefly to pass its test; the page shows by how much"

# Found on validation classes: benchmarks/tune_demo.py, benchmarks/results/tune_demo.csv.
SETTINGS: dict[str, Any] = {
    "data": {"name": "glyphs"},
    "encoder": {"backbone": "small-resnet", "dim": 128},
    "loss": {"name": "cosface", "scale": 24.0, "margin": 0.2},
    "train": {"epochs": 8, "batch_size": 256, "lr": 2e-3, "augment": ["affine"]},
    "evaluate": {"metrics": [METRIC, "recall@1"]},
}
METHOD: dict[str, Any] = {"name": "bct", "classifier": "centres", "weight": 2.0, "scale": 12.0}
ALLOCATION = {"kind": "extended-class", "old_fraction": 0.3}


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("demo"),
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of each encoder; default 8, with --quick 4.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Half of the fonts and epochs: a minute, and the same page."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    as_json: bool = JSON_OPTION,
) -> None:
    """Train an old and two new encoders on real images, and show which can search the old gallery.

    The old encoder learns from 30 % of the classes, the new ones from all of them; the test is on
    classes that none of them has seen. Then a gallery of the test images changes over to the new
    encoder while it is searched, and back. Everything lands in one folder; repeat it to continue.
    """
    check_folder(out, option="--out")
    result = run_demo(
        out,
        epochs=epochs or (QUICK_EPOCHS if quick else EPOCHS),
        seed=seed,
        fonts=QUICK_FONTS if quick else None,
    )
    if as_json:
        print_json(
            {
                "scores": result.scores,
                "intervals": result.intervals,
                "compatible": result.scores["new_cross"] >= result.scores["old_self"],
                "page": str(out / "index.html"),
                "seconds": result.seconds,
                "upgrade": None if result.upgrade is None else result.upgrade.to_dict(),
            }
        )
        return
    scores = result.scores
    gap = scores["new_cross"] - scores["old_self"]
    rows = [
        ["old encoder (30 % of the classes)", percent(scores["old_self"]), "–"],
        [
            f"new encoder, compatible ({result.method})",
            percent(scores["new_self"]),
            percent(scores["new_cross"]),
        ],
        [
            "new encoder, independent",
            percent(scores["independent_self"]),
            percent(scores["independent_cross"]),
        ],
        ["random vectors", "–", percent(scores["random_cross"])],
    ]
    print_table(
        f"{METRIC}, % · {result.data_name}",
        ["encoder", "self", "cross: on the old gallery"],
        rows,
        note=(
            f"The compatible encoder searches the old gallery {abs(100 * gap):.2f} points "
            f"{'better' if gap >= 0 else 'worse'} than the old encoder did."
        ),
    )
    if result.upgrade is not None:
        print_upgrade(result.upgrade)
    print(f"page: {(out / 'index.html').resolve()}")


def print_upgrade(upgrade: LiveUpgrade) -> None:
    """The curve, and the searches of the client meanwhile."""
    points = {"before": upgrade.old_value}
    points |= {
        f"{100 * share:.0f} %": value
        for share, value in zip(upgrade.fractions, upgrade.values, strict=True)
    }
    print_table(
        f"live upgrade of {upgrade.items:,} items, embedded at {upgrade.rate:,.0f} a second",
        ["new vectors", f"{upgrade.metric}, %"],
        [[f"{name:>6} {text_bar(value)}", percent(value)] for name, value in points.items()],
        note=(
            f"{upgrade.searches:,} searches meanwhile, {upgrade.failed:,} failed; half within "
            f"{milliseconds(upgrade.p50)}, 99 % within {milliseconds(upgrade.p99)}. Rolled back in "
            f"{milliseconds(upgrade.rollback_seconds)}: {upgrade.same:,} of {upgrade.asked:,} "
            "answers as before the start."
        ),
    )


@dataclass(frozen=True)
class _Tested:
    """One encoder and its vectors of the test images."""

    encoder: Encoder
    embeddings: Embeddings
    seconds: float


def run_demo(out: Path, *, epochs: int, seed: int, fonts: int | None = None) -> DemoResult:
    from midspan.data import glyphs
    from midspan.reports import DemoResult, demo_page

    data = {"name": "glyphs"} if fonts is None else {"name": "glyphs", "fonts": fonts}
    images = glyphs(fonts=fonts)
    test = images.test
    first = _settings("old", data, epochs, seed)
    old = _run(out, "old", first, test, method={"name": "independent"})
    # Another seed: encoders that start from the same weights are not independent.
    settings = _settings("new", data, epochs, seed + 1) | {"old": {"run": str(out / "old")}}
    new = _run(out, "compatible", settings, test, method=METHOD)
    alone = _run(out, "independent", settings, test, method={"name": "independent"})
    scores, intervals = _measure(old.embeddings, new.embeddings, alone.embeddings, seed=seed)
    typer.echo("live upgrade of a gallery", err=True)
    started = time.perf_counter()
    upgrade = live_upgrade(
        out,
        old=old.embeddings,
        new=new.embeddings,
        encoder=new.encoder,
        images=test,
        seed=seed,
        override=None if fonts is None else QUICK_REASON,
    )
    upgrade_seconds = time.perf_counter() - started
    result = DemoResult(
        data_name="printed characters",
        data_note=(
            f"{len(images):,} images of {len(images.class_names)} characters in up to "
            f"{fonts or 100} fonts: a character is a class. The old encoder learnt from 30 % of "
            "the training characters, "
            f"both new ones from all; the {len(test):,} test images show characters that none saw."
        ),
        metric=METRIC,
        old=old.embeddings,
        new=new.embeddings,
        independent=alone.embeddings,
        images=test.load(np.arange(len(test)), ImageSize(28, 28, 1)),
        scores=scores,
        intervals=intervals,
        method=METHOD["name"],
        seconds={
            "old": old.seconds,
            "compatible": new.seconds,
            "independent": alone.seconds,
            "live upgrade": upgrade_seconds,
        },
        command=f"midspan demo{' --quick' if fonts else ''} --epochs {epochs} --seed {seed}",
        upgrade=upgrade,
    )
    demo_page(result, out / "index.html", seed=seed)
    return result


def _settings(part: str, data: Mapping[str, Any], epochs: int, seed: int) -> dict[str, Any]:
    train = {**SETTINGS["train"], "epochs": epochs}
    allocation = {**ALLOCATION, "part": part}
    own = {"data": dict(data), "seed": seed, "train": train, "allocation": allocation}
    return {**SETTINGS, **own}


def _run(
    out: Path,
    name: str,
    settings: Mapping[str, Any],
    test: ImageSet,
    *,
    method: Mapping[str, Any],
) -> _Tested:
    from midspan.spaces import Embeddings
    from midspan.training import RunConfig, train

    typer.echo(f"{name} encoder", err=True)
    config = RunConfig.from_dict({"name": name, **settings, "method": dict(method)})
    started = time.perf_counter()
    run = train(config, out=out / name)
    stored = out / name / "test.npz"
    if stored.exists():
        embeddings = Embeddings.load(stored)
        if embeddings.numbered or not embeddings.space.same_as(run.encoder.space):
            stored.unlink()
    if not stored.exists():
        embeddings = run.encoder.embed(test, progress=False)
        embeddings.save(stored)
    seconds = float(run.metrics["train_seconds"]) or time.perf_counter() - started
    return _Tested(run.encoder, embeddings, seconds)


def _measure(
    old: Embeddings, new: Embeddings, alone: Embeddings, *, seed: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Self of the three, cross of the new ones and of random vectors on the old gallery."""
    from midspan.evaluation import bootstrap_ci, evaluate
    from midspan.spaces import Embeddings, Space

    noise = np.random.default_rng(seed).normal(size=old.vectors.shape).astype(np.float32)
    random = Embeddings(old.ids, noise, Space("random", old.space.dim), old.columns)
    score: Callable[[Embeddings, Embeddings | None], Any] = lambda query, gallery: evaluate(  # noqa: E731
        query, gallery, metrics=[METRIC], direct=True
    )
    results = {
        "old_self": score(old, None),
        "new_self": score(new, None),
        "independent_self": score(alone, None),
        "new_cross": score(new, old),
        "independent_cross": score(alone, old),
        "random_cross": score(random, old),
    }
    means = {name: result.mean(METRIC) for name, result in results.items()}
    intervals = {
        name: bootstrap_ci(result.per_query[METRIC], seed=seed) for name, result in results.items()
    }
    return means, intervals
