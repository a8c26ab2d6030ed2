"""Damaged copies of images for benchmarks: blur, occlusion, low resolution, at fixed strengths.

Written apart from the augmentations of training, on bytes: what is tested is not what was trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from midspan.spaces import IntArray, StrArray

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# kind → slight and heavy: σ as a share of the side, share of 7×7 blocks, share of the resolution
LEVELS = {"blur": (0.06, 0.12), "occlusion": (0.2, 0.4), "low resolution": (0.5, 0.33)}
BLOCKS = 7


def damaged(pixels: Pixels, *, kind: str, strength: float, seed: int) -> Pixels:
    """(N, H, W, C) uint8 → the same, damaged."""
    rng = np.random.default_rng((seed, sorted(LEVELS).index(kind), int(1000 * strength)))
    return DAMAGES[kind](pixels, strength, rng)


def spoiled_views(
    pixels: Pixels, labels: StrArray, *, bad: int, views: int, seed: int
) -> tuple[Pixels, IntArray]:
    """Images of a class in items of `views`, of which `bad` get heavy damage of a random kind.

    (N,) tells the item of each image; −1 where too few were left for another one.
    """
    rng = np.random.default_rng((seed, 77))
    groups = np.full(len(labels), -1, dtype=np.int64)
    spoiled = pixels.copy()
    number = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        for start in range(0, len(rows) - views + 1, views):
            own = rows[start : start + views]
            groups[own] = number
            number += 1
            for row in own[:bad]:
                kind = str(rng.choice(sorted(LEVELS)))
                spoiled[row] = DAMAGES[kind](pixels[row : row + 1], LEVELS[kind][-1], rng)[0]
    return spoiled, groups


def _blur(pixels: Pixels, strength: float, rng: np.random.Generator) -> Pixels:
    sigma = strength * pixels.shape[1]
    soft = gaussian_filter(pixels.astype(np.float32), (0, sigma, sigma, 0), mode="nearest")
    return soft.round().clip(0, 255).astype(np.uint8)


def _occlusion(pixels: Pixels, strength: float, rng: np.random.Generator) -> Pixels:
    count, height, width, _ = pixels.shape
    hidden = rng.random((count, BLOCKS, BLOCKS)) < strength
    rows = np.arange(height) * BLOCKS // height
    columns = np.arange(width) * BLOCKS // width
    return np.where(hidden[:, rows][:, :, columns, None], np.uint8(0), pixels)


def _low_resolution(pixels: Pixels, strength: float, rng: np.random.Generator) -> Pixels:
    _, height, width, depth = pixels.shape
    small = max(1, round(strength * width)), max(1, round(strength * height))
    out = np.empty_like(pixels)
    for row, image in enumerate(pixels):
        picture = Image.fromarray(image[..., 0] if depth == 1 else image)
        coarse = picture.resize(small, Image.Resampling.BOX)
        back = np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR))
        out[row] = back.reshape(image.shape)
    return out


DAMAGES = {"blur": _blur, "occlusion": _occlusion, "low resolution": _low_resolution}
