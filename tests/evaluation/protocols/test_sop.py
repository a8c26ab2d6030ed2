from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import FormatError, UnknownId
from midspan.evaluation.protocols.sop import SOP, load
from midspan.spaces import Embeddings, Space

HEADER = "image_id class_id super_class_id path\n"
TEST = [
    ("bicycle_final/1_0.JPG", 11319, 1, 0.0),
    ("bicycle_final/1_1.JPG", 11319, 1, 10.0),
    ("chair_final/2_0.JPG", 11320, 2, 14.0),
    ("chair_final/2_1.JPG", 11320, 2, 90.0),
    ("chair_final/3_0.JPG", 11321, 2, 200.0),  # a product of one image
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = [f"{n} {label} {group} {path}" for n, (path, label, group, _) in enumerate(TEST, 59552)]
    (tmp_path / "Ebay_test.txt").write_text(HEADER + "\n".join(rows) + "\n")
    (tmp_path / "Ebay_train.txt").write_text(HEADER + "1 1 1 bicycle_final/0_0.JPG\n")
    return tmp_path


def products(*, space: str = "a", turn: float = 0.0) -> Embeddings:
    """Given in another order than the list, with a training image among them."""
    named = {path: angle for path, _, _, angle in TEST} | {"bicycle_final/0_0.JPG": 5.0}
    angles = np.deg2rad([angle + turn for angle in named.values()])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Embeddings(np.array(list(named)), vectors, Space(space, 2))[::-1]


def test_the_lists_are_read_as_published(root: Path) -> None:
    loaded = load(root)
    assert loaded.train.ids.tolist() == ["bicycle_final/0_0.JPG"]
    assert loaded.test.ids.tolist() == [path for path, *_ in TEST]
    assert loaded.test.columns["labels"].tolist() == [11319, 11319, 11320, 11320, 11321]
    assert loaded.test.columns["groups"].tolist() == [1, 1, 2, 2, 2]


def test_recall_over_the_test_half_by_hand(root: Path) -> None:
    # Angles 0 10 | 14 90 | 200. First neighbours: 0→10 right, 10→14 wrong, 14→10 wrong, 90→14
    # right; second: 10→0 right, 14→0 wrong. The lone one has nothing to find and is left out.
    result = SOP(root=root).evaluate(products(), metrics=["recall@1", "recall@2", "recall@3"])
    assert result.metrics == {"recall@1": 0.5, "recall@2": 0.75, "recall@3": 1.0}
    assert (result.n_queries, result.n_gallery) == (5, 5)
    np.testing.assert_array_equal(result.per_query["recall@1"], [1, 0, 0, 1, np.nan])


def test_columns_alone_do_as_well(root: Path) -> None:
    listed = load(root).test.of(products())
    by_columns = SOP().evaluate(listed, metrics=["recall@1"])
    assert by_columns.metrics == SOP(root=root).evaluate(products(), metrics=["recall@1"]).metrics


def test_the_default_metrics_are_the_published_ones(root: Path) -> None:
    result = SOP(root=root).evaluate(products())
    assert list(result.metrics) == ["recall@1", "recall@10", "recall@100", "recall@1000"]


def test_the_cross_test_still_leaves_the_own_image_out(root: Path) -> None:
    """An old encoder that differs nowhere: the cross test equals the self test."""
    protocol = SOP(root=root)
    cross = protocol.evaluate(products(), products(space="b"), metrics=["recall@1"], direct=True)
    assert cross.metrics == {"recall@1": 0.5}
    turned = products(space="c", turn=-4.0)  # 14→10 and 10→6: the nearest to 14 is now itself, 10
    other = protocol.evaluate(products(), turned, metrics=["recall@1"], direct=True)
    assert other.per_query["recall@1"][0] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1 1 a.jpg\n", ":1: expected the header 'image_id class_id"),
        ("", "expected the header"),
        (HEADER + "1 1 a.jpg\n", ":2: expected 'image_id class_id super_class_id path'"),
        (HEADER + "1 x 1 a.jpg\n", ":2: expected a whole number, got 'x'"),
        (HEADER + "1 1 1 ../../a.jpg\n", ":2: the image '../../a.jpg' is not a path below"),
        (HEADER + "1 1 1 a.jpg\n2 1 1 a.jpg\n", "lists 'a.jpg' more than once"),
        (HEADER, "lists nothing"),
    ],
)
def test_broken_lists_are_refused(root: Path, text: str, message: str) -> None:
    (root / "Ebay_test.txt").write_text(text)
    with pytest.raises(FormatError, match=message):
        SOP(root=root).evaluate(products())


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownId, match=r"first 'bicycle_final/1_0\.JPG'"):
        SOP(root=root).evaluate(products()[:1])
    with pytest.raises(FormatError, match=r"has no file Ebay_test\.txt"):
        SOP(root=tmp_path / "elsewhere").evaluate(products())
