"""`embed` and `gallery create | add --images`: stopped, the same command continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Gallery
from midspan.cli import batches
from midspan.encoders import build_encoder
from midspan.encoders.runtimes.auto import AutoEncoder
from tests.cli.conftest import Command

IMAGES = 40


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        place = tmp_path / "photos" / f"c{number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02d}.png")
    (tmp_path / "photos" / "c0" / "99.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    return tmp_path / "photos"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    made = build_encoder(backbone="small-cnn", dim=8, size=12, channels=3, seed=0)
    return made.save(tmp_path / "encoder")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "FIRST", 8)
    monkeypatch.setattr(batches, "MOST", 8)
    monkeypatch.setattr("midspan.cli.embed.STEP", 8)
    monkeypatch.setattr("midspan.cli.gallery_items.STEP", 8)


class Stop:
    """Ctrl-C after so many calls of `embed`; counts the images that were embedded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.images, self.after = 0, 0, 10**9
        original = AutoEncoder.embed

        def embed(encoder: AutoEncoder, images, **settings):  # type: ignore[no-untyped-def]
            if self.calls >= self.after:
                raise KeyboardInterrupt
            self.calls += 1
            self.images += len(images)
            return original(encoder, images, **settings)

        monkeypatch.setattr(AutoEncoder, "embed", embed)

    def reset(self, after: int = 10**9) -> None:
        self.calls, self.images, self.after = 0, 0, after


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    return Stop(monkeypatch)


@pytest.mark.usefixtures("small_batches")
def test_embed_continues_after_ctrl_c_with_the_same_result(
    midspan: Command, photos: Path, encoder: Path, tmp_path: Path, stop: Stop
) -> None:
    words = ["embed", encoder, photos, "--batch-size", 8, "--out"]
    assert midspan(*words, tmp_path / "whole.npz")[0] == 0
    stop.reset(after=3)
    out = tmp_path / "new" / "parts.npz"
    code, _, err = midspan(*words, out)
    assert code == 130
    assert "24 of 40 images are embedded and kept; run the same command to continue" in err
    assert not out.exists()
    stop.reset()
    code, text, err = midspan(*words, out, "--json")
    assert code == 0
    assert "24 of 40 images were embedded before" in err
    assert stop.images == 16
    document = json.loads(text)
    assert (document["items"], len(document["skipped"])) == (40, 1)
    whole, parts = Embeddings.load(tmp_path / "whole.npz"), Embeddings.load(out)
    assert parts.ids.tolist() == whole.ids.tolist()
    assert np.array_equal(parts.vectors, whole.vectors)
    assert parts.columns["labels"].tolist() == whole.columns["labels"].tolist()
    assert [path.name for path in out.parent.iterdir()] == ["parts.npz"]


def test_embed_existing_foreign_batch_folder_is_refused_and_kept(
    midspan: Command, photos: Path, encoder: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "x.npz.batches" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    code, _, err = midspan("embed", encoder, photos, "--out", tmp_path / "x.npz")
    assert code == 2
    assert "expected the batches of an earlier try, got something else" in err
    assert mine.read_text() == "mine"


def test_embed_space_for_images_exits_2(
    midspan: Command, photos: Path, encoder: Path, tmp_path: Path
) -> None:
    code, _, err = midspan("embed", encoder, photos, "--out", tmp_path / "x.npz", "--space", "mine")
    assert code == 2
    assert "--space is for files of vectors" in err


@pytest.mark.usefixtures("small_batches")
def test_embed_batches_of_another_encoder_are_not_used(
    midspan: Command, photos: Path, encoder: Path, tmp_path: Path, stop: Stop
) -> None:
    other = build_encoder(backbone="small-cnn", dim=8, size=12, channels=3, seed=1)
    other.save(tmp_path / "other")
    stop.reset(after=2)
    assert midspan("embed", encoder, photos, "--out", tmp_path / "x.npz")[0] == 130
    stop.reset()
    code, _, err = midspan("embed", tmp_path / "other", photos, "--out", tmp_path / "x.npz")
    assert code == 0
    assert "embedded before" not in err
    assert stop.images == IMAGES


@pytest.mark.usefixtures("small_batches")
def test_gallery_create_and_add_continue_after_ctrl_c(
    midspan: Command, photos: Path, encoder: Path, tmp_path: Path, stop: Stop
) -> None:
    shop = tmp_path / "shop.midspan"
    words = ["--images", photos, "--encoder", encoder]
    stop.reset(after=3)
    code, _, err = midspan("gallery", "create", shop, *words)
    assert code == 130
    assert "24 of 40 images are in; run the same command to continue" in err
    with Gallery.open(shop) as gallery:
        assert len(gallery) == 24
    stop.reset()
    code, _, err = midspan("gallery", "create", shop, *words)
    assert code == 0, err
    assert "24 of 40 items exist already: skipped" in err
    assert stop.images == 16
    with Gallery.open(shop) as gallery:
        assert len(gallery) == IMAGES
        assert gallery.verify().ok
    code, _, err = midspan("gallery", "create", shop, *words)
    assert code == 2  # a gallery that is filled is not filled again
    stop.reset()
    code, _, err = midspan("gallery", "add", shop, *words)
    assert code == 0
    assert "40 of 40 items exist already: skipped" in err
    assert stop.images == 0


@pytest.mark.usefixtures("small_batches")
def test_gallery_add_known_ids_exits_before_embedding(
    midspan: Command, photos: Path, encoder: Path, tmp_path: Path, stop: Stop
) -> None:
    shop = tmp_path / "shop.midspan"
    assert midspan("gallery", "create", shop, "--images", photos, "--encoder", encoder)[0] == 0
    moved = tmp_path / "moved"
    photos.rename(moved)
    stop.reset()
    code, _, err = midspan("gallery", "add", shop, "--images", moved, "--encoder", encoder)
    assert code == 2
    assert "40 of these ids exist already with another image" in err
    assert stop.images == 0


@pytest.mark.slow
def test_embed_continues_after_kill_nine(photos: Path, encoder: Path, tmp_path: Path) -> None:
    """Killed from outside as soon as the first batch is on disk."""
    out = tmp_path / "x.npz"
    code = (
        "import sys, time; from midspan.cli import batches, embed, main\n"
        "batches.FIRST = batches.MOST = embed.STEP = 8\n"
        "add = batches.Journal.add\n"
        "def slow(*words):\n    add(*words)\n    time.sleep(0.2)\n"
        "batches.Journal.add = slow\n"
        f"sys.argv = ['midspan', *{['embed', str(encoder), str(photos), '--out', str(out)]}]\n"
        "main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    patience = time.monotonic() + 60
    while not list(tmp_path.glob("x.npz.batches/*.npz")) and time.monotonic() < patience:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "images were embedded before" in again.stderr
    assert len(Embeddings.load(out)) == IMAGES
