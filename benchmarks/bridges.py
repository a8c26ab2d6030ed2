"""What bridges keep of a real model change, beside a peer; what they cost; what an ensemble gives.

    OMP_NUM_THREADS=1 python benchmarks/bridges.py --data DIR     # writes results/bridges.csv

DIR holds flowers-efficientnet-lite0.npz, flowers-efficientnet-lite2.npz (the same 2,040 flower
photographs, 102 classes, in two 1280-d spaces) and flowers32.npz.

    retention  old = lite0, new = lite2. Bridges are fitted on 300, 600 and 1,200 pairs of 60
               classes and tested on the other 42: new queries on the mapped old gallery, mAP with
               the query's own item left out, over the mAP of the true new gallery; 95 % intervals
               by resampling classes. isotrieve (0.4, all its methods, its defaults) gets the same
               pairs and queries. No bridge sees a label, but `auto`, which chooses by held-out
               classes of the 60, and rbt and fct, which use the labels of the 60 in their losses.
               Defaults were set by cross-validation inside the 60 classes of split 0; the other
               splits show that this was not luck. The learned ones run on split 0 only.
               Seconds are CPU seconds of one fit.
    rbt        split 0 again, beside ridge: rbt as it is, with a floor of 5 epochs, so that it
               cannot end at ridge by choosing none, and both in unified mode, where queries are
               mapped as well.
    chance     the same without any bridge: the old gallery as it is, and random vectors.
    text       the same with two text encoders, old = wordllama (256-d), new = MiniLM (384-d); the
               files docstrings-*.npz are made by benchmarks/docstring_embeddings.py. isotrieve's
               rotations want equal dims and are left out.
    speed      ridge on 100,000 pairs of 512-d beside the bare normal equations and scikit-learn;
               one 512-d query beside the bare product. Arms take turns; CPU seconds of the best.
    auto       `fit_auto` on 3,000 pairs of lite0 and lite2 (the 2,040 and noisy copies of some of
               them): seconds on the wall, the median of three rounds, and of the processors. Give
               it all cores: OMP_NUM_THREADS=2.
    ensemble   query encoder lite0 at 96 px, gallery encoders lite1 and lite2 at 96 and 128 px on
               flowers32 (30 photographs a class, enlarged), ridge from each; N = 1, 2, 4, and the
               errors when the items they disagree on are left out, beside leaving out any.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.bridges import (
    BRIDGES,
    Confidence,
    GalleryEnsemble,
    Ridge,
    fit_auto,
    rejection_curve,
    risk_coverage,
)
from midspan.bridges.base import unit
from midspan.bridges.rbt import RBT
from midspan.bridges.rejection import RiskCoverage
from midspan.bridges.retrieval import average_precisions
from midspan.config import build
from midspan.labels import ClassNames
from midspan.spaces import Embeddings, FloatArray, IntArray, Space

RESULTS = Path(__file__).parent / "results" / "bridges.csv"
FIT_CLASSES, SIZES, DRAWS = 60, (300, 600, 1200), 1000
LEARNED = ("lambda-orthogonal", "mlp", "rbt", "fct")  # minutes in 1280-d: split 0 only
SETTINGS: dict[str, dict[str, Any]] = {
    "procrustes": {"few_pairs": True},  # fewer pairs than dims
    "fct": {"width": 512, "epochs": 20},  # the paper's 2048 and 80 take a quarter of an hour
}
PEERS = (
    *("RidgeMapping", "OrthogonalProcrustesMapping", "ProcrustesDiagMapping"),
    *("LowRankAffineMapping", "ContrastiveMapping", "ResidualMLPMapping"),
)
Values = npt.NDArray[np.float64]


@dataclass
class Row:
    part: str
    case: str
    arm: str
    score: float | None = None
    ratio: float | None = None  # retention, or time over bare time
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    note: str = ""


# ---- retention ----------------------------------------------------------------------------------


def retention(
    old_file: Path, new_file: Path, *, part: str, splits: int, sizes: tuple[int, ...] = SIZES
) -> Iterator[Row]:
    old, new = Embeddings.load(old_file), Embeddings.load(new_file)
    old, new = old.normalised(), new.take(old.ids).normalised()
    for split in range(splits):
        for row in _one_split(old, new, split, sizes):
            yield replace(row, part=part)


def _one_split(
    old: Embeddings, new: Embeddings, split: int, sizes: tuple[int, ...]
) -> Iterator[Row]:
    assert old.labels is not None
    inside, order = _fit_rows(old, split=split)
    test_old, test_new = old[~inside], new[~inside]
    labels = old.labels[~inside]
    queries = test_new.vectors

    def judge(gallery: FloatArray) -> Values:
        return average_precisions(queries, unit(gallery), labels, "cosine")

    true = judge(queries)
    samples = _class_samples(labels, split)
    case = f"split {split}"
    yield Row("retention", case, "new self", score=float(true.mean()), ratio=1.0)
    yield Row("retention", case, "old self", score=_self(test_old.vectors, labels))
    shared = min(old.space.dim, new.space.dim)
    as_it_is = np.zeros_like(queries)
    as_it_is[:, :shared] = test_old.vectors[:, :shared]
    yield _kept(case, "none", judge(as_it_is), true, samples)
    chance = np.random.default_rng(split).standard_normal(queries.shape).astype(np.float32)
    yield _kept(case, "random vectors", judge(chance), true, samples)
    for size in sizes:
        case = f"split {split}, {size} pairs"
        fit_old, fit_new = old[order[:size]], new[order[:size]]
        plain_old = Embeddings(fit_old.ids, fit_old.vectors, fit_old.space)  # no labels
        plain_new = Embeddings(fit_new.ids, fit_new.vectors, fit_new.space)
        for name in BRIDGES:
            if name in LEARNED and split > 0:
                continue
            bridge = build(BRIDGES, {"name": name, **SETTINGS.get(name, {})}, what="bridge")
            labelled = name in ("rbt", "fct")
            started = time.process_time()
            bridge.fit(*((fit_old, fit_new) if labelled else (plain_old, plain_new)))
            seconds = time.process_time() - started
            values = judge(bridge.transform(test_old).vectors)
            note = "labels of the fit classes in the loss" if labelled else ""
            yield _kept(case, name, values, true, samples, seconds=seconds, note=note)
        if split == 0:
            started = time.process_time()
            selection = fit_auto(fit_old, fit_new)
            seconds = time.process_time() - started
            values = judge(selection.bridge.transform(test_old).vectors)
            yield _kept(case, "auto", values, true, samples, seconds=seconds, note=selection.why)
        if split == 0:
            yield _predicted_errors(case, plain_old, plain_new, test_old, test_new)
        for name in PEERS:
            if "Procrustes" in name and old.space.dim != new.space.dim:
                continue
            try:
                mapped, seconds = _peer(name, plain_old, plain_new, test_old)
            except MemoryError as error:  # its contrastive search, when dims differ
                yield Row("retention", case, f"isotrieve {name}", note=f"fails: {error}")
                continue
            yield _kept(case, f"isotrieve {name}", judge(mapped), true, samples, seconds=seconds)


def rbt_arms(old_file: Path, new_file: Path) -> Iterator[Row]:
    """Does rbt end at ridge because its held-out retrieval chooses no epochs?"""
    old, new = Embeddings.load(old_file), Embeddings.load(new_file)
    old, new = old.normalised(), new.take(old.ids).normalised()
    inside, order = _fit_rows(old, split=0)
    assert old.labels is not None
    test_old, test_new, labels = old[~inside], new[~inside], old.labels[~inside]
    true = average_precisions(test_new.vectors, test_new.vectors, labels, "cosine")
    samples = _class_samples(labels, 0)
    arms: dict[str, dict[str, Any]] = {
        "ridge": {"name": "ridge"},
        "rbt": {"name": "rbt"},
        "rbt, at least 5 epochs": {"name": "rbt", "min_epochs": 5},
        "rbt unified": {"name": "rbt", "mode": "unified"},
        "rbt unified, at least 5 epochs": {"name": "rbt", "mode": "unified", "min_epochs": 5},
    }
    for size in SIZES:
        fit_old, fit_new = old[order[:size]], new[order[:size]]
        for arm, settings in arms.items():
            bridge = build(BRIDGES, settings, what="bridge")
            started = time.process_time()
            bridge.fit(fit_old, fit_new)
            seconds = time.process_time() - started
            unified = isinstance(bridge, RBT) and bridge.mode == "unified"
            queries = bridge.other.transform(test_new) if unified else test_new
            gallery = bridge.transform(test_old).vectors
            values = average_precisions(unit(queries.vectors), unit(gallery), labels, "cosine")
            note = f"{bridge.epochs_} epochs" if isinstance(bridge, RBT) else ""
            case = f"split 0, {size} pairs"
            row = _kept(case, arm, values, true, samples, seconds=seconds, note=note)
            yield replace(row, part="rbt")


def _fit_rows(old: Embeddings, *, split: int) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Rows of the classes that bridges are fitted on, and these in the order they are taken."""
    assert old.labels is not None
    rng = np.random.default_rng(split)
    fit_classes = rng.permutation(np.array(ClassNames.of(old.labels).names))[:FIT_CLASSES]
    inside = np.isin(old.labels, fit_classes)
    return inside, np.random.default_rng(split).permutation(np.flatnonzero(inside))


