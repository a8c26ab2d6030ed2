from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import EvaluationError, FormatError
from midspan.evaluation.protocols.market1501 import Market1501, load
from midspan.spaces import Embeddings, Space

# name, angle; the query of person 2 in camera 1 stands at 0 degrees
QUERY = {"0002_c1s1_000451_03.jpg": 0.0, "0007_c3s2_000100_01.jpg": 180.0}
TEST = {
    "0002_c1s1_000476_01.jpg": 1.0,  # same person, same camera: taken out
    "-1_c2s1_000401_03.jpg": 2.0,  # junk: dropped
    "0000_c2s1_000151_01.jpg": 5.0,  # distractor: stays, first for person 2
    "0002_c4s1_000501_01.jpg": 10.0,  # right, second
    "0007_c1s1_000001_01.jpg": 20.0,  # third; right for person 7, far away
    "0002_c2s3_000776_02.jpg": 30.0,  # right, fourth
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder, names in (
        ("query", QUERY),
        ("bounding_box_test", TEST),
        ("bounding_box_train", ["0001_c1s1_000001_00.jpg"]),
    ):
        (tmp_path / folder).mkdir()
        for name in [*names, "Thumbs.db"]:
            (tmp_path / folder / name).write_bytes(b"")
    return tmp_path


def persons(names: dict[str, float], folder: str, space: str = "a") -> Embeddings:
    angles = np.deg2rad(list(names.values()))
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    return Embeddings(np.array([f"{folder}/{n}" for n in names]), vectors, Space(space, 2))


def everything() -> Embeddings:
    return persons(QUERY, "query").joined_with(persons(TEST, "bounding_box_test"))


def test_persons_and_cameras_are_read_from_the_names(root: Path) -> None:
    loaded = load(root)
    assert loaded.query.ids.tolist() == [f"query/{name}" for name in sorted(QUERY)]
    assert loaded.query.columns["labels"].tolist() == [2, 7]
    assert loaded.query.columns["cameras"].tolist() == [1, 3]
    assert len(loaded.gallery) == 5  # without junk
    assert sorted(loaded.gallery.columns["labels"].tolist()) == [0, 2, 2, 2, 7]
    assert len(loaded.train) == 1


def test_both_average_precisions_by_hand(root: Path) -> None:
    metrics = ["map", "map_trapezoid", "recall@1", "recall@2", "recall@5"]
    result = Market1501(root=root).evaluate(everything(), metrics=metrics)
    # Person 2: wrong, right, wrong, right. Person 7 (at 180 degrees) sees the test images from 30
    # down to 0: wrong, right.
    plain = (1 / 2 + 2 / 4) / 2, 1 / 2
    trapezoid = ((0 + 1 / 2) / 2 + (1 / 3 + 2 / 4) / 2) / 2, (0 + 1 / 2) / 2
    np.testing.assert_allclose(result.per_query["map"], plain)
    np.testing.assert_allclose(result.per_query["map_trapezoid"], trapezoid)
    assert result.metrics["map"] == pytest.approx(np.mean(plain))
    assert [result.metrics[f"recall@{k}"] for k in (1, 2, 5)] == [0, 1, 1]
    assert (result.n_queries, result.n_gallery) == (2, 5)


def test_columns_alone_do_as_well_and_drop_the_junk(root: Path) -> None:
    listed = load(root)
    query = listed.query.of(everything())
    gallery = persons(TEST, "bounding_box_test").with_columns(
        {
            "labels": np.array([int(name.split("_")[0]) for name in TEST]),
            "cameras": np.array([int(name.split("_c")[1][0]) for name in TEST]),
        }
    )
    by_columns = Market1501().evaluate(query, gallery)
    assert by_columns.n_gallery == 5
    by_root = Market1501(root=root).evaluate(everything())
    assert by_columns.metrics == by_root.metrics
    assert list(by_root.metrics) == ["map", "recall@1", "recall@5", "recall@10"]
    as_text = {"labels": np.array([name.split("_")[0] for name in TEST])}
    query_text = query.with_columns({"labels": np.array(["0002", "0007"])})
    texts = Market1501().evaluate(query_text, gallery.with_columns(as_text))
    assert texts.metrics == by_root.metrics


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_galleries_equal_loops(data: st.DataObject) -> None:
    """Points on a line, queries at 0; few places, so that ties (by id) are the rule."""
    cameras, places = st.integers(1, 3), st.integers(1, 8)
    gallery = data.draw(
        st.lists(st.tuples(st.integers(-1, 3), cameras, places), min_size=1, max_size=12)
    )
    query = data.draw(
        st.lists(st.tuples(st.integers(1, 3), cameras, st.just(0)), min_size=1, max_size=4)
    )
    expected: list[float] = []
    for person, camera, _ in query:
        kept = [
            (place, row, who == person)
            for row, (who, cam, place) in enumerate(gallery)
            if who != -1 and not (who == person and cam == camera)
        ]
        hits, precisions = 0, []
        for rank, (_, _, right) in enumerate(sorted(kept), start=1):
            if right:
                hits += 1
                precisions.append(hits / rank)
        expected.append(float(np.mean(precisions)) if precisions else np.nan)

    def embed(rows: list[tuple[int, int, int]], kind: str) -> Embeddings:
        points = np.array([[float(place)] for *_, place in rows], dtype=np.float32)
        return Embeddings(
            np.array([f"{kind}{row:03d}" for row in range(len(rows))]),
            points,
            Space("line", 1, metric="l2"),
            {
                "labels": np.array([who for who, *_ in rows]),
                "cameras": np.array([cam for _, cam, _ in rows]),
            },
        )

    junk_only = all(who == -1 for who, *_ in gallery)
    if junk_only or np.isnan(expected).all():
        with pytest.raises(EvaluationError):
            Market1501().evaluate(embed(query, "q"), embed(gallery, "g"))
        return
    result = Market1501().evaluate(embed(query, "q"), embed(gallery, "g"), metrics=["map"])
    np.testing.assert_allclose(result.per_query["map"], expected)
    assert result.metrics["map"] == pytest.approx(np.nanmean(expected))


@pytest.mark.parametrize("name", ["2_c1s1_000451_03.jpg", "0002_s1_000451_03.jpg", "portrait.jpg"])
def test_odd_names_are_refused(root: Path, name: str) -> None:
    (root / "query" / name).write_bytes(b"")
    with pytest.raises(FormatError, match=r"expected a name like 0002_c1s1_000451_03\.jpg"):
        load(root)


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="has no folder bounding_box_train"):
        load(tmp_path / "elsewhere")
    with pytest.raises(EvaluationError, match="expected queries and a gallery"):
        Market1501().evaluate(everything())
    listed = load(root)
    query, gallery = listed.query.of(everything()), listed.gallery.of(everything())
    with pytest.raises(EvaluationError, match="are query and gallery exchanged"):
        Market1501().evaluate(gallery, query)
    with pytest.raises(EvaluationError, match="'cameras'"):
        Market1501().evaluate(
            persons(QUERY, "query").with_columns({"labels": np.array([2, 7])}), gallery
        )
    named = query.with_columns({"labels": np.array(["ann", "bob"])})
    with pytest.raises(EvaluationError, match="persons as whole numbers, got the label 'ann'"):
        Market1501().evaluate(named, gallery)
