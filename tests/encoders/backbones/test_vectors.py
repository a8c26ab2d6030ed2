from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from midspan.data.decode import Pixels
from midspan.encoders import build_encoder
from midspan.errors import EncoderError, SpaceMismatch
from midspan.spaces import Embeddings, FloatArray, Space


def features(*, dim: int = 6, name: str = "foundation") -> Embeddings:
    vectors: FloatArray = np.random.default_rng(0).standard_normal((5, dim)).astype(np.float32)
    return Embeddings(
        ids=np.array(list("abcde")),
        vectors=vectors,
        space=Space(name, dim),
        columns={"labels": np.arange(5)},
    )


def test_vectors_backbone_without_a_head_only_normalises() -> None:
    encoder = build_encoder(backbone="vectors", head="none", settings={"inputs": 6})
    source = features()
    result = encoder.embed(source, progress=False)
    np.testing.assert_allclose(result.vectors, source.normalised().vectors, atol=1e-6)
    assert result.ids.tolist() == list("abcde")
    assert result.labels is not None
    assert result.labels.tolist() == list("01234")
    assert not result.space.same_as(source.space)
    assert not encoder.takes_images
    with pytest.raises(EncoderError, match="has no preprocessing"):
        _ = encoder.preprocessing


def test_vectors_backbone_with_a_linear_head_is_one_matrix() -> None:
    encoder = build_encoder(backbone="vectors", dim=3, seed=0, settings={"inputs": 6})
    weights = encoder.state_dict()
    source = features()
    raw = source.vectors @ weights["head.project.weight"].numpy().T
    raw = raw + weights["head.project.bias"].numpy()
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.embed(source, progress=False).vectors, expected, atol=1e-6)


def test_vectors_backbone_plain_array_embeds_as_embeddings_do() -> None:
    encoder = build_encoder(backbone="vectors", dim=3, seed=0, settings={"inputs": 6})
    doubles = features().vectors.astype(np.float64)
    result = encoder.embed(doubles, ids=list("vwxyz"), progress=False)
    expected = encoder.embed(features(), progress=False)
    assert result.ids.tolist() == list("vwxyz")
    np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-6)


def test_vectors_backbone_wrong_input_raises_encoder_error(images: Pixels) -> None:
    encoder = build_encoder(backbone="vectors", name="top", settings={"inputs": 4})
    with pytest.raises(EncoderError, match=r"'top' takes \(B, 4\), got \(2, 5\)"):
        encoder(torch.zeros(2, 5))
    with pytest.raises(
        EncoderError, match=r"'top' takes float vectors \(N, 4\), got float32\(5, 6\)"
    ):
        encoder.embed(features(), progress=False)
    with pytest.raises(EncoderError, match=r"takes float vectors"):
        encoder.embed(np.zeros((2, 4), dtype=np.int64), progress=False)
    with pytest.raises(EncoderError, match=r"takes float vectors"):
        encoder.embed(images, progress=False)
    with pytest.raises(EncoderError, match="not a str"):
        encoder.embed("photos", progress=False)


def test_vectors_of_another_space_raise_when_the_source_is_known() -> None:
    mine = features()
    settings = {"inputs": 6, "source": mine.space.fingerprint}
    encoder = build_encoder(backbone="vectors", settings=settings)
    encoder.embed(mine, progress=False)
    with pytest.raises(SpaceMismatch, match="'other'"):
        encoder.embed(features(name="other"), progress=False)
    anywhere = build_encoder(backbone="vectors", settings={"inputs": 6})
    anywhere.load_state_dict(encoder.state_dict())
    assert anywhere.fingerprint() != encoder.fingerprint()


def test_vectors_backbone_nan_input_raises_with_the_id() -> None:
    encoder = build_encoder(backbone="vectors", settings={"inputs": 6})
    broken: NDArray[np.float32] = features().vectors.copy()
    broken[2, 3] = np.nan
    with pytest.raises(EncoderError, match="NaN or infinite values for 'c'"):
        encoder.embed(broken, ids=list("abcde"), progress=False)
