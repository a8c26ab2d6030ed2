"""Codes against slow references in NumPy, written from the equations."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.gallery.index.clusters import assign
from midspan.gallery.index.codes import CODES, EightBits, OneBit
from midspan.gallery.index.ivf import Ivf
from midspan.spaces import FloatArray, Metric

COUNT = 400
LISTS = 6
METRICS: list[Metric] = ["cosine", "dot", "l2"]
DIMS = [8, 24, 27, 50]  # with and without whole bytes of bits


def made(dim: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(vectors, centres, queries), with most of the length in few directions."""
    rng = np.random.default_rng(dim)
    spectrum = np.arange(1, dim + 1) ** -0.6
    rows = rng.standard_normal((COUNT + 20, dim)) * spectrum + 0.2
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows.astype(np.float32)
    return units[:COUNT], units[:LISTS].copy(), units[COUNT:]


def eight_bits(vectors: FloatArray, centres: FloatArray, nearest: np.ndarray) -> FloatArray:
    """The vectors that the codes stand for: centre + 256 steps over the range of each dimension."""
    left = vectors - centres[nearest]
    low, high = left.min(axis=0), left.max(axis=0)
    steps = np.clip(np.floor(255 * (left - low) / (high - low)), 0, 255)
    decoded: FloatArray = centres[nearest] + low + (steps + 0.5) / 255 * (high - low)
    return decoded


def one_bit_distances(
    query: FloatArray, vectors: FloatArray, centres: FloatArray, nearest: np.ndarray
) -> FloatArray:
    """RaBitQ's estimate of ‖x − q‖²: with r = x − c, s = sign(r)/√D, the product r·(q − c) is
    ‖r‖ · (s·(q − c)) / (s·r/‖r‖)."""
    dim = vectors.shape[1]
    left = (vectors - centres[nearest]).astype(np.float64)
    toward = query - centres[nearest]
    signs = np.where(left > 0, 1.0, -1.0) / np.sqrt(dim)
    squared = (left * left).sum(axis=1)
    product = squared * (signs * toward).sum(axis=1) / np.maximum((signs * left).sum(axis=1), 1e-12)
    distances: FloatArray = squared + (toward * toward).sum(axis=1) - 2 * product
    return distances


def index_of(
    vectors: FloatArray, centres: FloatArray, metric: Metric, codes: EightBits | OneBit
) -> Ivf:
    index = Ivf(centres, metric=metric, sample=vectors, codes=codes)
    index.add(np.arange(COUNT), vectors, index.nearest(vectors))
    return index


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("metric", METRICS)
def test_eight_bits_score_as_the_decoded_vectors_do(dim: int, metric: Metric) -> None:
    vectors, centres, queries = made(dim)
    index = index_of(vectors, centres, metric, EightBits(dim))
    nearest = assign(vectors, centres, metric=metric)
    # the index learns its ranges from what is left of the sample beyond its nearest centre
    decoded = eight_bits(vectors, centres, nearest)
    scores, rows = index.search(queries, COUNT, probes=LISTS, allowed=None)
    for query, got, order in zip(queries, scores, rows, strict=True):
        if metric == "l2":
            wanted = ((decoded - query) ** 2).sum(axis=1)
        else:
            wanted = decoded @ query
        assert sorted(order.tolist()) == list(range(COUNT))
        errors = np.abs(got - wanted[order])
        assert np.mean(errors < 1e-5) > 0.97  # the rest lies at the edge of a step
        assert errors.max() < 0.02
    assert index.row_bytes == dim + 8


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("metric", METRICS)
def test_one_bit_scores_as_the_paper_says(dim: int, metric: Metric) -> None:
    vectors, centres, queries = made(dim)
    codes = OneBit(dim)
    index = index_of(vectors, centres, metric, codes)
    nearest = assign(vectors, centres, metric=metric)
    turned, middle, asked = codes.turn(vectors), codes.turn(centres), codes.turn(queries)
    scores, rows = index.search(queries, COUNT, probes=LISTS, allowed=None)
    for query, got, order in zip(asked, scores, rows, strict=True):
        wanted = one_bit_distances(query, turned, middle, nearest)
        if metric != "l2":
            wanted = 0.5 * ((turned**2).sum(axis=1) + (query**2).sum() - wanted)
        assert sorted(order.tolist()) == list(range(COUNT))
        errors = got - wanted[order]  # the query has 4 bits per dimension there, here all
        assert float(np.sqrt(np.mean(errors**2))) < 0.15 * float(wanted.std())
    assert index.row_bytes == (dim + 7) // 8 + 8 + 8  # bits, two numbers, the row


@pytest.mark.parametrize("dim", DIMS)
def test_a_turn_keeps_every_product(dim: int) -> None:
    vectors, _, queries = made(dim)
    for kind in (EightBits, OneBit):
        codes = kind(dim)
        before, after = queries @ vectors.T, codes.turn(queries) @ codes.turn(vectors).T
        np.testing.assert_allclose(after, before, atol=1e-5)
        np.testing.assert_array_equal(kind(dim).turn(queries), codes.turn(queries))  # always so


@pytest.mark.parametrize("name", ["int8", "binary"])
def test_rows_are_removed_and_chosen(name: str) -> None:
    vectors, centres, queries = made(27)
    index = index_of(vectors, centres, "cosine", CODES[name](27))  # type: ignore[index]
    index.remove(np.arange(0, COUNT, 2))
    allowed = np.arange(COUNT) % 3 == 0
    _, rows = index.search(queries, COUNT, probes=LISTS, allowed=allowed)
    wanted = [row for row in range(COUNT) if row % 2 and row % 3 == 0]
    for found in rows:
        assert sorted(row for row in found.tolist() if row >= 0) == wanted