def _predicted_errors(
    case: str, fit_old: Embeddings, fit_new: Embeddings, test_old: Embeddings, test_new: Embeddings
) -> Row:
    """Rank correlation of predicted and true error of ridge on the test classes."""
    from scipy.stats import spearmanr

    bridge = Ridge().fit(fit_old, fit_new)
    started = time.process_time()
    confidence = Confidence().fit(bridge, fit_old, fit_new)
    seconds = time.process_time() - started
    errors = 1.0 - np.sum(bridge.transform(test_old).vectors * test_new.vectors, axis=1)
    found = float(spearmanr(confidence.predict(test_old), errors).statistic)
    note = f"rank correlation of predicted and true error; {confidence.quality_:.3f} in the fit set"
    return Row("retention", case, "confidence of ridge", score=found, seconds=seconds, note=note)


def _peer(
    name: str, fit_old: Embeddings, fit_new: Embeddings, test_old: Embeddings
) -> tuple[FloatArray, float]:
    """The test gallery mapped by one of isotrieve's methods, and the seconds of its fit."""
    import isotrieve.mapping

    settings = {"rank": 128} if name == "LowRankAffineMapping" else {}
    mapping = getattr(isotrieve.mapping, name)(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.process_time()
        mapping.fit(fit_old.vectors, fit_new.vectors)
        seconds = time.process_time() - started
    return mapping.transform(test_old.vectors).astype(np.float32), seconds


def _self(vectors: FloatArray, labels: npt.NDArray[Any]) -> float:
    return float(average_precisions(vectors, vectors, labels, "cosine").mean())


def _class_samples(labels: npt.NDArray[Any], seed: int) -> list[npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return [
        np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])
        for _ in range(DRAWS)
    ]


