"""`midspan bridge fit --gallery G --encoder NEW`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Gallery
from midspan.bridges import load_bridge
from midspan.encoders import build_encoder
from tests.cli.conftest import Command

IMAGES = 40


@pytest.fixture
def shop(tmp_path: Path, midspan: Command) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(IMAGES):
        pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02d}.png")
    for name, seed in (("old", 0), ("new", 1)):
        made = build_encoder(backbone="small-cnn", dim=8, size=12, channels=3, seed=seed, name=name)
        made.save(tmp_path / name)
    place = tmp_path / "shop.midspan"
    words = ["--images", tmp_path / "photos", "--encoder", tmp_path / "old"]
    assert midspan("gallery", "create", place, *words)[0] == 0
    return place


def test_bridge_fit_from_a_gallery_equals_the_two_files(
    shop: Path, tmp_path: Path, midspan: Command
) -> None:
    (tmp_path / "photos" / "07.png").write_bytes(b"no image")
    common = ["--method", "ridge", "--set", "alpha=0.1", "--json"]
    code, out, err = midspan(
        *("bridge", "fit", "--gallery", shop, "--encoder", tmp_path / "new"),
        *("--out", tmp_path / "from-gallery", *common),
    )
    assert code == 0, err
    assert json.loads(out)["pairs"] == IMAGES - 1
    assert "skipped 07" in err
    for name in ("old", "new"):
        target = tmp_path / f"{name}.npz"
        assert midspan("embed", tmp_path / name, tmp_path / "photos", "--out", target)[0] == 0
    old, new = (Embeddings.load(tmp_path / f"{name}.npz") for name in ("old", "new"))
    with Gallery.open(shop) as gallery:
        assert gallery.space == old.space
    bridge = load_bridge(tmp_path / "from-gallery")
    assert (bridge.source, bridge.target) == (old.space, new.space)
    code, _, err = midspan(
        *("bridge", "fit", "--source", tmp_path / "old.npz", "--target", tmp_path / "new.npz"),
        *("--out", tmp_path / "from-files", *common),
    )
    assert code == 0, err
    same = load_bridge(tmp_path / "from-files").transform(old)
    assert np.allclose(bridge.transform(old).vectors, same.vectors, atol=1e-4)


def test_bridge_fit_incomplete_sources_exits_2(
    shop: Path, tmp_path: Path, midspan: Command
) -> None:
    for words in (["--gallery", shop], ["--encoder", "x"], ["--source", "a.npz"], []):
        code, _, err = midspan("bridge", "fit", *words, "--out", tmp_path / "b")
        assert code == 2
        assert "--source and --target" in err
