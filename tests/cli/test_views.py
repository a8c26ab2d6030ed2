"""`midspan gallery add --group-by`: several images of one item are one item."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Gallery, Space
from midspan.encoders import build_encoder
from midspan.encoders.uncertainty import UncertaintyHead
from tests.cli.conftest import Command


def views(path: Path) -> Embeddings:
    rng = np.random.default_rng(0)
    embeddings = Embeddings(
        ids=np.array([f"v{n}" for n in range(6)]),
        vectors=rng.normal(size=(6, 4)).astype(np.float32),
        space=Space("s", 4, fingerprint="f"),
        columns={
            "item": np.array(["shoe", "hat", "shoe", "hat", "shoe", "bag"]),
            "colour": np.array(["red", "blue", "red", "blue", "red", "red"]),
            "variance": rng.uniform(0.1, 0.9, size=(6, 2)).astype(np.float32),
            "confidence": np.arange(12, dtype=np.float32).reshape(6, 2) + 1,
        },
    )
    embeddings.save(path)
    return embeddings


def test_gallery_create_group_by_fuses_views(midspan: Command, tmp_path: Path) -> None:
    views(tmp_path / "views.npz")
    place = tmp_path / "shop.midspan"
    code, _, err = midspan(
        *("gallery", "create", place, "--embeddings", tmp_path / "views.npz"),
        *("--group-by", "item"),
    )
    assert code == 0, err
    with Gallery.open(place) as gallery:
        assert len(gallery) == 3
        shoe = gallery.get("shoe").payload
        assert shoe == {"item": "shoe", "colour": "red", "views": 3, "confidence": 5.5}
        assert gallery.get("bag").payload["views"] == 1


def test_gallery_create_group_by_missing_column_exits_2(midspan: Command, tmp_path: Path) -> None:
    views(tmp_path / "views.npz")
    code, _, err = midspan(
        *("gallery", "create", tmp_path / "g.midspan", "--embeddings", tmp_path / "views.npz"),
        *("--group-by", "shop"),
    )
    assert code == 2
    assert "no such column; there are: item, colour" in err


@pytest.mark.parametrize("judged", [False, True])
def test_gallery_create_group_by_weighs_images_by_confidence(
    midspan: Command, tmp_path: Path, judged: bool
) -> None:
    rng = np.random.default_rng(0)
    lines = ["path,item"]
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, size=(12, 12), dtype=np.uint8)).save(
            tmp_path / f"{number}.png"
        )
        lines.append(f"{number}.png,{'ab'[number // 2]}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    encoder = build_encoder(
        backbone="small-cnn",
        dim=8,
        size=12,
        channels=1,
        seed=0,
        sub_embeddings=2,
        confident=judged,
    ).eval()
    encoder.save(tmp_path / "encoder")
    if judged:
        UncertaintyHead.for_encoder(encoder).save(encoder, tmp_path / "encoder")
    code, _, err = midspan(
        *("gallery", "create", tmp_path / "g.midspan", "--images", tmp_path / "list.csv"),
        *("--encoder", tmp_path / "encoder", "--group-by", "item"),
    )
    assert code == 0, err
    with Gallery.open(tmp_path / "g.midspan") as gallery:
        item = gallery.get("b")
        assert item.uri is not None
        assert item.uri.endswith("2.png")  # its first view
        assert item.payload["views"] == 2
        assert ("confidence" in item.payload) == judged
