from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midspan.errors import EvaluationError, FormatError, UnknownId
from midspan.evaluation.protocols.gldv2 import GLDv2, average_precision, load_ids, load_solution
from midspan.spaces import Embeddings, Space

INDEX = {"a0": 0.0, "a1": 10.0, "b0": 20.0, "b1": 90.0, "c0": 180.0}
TEST = {"q0": 1.0, "q1": 21.0, "q2": 181.0, "q3": 45.0}
SOLUTION = """id,images,Usage
q0,a0 a1,Public
q1,b0 b1,Private
q2,c0 zz,Private
q3,None,Ignored
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "retrieval_solution_v2.1.csv").write_text(SOLUTION)
    (tmp_path / "index.csv").write_text("id\n" + "\n".join(INDEX))
    (tmp_path / "test.csv").write_text("id\n" + "\n".join(TEST))
    return tmp_path


def landmarks(angles: dict[str, float]) -> Embeddings:
    radians = np.deg2rad(list(angles.values()))
    vectors = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
    return Embeddings(np.array(list(angles)), vectors, Space("a", 2))


# ---- the published definition -------------------------------------------------------------------


def test_the_micro_examples() -> None:
    assert average_precision(["a", "x", "b"], frozenset("abc")) == pytest.approx(0.5556, abs=5e-5)
    assert average_precision(["a", "a", "b"], frozenset("ab")) == pytest.approx(0.8333, abs=5e-5)


def test_more_relevant_images_than_places() -> None:
    relevant = frozenset(f"r{number}" for number in range(250))
    ranked = [f"r{number}" for number in range(250)]
    assert average_precision(ranked, relevant) == pytest.approx(1.0)
    assert average_precision(ranked[:50], relevant) == 0.5
    assert average_precision([], relevant) == 0
    assert average_precision(["x"] * 100 + ["r0"], frozenset(["r0"])) == 0  # beyond the hundredth


@given(
    ranked=st.lists(st.sampled_from("abcdef"), max_size=12),
    relevant=st.frozensets(st.sampled_from("abc"), min_size=1),
    depth=st.integers(1, 12),
)
def test_average_precision_equals_the_formula(
    ranked: list[str], relevant: frozenset[str], depth: int
) -> None:
    total = 0.0
    for i in range(1, min(len(ranked), depth) + 1):
        rel = ranked[i - 1] in relevant and ranked[i - 1] not in ranked[: i - 1]
        total += rel * len(set(ranked[:i]) & relevant) / i
    expected = total / min(len(relevant), depth)
    assert average_precision(ranked, relevant, depth=depth) == pytest.approx(expected)


# ---- files --------------------------------------------------------------------------------------


def test_the_files_are_read_as_published(root: Path) -> None:
    solution = load_solution(root)
    assert solution.queries.tolist() == ["q0", "q1", "q2"]
    assert solution.relevant[0] == {"a0", "a1"}
    assert solution.usage.tolist() == ["public", "private", "private"]
    assert load_ids(root, "index.csv").tolist() == list(INDEX)
    assert load_ids(root, "test.csv").tolist() == list(TEST)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,images\nq0,a0\n", "expected the columns id, images, Usage"),
        (
            "id,images,Usage\nq0,a0,Secret\n",
            ":2: expected Usage Public, Private or Ignored, got 'Secret'",
        ),
        ("id,images,Usage\nq0,a0,Public\nq0,a1,Public\n", ":3: query 'q0' is listed twice"),
        ("id,images,Usage\nq0,None,Public\n", ":2: query 'q0' is scored but has no images"),
        ("id,images,Usage\nq0,,Private\n", "scored but has no images"),
        ("id,images,Usage\nq0,None,Ignored\n", "has no Public or Private query"),
        ("id,images,Usage\nq0,../a,Public\n", "not a path below"),
        ("id,images,Usage\nq0,a0\n", ":2: 2 fields, the first line has 3"),
    ],
)
def test_broken_solutions_are_refused(root: Path, text: str, message: str) -> None:
    (root / "retrieval_solution_v2.1.csv").write_text(text)
    with pytest.raises(FormatError, match=message):
        load_solution(root)


def test_an_empty_index_is_refused(root: Path) -> None:
    (root / "index.csv").write_text("id\n")
    with pytest.raises(FormatError, match="lists no image"):
        load_ids(root, "index.csv")
    with pytest.raises(FormatError, match=r"no file train\.csv"):
        load_ids(root, "train.csv")


# ---- the whole ----------------------------------------------------------------------------------


def test_public_and_private_by_hand(root: Path) -> None:
    result = GLDv2(root=root).evaluate(landmarks(TEST), landmarks(INDEX))
    # q0 at 1: a0 a1 b0 …, both right: 1. q1 at 21: b0 a1 a0 b1: (1 + 2/4) / 2.
    # q2 at 181: c0 first; zz is not in the index but counts in n: 1/2.
    assert result.metrics["public:map@100"] == pytest.approx(1.0)
    assert result.metrics["private:map@100"] == pytest.approx((0.75 + 0.5) / 2)
    np.testing.assert_allclose(result.per_query["private:map@100"], [np.nan, 0.75, 0.5])
    assert (result.n_queries, result.n_gallery) == (3, 5)


def test_one_set_may_hold_both_and_more(root: Path) -> None:
    together = landmarks({**INDEX, **TEST, "train0": 1.0})
    result = GLDv2(root=root).evaluate(together, metrics=["map@100", "public:map@1"])
    assert result.metrics == {
        "public:map@100": pytest.approx(1.0),
        "private:map@100": pytest.approx(0.625),
        "public:map@1": 1.0,
    }
    assert result.n_gallery == 5


def test_missing_queries_count_zero_if_they_are_expected(root: Path) -> None:
    fewer = landmarks({"q0": 1.0, "q1": 21.0})
    with pytest.raises(UnknownId, match=r"first 'q2'.* skip_missing=True to count them 0"):
        GLDv2(root=root).evaluate(fewer, landmarks(INDEX))
    result = GLDv2(root=root, skip_missing=True).evaluate(fewer, landmarks(INDEX))
    assert result.metrics["private:map@100"] == pytest.approx(0.75 / 2)
    without = {name: angle for name, angle in INDEX.items() if name != "a0"}
    with pytest.raises(UnknownId, match="search without them"):
        GLDv2(root=root).evaluate(landmarks(TEST), landmarks(without))
    result = GLDv2(root=root, skip_missing=True).evaluate(landmarks(TEST), landmarks(without))
    assert result.metrics["public:map@100"] == pytest.approx(0.5)


def test_unknown_metrics_are_refused(root: Path) -> None:
    for name, message in (
        ("map", "gldv2 has no metric 'map'"),
        ("map@0", "at least 1"),
        ("map@1.5", "whole K of at least 1"),
        ("secret:map@100", "use public, private"),
    ):
        with pytest.raises(EvaluationError, match=message):
            GLDv2(root=root).evaluate(landmarks(TEST), landmarks(INDEX), metrics=[name])
    (root / "retrieval_solution_v2.1.csv").write_text("id,images,Usage\nq0,a0,Private\n")
    with pytest.raises(EvaluationError, match="public:map@100: none of the 1 queries"):
        GLDv2(root=root).evaluate(landmarks(TEST), landmarks(INDEX))
