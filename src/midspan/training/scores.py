"""The test at the end of a run: on classes that no encoder has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midspan.bridges import Bridge
from midspan.encoders import Encoder
from midspan.errors import DataError
from midspan.evaluation import evaluate
from midspan.spaces import Embeddings
from midspan.training.inputs import Items
from midspan.training.old import OldModel
from midspan.training.settings import RunConfig


def check_old_labels(config: RunConfig, test: Items | None, old: OldModel | None) -> None:
    """Before the training: what would fail after it, since old vectors are judged by their labels.

    Old vectors that the test items have no part in are not judged at all.
    """
    if test is None or not config.evaluate.metrics or old is None or old.stored is None:
        return
    if old.stored.labels is None and {*test.ids.tolist()} <= {*old.stored.ids.tolist()}:
        assert config.old is not None
        raise DataError(
            f"{config.old.embeddings} has no column 'labels', by which old vectors are judged at "
            "the end of the run; add the labels of its images, or leave the test out with "
            "[evaluate] metrics = []"
        )


def scores(
    config: RunConfig,
    test: Items | None,
    encoder: Encoder,
    old: OldModel | None,
    bridges: Mapping[str, Bridge],
    *,
    show_progress: bool,
) -> dict[str, Any]:
    """Self of the new encoder, cross and self of the old one, on classes none of them has seen."""
    if test is None:
        return {"scores": {}, "note": "no test split: nothing was evaluated"}
    wanted = config.evaluate
    if not wanted.metrics:
        return {"scores": {}, "note": "[evaluate] metrics = []: nothing was evaluated"}
    new = encoder.embed(test, progress=show_progress)

    def score(query: Embeddings, gallery: Embeddings | None) -> dict[str, float]:
        result = evaluate(
            query,
            gallery,
            metrics=wanted.metrics,
            exclude_column=wanted.exclude_column,
            direct=True,  # measuring an incompatible pair is the point of the cross test
        )
        return {metric: result.mean(metric) for metric in wanted.metrics}

    detail = {"self": score(new, None)}
    note = None
    if old is not None:
        try:
            stored = old.embed(test, show_progress=show_progress)
        except DataError as error:
            note = f"no cross test: {error}"
        else:
            detail["old_self"] = score(stored, None)
            if bridges:  # such an encoder is not meant to be compared as it is
                detail["cross_backward"] = score(bridges["backward"].transform(new), stored)
                detail["cross_forward"] = score(new, bridges["forward"].transform(stored))
            elif stored.space.dim == new.space.dim:
                detail["cross"] = score(new, stored)
            else:
                note = f"no direct cross test: old dim {stored.space.dim}, new {new.space.dim}"
    first = wanted.metrics[0]
    by_name = {name: values[first] for name, values in detail.items()}
    cross = {name: value for name, value in by_name.items() if name.startswith("cross")}
    best = max(cross, key=lambda name: cross[name]) if cross else None
    return {
        "test_items": len(new),
        "metric": first,
        "scores": {**by_name, "cross_best": by_name[best]} if best else by_name,
        "detail": detail,
        **({"best_cross": best} if best else {}),
        **({"note": note} if note else {}),
    }
