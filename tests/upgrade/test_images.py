"""An upgrade takes an encoder as it is: no function has to be written around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Gallery, Space, Upgrade
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import ConfigError, EncoderError
from midspan.upgrade import as_embed

DARK = Space("dark", 3, fingerprint="f-dark")


class Brightness:
    """Stands for an encoder: the mean of each channel."""

    space = Space("brightness", 3, fingerprint="f-bright", compatible_with=("f-dark",))
    takes_images = True
    preprocessing = Preprocessing(height=4, width=4, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)

    def embed(self, images: Any, *, ids: Sequence[str], progress: bool) -> Embeddings:
        means = 1.0 + images.astype(np.float32).mean(axis=(1, 2))
        return Embeddings(np.array(ids, dtype=np.str_), means, self.space)


@pytest.fixture
def shop(tmp_path: Path) -> Gallery:
    ids = np.array(["red", "green", "gone"])
    Image.new("RGB", (8, 8), (200, 0, 0)).save(tmp_path / "red.png")
    Image.new("RGB", (8, 8), (0, 90, 0)).save(tmp_path / "green.png")
    gallery = Gallery.create("memory:", DARK)
    vectors = Embeddings(ids, np.eye(3, dtype=np.float32), DARK)
    gallery.add(vectors, uris=[str(tmp_path / f"{id}.png") for id in ids])
    return gallery


def test_run_with_an_encoder_embeds_the_images_of_the_items(shop: Gallery) -> None:
    upgrade = Upgrade.start(shop, to=Brightness(), order="random", sample_size=0)
    report = upgrade.run(Brightness(), limit=3)
    assert (report.written, report.all) == (2, 3)
    found = shop.vectors(["red", "green"], space="f-bright")
    assert found.vectors.tolist() == [[201, 1, 1], [1, 91, 1]]


def test_run_with_embeddings_finds_them_by_id(shop: Gallery) -> None:
    new = Embeddings(
        np.array(["red", "green"]), np.ones((2, 3), dtype=np.float32), Brightness.space
    )
    upgrade = Upgrade.start(shop, to=new, order="random", sample_size=0)
    report = upgrade.run(new)
    assert (report.new, report.failed) == (2, 1)


def test_what_cannot_embed_is_refused_with_what_can() -> None:
    with pytest.raises(ConfigError, match="expected an encoder, Embeddings or a function"):
        as_embed("runs/new")  # type: ignore[arg-type]
    vectors_only = Brightness()
    vectors_only.takes_images = False
    with pytest.raises(EncoderError, match="embeds vectors, not images"):
        as_embed(vectors_only)
