"""The attribute network learns what stands in a column, and keeps it in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from midspan.data import ImageSet
from midspan.data.sources import ArraySource
from midspan.errors import DataError, FormatError
from midspan.training.attributes import AttributeNet, fit_attributes, mine

WIDTHS = (4, 8, 8, 8)


def striped(count: int, *, seed: int = 0) -> ImageSet:
    """Noise with bright columns where 'upright' is 1, and bright as a whole where 'bright' is."""
    rng = np.random.default_rng(seed)
    upright, bright = rng.integers(2, size=count), rng.integers(2, size=count)
    pixels = rng.integers(0, 60, size=(count, 16, 16, 1))
    pixels[:, :, ::4] += 120 * upright[:, None, None, None]
    pixels[:, ::4] += 120 * (1 - upright)[:, None, None, None]
    pixels += 70 * bright[:, None, None, None]
    images = pixels.astype(np.uint8)
    return ImageSet(
        ids=np.array([f"i{n}" for n in range(count)]),
        source=ArraySource(images=images, picks=np.arange(count), name="striped"),
        columns={"upright": upright.astype(np.str_), "bright": bright, "size": np.arange(count)},
    )


def test_fit_attributes_predicts_columns_of_other_images(tmp_path: Path) -> None:
    net = fit_attributes(
        striped(160),
        columns=["upright", "bright"],
        size=16,
        channels=1,
        epochs=8,
        batch_size=32,
        lr=1e-2,
        widths=WIDTHS,
    )
    others = striped(100, seed=5)
    mined = mine(net, others)
    assert set(np.unique(mined.numpy())) <= {0.0, 1.0}
    for place, name in enumerate(["upright", "bright"]):
        truth = others.columns[name].astype(int)
        assert (mined[:, place].numpy() == truth).mean() > 0.9
    again = AttributeNet.load(net.save(tmp_path / "attributes.safetensors"))
    assert again.names == ("upright", "bright")
    np.testing.assert_array_equal(again.predict(others), net.predict(others))
    few = mine(net, others, threshold=0.99).sum(), mine(net, others, threshold=0.01).sum()
    assert few[0] <= few[1]


def test_attribute_net_has_the_published_kernels() -> None:
    net = AttributeNet(names=["a"], size=32, channels=3)
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim == 4]
    assert shapes == [(64, 3, 3, 3), (128, 64, 3, 3), (256, 128, 3, 3), (512, 256, 3, 3)]


def test_fit_attributes_unusable_column_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'smiling'; their columns: bright"):
        fit_attributes(striped(4), columns=["smiling"], size=16, channels=1)
    with pytest.raises(DataError, match="expected only 0 and 1"):
        fit_attributes(striped(4), columns=["size"], size=16, channels=1)
    words = replace(striped(4), columns={"mood": np.array(["a", "b", "c", "d"])})
    with pytest.raises(DataError, match="expected only 0 and 1"):
        fit_attributes(words, columns=["mood"], size=16, channels=1)
    path = tmp_path / "no.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(FormatError, match="not an attribute network"):
        AttributeNet.load(path)
