from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.errors import FormatError, UnknownId
from midspan.evaluation.protocols.inshop import InShop, load
from midspan.spaces import Embeddings, Space

PHOTOS = [
    ("img/WOMEN/Tees/id_00000001/01_1_front.jpg", "id_00000001", "train", 1.0),
    ("img/WOMEN/Tees/id_00000002/01_1_front.jpg", "id_00000002", "query", 0.0),
    ("img/MEN/Denim/id_00000003/01_1_front.jpg", "id_00000003", "query", 60.0),
    ("img/WOMEN/Tees/id_00000002/02_1_back.jpg", "id_00000002", "gallery", 10.0),
    ("img/MEN/Denim/id_00000003/02_1_back.jpg", "id_00000003", "gallery", 90.0),
    ("img/MEN/Denim/id_00000004/02_1_back.jpg", "id_00000004", "gallery", 45.0),
]
HEADER = "6\nimage_name item_id evaluation_status\n"


@pytest.fixture(params=["", "Eval/"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / f"{request.param}list_eval_partition.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER + "".join(f"{p:<60} {i} {s}\n" for p, i, s, _ in PHOTOS))
    return tmp_path


def photos() -> Embeddings:
    angles = np.deg2rad([angle for *_, angle in PHOTOS])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Embeddings(np.array([path for path, *_ in PHOTOS]), vectors, Space("a", 2))


def test_the_list_is_read_as_published(root: Path) -> None:
    loaded = load(root)
    assert (len(loaded.train), len(loaded.query), len(loaded.gallery)) == (1, 2, 3)
    assert loaded.query.columns["labels"].tolist() == ["id_00000002", "id_00000003"]


def test_recall_by_hand(root: Path) -> None:
    # 0 → 10 right. 60 → 45 (another item), then 90.
    result = InShop(root=root).evaluate(photos(), metrics=["recall@1", "recall@2"])
    assert result.metrics == {"recall@1": 0.5, "recall@2": 1.0}
    assert (result.n_queries, result.n_gallery) == (2, 3)
    assert list(InShop(root=root).evaluate(photos()).metrics) == [
        "recall@1",
        "recall@10",
        "recall@20",
        "recall@30",
    ]


def test_two_sets_with_labels_do_as_well(root: Path) -> None:
    listed = load(root)
    query, gallery = listed.query.of(photos()), listed.gallery.of(photos())
    assert InShop().evaluate(query, gallery, metrics=["recall@1"]).metrics == {"recall@1": 0.5}
    apart = InShop(root=root).evaluate(photos()[:3], photos()[3:], metrics=["recall@1"])
    assert apart.metrics == {"recall@1": 0.5}
    with pytest.raises(UnknownId):
        InShop(root=root).evaluate(photos()[:3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "img/a.jpg id_1\n", ":3: expected 'image_name item_id evaluation_status'"),
        (HEADER + "img/a.jpg id_1 test\n", ":3: expected status train, query, gallery, got 'test'"),
        (HEADER + "../a.jpg id_1 train\n", "not a path below"),
        (HEADER + "img/a.jpg id_1 train\n", "lists nothing"),
    ],
)
def test_broken_lists_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list_eval_partition.txt").write_text(text)
    with pytest.raises(FormatError, match=message):
        load(tmp_path)
