from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from midspan.data import ImageSet
from midspan.data.decode import Pixels
from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.encoders.embedding import step_size
from midspan.encoders.heads import Linear
from midspan.errors import ConfigError, EncoderError
from midspan.image_size import ImageSize
from midspan.spaces import Embeddings, FloatArray

# ---- the space -----------------------------------------------------------------------------------


def test_fingerprint_other_name_is_unchanged(encoder: Encoder) -> None:
    before = encoder.space
    encoder.name = "another"
    assert encoder.space.name == "another"
    assert encoder.space.fingerprint == before.fingerprint
    assert (before.dim, before.metric) == (16, "cosine")


def test_fingerprint_other_weights_preprocessing_or_normalisation_changes(encoder: Encoder) -> None:
    settings = {"width": 8}
    prints = [
        encoder.fingerprint(),
        build_encoder(backbone="small-cnn", dim=16, seed=2, settings=settings).fingerprint(),
        build_encoder(
            backbone="small-cnn", dim=16, seed=1, size=28, settings=settings
        ).fingerprint(),
        build_encoder(
            backbone="small-cnn", dim=16, seed=1, normalise=False, settings=settings
        ).fingerprint(),
        build_encoder(
            backbone="small-cnn",
            dim=16,
            seed=1,
            preprocessing=replace(encoder.preprocessing, mean=(0.4, 0.5, 0.5)),
            settings=settings,
        ).fingerprint(),
    ]
    assert len(set(prints)) == len(prints)
    same = build_encoder(backbone="small-cnn", dim=16, seed=1, settings=settings)
    assert same.fingerprint() == prints[0]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("way", ["in place", "data", "fused optimiser", "load_state_dict"])
def test_fingerprint_after_any_change_of_weights_changes(
    encoder: Encoder, way: str, training: bool
) -> None:
    encoder.train(training)
    before = encoder.fingerprint()
    assert encoder.fingerprint() == before
    weight = encoder.head.project.weight  # type: ignore[union-attr]
    assert isinstance(weight, nn.Parameter)
    if way == "in place":
        with torch.no_grad():
            weight[3, 2] += 1
    elif way == "data":
        weight.data.mul_(1.001)
    elif way == "fused optimiser":
        weight.grad = torch.ones_like(weight)
        torch.optim.SGD([weight], lr=0.1, fused=True).step()
    else:
        other = copy.deepcopy(encoder)
        nn.init.zeros_(other.head.project.bias)  # type: ignore[union-attr,arg-type]
        encoder.load_state_dict(other.state_dict())
    assert encoder.fingerprint() != before


def test_fingerprint_other_memory_layout_or_mode_is_unchanged(encoder: Encoder) -> None:
    before = encoder.train().fingerprint()
    encoder.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    assert encoder.eval().fingerprint() == before


