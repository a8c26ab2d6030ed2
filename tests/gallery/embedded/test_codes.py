"""Codes against slow references in NumPy, written from the equations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.gallery.engines.embedded.ivf import CODES, EightBits, Ivf, OneBit, assign
from midspan.gallery.rules import Quantise
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
    index = Ivf.learn(centres, metric=metric, sample=vectors, codes=codes)
    index.add(np.arange(COUNT), vectors)
    return index


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("metric", METRICS)
def test_eight_bit_scores_equal_those_of_decoded_vectors(dim: int, metric: Metric) -> None:
    vectors, centres, queries = made(dim)
    index = index_of(vectors, centres, metric, EightBits(dim))
    nearest = assign(vectors, centres, metric=metric)
    # the index learns its ranges from what is left of the sample beyond its nearest centre
    decoded = eight_bits(vectors, centres, nearest)
    scores, rows = index.search(queries, COUNT, probes=LISTS)
    for query, got, order in zip(queries, scores, rows, strict=True):
        if metric == "l2":
            expected = ((decoded - query) ** 2).sum(axis=1)
        else:
            expected = decoded @ query
        assert sorted(order.tolist()) == list(range(COUNT))
        errors = np.abs(got - expected[order])
        assert np.mean(errors < 1e-5) > 0.97  # the rest lies at the edge of a step
        assert errors.max() < 0.02


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("metric", METRICS)
def test_one_bit_scores_equal_the_published_estimate(dim: int, metric: Metric) -> None:
    vectors, centres, queries = made(dim)
    codes = OneBit(dim)
    index = index_of(vectors, centres, metric, codes)
    nearest = assign(vectors, centres, metric=metric)
    turned, middle, asked = codes.rotate(vectors), codes.rotate(centres), codes.rotate(queries)
    scores, rows = index.search(queries, COUNT, probes=LISTS)
    for query, got, order in zip(asked, scores, rows, strict=True):
        expected = one_bit_distances(query, turned, middle, nearest)
        if metric != "l2":
            expected = 0.5 * ((turned**2).sum(axis=1) + (query**2).sum() - expected)
        assert sorted(order.tolist()) == list(range(COUNT))
        errors = got - expected[order]  # the query has 4 bits per dimension there, here all
        assert float(np.sqrt(np.mean(errors**2))) < 0.15 * float(expected.std())


@pytest.mark.parametrize("dim", DIMS)
def test_rotate_keeps_inner_products(dim: int) -> None:
    vectors, _, queries = made(dim)
    for kind in (EightBits, OneBit):
        codes = kind(dim)
        before, after = queries @ vectors.T, codes.rotate(queries) @ codes.rotate(vectors).T
        np.testing.assert_allclose(after, before, atol=1e-5)
        np.testing.assert_array_equal(kind(dim).rotate(queries), codes.rotate(queries))  # always so


@pytest.mark.parametrize("name", ["int8", "binary"])
def test_mapped_lists_copied_taken_and_extended_search_as_in_memory(
    name: Quantise, tmp_path: Path
) -> None:
    vectors, centres, queries = made(27)
    codes = CODES[name](27)
    made_index = index_of(vectors, centres, "cosine", codes)
    made_index.save(tmp_path / "lists")
    mapped = Ivf.mapped(tmp_path / "lists", codes=codes, metric="cosine")
    for before, after in zip(
        made_index.search(queries, COUNT, probes=LISTS),
        mapped.search(queries, COUNT, probes=LISTS),
        strict=True,
    ):
        np.testing.assert_array_equal(before, after)
    copy = Ivf.blank(tmp_path / "lists", codes=codes, metric="cosine").empty()
    assert len(copy) == 0
    odd = np.where(np.arange(COUNT) % 2, np.arange(COUNT), -1)
    mapped.copy_to(copy, odd)
    assert len(copy) == COUNT // 2
    copy.add(np.array([COUNT]), vectors[:1])
    allowed = np.packbits(np.arange(COUNT + 1) % 3 == 0, bitorder="little")
    _, found = copy.search(queries, COUNT, probes=LISTS, allowed=allowed)
    expected = [place for place in range(COUNT) if place % 2 and place % 3 == 0]
    for places in found:
        assert sorted(p for p in places.tolist() if 0 <= p < COUNT) == expected
    assert COUNT in copy.search(vectors[:1], 2, probes=LISTS)[1]
