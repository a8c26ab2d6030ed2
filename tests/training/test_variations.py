"""Variations: what they do to images, what is recorded, and that runs learn with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.training.batch_loader import BatchRandom
from midspan.training.settings import VariationSettings
from midspan.training.variations import (
    VARIATIONS,
    Variations,
    blur,
    homographies,
    make_variations,
    occlusion,
    perspective,
    vary,
)
from tests.training.test_attributes import striped


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(images: Tensor, *, seed: int = 0) -> BatchRandom:
    return BatchRandom.whole(len(images), seeded(seed))


def images(count: int = 6, size: int = 14) -> Tensor:
    return torch.rand(count, 3, size, size, generator=seeded(9)) * 2 - 1


@pytest.mark.parametrize("name", VARIATIONS)
def test_variation_changes_images_and_keeps_shape_and_range(name: str) -> None:
    before = images()
    chosen = {"blur": blur, "occlusion": occlusion, "perspective": perspective}[name]
    after = chosen(before, drawn(before))
    assert after.shape == before.shape
    assert float(after.min()) >= float(before.min()) - 1e-5
    assert float(after.max()) <= float(before.max()) + 1e-5
    for one, other in zip(before, after, strict=True):
        assert not torch.equal(one, other)
    assert torch.equal(after, chosen(before, drawn(before)))  # the generator decides, nothing else


def test_variation_blur_equals_a_gaussian() -> None:
    point = torch.zeros(1, 1, 21, 21)
    point[0, 0, 10, 10] = 1.0
    after = blur(point, drawn(point, seed=3))
    share = float(torch.rand(1, generator=seeded(3))) * 0.08 + 0.02
    sigma = max(0.5, share * 21)
    line = torch.exp(-(torch.arange(21.0) - 10).square() / (2 * sigma**2))
    line = line / line.sum()
    torch.testing.assert_close(after[0, 0], torch.outer(line, line), atol=2e-3, rtol=0)
    flat = torch.full((2, 3, 8, 8), 0.7)
    torch.testing.assert_close(blur(flat, drawn(flat)), flat)  # also at the border


def test_variation_occlusion_darkens_whole_blocks() -> None:
    before = torch.rand(40, 1, 14, 14, generator=seeded(1)) + 0.1
    before[:, 0, 0, 0] = 0.0  # the darkest
    after = occlusion(before, drawn(before))
    changed = (after != before).float()
    changed[:, 0, 0, 0] = 0
    blocks = (after == 0).float().view(40, 7, 2, 7, 2).permute(0, 1, 3, 2, 4).flatten(3)
    inner = blocks[:, 1:, 1:]
    assert ((inner.sum(3) == 0) | (inner.sum(3) == 4)).all()  # a block is hidden or it is not
    share = inner.mean(dim=(1, 2, 3))
    assert float(share.mean()) == pytest.approx(0.3, abs=0.05)
    assert torch.equal(after[changed == 0], before[changed == 0])


def test_homographies_map_the_corners() -> None:
    corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    moved = corners + torch.rand(5, 4, 2, generator=seeded()) * 0.4
    matrices = homographies(corners, moved)
    for matrix, places in zip(matrices, moved, strict=True):
        for corner, place in zip(corners, places, strict=True):
            x, y, w = matrix @ torch.tensor([*corner.tolist(), 1.0])
            torch.testing.assert_close(torch.stack([x / w, y / w]), place, atol=1e-5, rtol=1e-5)
    still = homographies(corners, corners.expand(1, 4, 2))
    torch.testing.assert_close(still[0], torch.eye(3), atol=1e-6, rtol=0)


def test_variations_record_what_was_applied() -> None:
    before = images(400)
    names = ("blur", "occlusion")
    after, applied = vary(before, names=names, probability=0.3, rng=drawn(before))
    assert applied.shape == (400, 2)
    assert applied.mean(dim=0).tolist() == pytest.approx([0.3, 0.3], abs=0.07)
    both = float((applied[:, 0] * applied[:, 1]).mean())
    assert both == pytest.approx(0.09, abs=0.05)  # independently
    untouched = applied.sum(1) == 0
    assert torch.equal(after[untouched], before[untouched])
    assert not any(
        torch.equal(a, b) for a, b in zip(after[~untouched], before[~untouched], strict=True)
    )
    same, none = vary(before, names=names, probability=0.0, rng=drawn(before))
    assert torch.equal(same, before)
    assert not none.any()


def test_variation_of_an_image_is_independent_of_its_share() -> None:
    names = tuple(VARIATIONS)
    whole, applied = vary(images(9), names=names, probability=0.3, rng=drawn(images(9)))
    states = []
    for start, stop in [(0, 4), (4, 5), (5, 9)]:  # one image alone: often nothing is chosen there
        generator = seeded()
        part, told = vary(
            images(9)[start:stop],
            names=names,
            probability=0.3,
            rng=BatchRandom(generator, 9, start, stop),
        )
        torch.testing.assert_close(part, whole[start:stop])
        assert torch.equal(told, applied)  # of the whole batch
        states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)  # all draw on alike


def test_variations_known_columns_follow_the_applied_ones() -> None:
    known = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    both = Variations(names=("blur",), probability=0.5, known=known)
    _, told = both(images(2), np.array([1, 2]), drawn(images(2)))
    assert told.shape == (2, 2)
    assert told[:, 1].tolist() == [0.0, 1.0]


def test_make_variations_follows_the_settings() -> None:
    pictures = striped(8)
    made = make_variations(VariationSettings(), images=pictures, dim=32, sub_embeddings=8, seed=1)
    assert made.decorrelation is not None
    assert made.decorrelation.masks.shape == (3, 8)
    plain = make_variations(
        VariationSettings(variation_weight=0.0, confusion_weight=0.0),
        images=pictures,
        dim=32,
        sub_embeddings=1,
        seed=1,
    )
    assert plain.decorrelation is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probability": 1.5}, "probability: expected 0 to 1, got 1.5"),
        ({"threshold": 0.0}, "threshold"),
        ({"names": ("blur", "blur")}, "expected each once"),
        ({"names": ()}, "expected names or attributes"),
    ],
)
def test_variation_settings_out_of_range_raise_config_error(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        VariationSettings(**settings)  # type: ignore[arg-type]


def test_make_variations_wrong_name_or_too_few_sub_embeddings_raises() -> None:
    with pytest.raises(ConfigError, match="did you mean 'blur'"):
        make_variations(
            VariationSettings(names=("blurr",)),
            images=striped(4),
            dim=8,
            sub_embeddings=4,
            seed=0,
        )
    with pytest.raises(ConfigError, match="even number such as 8"):
        make_variations(VariationSettings(), images=striped(4), dim=8, sub_embeddings=2, seed=0)