def test_fingerprint_in_eval_mode_is_computed_once(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.eval()
    before = encoder.fingerprint()
    monkeypatch.setattr("midspan.encoders.encoder.fingerprint", lambda *parts: "computed again")
    assert encoder.fingerprint() == before
    encoder.train()
    assert encoder.fingerprint() == "computed again"


def test_compatible_with_is_in_the_space_and_not_in_the_fingerprint(encoder: Encoder) -> None:
    before = encoder.fingerprint()
    encoder.compatible_with = ("0123",)
    assert encoder.space.compatible_with == ("0123",)
    assert encoder.fingerprint() == before


def test_encoder_head_of_another_width_raises(encoder: Encoder) -> None:
    with pytest.raises(
        EncoderError, match="expected a head from 32 features to 16 dims, got 99 to 16"
    ):
        Encoder(
            name="x",
            backbone=encoder.backbone,
            head=Linear(features=99, dim=16),
            preprocessing=encoder.preprocessing,
            dim=16,
        )


# ---- embed ---------------------------------------------------------------------------------------


def one_by_one(
    encoder: Encoder, images: Pixels
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Each image alone through the equations: (x / 255 - mean) / std, network, z / |z|."""
    encoder.eval()
    rows = []
    for image in images:
        mean, std = np.array(encoder.preprocessing.mean), np.array(encoder.preprocessing.std)
        x = torch.from_numpy(((image / 255 - mean) / std).transpose(2, 0, 1)[None]).float()
        with torch.no_grad():
            z = encoder(x)[0].numpy()
        rows.append(z / np.sqrt((z * z).sum()))
    return np.stack(rows)


@pytest.mark.parametrize("backbone", ["small-cnn", "small-resnet"])
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_embed_batches_give_the_vectors_of_single_images(
    backbone: str, batch_size: int, images: Pixels
) -> None:
    encoder = build_encoder(backbone=backbone, dim=16, seed=0)
    result = encoder.embed(images, batch_size=batch_size, progress=False)
    np.testing.assert_allclose(result.vectors, one_by_one(encoder, images), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1.0, atol=1e-6)


def test_embed_batch_size_defaults_to_the_device(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (150, 32, 32, 3), dtype=np.uint8)
    steps: list[int] = []

    def run(x: Tensor) -> FloatArray:
        steps.append(len(x))
        return real(x)

    real = encoder._run
    monkeypatch.setattr(encoder, "_run", run)
    result = encoder.embed(images, progress=False)
    assert steps == [64, 64, 22]
    given = encoder.embed(images, batch_size=64, progress=False)
    assert (result.vectors == given.vectors).all()
    steps.clear()
    whole = encoder.embed(images, batch_size=150, progress=False)
    assert steps == [150]
    np.testing.assert_allclose(result.vectors, whole.vectors, atol=1e-5)
    box = encoder.preprocessing
    assert step_size(None, device="cuda", box=box) == 256
    assert step_size(None, device="cpu", box=None) == 256
    assert step_size(None, device="cpu", box=replace(box, height=224, width=224)) == 16
    assert step_size(None, device="cpu", box=replace(box, height=4000, width=4000)) == 1


def test_embed_twice_gives_the_same_vectors(encoder: Encoder, images: Pixels) -> None:
    first = encoder.embed(images, batch_size=8, progress=False)
    again = encoder.embed(images, batch_size=8, progress=False)
    assert (first.vectors == again.vectors).all()


def test_embed_image_set_keeps_ids_labels_and_columns(
    encoder: Encoder, image_set: ImageSet
) -> None:
    result = encoder.embed(image_set, batch_size=8, progress=False)
    assert result.ids.tolist() == image_set.ids.tolist()
    assert result.labels is not None
    assert result.labels.tolist() == list("abc") * 10
    assert result.columns["camera"].tolist() == [row % 2 for row in range(30)]
    assert result.columns["split"].tolist() == [0] * 20 + [1] * 10
    assert result.space == encoder.space
    renamed = encoder.embed(image_set, ids=[f"x{row}" for row in range(30)], progress=False)
    assert renamed.ids[3] == "x3"


def test_embed_restores_the_mode_and_learns_nothing(encoder: Encoder, images: Pixels) -> None:
    encoder.train()
    before = encoder.fingerprint()
    encoder.embed(images, progress=False)
    assert encoder.training
    assert encoder.backbone.training
    assert encoder.fingerprint() == before  # batch norm has not moved
    encoder.eval()
    encoder.embed(images, progress=False)
    assert not encoder.training


def test_embed_without_normalisation_keeps_the_lengths(images: Pixels) -> None:
    encoder = build_encoder(backbone="small-cnn", dim=16, seed=0, normalise=False)
    result = encoder.embed(images, progress=False)
    assert result.space.metric == "l2"
    assert np.ptp(np.linalg.norm(result.vectors, axis=1)) > 1e-4
    with torch.no_grad():
        raw = encoder.eval()(encoder.preprocessing.tensor(images)).numpy()
    np.testing.assert_allclose(result.vectors, raw, atol=1e-5)


def test_embed_grey_images_of_another_size_are_fitted(encoder: Encoder) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (3, 48, 40), dtype=np.uint8)
    result = encoder.embed(grey, layout="NHW", progress=False)
    assert result.ids.tolist() == ["0", "1", "2"]
    rgb = np.repeat(grey[..., None], 3, axis=3)
    np.testing.assert_allclose(
        result.vectors, encoder.embed(rgb, progress=False).vectors, atol=1e-5
    )


def test_embed_colour_images_with_a_grey_encoder_works(images: Pixels) -> None:
    grey = build_encoder(backbone="small-resnet", dim=8, channels=1, size=28, seed=0)
    assert grey.embed(images, progress=False).vectors.shape == (30, 8)


def test_embed_of_no_images_gives_no_vectors(encoder: Encoder, images: Pixels) -> None:
    result = encoder.embed(images[:0], progress=False)
    assert result.vectors.shape == (0, 16)


def test_embed_progress_goes_to_stderr(
    encoder: Encoder, images: Pixels, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder.embed(images)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "embed with tiny: 30 items" in printed.err


def test_forward_is_not_normalised(encoder: Encoder, images: Pixels) -> None:
    z = encoder(encoder.preprocessing.tensor(images))
    assert z.requires_grad
    assert float((z.detach().norm(dim=1) - 1).abs().max()) > 1e-3


@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (2, 32, 32, 3), (2, 3), (3, 32, 32)])
def test_forward_other_shapes_raise_encoder_error(encoder: Encoder, shape: tuple[int, ...]) -> None:
    with pytest.raises(EncoderError, match=r"'tiny' takes \(B, 3, H, W\), got"):
        encoder(torch.zeros(shape))


def test_forward_other_memory_layout_gives_the_same_vectors(
    encoder: Encoder, images: Pixels
) -> None:
    x = encoder.eval().preprocessing.tensor(images)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), encoder(x.contiguous()), atol=1e-6, rtol=0)
    assert encoder.backbone.channels_last
    stem = next(p for p in encoder.parameters() if p.ndim == 4)
    assert stem.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_vectors(encoder: Encoder, images: Pixels) -> None:
    here = encoder.embed(images, progress=False)
    there = encoder.embed(images, device="cuda", progress=False)
    assert encoder.device.type == "cuda"
    np.testing.assert_allclose(here.vectors, there.vectors, atol=1e-4)
    assert there.space == here.space


# ---- what cannot be embedded ---------------------------------------------------------------------


def test_embed_nan_weights_raise_with_the_first_item(encoder: Encoder, image_set: ImageSet) -> None:
    with torch.no_grad():
        next(encoder.head.parameters()).fill_(float("nan"))
    with pytest.raises(
        EncoderError, match=r"NaN.*'img00' \(8 of its batch of 8\).*weights are bro"
    ):
        encoder.embed(image_set, batch_size=8, progress=False)


def test_embed_one_infinite_vector_raises_with_its_item(
    encoder: Encoder, image_set: ImageSet
) -> None:
    class Explodes(nn.Module):
        """Infinite for bright images only."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bright = x.mean(dim=(1, 2, 3)) > -0.2
            return torch.where(bright[:, None], torch.inf, torch.ones(len(x), 16))

    encoder.forward = Explodes().forward  # type: ignore[method-assign]
    level = image_set.source.load(np.arange(30), ImageSize(32, 32, 3, "squash")).mean(
        axis=(1, 2, 3)
    )
    first = int(np.flatnonzero(level / 255 * 2 - 1 > -0.2)[0])
    assert 0 < first < 29
    with pytest.raises(EncoderError, match=f"'img{first:02d}'"):
        encoder.embed(image_set, batch_size=4, progress=False)


def test_embed_zero_vector_raises_with_its_item(encoder: Encoder, images: Pixels) -> None:
    for parameter in encoder.head.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(EncoderError, match="length zero for '0'"):
        encoder.embed(images, progress=False)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 32, 32, 3), dtype=np.float32),
        np.zeros((2, 32, 32, 2), dtype=np.uint8),
        np.zeros((3, 32, 32), dtype=np.float32),
        np.zeros(32, dtype=np.uint8),
    ],
)
def test_embed_array_that_is_no_image_raises_encoder_error(encoder: Encoder, wrong: Pixels) -> None:
    with pytest.raises(EncoderError, match=r"expected uint8, values 0 to 255: one image \(H, W\)"):
        encoder.embed(wrong, progress=False)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_embed_single_image_array_gives_one_vector(encoder: Encoder, channels: int) -> None:
    one = np.random.default_rng(0).integers(0, 256, (40, 24, channels), dtype=np.uint8)
    result = encoder.embed(one, ids=["photo"], progress=False)
    assert result.vectors.shape == (1, 16)
    assert result.ids.tolist() == ["photo"]
    stack = encoder.embed(one[None], progress=False)
    np.testing.assert_array_equal(result.vectors, stack.vectors)


