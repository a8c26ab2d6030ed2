"""The uncertainty head: its layers, its file, and vectors with what is known of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from midspan.encoders import Encoder, build_encoder
from midspan.encoders.load import UNCERTAINTY
from midspan.encoders.uncertainty import (
    UncertaintyHead,
    embed_judged,
    find_uncertainty,
    load_uncertainty,
)
from midspan.errors import EncoderError, FormatError


def encoder(*, confident: bool = False, seed: int = 0) -> Encoder:
    return build_encoder(
        backbone="small-cnn",
        dim=12,
        size=16,
        channels=1,
        seed=seed,
        sub_embeddings=3,
        confident=confident,
    ).eval()


def pixels(count: int = 9) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(count, 16, 16, 1)).astype(np.uint8)


def test_uncertainty_head_starts_at_the_spread_of_unit_vectors() -> None:
    one = encoder()
    head = UncertaintyHead.for_encoder(one)
    features = one.features(torch.randn(5, 1, 16, 16))
    assert head.inputs == features[0].numel()
    told = head(features)
    assert told.shape == (5, 3)
    torch.testing.assert_close(told, torch.full((5, 3), -math.log(24.0)), atol=2e-3, rtol=0)
    wide = UncertaintyHead(inputs=4, dim=512, sub_embeddings=16)
    assert float(wide.shift.detach()) == pytest.approx(-7, abs=0.1)  # as in PFE
    with torch.no_grad():
        head.shift.fill_(-100.0)
    assert float(head(features).detach().min()) >= math.log(1e-6) - 1e-4


def test_uncertainty_head_is_saved_next_to_the_encoder(tmp_path: Path) -> None:
    one = encoder()
    one.save(tmp_path / "encoder")
    assert find_uncertainty(one, tmp_path) is None
    with pytest.raises(EncoderError, match="fit_uncertainty"):
        load_uncertainty(one, tmp_path / "encoder")
    head = UncertaintyHead.for_encoder(one).eval()
    with torch.no_grad():
        head.gain.fill_(1.0)
    path = head.save(one, tmp_path)  # the folder of a run will do
    assert path == tmp_path / "encoder" / UNCERTAINTY
    again = find_uncertainty(one, tmp_path)
    assert again is not None
    features = one.features(torch.randn(4, 1, 16, 16))
    assert torch.equal(again(features), head(features))
    with pytest.raises(EncoderError, match="fit it again"):
        load_uncertainty(encoder(seed=1), tmp_path)
    path.write_bytes(b"not a head")
    with pytest.raises(FormatError, match="not a readable uncertainty head"):
        load_uncertainty(one, tmp_path)


def test_embed_judged_returns_vectors_with_their_uncertainty() -> None:
    one = encoder(confident=True)
    assert one.confidence is not None
    torch.nn.init.normal_(one.confidence.weight)
    head = UncertaintyHead.for_encoder(one).eval()
    with torch.no_grad():
        head.gain.fill_(1.0)
    result = embed_judged(one, pixels(), uncertainty=head, batch_size=4, progress=False)
    np.testing.assert_allclose(
        result.vectors, one.embed(pixels(), progress=False).vectors, atol=1e-6
    )
    with torch.no_grad():
        x = one.preprocessing.tensor(pixels())
        encoded = one.encode(x)
        assert encoded.confidence is not None
        np.testing.assert_allclose(
            result.columns["confidence"], encoded.confidence.numpy(), rtol=1e-4
        )
        expected = head(one.features(x)).exp().numpy()
    np.testing.assert_allclose(result.columns["variance"], expected, rtol=1e-4)
    assert result.space.same_as(one.space)


def test_embed_judged_without_uncertainty_raises_encoder_error() -> None:
    with pytest.raises(EncoderError, match=r"use encoder\.embed"):
        embed_judged(encoder(), pixels(), progress=False)
