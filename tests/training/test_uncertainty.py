"""Fitting the uncertainty head: the loss, the encoder at rest, and that it warns of bad images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from midspan.data import digits
from midspan.encoders import build_encoder
from midspan.encoders.uncertainty import embed_judged
from midspan.errors import DataError
from midspan.spaces import Embeddings, Space
from midspan.training.uncertainty import fit_uncertainty, genuine_score


def test_uncertainty_score_equals_the_mean_over_genuine_pairs() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6, 4, dtype=torch.float64)
    log_variance = torch.randn(6, 2, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1, 0, 2])
    total, pairs = 0.0, 0
    for i in range(6):
        for j in range(i + 1, 6):
            if labels[i] != labels[j]:
                continue
            pairs += 1
            for d in range(4):  # per dimension, σ² repeated inside of each slice
                both = math.exp(log_variance[i, d // 2]) + math.exp(log_variance[j, d // 2])
                total -= 0.5 * (float(vectors[i, d] - vectors[j, d]) ** 2 / both + math.log(both))
    assert float(genuine_score(vectors, log_variance, labels)) == pytest.approx(total / pairs)


def clouds() -> Embeddings:
    """Points around 12 centres, every second one far off; the last feature tells which."""
    rng = np.random.default_rng(0)
    labels, bad = np.repeat(np.arange(12), 20), np.arange(240) % 2
    points = rng.normal(size=(12, 8))[labels] + rng.normal(size=(240, 8)) * (
        0.1 + 0.9 * bad[:, None]
    )
    return Embeddings(
        ids=np.arange(240).astype(np.str_),
        vectors=np.concatenate([points, bad[:, None]], axis=1).astype(np.float32),
        space=Space("clouds", 9),
        columns={"labels": labels, "bad": bad},
    )


def test_fit_uncertainty_distant_items_are_less_certain() -> None:
    points = clouds()
    encoder = build_encoder(
        backbone="vectors", dim=16, seed=0, sub_embeddings=4, settings={"inputs": 9, "hidden": 32}
    ).eval()
    before = encoder.fingerprint()
    head = fit_uncertainty(
        encoder,
        points,
        steps=120,
        classes_per_batch=12,
        images_per_class=4,
        lr=0.02,
        show_progress=False,
    )
    assert encoder.fingerprint() == before
    assert not encoder.training
    judged = embed_judged(encoder, points, uncertainty=head, progress=False)
    spread = np.log(judged.columns["variance"]).mean(axis=1)
    bad = points.columns["bad"] == 1
    assert spread[bad].mean() > spread[~bad].mean() + 0.5
    assert (spread[bad][:, None] > spread[~bad]).mean() > 0.9


def test_fit_uncertainty_without_pairs_raises_data_error() -> None:
    encoder = build_encoder(backbone="small-cnn", dim=4, size=8, channels=1, seed=0)
    with pytest.raises(DataError, match="no labels"):
        fit_uncertainty(encoder, replace(digits(), labels=None), show_progress=False)
    labels = digits().labels
    assert labels is not None
    one_each = digits()[np.unique(labels, return_index=True)[1]]
    with pytest.raises(DataError, match="no class has two"):
        fit_uncertainty(encoder, one_each, show_progress=False)