def _kept(
    case: str,
    arm: str,
    values: Values,
    true: Values,
    samples: list[npt.NDArray[np.int64]],
    *,
    seconds: float | None = None,
    note: str = "",
) -> Row:
    ratios = [values[rows].mean() / true[rows].mean() for rows in samples]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Row(
        part="retention",
        case=case,
        arm=arm,
        score=float(values.mean()),
        ratio=float(values.mean() / true.mean()),
        low=float(low),
        high=float(high),
        seconds=seconds,
        note=note,
    )


# ---- speed --------------------------------------------------------------------------------------


def speed(*, count: int = 100_000, dim: int = 512, rounds: int = 5) -> Iterator[Row]:
    from sklearn.linear_model import Ridge as Peer

    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, dim), dtype=np.float32)
    mixing = (rng.standard_normal((dim, dim)) / 20).astype(np.float32)
    y: FloatArray = x @ mixing
    y += rng.standard_normal((count, dim), dtype=np.float32)
    ids = np.arange(count).astype(np.str_)
    old = Embeddings(ids, x, Space("old", dim)).normalised()
    new = Embeddings(ids, y, Space("new", dim)).normalised()

    def bare() -> object:
        """Centre, two products, one solve, in float64 as ours."""
        a, b = old.vectors.astype(np.float64), new.vectors.astype(np.float64)
        a -= a.mean(axis=0)
        b -= b.mean(axis=0)
        gram = a.T @ a
        gram[np.diag_indices(dim)] += 1.0
        return np.linalg.solve(gram, a.T @ b)

    arms: dict[str, Callable[[], object]] = {
        "bare normal equations": bare,
        "ridge, alpha given": lambda: Ridge(alpha=1.0).fit(old, new),
        "ridge, alpha chosen": lambda: Ridge().fit(old, new),
        "scikit-learn Ridge": lambda: Peer(alpha=1.0).fit(
            old.vectors.astype(np.float64), new.vectors.astype(np.float64)
        ),
    }
    best = _take_turns(arms, rounds=rounds, repeats=1)
    for arm, seconds in best.items():
        ratio = seconds / best["bare normal equations"]
        yield Row("speed", f"fit {count} pairs of {dim}-d", arm, ratio=ratio, seconds=seconds)

    yield from _fewer_pairs_than_dims()
    bridge = Ridge(alpha=1.0).fit(old[:5000], new[:5000])
    query, weight = old.vectors[0].copy(), bridge.weight_
    single: dict[str, Callable[[], object]] = {
        "bare matrix-vector product": lambda: query @ weight,
        "ridge.apply": lambda: bridge.apply(query),
    }
    best = _take_turns(single, rounds=15, repeats=2000)
    for arm, seconds in best.items():
        ratio = seconds / best["bare matrix-vector product"]
        yield Row("speed", f"apply to one {dim}-d query", arm, ratio=ratio, seconds=seconds)


