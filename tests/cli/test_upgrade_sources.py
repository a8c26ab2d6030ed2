"""`midspan upgrade run` by source: what cannot work is refused, what failed is tried again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Space
from midspan.cli import upgrade_sources
from midspan.encoders.preprocessing import Preprocessing
from midspan.gallery import Gallery
from midspan.upgrade import images_embedder
from tests.cli.conftest import Command
from tests.upgrade.world import NEW, OLD, encoder, ids, make, vectors


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A gallery of vectors alone: no item has a uri."""
    with Gallery.create(str(tmp_path / "bare.midspan"), OLD) as gallery:
        gallery.add(vectors(ids(60), OLD))
        return gallery.location


def test_run_encoder_without_uris_exits_with_two_remedies(
    midspan: Command, bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade_sources, "encoder_named", lambda name, *_: (NEW, encoder(NEW)))
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    for verb in ("plan", "start"):
        code, out, err = midspan("upgrade", verb, bare, "--encoder", "runs/new", "--sample", 0)
        assert (code, out) == (2, "")
        assert "none of the 60 items" in err
        assert "--to NEW.npz" in err
    assert midspan("upgrade", "start", bare, "--to", new)[0] == 0
    code, out, err = midspan("upgrade", "run", bare, "--encoder", "runs/new")
    assert (code, out) == (2, "")
    assert "none of the 60 items" in err
    assert "--vectors NEW.npz" in err
    assert "midspan gallery add" in err
    with Gallery.open(bare) as gallery:
        assert gallery.count().failed == 0
    code, out, _ = midspan("upgrade", "run", bare, "--embeddings", new, "--json")
    assert (code, json.loads(out)["written"]) == (0, 60)


def test_run_failed_items_exit_1_and_are_counted_by_reason(
    midspan: Command, tmp_path: Path
) -> None:
    with make("sqlite", tmp_path) as gallery:
        shop = gallery.location
    part = vectors(ids(57), NEW).save(tmp_path / "part.npz")
    midspan("upgrade", "start", shop, "--to", part, "--order", "random")
    code, out, _ = midspan("upgrade", "run", shop, "--embeddings", part, "--json")
    document = json.loads(out)
    assert (code, document["written"], document["failed"]) == (1, 57, 3)
    assert document["reasons"] == [
        {"text": "no vector for this id in part.npz", "items": 3, "example": "i0057"}
    ]
    code, out, _ = midspan("upgrade", "run", shop, "--embeddings", part)
    assert code == 1  # the same source again: they still have no vector
    assert "no vector for this id in part.npz" in out
    code, out, _ = midspan("upgrade", "status", shop, "--json")
    assert json.loads(out)["failed"] == 3


def test_run_other_source_retries_failed_items_and_is_recorded(
    midspan: Command, tmp_path: Path
) -> None:
    with make("sqlite", tmp_path) as gallery:
        shop = gallery.location
    part = vectors(ids(50), NEW).save(tmp_path / "part.npz")
    whole = vectors(ids(60), NEW).save(tmp_path / "whole.npz")
    midspan("upgrade", "start", shop, "--to", whole, "--order", "random")
    assert midspan("upgrade", "run", shop, "--embeddings", part)[0] == 1
    code, out, _ = midspan("upgrade", "run", shop, "--embeddings", whole, "--json")
    document = json.loads(out)
    assert (code, document["written"], document["retried"]) == (0, 10, 10)
    code, out, _ = midspan("upgrade", "audit", shop, "--limit", "100", "--json")
    sources = [e["details"] for e in json.loads(out)["entries"] if e["what"] == "upgrade source"]
    assert [one["source"].split(" (")[0] for one in sources] == [
        "embeddings whole.npz",
        "embeddings part.npz",
    ]
    assert [one["retried"] for one in sources] == [10, 0]


def test_run_paused_exits_1(midspan: Command, tmp_path: Path) -> None:
    with make("sqlite", tmp_path) as gallery:
        shop = gallery.location
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    midspan("upgrade", "start", shop, "--to", new)
    midspan("upgrade", "pause", shop)
    code, out, _ = midspan("upgrade", "run", shop, "--embeddings", new, "--json")
    assert (code, json.loads(out)["stopped"]) == (1, "paused")
    midspan("upgrade", "resume", shop)
    assert midspan("upgrade", "run", shop, "--embeddings", new, "--limit", 10)[0] == 0


class Brightness:
    """Stands for an encoder: the mean of each channel."""

    space = Space("brightness", 3, fingerprint="f-bright", compatible_with=("f-dark",))
    takes_images = True
    preprocessing = Preprocessing(height=4, width=4, channels=3, mean=(0.0,) * 3, std=(1.0,) * 3)

    def embed(self, images: np.ndarray, *, ids: list[str], progress: bool) -> Embeddings:
        means = 1.0 + images.astype(np.float32).mean(axis=(1, 2))
        return Embeddings(np.array(ids, dtype=np.str_), means, self.space)


def test_gallery_create_images_with_embeddings_become_the_uris(
    midspan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Brightness()
    embed = images_embedder(loaded)  # type: ignore[arg-type]
    monkeypatch.setattr(upgrade_sources, "encoder_named", lambda name, *_: (loaded.space, embed))
    photos = tmp_path / "photos"
    photos.mkdir()
    names = [f"{number}.png" for number in range(6)]
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(photos / name)
    old = Embeddings(
        np.array(names),
        np.eye(6, 3, dtype=np.float32) + 0.1,
        Space("dark", 3, fingerprint="f-dark"),
    ).save(tmp_path / "old.npz")
    shop = tmp_path / "shop.midspan"
    assert midspan("gallery", "create", shop, "--embeddings", old)[0] == 0
    new = Embeddings(np.array(names[:1]), np.ones((1, 3), dtype=np.float32), loaded.space)
    new.save(tmp_path / "new.npz")
    midspan("upgrade", "start", shop, "--to", tmp_path / "new.npz", "--order", "random")
    assert midspan("upgrade", "run", shop, "--encoder", "runs/new")[0] == 2
    words = ["--embeddings", old, "--images", photos, "--replace"]
    code, _, err = midspan("gallery", "add", shop, *words)
    assert code == 0, err
    code, out, err = midspan("upgrade", "run", shop, "--encoder", "runs/new", "--json")
    assert (code, json.loads(out)["written"]) == (0, 6), err
