"""Augmentations keep shapes, follow the generator, and do what they say."""

from __future__ import annotations

import pytest
import torch

from midspan.errors import ConfigError
from midspan.training.augment import AUGMENTATIONS, affine, chain, erase, flip, light, shift
from midspan.training.batch_loader import BatchRandom


def drawn(images: torch.Tensor, *, seed: int) -> BatchRandom:
    return BatchRandom.whole(len(images), torch.Generator().manual_seed(seed))


def images() -> torch.Tensor:
    return torch.randn(16, 3, 12, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_keeps_shape_and_follows_the_seed(name: str) -> None:
    (augment,) = chain([name])
    before = images()
    first = augment(before, drawn(before, seed=1))
    again = augment(before, drawn(before, seed=1))
    other = augment(before, drawn(before, seed=2))
    assert first.shape == before.shape
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, other)
    torch.testing.assert_close(before, images())  # the input is left alone


def test_augmentation_flip_mirrors_or_keeps_the_image() -> None:
    before = images()
    after = flip(before, drawn(before, seed=3))
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(after, before, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(after, before, strict=True)]
    assert all(m != s for m, s in zip(mirrored, same, strict=True))
    assert 0 < sum(mirrored) < 16


def test_augmentation_erase_blanks_one_box() -> None:
    before = torch.ones(64, 1, 20, 20)
    after = erase(before, drawn(before, seed=0))
    blank = (after == 0).flatten(1).sum(1)
    touched = blank > 0
    assert 16 < int(touched.sum()) < 48
    assert int(blank.max()) <= 9 * 9  # 40 % of each side, and rounding
    hole = (after[touched][0, 0] == 0).nonzero()
    low, high = hole.min(0).values, hole.max(0).values
    assert len(hole) == int((high - low + 1).prod())  # a full rectangle


def test_augmentation_affine_moves_by_little() -> None:
    before = torch.zeros(32, 1, 21, 21)
    before[:, :, 10, 10] = 1.0
    after = affine(before, drawn(before, seed=0))
    place = after.flatten(1).argmax(1)
    rows, columns = place // 21, place % 21
    assert int((rows - 10).abs().max()) <= 4
    assert int((columns - 10).abs().max()) <= 4
    assert len(set(place.tolist())) > 5


def test_augmentation_light_is_affine_in_the_values() -> None:
    before = images()
    after = light(before, drawn(before, seed=0))
    for x, y in zip(before, after, strict=True):
        slope = (y.max() - y.min()) / (x.max() - x.min())
        assert 0.7 <= float(slope) <= 1.3
        torch.testing.assert_close(y, slope * (x - x.mean()) + y.mean(), rtol=1e-4, atol=1e-4)


def test_chain_unknown_augmentation_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'affine'"):
        chain(["afine"])


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_of_an_image_is_independent_of_its_share(name: str) -> None:
    (augment,) = chain([name])
    whole = augment(images(), drawn(images(), seed=1))
    shares = [(0, 5), (5, 6), (6, 16)]
    states = []
    for start, stop in shares:
        generator = torch.Generator().manual_seed(1)
        part = augment(images()[start:stop], BatchRandom(generator, 16, start, stop))
        torch.testing.assert_close(part, whole[start:stop])
        states.append(generator.get_state())
    assert all(torch.equal(state, states[0]) for state in states)  # all draw on alike


def test_augmentation_shift_moves_whole_pixels_and_repeats_the_border() -> None:
    images = torch.arange(2 * 20 * 10, dtype=torch.float32).view(1, 2, 20, 10).repeat(8, 1, 1, 1)
    moved = shift(images, BatchRandom.whole(8, torch.Generator().manual_seed(0)))
    assert moved.shape == images.shape
    places = set()
    for image, plain in zip(moved, images, strict=True):
        matches = [
            (down, right)
            for down in range(-2, 3)
            for right in range(-1, 2)
            if torch.equal(
                image,
                plain[:, (torch.arange(20) + down).clamp(0, 19)][
                    :, :, (torch.arange(10) + right).clamp(0, 9)
                ],
            )
        ]
        assert len(matches) == 1
        places.add(matches[0])
    assert len(places) > 1
