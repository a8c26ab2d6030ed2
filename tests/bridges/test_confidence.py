from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Confidence, Ridge
from midspan.errors import RunError, SpaceMismatch
from midspan.spaces import Embeddings
from tests.bridges.worlds import embeddings, encoders, unit64


def uneven(count: int) -> tuple[Embeddings, Embeddings]:
    """A well-covered region and strangers far from it, which a fit cannot know."""
    rng = np.random.default_rng(0)
    strange = np.arange(count) % 8 == 0
    items = rng.standard_normal((count, 10))
    items[:, 5:] *= np.where(strange, 2.0, 0.05)[:, None]
    items[:, :5] *= np.where(strange, 0.3, 1.0)[:, None]
    bent = np.tanh(items @ rng.standard_normal((10, 40))) @ rng.standard_normal((40, 12))
    labels = strange.astype(int)
    return embeddings(items, "old", labels=labels), embeddings(bent, "new", labels=labels)


def test_predicts_where_the_bridge_errs() -> None:
    old, new = uneven(600)
    bridge = Ridge().fit(old[:400], new[:400])
    confidence = Confidence().fit(bridge, old[:400], new[:400])
    predicted = confidence.predict(old[400:])
    mapped = bridge.apply(old.vectors[400:])
    errors = 1.0 - np.sum(mapped * unit64(new.vectors[400:]), axis=1)
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, errors)]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.3
    assert confidence.quality_ > 0.3
    assert predicted.mean() == pytest.approx(errors.mean(), rel=0.6)


def test_the_most_doubtful_come_first() -> None:
    old, new = uneven(400)
    confidence = Confidence().fit(Ridge().fit(old, new), old, new)
    order = confidence.backfill_order(old)
    assert sorted(order.tolist()) == list(range(400))
    predicted = confidence.predict(old)[order]
    assert (np.diff(predicted) <= 0).all()


def test_without_anything_to_predict_the_quality_says_so() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((400, 6))
    target = vectors @ rng.standard_normal((6, 6)) + rng.standard_normal((400, 6))
    old = embeddings(vectors, "old", metric="l2")
    new = embeddings(target, "new", metric="l2")
    confidence = Confidence().fit(Ridge().fit(old, new), old, new)
    assert abs(confidence.quality_) < 0.25


def test_what_it_refuses() -> None:
    old, new = encoders(60)
    with pytest.raises(RunError, match="not fitted"):
        Confidence().predict(old)
    confidence = Confidence().fit(Ridge().fit(old, new), old, new)
    with pytest.raises(SpaceMismatch, match="swapped"):
        confidence.predict(new)