def test_embed_grey_images_without_a_channel_axis_works(encoder: Encoder) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (5, 32, 30), dtype=np.uint8)
    many = encoder.embed(grey, layout="NHW", progress=False)
    assert many.vectors.shape == (5, 16)
    one = encoder.embed(grey[2], progress=False)
    np.testing.assert_allclose(one.vectors, many.vectors[2:3], atol=1e-6)


def test_encoder_wrong_arguments_raise_encoder_error(encoder: Encoder, images: Pixels) -> None:
    with pytest.raises(EncoderError, match="batch_size: expected 1 or more, got 0"):
        encoder.embed(images, batch_size=0, progress=False)
    with pytest.raises(EncoderError, match="2 ids for 30 items"):
        encoder.embed(images, ids=["a", "b"], progress=False)
    vectors = encoder.embed(images, progress=False)
    assert isinstance(vectors, Embeddings)
    with pytest.raises(EncoderError, match="embeds images, but got vectors in 'tiny'"):
        encoder.embed(vectors, progress=False)


def test_encode_sub_embeddings_have_equal_length_and_a_confidence(tmp_path: Path) -> None:
    made = build_encoder(
        backbone="small-resnet",
        dim=12,
        size=16,
        channels=1,
        seed=0,
        sub_embeddings=3,
        confident=True,
    )
    images = torch.randn(5, 1, 16, 16)
    made.eval()
    encoded = made.encode(images)
    slices = encoded.vectors.view(5, 3, 4)
    torch.testing.assert_close(slices.norm(dim=2), torch.ones(5, 3))
    torch.testing.assert_close(encoded.vectors, made(images))
    assert encoded.confidence is not None
    torch.testing.assert_close(encoded.confidence, torch.full((5, 3), 64.0))  # where it starts
    assert made.confidence is not None
    with torch.no_grad():
        made.confidence.bias.fill_(1e6)  # what runs away is stopped
        assert torch.isfinite(made.encode(images).confidence).all()  # type: ignore[arg-type]
    again = load_encoder(made.save(tmp_path / "e"))
    assert isinstance(again, Encoder)
    assert again.space.fingerprint == made.space.fingerprint
    torch.testing.assert_close(again.encode(images).vectors, encoded.vectors)


def test_encode_without_sub_embeddings_has_no_confidence() -> None:
    made = build_encoder(backbone="small-resnet", dim=12, size=16, channels=1, seed=0)
    assert made.encode(torch.randn(2, 1, 16, 16)).confidence is None
    assert made.architecture()["head"] == {"name": "linear"}


def test_build_encoder_dim_not_divisible_by_sub_embeddings_raises() -> None:
    with pytest.raises(ConfigError, match="10 dims cannot be cut into 3 equal sub-embeddings"):
        build_encoder(backbone="small-resnet", dim=10, size=16, channels=1, sub_embeddings=3)
