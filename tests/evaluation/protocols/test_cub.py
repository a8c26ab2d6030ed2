from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import FormatError
from midspan.evaluation.protocols.cub import CUB, load
from midspan.spaces import Embeddings, Space

BIRDS = [
    (1, "001.Albatross/A_1.jpg", 1, 3.0),
    (2, "100.Pelican/P_1.jpg", 100, 4.0),
    (3, "101.White_Pelican/W_1.jpg", 101, 0.0),
    (4, "101.White_Pelican/W_2.jpg", 101, 10.0),
    (5, "200.Yellowthroat/Y_1.jpg", 200, 14.0),
    (6, "200.Yellowthroat/Y_2.jpg", 200, 90.0),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "images.txt").write_text("".join(f"{n} {p}\n" for n, p, _, _ in BIRDS))
    labels = "".join(f"{n} {label}\n" for n, _, label, _ in reversed(BIRDS))
    (tmp_path / "image_class_labels.txt").write_text(labels)
    return tmp_path


def birds() -> Embeddings:
    angles = np.deg2rad([angle for *_, angle in BIRDS])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Embeddings(np.array([path for _, path, _, _ in BIRDS]), vectors, Space("a", 2))


def test_the_first_hundred_classes_train_the_last_hundred_test(root: Path) -> None:
    loaded = load(root)
    assert loaded.train.ids.tolist() == ["001.Albatross/A_1.jpg", "100.Pelican/P_1.jpg"]
    assert loaded.test.columns["labels"].tolist() == [101, 101, 200, 200]


def test_recall_over_the_test_half_by_hand(root: Path) -> None:
    # 0 10 | 14 90: the training birds at 3 and 4 degrees are no part of it.
    result = CUB(root=root).evaluate(birds())
    assert list(result.metrics) == ["recall@1", "recall@2", "recall@4", "recall@8"]
    assert list(result.metrics.values()) == [0.5, 0.75, 1.0, 1.0]
    assert (result.n_queries, result.n_gallery) == (4, 4)
    same = CUB().evaluate(load(root).test.of(birds()), metrics=["recall@1"])
    assert same.metrics == {"recall@1": 0.5}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("images.txt", "1\n", ":1: expected 'number path'"),
        ("images.txt", "x a.jpg\n", ":1: expected a whole number"),
        ("images.txt", "1 /a.jpg\n", "not a path below"),
        ("images.txt", "77 a.jpg\n", "image 77 has no class in image_class_labels.txt"),
        ("images.txt", "1 001.A/a.jpg\n", "lists nothing"),
        ("image_class_labels.txt", "1 one\n", ":1: expected a whole number"),
    ],
)
def test_broken_lists_are_refused(root: Path, name: str, text: str, message: str) -> None:
    (root / name).write_text(text)
    with pytest.raises(FormatError, match=message):
        load(root)


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"has no file images\.txt"):
        load(tmp_path)
