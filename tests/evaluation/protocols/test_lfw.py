from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import EvaluationError, FormatError, SpaceMismatch, UnknownId
from midspan.evaluation.protocols.lfw import LFW, load
from midspan.spaces import Embeddings, Space

TINY = """2\t2
Ann\t1\t2
Bob\t1\t3
Ann\t1\tBob\t1
Ann\t2\tCyd\t10
Cyd\t10\t11
Bob\t1\t2
Bob\t3\tCyd\t11
Ann\t1\tCyd\t11
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pairs.txt").write_text(TINY)
    return tmp_path


def faces(angles: dict[str, float], *, name: str = "old", scale: float = 1.0) -> Embeddings:
    radians = np.deg2rad(list(angles.values()))
    vectors = scale * np.stack([np.cos(radians), np.sin(radians)], axis=1)
    ids = [f"{key[:-2]}/{key[:-2]}_00{key[-2:]}.jpg" for key in angles]
    return Embeddings(ids=np.array(ids), vectors=vectors.astype(np.float32), space=Space(name, 2))


GOOD: dict[str, float] = {
    "Ann01": 0,
    "Ann02": 5,
    "Bob01": 90,
    "Bob02": 92,
    "Bob03": 85,
    "Cyd10": 200,
    "Cyd11": 207,
}


def test_the_list_is_read_as_published(root: Path) -> None:
    pairs = load(root)
    assert pairs.left[:3].tolist() == ["Ann/Ann_0001.jpg", "Bob/Bob_0001.jpg", "Ann/Ann_0001.jpg"]
    assert pairs.right[3] == "Cyd/Cyd_0010.jpg"
    assert pairs.same.tolist() == [True, True, False, False] * 2
    assert pairs.fold.tolist() == [0] * 4 + [1] * 4


def test_separate_people_are_told_apart(root: Path) -> None:
    result = LFW(root=root).evaluate(faces(GOOD), metrics=["accuracy", "accuracy_std", "eer"])
    assert result.metrics == {"accuracy": 1.0, "accuracy_std": 0.0, "eer": 0.0}
    assert result.per_query["accuracy"].tolist() == [1.0] * 8
    assert (result.n_queries, result.n_gallery) == (8, 6)


def test_one_confusing_image_costs_a_pair_in_each_fold(root: Path) -> None:
    confused = {**GOOD, "Cyd10": 9.0}  # looks like Ann 2, unlike Cyd 11
    result = LFW(root=root).evaluate(
        faces(confused), metrics=["accuracy", "accuracy_std", "tar@0", "tar@0.5"]
    )
    # Angles, fold 0: same 5 and 5, different 90 and 4. Fold 1: same 162 and 2, different 122, 153.
    # Best on fold 1: accept 2 only, so on fold 0 the impostor at 4 is accepted.
    # Best on fold 0: accept 4, 5 and 5, so on fold 1 the genuine pair at 162 is rejected.
    assert result.per_query["accuracy"].tolist() == [1, 1, 1, 0, 0, 1, 1, 1]
    assert result.metrics["accuracy"] == 0.75
    assert result.metrics["accuracy_std"] == 0
    assert result.metrics["tar@0"] == 0.25  # only 2 is nearer than the impostor at 4
    assert result.metrics["tar@0.5"] == 0.75
    assert result.per_query["tar@0.5"].tolist() == [1, 1, 0, 1]


def test_the_length_of_vectors_does_not_matter(root: Path) -> None:
    short = LFW(root=root).evaluate(faces(GOOD, scale=0.01))
    assert short.metrics["accuracy"] == 1.0


def test_the_second_image_comes_from_the_gallery(root: Path) -> None:
    """The old encoder's space is the mirror image: each alone is perfect, the cross test is not."""
    mirrored = faces({key: -angle for key, angle in GOOD.items()}, name="mirrored")
    assert LFW(root=root).evaluate(mirrored).metrics["accuracy"] == 1.0
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        LFW(root=root).evaluate(faces(GOOD), mirrored)
    cross = LFW(root=root).evaluate(faces(GOOD), mirrored, direct=True)
    assert cross.metrics["accuracy"] < 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10\n", "pairs.txt:1: expected the numbers of folds"),
        ("", "expected the numbers of folds"),
        ("a b\n", "expected a whole number, got 'a'"),
        ("1 1\nAnn 1 2\nAnn 1\n", "pairs.txt:3: expected 'name n n'"),
        ("1 1\nAnn 1 x\nAnn 1 Bob 1\n", "pairs.txt:2: expected a whole number"),
        ("1 1\nAnn 1 2\n", "announces 1 folds of 1 same"),
        ("1 1\nAnn 1 Bob 1\nAnn 1 2\n", "announces 1 folds"),
        ("0 300\n", "announces 0 folds"),
        ("1 1\n../x 1 2\nAnn 1 Bob 1\n", "not a path below"),
    ],
)
def test_broken_lists_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(FormatError, match=message):
        load(tmp_path)


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownId, match=r"Cyd/Cyd_0011\.jpg"):
        LFW(root=root).evaluate(faces({k: v for k, v in GOOD.items() if k != "Cyd11"}))
    with pytest.raises(FormatError, match=r"has no file pairs\.txt"):
        load(tmp_path / "elsewhere")
    with pytest.raises(EvaluationError, match="lfw has no metric 'map'; it has accuracy, acc"):
        LFW(root=root).evaluate(faces(GOOD), metrics=["map"])
    with pytest.raises(EvaluationError, match="lfw has no metric 'tar@low'"):
        LFW(root=root).evaluate(faces(GOOD), metrics=["tar@low"])
    flat = Embeddings(
        ids=faces(GOOD).ids, vectors=faces(GOOD).vectors, space=Space("flat", 2, metric="l2")
    )
    with pytest.raises(EvaluationError, match="compares by cosine"):
        LFW(root=root).evaluate(flat)
