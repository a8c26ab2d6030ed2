"""The test at the end of a run: on classes that no encoder has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from midspan.bridges import Bridge
from midspan.encoders import Encoder
from midspan.errors import DataError
from midspan.evaluation import bootstrap_ci, evaluate
from midspan.evaluation.scores import FloatArray64
from midspan.evidence import Evidence
from midspan.spaces import Embeddings
from midspan.training.features import embed_items
from midspan.training.inputs import Items
from midspan.training.old import OldModel
from midspan.training.settings import RunConfig


def scores(
    config: RunConfig,
    test: Items | None,
    encoder: Encoder,
    old: OldModel | None,
    bridges: Mapping[str, Bridge],
    *,
    whole: Items | None = None,
    prefix_dims: int | None = None,
    show_progress: bool,
) -> dict[str, Any]:
    """Self of the new encoder, cross and self of the old one, on classes none of them has seen.

    whole: the set that `test` is part of. prefix_dims: so many of the first dims of the new
    vectors were trained to be compared with the old ones.
    """
    settings = config.evaluate
    if test is None or not settings.metrics:
        why = "no test split" if test is None else "[evaluate] metrics = []"
        summary: dict[str, Any] = {"scores": {}, "note": f"{why}: nothing was evaluated"}
        if old is not None:
            summary["criterion"] = asdict(Evidence.missing(old.space.fingerprint, why=why))
        return summary
    new = embed_items(encoder, test, whole=whole, show_progress=show_progress)

    values: dict[str, FloatArray64] = {}  # per query, by the first metric

    def score(name: str, query: Embeddings, gallery: Embeddings | None) -> dict[str, float]:
        result = evaluate(
            query,
            gallery,
            metrics=settings.metrics,
            exclude_column=settings.exclude_column,
            direct=True,  # measuring an incompatible pair is the point of the cross test
        )
        if settings.metrics[0] in result.per_query:
            values[name] = result.per_query[settings.metrics[0]]
        return {metric: result.mean(metric) for metric in settings.metrics}

    detail = {"self": score("self", new, None)}
    note = None
    if old is not None:
        try:
            stored = old.embed(test, whole=whole, show_progress=show_progress)
        except DataError as error:
            note = f"no cross test: {error}"
        else:
            detail["old_self"] = score("old_self", stored, None)
            if bridges:  # such an encoder is not meant to be compared as it is
                backward, forward = bridges["backward"], bridges["forward"]
                detail["cross_backward"] = score("cross_backward", backward.transform(new), stored)
                detail["cross_forward"] = score("cross_forward", new, forward.transform(stored))
            elif stored.space.dim == new.space.dim:
                detail["cross"] = score("cross", new, stored)
            elif prefix_dims == stored.space.dim:
                detail["cross"] = score("cross", new.prefix(prefix_dims), stored)
            else:
                note = f"no direct cross test: old dim {stored.space.dim}, new {new.space.dim}"
    first = settings.metrics[0]
    by_name = {name: values[first] for name, values in detail.items()}
    cross = {name: value for name, value in by_name.items() if name.startswith("cross")}
    best = max(cross, key=lambda name: cross[name]) if cross else None
    criterion = None
    if old is not None:
        criterion = _criterion(config, old, values, best, items=new, note=note)
    return {
        "test_items": len(new),
        "metric": first,
        "scores": {**by_name, "cross_best": by_name[best]} if best else by_name,
        "detail": detail,
        **({"best_cross": best} if best else {}),
        **({"criterion": asdict(criterion)} if criterion else {}),
        **({"note": note} if note else {}),
    }


def _criterion(
    config: RunConfig,
    old: OldModel,
    values: Mapping[str, FloatArray64],
    best: str | None,
    *,
    items: Embeddings,
    note: str | None,
) -> Evidence:
    """Whether new queries search the old gallery better than old ones; over test queries."""
    if best is None or best not in values:
        why = note or f"{config.evaluate.metrics[0]} has no value for each query"
        return Evidence.missing(old.space.fingerprint, why=why)
    cross, own = values[best], values["old_self"]
    low, high = bootstrap_ci(cross, own, statistic=lambda c, o: c - o, seed=config.seed)
    classes = 0 if items.labels is None else len(np.unique(items.labels))
    held = "validation" if config.evaluate.validation else "test"
    return Evidence.measured(
        old=old.space.fingerprint,
        metric=config.evaluate.metrics[0] + ("" if best == "cross" else f" ({best})"),
        cross=float(np.nanmean(cross)),
        old_self=float(np.nanmean(own)),
        low=low,
        high=high,
        queries=int(np.isfinite(cross).sum()),
        data=f"{len(items):,} items of {classes:,} {held} classes of {config.data['name']}",
    )
