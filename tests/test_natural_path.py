"""From a folder of photos to an upgraded gallery, the way one would write it at first try."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import midspan as ms
from midspan.cli import app
from midspan.encoders import Encoder, build_encoder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (root / kind).mkdir()
        for number in range(4):
            pixels = rng.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / kind / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def encoders() -> tuple[Encoder, Encoder]:
    old, new = (
        build_encoder(backbone="small-cnn", dim=dim, seed=dim, name=f"tiny-{dim}")
        for dim in (8, 12)
    )
    return old.eval(), new.eval()


def test_gallery_of_an_embedded_folder_is_upgraded_by_an_encoder(
    photos: Path, encoders: tuple[Encoder, Encoder]
) -> None:
    old, new = encoders
    with ms.Gallery.create("memory:", old.space) as gallery:
        gallery.add(old.embed(photos, progress=False))
        item = gallery.get("cat/0.png")
        assert item.uri == str(photos / "cat" / "0.png")
        assert item.payload == {"labels": "cat"}
        upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        report = upgrade.run(new)
        assert (report.new, report.failed) == (8, 0)
        upgrade.finish(override="eight photographs are too few for the gate")
        hits = gallery.search(new.embed(photos / "dog" / "1.png"), k=1, filter={"labels": "dog"})
        assert [hit.id for hit in hits[0]] == ["dog/1.png"]


def test_gallery_add_given_uris_and_payloads_replace_the_columns(
    photos: Path, encoders: tuple[Encoder, Encoder]
) -> None:
    vectors = encoders[0].embed(photos, progress=False)
    with ms.Gallery.create("memory:", vectors.space) as gallery:
        gallery.add(vectors, uris=[None] * 8, payloads=[{"shelf": 3}] * 8)
        item = gallery.get("cat/0.png")
        assert (item.uri, item.payload) == (None, {"shelf": 3})


def test_gallery_add_of_embed_output_keeps_the_uris(
    photos: Path, encoders: tuple[Encoder, Encoder], tmp_path: Path
) -> None:
    """The command line and Python store the same items."""
    vectors = encoders[0].embed(photos, progress=False)
    file, place = vectors.save(tmp_path / "old.npz"), tmp_path / "a.midspan"
    done = CliRunner().invoke(app, ["gallery", "create", str(place), "--vectors", str(file)])
    assert done.exit_code == 0, done.output
    encoders[0].save(tmp_path / "encoder")
    other = tmp_path / "b.midspan"
    arguments = ["--images", str(photos), "--encoder", str(tmp_path / "encoder")]
    done = CliRunner().invoke(app, ["gallery", "create", str(other), *arguments])
    assert done.exit_code == 0, done.output
    found = []
    for location in (place, other):
        with ms.Gallery.open(location) as gallery:
            found.append([(one.id, one.uri, one.payload) for one in gallery.scan(limit=10)])
    with ms.Gallery.create("memory:", vectors.space) as gallery:
        gallery.add(vectors)
        found.append([(one.id, one.uri, one.payload) for one in gallery.scan(limit=10)])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 8


def test_gallery_add_of_images_in_memory_has_no_uri(encoders: tuple[Encoder, Encoder]) -> None:
    vectors = encoders[0].embed(ms.data.digits().test[:3], progress=False)
    assert "uri" not in vectors.columns


def test_embed_empty_list_raises_and_one_image_shows_no_progress(
    photos: Path, encoders: tuple[Encoder, Encoder], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ms.EncoderError, match="empty list; expected at least one image"):
        encoders[0].embed([])
    encoders[0].embed(photos / "cat" / "0.png")
    assert capfd.readouterr().err == ""
    encoders[0].embed(photos)
    assert "8 items" in capfd.readouterr().err
