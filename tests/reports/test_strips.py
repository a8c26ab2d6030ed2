from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.reports.strips import Album, first_results, labels_of, pick_queries
from midspan.spaces import Embeddings, Space
from tests.reports.demo_results import embeddings, vectors


def test_first_results_exclude_the_query() -> None:
    rng = np.random.default_rng(0)
    gallery = rng.normal(size=(30, 5)).astype(np.float32)
    queries = gallery[[4, 9]] + rng.normal(0, 0.5, size=(2, 5)).astype(np.float32)
    results = first_results(queries, gallery, own=np.array([4, 9]), top=6, metric="cosine")
    unit = gallery / np.linalg.norm(gallery, axis=1, keepdims=True)
    for query, own, rows in zip(queries, (4, 9), results, strict=True):
        ranking = [row for row in np.argsort(-(unit @ query)) if row != own]
        assert rows.tolist() == ranking[:6]


def test_first_results_exclude_the_query_even_when_not_first() -> None:
    gallery = np.array([[1, 0], [1, 0.1], [1, 0.2], [-1, 0]], dtype=np.float32)
    (results,) = first_results(
        gallery[:1], gallery, own=np.array([3]), top=2, metric="cosine"
    )  # the query is not where its old vector is
    assert results.tolist() == [0, 1]


def test_first_results_top_beyond_the_gallery_returns_all() -> None:
    gallery = np.eye(3, dtype=np.float32)
    (results,) = first_results(gallery[:1], gallery, own=np.array([0]), top=10, metric="cosine")
    assert sorted(results.tolist()) == [1, 2]


def test_first_results_follow_the_metric() -> None:
    gallery = np.array([[9, 0], [1, 1], [0, 9]], dtype=np.float32)
    query = np.array([[1, 0]], dtype=np.float32)
    best = {
        metric: first_results(query, gallery, own=np.array([2]), top=1, metric=metric)[0].tolist()
        for metric in ("cosine", "l2")
    }
    assert best == {"cosine": [0], "l2": [1]}


def test_strip_queries_are_of_distinct_classes_with_partners() -> None:
    labels = np.array(list("aaabbbcccd"))
    rows = pick_queries(labels, count=3, seed=0)
    assert sorted(labels[rows]) == ["a", "b", "c"]
    more = pick_queries(labels, count=100, seed=0)
    assert len(more) == 9  # never "d", which has nothing to find
    assert len(set(more.tolist())) == 9
    assert len(pick_queries(np.arange(5), count=3, seed=0)) == 0


def test_strip_queries_depend_on_the_seed() -> None:
    labels = np.repeat(np.arange(20), 5)
    draws = [pick_queries(labels, count=5, seed=seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_strip_queries_are_not_in_class_order() -> None:
    labels = np.repeat(np.arange(50), 3)
    drawn = {int(labels[row]) for s in range(10) for row in pick_queries(labels, count=3, seed=s)}
    assert max(drawn) > 25


def test_strip_results_are_right_when_labels_match() -> None:
    labels = np.array(["x", "y", "x", "z"])
    album = Album(embeddings("old", vectors(labels), labels), None)
    strip = album.results("old", tone="old", query=0, ranked=[2, 1, 3])
    assert [(hit.rank, hit.right, hit.picture.label) for hit in strip.hits] == [
        (1, True, "x"),
        (2, False, "y"),
        (3, False, "z"),
    ]
    assert strip.right == 1
    assert strip.hits[0].picture.image is None


def test_strip_thumbnails_match_their_rows() -> None:
    labels = np.array(["x", "y", "x"])
    images = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1) * np.ones((1, 4, 4, 1), np.uint8)
    album = Album(embeddings("old", vectors(labels), labels), images)
    uris = [album.picture(row).image for row in (0, 1, 2, 0)]
    assert len(set(uris)) == 3
    assert uris[0] is uris[3]  # made once


def test_album_picture_label_is_the_class_name() -> None:
    labels = np.array([0, 1])
    named = embeddings("old", vectors(labels), labels).with_columns(
        {"labels": np.array(["tulip", "rose"])}
    )
    assert Album(named, None).picture(1).label == "rose"


def test_labels_of_items_without_labels_raises() -> None:
    bare = Embeddings(ids=np.array(["a"]), vectors=np.ones((1, 2), np.float32), space=Space("s", 2))
    with pytest.raises(EvaluationError, match="no labels"):
        labels_of(bare)
