"""Orderings that must hold between bridges, on encoders whose errors are known.

Class centres in R^32, six images each; an encoder is a private random ReLU layer 32→96→64 on
latent plus private noise. Hard images are noisy before every encoder (shared) or make each
encoder err for itself (private). Bridges are fitted on 400 classes and tested on 400 others, one
query a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import pytest

from midspan.bridges import GalleryEnsemble, Procrustes, Ridge, rejection_curve
from midspan.bridges.base import Float64
from midspan.spaces import Embeddings
from tests.bridges.worlds import embeddings, unit64

CLASSES, IMAGES, ENCODERS = 400, 6, 4
Mode = Literal["shared", "private"]


@dataclass(frozen=True)
class Result:
    none: float
    symmetric: float
    procrustes: float
    ridge: tuple[float, float, float]  # N = 1, 2, 4
    correlation: float  # of disagreement and difficulty, by rank
    rejected: float  # error at 70 % coverage, by disagreement
    at_random: float


def recall(queries: Embeddings, gallery: Embeddings) -> float:
    best = np.argmax(unit64(queries.vectors) @ unit64(gallery.vectors).T, axis=1)
    assert queries.labels is not None
    assert gallery.labels is not None
    return float(np.mean(gallery.labels[best] == queries.labels))


def encode(latent: Float64, noise: Float64, seed: int) -> Float64:
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((32, 96)) / np.sqrt(32)
    second = rng.standard_normal((96, 64)) / np.sqrt(96)
    vectors: Float64 = np.maximum((latent + noise) @ first, 0) @ second
    return vectors


@cache
def run(mode: Mode, seed: int) -> Result:
    rng = np.random.default_rng(seed)
    count = 2 * CLASSES * IMAGES
    labels = np.repeat(np.arange(2 * CLASSES), IMAGES)
    difficulty = rng.exponential(1.0, (count, 1))
    hard = np.sqrt(difficulty)
    latent = rng.standard_normal((2 * CLASSES, 32))[labels]
    latent = latent + (0.9 * hard if mode == "shared" else 0.7) * rng.standard_normal((count, 32))
    private = 0.7 if mode == "shared" else 0.7 * hard

    def encoder(place: int) -> Embeddings:
        noise = private * rng.standard_normal((count, 32))
        vectors = encode(latent, noise, seed * 100 + place)
        return embeddings(unit64(vectors), f"encoder{place}", labels=labels)

    query, *galleries = [encoder(place) for place in range(ENCODERS + 1)]
    train = np.flatnonzero(labels < CLASSES)
    asked = np.flatnonzero((labels >= CLASSES) & (np.arange(count) % IMAGES == 0))
    stored = np.flatnonzero((labels >= CLASSES) & (np.arange(count) % IMAGES != 0))

    def ensemble(size: int) -> Embeddings:
        made = GalleryEnsemble(bridge={"name": "ridge", "alpha": 1.0})
        made.fit([gallery[train] for gallery in galleries[:size]], query[train])
        return made.transform([gallery[stored] for gallery in galleries[:size]])

    one = galleries[0]
    turned = Procrustes().fit(one[train], query[train]).transform(one[stored])
    four = ensemble(4)
    uncertainty = four.columns["uncertainty"]
    ranks = [
        np.argsort(np.argsort(v)) for v in (uncertainty, difficulty[four_rows(four, query)][:, 0])
    ]
    curve = rejection_curve(query[asked], four, coverages=(0.7,), draws=20).all_queries
    return Result(
        none=recall(query[asked], embeddings(one.vectors[stored], "x", labels=labels[stored])),
        symmetric=recall(query[asked], query[stored]),
        procrustes=recall(query[asked], turned),
        ridge=(
            recall(query[asked], ensemble(1)),
            recall(query[asked], ensemble(2)),
            recall(query[asked], four),
        ),
        correlation=float(np.corrcoef(ranks[0], ranks[1])[0, 1]),
        rejected=float(curve.risk[0]),
        at_random=float(curve.random_risk[0]),
    )


def four_rows(mapped: Embeddings, query: Embeddings) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return query.rows_of(mapped.ids)


def mean(mode: Mode, name: str) -> float:
    return float(np.mean([getattr(run(mode, seed), name) for seed in (0, 1)]))


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_none_is_chance_procrustes_helps_and_ridge_helps_more(mode: Mode) -> None:
    for seed in (0, 1):
        result = run(mode, seed)
        assert result.none < 0.02  # chance is 1/400
        assert result.procrustes > 0.1
        assert result.ridge[0] > result.procrustes
        assert result.ridge[0] < result.symmetric


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_more_gallery_encoders_help(mode: Mode) -> None:
    for seed in (0, 1):
        one, two, four = run(mode, seed).ridge
        assert one + 0.02 < two < four - 0.02


def test_disagreement_sees_private_errors_and_rejecting_by_it_beats_random() -> None:
    assert mean("private", "correlation") > 0.6
    assert mean("private", "rejected") < mean("private", "at_random")


def test_disagreement_does_not_see_shared_corruption() -> None:
    """All encoders are fooled alike, so they agree: rejection must be shown beside random."""
    assert mean("shared", "correlation") < 0
    assert mean("shared", "rejected") > mean("shared", "at_random")


def test_permuted_pairs_bring_it_back_to_chance() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(200), 4)
    latent = rng.standard_normal((200, 32))[labels] + 0.5 * rng.standard_normal((800, 32))
    old = embeddings(encode(latent, np.zeros(1), 1), "old", labels=labels)
    new = embeddings(encode(latent, np.zeros(1), 2), "new", labels=labels)
    wrong = Embeddings(new.ids, new.vectors[rng.permutation(800)], new.space)
    train, test = slice(0, 400), np.arange(400, 800)
    right = Ridge(alpha=1.0).fit(old[train], new[train]).transform(old[test])
    leaked = Ridge(alpha=1.0).fit(old[train], wrong[train]).transform(old[test])
    assert recall(new[test[::4]], right[np.arange(400) % 4 != 0]) > 0.3
    assert recall(new[test[::4]], leaked[np.arange(400) % 4 != 0]) < 0.06