def _fewer_pairs_than_dims(*, count: int = 1200, dim: int = 1280) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    ids = np.arange(count).astype(np.str_)
    x, y = (rng.standard_normal((count, dim), dtype=np.float32) for _ in range(2))
    old = Embeddings(ids, x, Space("old", dim)).normalised()
    new = Embeddings(ids, y, Space("new", dim)).normalised()
    arms: dict[str, Callable[[], object]] = {
        "ridge, alpha given": lambda: Ridge(alpha=1.0).fit(old, new),
        "ridge, alpha chosen": lambda: Ridge().fit(old, new),
        "isotrieve RidgeMapping": lambda: _peer("RidgeMapping", old, new, old[:1]),
    }
    for arm, seconds in _take_turns(arms, rounds=3, repeats=1).items():
        yield Row("speed", f"fit {count} pairs of {dim}-d", arm, seconds=seconds)


def _take_turns(
    arms: dict[str, Callable[[], object]], *, rounds: int, repeats: int
) -> dict[str, float]:
    best = dict.fromkeys(arms, float("inf"))
    for _ in range(rounds):
        for arm, call in arms.items():
            started = time.process_time()
            for _ in range(repeats):
                call()
            best[arm] = min(best[arm], (time.process_time() - started) / repeats)
    return best


# ---- auto ---------------------------------------------------------------------------------------


def auto_seconds(
    old_file: Path, new_file: Path, *, pairs: int = 3000, rounds: int = 3
) -> Iterator[Row]:
    old, new = noisy_copies(Embeddings.load(old_file), Embeddings.load(new_file), pairs=pairs)
    wall, processor, chosen = list[float](), list[float](), set[str]()
    for _ in range(rounds):
        started, work = time.perf_counter(), time.process_time()
        selection = fit_auto(old, new)
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - work)
        chosen.add(type(selection.bridge).__name__)
    yield Row(
        "auto",
        f"fit {pairs} pairs of {old.space.dim}-d",
        f"auto: {', '.join(sorted(chosen))}",
        seconds=float(np.median(wall)),
        note=f"<= 12 s on two quiet cores; of the processors {min(processor):.3g} s",
    )


def noisy_copies(old: Embeddings, new: Embeddings, *, pairs: int) -> tuple[Embeddings, Embeddings]:
    """All items, and copies of random ones that differ by a tenth of their length."""
    rng = np.random.default_rng(0)
    copied = rng.choice(len(old), pairs - len(old))
    made = []
    for items in old, new:
        noise = rng.standard_normal((len(copied), items.space.dim), dtype=np.float32)
        noise *= 0.1 * np.linalg.norm(items.vectors[copied], axis=1, keepdims=True)
        noise /= np.sqrt(items.space.dim)
        ids = np.concatenate([items.ids, [f"copy-{i}" for i in range(len(copied))]])
        vectors = np.concatenate([items.vectors, items.vectors[copied] + noise])
        assert items.labels is not None
        labels = np.concatenate([items.labels, items.labels[copied]])
        made.append(Embeddings(ids, vectors, items.space, {"labels": labels}))
    return made[0], made[1]


# ---- ensemble -----------------------------------------------------------------------------------


