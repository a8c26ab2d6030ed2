from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.evaluation.protocols.ijbs import IJBS
from midspan.evaluation.templates import inverse_variance_fusion
from midspan.spaces import Embeddings, Space


def vectors(angles: list[float], **columns: Any) -> Embeddings:
    radians = np.deg2rad(angles)
    return Embeddings(
        ids=np.array([f"{number:03d}" for number in range(len(angles))]),
        vectors=np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32),
        space=Space("faces", 2),
        columns={name: np.array(values) for name, values in columns.items()},
    )


GALLERY = vectors([0, 90, 180, 270], labels=["a", "b", "c", "d"])


def test_ranks_by_hand() -> None:
    # a is nearest to a; b (at 20) is nearest to a, then b; d (at 100) is last but one.
    probes = vectors([10, 20, 100], labels=["a", "b", "d"])
    result = IJBS().evaluate(probes, GALLERY, metrics=["rank@1", "rank@2", "rank@4"])
    assert result.metrics == {
        "rank@1": pytest.approx(1 / 3),
        "rank@2": pytest.approx(2 / 3),
        "rank@4": 1.0,
    }
    assert result.per_query["rank@1"].tolist() == [1, 0, 0]
    assert (result.n_queries, result.n_gallery) == (3, 4)


def test_a_template_is_the_plain_mean_of_its_frames() -> None:
    """Nine frames at 80 degrees and one at 0: the mean is at 73.6, a medium would count half."""
    probes = vectors(
        [80.0] * 9 + [0.0], labels=["b"] * 10, templates=["track"] * 10, media=[1] * 9 + [2]
    )
    result = IJBS().evaluate(probes, GALLERY, metrics=["rank@1"])
    assert result.metrics["rank@1"] == 1
    assert result.n_queries == 1
    even = vectors([80, 0], labels=["b"] * 2, templates=["track"] * 2)
    assert IJBS().evaluate(even, GALLERY, metrics=["rank@1"]).metrics["rank@1"] == 0


def test_fusion_trusts_the_certain_frame() -> None:
    probes = vectors([80, 0], labels=["b"] * 2, templates=["track"] * 2, variances=[[0.1], [10.0]])
    fused = IJBS(fusion=inverse_variance_fusion)
    gallery = GALLERY.with_columns({"variances": np.ones((4, 1))})
    assert fused.evaluate(probes, gallery, metrics=["rank@1"]).metrics["rank@1"] == 1


def test_open_set_needs_a_score_at_the_threshold() -> None:
    # Non-mated probes: x is 5 degrees off, y 30 degrees. Mated: a 3 degrees, b 20 degrees.
    probes = vectors([5, 120, 3, 70], labels=["x", "y", "a", "b"])
    result = IJBS().evaluate(probes, GALLERY, metrics=["tpir@0.1", "tpir@0.5", "tpir@1"])
    # k = 0: above cos 5; k = 1: at least cos 5; k = 2: at least cos 30.
    assert list(result.metrics.values()) == [0.5, 0.5, 1.0]
    np.testing.assert_array_equal(result.per_query["tpir@0.1"], [np.nan, np.nan, 1, 0])


def test_two_galleries_make_each_others_strangers() -> None:
    """Every probe is mated; only the split gives non-mated ones."""
    probes = vectors([1, 95, 170, 290], labels=["a", "b", "c", "d"])
    with pytest.raises(EvaluationError, match="none of the 4 probes is non-mated"):
        IJBS().evaluate(probes, GALLERY, metrics=["tpir@0.5"])
    gallery = GALLERY.with_columns({"galleries": np.array(["G1", "G1", "G2", "G2"])})
    result = IJBS().evaluate(probes, gallery, metrics=["rank@1", "tpir@0.5"])
    assert result.metrics["rank@1"] == 1  # over all four
    # G1: strangers c (80 degrees off b) and d (70 off a); k = 1: at least cos 70: a and b are in.
    # G2: strangers a (89 off d: cos > 0) and b (85 off c); k = 1: cos 85: c and d are in.
    assert result.metrics["tpir@0.5"] == 1
    far = vectors([1, 15, 170, 290], labels=["a", "b", "c", "d"])  # b looks like a
    result = IJBS().evaluate(far, gallery, metrics=["rank@1", "tpir@0.5"])
    assert result.metrics == {"rank@1": 0.75, "tpir@0.5": 0.75}  # (1/2 + 1) / 2
    assert result.n_gallery == 4


def test_what_cannot_be_answered_is_refused() -> None:
    probes = vectors([1, 2], labels=["a", "b"], templates=["t", "t"])
    with pytest.raises(EvaluationError, match="template t holds images of a and of b"):
        IJBS().evaluate(probes, GALLERY)
    with pytest.raises(EvaluationError, match="expected probes and a gallery"):
        IJBS().evaluate(probes, None)
    with pytest.raises(EvaluationError, match="no column 'labels'; they have none"):
        IJBS().evaluate(vectors([1]), GALLERY)
    with pytest.raises(EvaluationError, match="no column 'variances'"):
        IJBS(fusion=inverse_variance_fusion).evaluate(probes, GALLERY)
    with pytest.raises(EvaluationError, match="ijbs has no metric 'map'"):
        IJBS().evaluate(vectors([1], labels=["a"]), GALLERY, metrics=["map"])
