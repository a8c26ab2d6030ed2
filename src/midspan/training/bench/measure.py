"""What a benchmark measures of a trained encoder, kept as bench.json in its run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from midspan.atomic_write import write_text
from midspan.data import ImageSet
from midspan.encoders import Encoder, load_embedder, load_encoder
from midspan.encoders.runtimes import Runtime
from midspan.errors import DataError
from midspan.evaluation import backfill_curve, compatibility_matrix, evaluate
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.training.features import cached_features, embed_items
from midspan.training.inputs import Items, read_inputs
from midspan.training.maps import load_maps
from midspan.training.old import OldModel
from midspan.training.settings import OldSettings, RunConfig

MEASURED, HITS = "bench.json", "hits.npy"
HIT = "recall@1"  # flips are first hits lost and won
FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the backfill, as AdvBCT's evaluator


@dataclass(frozen=True)
class MeasureSpec:
    """What is measured; a run measured by other settings is measured again, not trained again."""

    metric: str
    exclude_column: str | None
    kind: str  # "old", "new" or "chain"

    def matches(self, folder: Path) -> bool:
        path = folder / MEASURED
        if not path.exists():
            return False
        return bool(json.loads(path.read_text(encoding="utf-8")).get("how") == asdict(self))


def measure(
    folder: Path, config: RunConfig, how: MeasureSpec, *, chain: Sequence[Path] = ()
) -> None:
    """Embed the test items, score them, and write the results."""
    inputs = read_inputs(config)
    test, whole = inputs.test, inputs.whole
    if test is None:
        raise DataError(
            "these images have no test split, so nothing can be measured; add a split, or judge "
            "by classes cut from the training classes with `validation`"
        )
    if how.exclude_column is not None and how.exclude_column not in test.columns:
        exclude = None
    else:
        exclude = how.exclude_column
    results: dict[str, Any]
    runtime = config.encoder.runtime
    if how.kind == "old":
        results = _old(folder, test, whole, how.metric, exclude)
    elif how.kind == "chain":
        results = _chain(chain, test, whole, how.metric, exclude, runtime=runtime)
    else:
        assert config.old is not None
        assert config.old.run is not None
        results = _new(
            folder,
            Path(config.old.run),
            test,
            whole,
            metric=how.metric,
            exclude=exclude,
            runtime=runtime,
        )
    document = {"how": asdict(how), "test_items": len(test), **results}
    write_text(folder / MEASURED, json.dumps(document, indent=1) + "\n")


def _old(
    folder: Path, test: Items, whole: Items | None, metric: str, exclude: str | None
) -> dict[str, Any]:
    """Self, its first hits for the flips of the others, and what random queries would find."""
    stored = _stored(folder, test, whole)
    own = evaluate(stored, metrics=_both(metric), exclude_column=exclude)
    np.save(folder / HITS, own.per_query[HIT])
    noise = np.random.default_rng(0).normal(size=stored.vectors.shape).astype(np.float32)
    random = Embeddings(stored.ids, noise, Space("random", stored.space.dim), stored.columns)
    drawn = evaluate(random, stored, metrics=[metric], exclude_column=exclude, direct=True)
    return {"self": own.mean(metric), "random_cross": drawn.mean(metric)}


def _new(
    folder: Path,
    old_folder: Path,
    test: Items,
    whole: Items | None,
    *,
    metric: str,
    exclude: str | None,
    runtime: Runtime,
) -> dict[str, Any]:
    """Self, cross in each available direction, flips and the backfill curve of the best."""
    new = _embedded(folder, test, whole, runtime=runtime)
    old = _stored(old_folder, test, whole)
    before = np.load(old_folder / HITS)
    order = np.random.default_rng(0).permutation(len(new))
    results: dict[str, dict[str, Any]] = {}
    for direction, (query, gallery, refreshed) in _sides(folder, old, new).items():
        if direction == "backward":  # no curve: a mixed gallery would need both spaces
            result = evaluate(
                query, gallery, metrics=_both(metric), exclude_column=exclude, direct=True
            )
            results[direction] = {"cross": result.mean(metric), **_flips(before, result.per_query)}
            continue
        # The ends of the curve are cross and self: nothing is searched twice.
        curve = backfill_curve(
            query=query,
            gallery_old=gallery,
            gallery_new=refreshed,
            order=order,
            metric=metric,
            fractions=FRACTIONS,
            before=before,
            exclude_column=exclude,
            direct=True,
        )
        results[direction] = {
            "cross": float(curve.values[0]),
            "self": float(curve.values[-1]),
            "negative_flips": float(curve.negative_flips[0]),
            "positive_flips": float(curve.positive_flips[0]),
            "curve": [float(value) for value in curve.values],
            "area": curve.area_trapezoid,
        }
    own = next((one["self"] for one in results.values() if "self" in one), None)
    if own is None:
        own = evaluate(new, metrics=[metric], exclude_column=exclude).mean(metric)
    return {"self": own, "directions": results}


def _chain(
    folders: Sequence[Path],
    test: Items,
    whole: Items | None,
    metric: str,
    exclude: str | None,
    *,
    runtime: Runtime,
) -> dict[str, Any]:
    if not folders:  # an encoder in the middle: the last one measures for all
        return {}
    vectors = [_embedded(folder, test, whole, runtime=runtime) for folder in folders]
    matrix = compatibility_matrix(vectors, metric=metric, exclude_column=exclude)
    below = [[float(value) for value in row[: at + 1]] for at, row in enumerate(matrix)]
    return {"matrix": below}


def _sides(
    folder: Path, old: Embeddings, new: Embeddings
) -> dict[str, tuple[Embeddings, Embeddings, Embeddings]]:
    """direction → (queries, old gallery as it is searched, new gallery)."""
    sides = {}
    if old.space.dim == new.space.dim:
        sides["direct"] = (new, old, new)
    elif (dims := new.space.prefix_for(old.space)) is not None:
        sides["direct"] = by_prefix(new, old, dims=dims)
    maps = load_maps(folder)
    if "forward" in maps:
        sides["forward"] = (new, maps["forward"].transform(old), new)
    if "backward" in maps:
        sides["backward"] = (maps["backward"].transform(new), old, new)
    return sides


def by_prefix(
    new: Embeddings, old: Embeddings, *, dims: int
) -> tuple[Embeddings, Embeddings, Embeddings]:
    """(queries, old gallery, new gallery) concatenated in dims + D dims of one space.

    A query is (its prefix, all of it), an old row (row, 0), a new row (0, row): the product with
    an old row is the cosine by the prefix, with a new row the cosine by all dims.
    """
    whole, cut = new.normalised().vectors, new.prefix(dims).vectors
    space = Space("prefix and whole", dims + new.space.dim)

    def placed(like: Embeddings, left: FloatArray, right: FloatArray) -> Embeddings:
        return Embeddings(like.ids, np.hstack([left, right]), space, like.columns)

    return (
        placed(new, cut, whole),
        placed(old, old.normalised().vectors, np.zeros_like(whole[:, : new.space.dim])),
        placed(new, np.zeros_like(cut), whole),
    )


def _embedded(folder: Path, test: Items, whole: Items | None, *, runtime: Runtime) -> Embeddings:
    """In the runtime of the run file; from the features of a frozen backbone if they are cached."""
    encoder = load_encoder(folder)
    assert isinstance(encoder, Encoder)  # run folders hold nothing else
    cached = isinstance(whole, ImageSet) and cached_features(encoder, whole, make=False)
    if cached or runtime == "torch" or not isinstance(test, ImageSet):
        return embed_items(encoder, test, whole=whole, show_progress=False)
    return load_embedder(folder, runtime=runtime).embed(test, progress=False)


def _stored(folder: Path, test: Items, whole: Items | None) -> Embeddings:
    old = OldModel.load(OldSettings(run=str(folder)))
    return old.embed(test, whole=whole, show_progress=False)


def _both(metric: str) -> list[str]:
    return list(dict.fromkeys([metric, HIT]))


def _flips(before: Any, per_query: Mapping[str, Any]) -> dict[str, float]:
    after = per_query[HIT]
    counted = np.isfinite(after)
    return {
        "negative_flips": float(((before == 1) & (after == 0))[counted].mean()),
        "positive_flips": float(((before == 0) & (after == 1))[counted].mean()),
    }