def ensemble(data: Path, *, per_class: int = 30) -> Iterator[Row]:
    with np.load(data / "flowers32.npz") as file:
        images, labels = file["images"], file["labels"]
    kept = np.concatenate(
        [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    )
    images, labels = images[kept], labels[kept]
    query = _embedded("efficientnet-lite0", 96, images, labels)
    galleries = [
        _embedded(f"efficientnet-lite{variant}", size, images, labels)
        for size in (96, 128)
        for variant in (1, 2)
    ]
    fit_classes = np.random.default_rng(0).permutation(np.unique(labels))[:FIT_CLASSES]
    inside = np.isin(labels, fit_classes)
    case = f"{FIT_CLASSES} fit classes, {len(np.unique(labels)) - FIT_CLASSES} test classes"
    queries = query[~inside]
    yield _found(case, f"query encoder on itself ({query.space.name})", queries, queries)
    for gallery in galleries:
        name = f"{gallery.space.name} on itself"
        yield _found(case, name, gallery[~inside], gallery[~inside])

    def mapped(members: list[Embeddings]) -> Embeddings:
        made = GalleryEnsemble().fit([one[inside] for one in members], query[inside])
        return made.transform([one[~inside] for one in members]).take(queries.ids)

    for gallery in galleries:
        yield _found(case, f"N=1 {gallery.space.name}", queries, mapped([gallery]))
    for members in (galleries[:2], galleries):
        yield _found(case, f"N={len(members)}", queries, mapped(members))
    four = mapped(galleries)
    curves = rejection_curve(queries, four, draws=50)
    yield from _rejected(
        "gallery item left out: first answer of all queries wrong", curves.all_queries
    )
    doubt = four.columns["uncertainty"]
    off = 1.0 - np.sum(four.vectors * queries.vectors, axis=1)
    yield from _rejected("item: 1 - cos to its true vector", risk_coverage(off, doubt))
    nearest = four.vectors @ queries.vectors.T
    np.fill_diagonal(nearest, -np.inf)
    assert queries.labels is not None
    wrong = queries.labels[np.argmax(nearest, axis=1)] != queries.labels
    yield from _rejected("item: nearest true vector of another class", risk_coverage(wrong, doubt))


def _rejected(what: str, curve: RiskCoverage) -> Iterator[Row]:
    """`ratio` is the risk over that of random rejection; low and high are random's 95 %."""
    for place, coverage in enumerate(curve.coverage):
        yield Row(
            "ensemble",
            f"N=4, {what}",
            f"coverage {coverage:g}",
            score=float(curve.risk[place]),
            ratio=float(curve.risk[place] / curve.random_risk[place]),
            low=float(curve.random_low[place]),
            high=float(curve.random_high[place]),
            note=f"random {curve.random_risk[place]:.4f}",
        )


def _embedded(backbone: str, size: int, images: Any, labels: Any) -> Embeddings:
    from midspan.encoders import build_encoder

    name = f"{backbone}-{size}px"
    encoder = build_encoder(backbone=backbone, head="none", size=size, name=name).eval()
    vectors = []
    import torch

    with torch.inference_mode():
        for start in range(0, len(images), 64):
            batch = np.stack([_enlarged(image, size) for image in images[start : start + 64]])
            vectors.append(encoder(encoder.preprocessing.tensor(batch)).numpy())
    ids = np.arange(len(images)).astype(np.str_)
    return Embeddings(ids, np.concatenate(vectors), encoder.space, {"labels": labels}).normalised()


def _enlarged(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC))


def _found(case: str, arm: str, queries: Embeddings, gallery: Embeddings) -> Row:
    assert queries.labels is not None
    values = average_precisions(unit(queries.vectors), gallery.vectors, queries.labels, "cosine")
    return Row("ensemble", case, arm, score=float(values.mean()))


# ---- one run ------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the .npz files")
    parser.add_argument(
        "--part",
        choices=("retention", "rbt", "chance", "text", "speed", "auto", "ensemble"),
        action="append",
    )
    parser.add_argument("--splits", type=int, default=3, help="of the classes, in retention")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "retention": lambda: retention(
            given.data / "flowers-efficientnet-lite0.npz",
            given.data / "flowers-efficientnet-lite2.npz",
            part="retention",
            splits=given.splits,
        ),
        "rbt": lambda: rbt_arms(
            given.data / "flowers-efficientnet-lite0.npz",
            given.data / "flowers-efficientnet-lite2.npz",
        ),
        "chance": lambda: retention(
            given.data / "flowers-efficientnet-lite0.npz",
            given.data / "flowers-efficientnet-lite2.npz",
            part="chance",
            splits=given.splits,
            sizes=(),
        ),
        "text": lambda: retention(
            given.data / "docstrings-wordllama.npz",
            given.data / "docstrings-minilm.npz",
            part="text",
            splits=given.splits,
        ),
        "speed": speed,
        "auto": lambda: auto_seconds(
            given.data / "flowers-efficientnet-lite0.npz",
            given.data / "flowers-efficientnet-lite2.npz",
        ),
        "ensemble": lambda: ensemble(given.data),
    }
    chosen = given.part or ["retention", "speed", "ensemble"]
    rows = _other_parts(given.out, chosen)
    for part in chosen:
        for row in parts[part]():
            rows.append({key: _short(value) for key, value in asdict(row).items()})
            print(" | ".join(str(value) for value in rows[-1].values() if value != ""), flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _other_parts(path: Path, chosen: list[str]) -> list[dict[str, Any]]:
    """Rows of parts that are not run now stay as they are."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [dict(row) for row in csv.DictReader(file) if row["part"] not in chosen]


def _short(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
