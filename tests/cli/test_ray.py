"""`--ray ADDRESS` of `midspan upgrade run` and `midspan embed`, with a real small encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from midspan import Embeddings, Gallery, Space, Upgrade
from midspan.cli import app
from midspan.cli.ray_images import shipped
from midspan.cli.ray_workers import carried, load_on_worker, seen_here
from midspan.data import folder
from midspan.encoders import build_encoder, load_encoder
from midspan.encoders.files import save_encoder
from midspan.errors import ConfigError, MidspanError
from midspan.gallery import Item, Task
from midspan.upgrade.cluster.connect import connected
from tests.data.shards import picture, write_shard

OLD = Space("old", 8, fingerprint="f-old")


def call(*words: object, code: int = 0) -> dict[str, Any]:
    """The JSON that a command prints; its error is raised."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    if isinstance(result.exception, MidspanError):
        raise result.exception
    assert result.exit_code == code, f"{result.output} {result.exception!r}"
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A tiny encoder that was trained compatibly, as far as its record says."""
    made = build_encoder(backbone="small-cnn", dim=8, size=16, channels=3, seed=0)
    made.compatible_with = ("f-old",)
    return save_encoder(made, tmp_path / "run")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """12 images of two classes."""
    rng = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "photos" / f"c{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number:02d}.png")
    return tmp_path / "photos"


@pytest.fixture
def shop(tmp_path: Path, photos: Path) -> str:
    """A gallery of them, and of one that is no image."""
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    images = folder(photos)
    ids = np.array([*images.ids.tolist(), "broken"])
    rows = np.random.default_rng(1).standard_normal((len(ids), 8)).astype(np.float32)
    uris = [*(images.uri(row) for row in range(len(images))), str(broken)]
    with Gallery.create(str(tmp_path / "shop.midspan"), OLD) as gallery:
        gallery.add(Embeddings(ids, rows, OLD), uris=uris)
        return gallery.location


@pytest.mark.slow
@pytest.mark.ray
def test_ray_cluster_backfills_embeds_and_adds(
    run: Path, photos: Path, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cluster for all three commands: to start another one takes longer than they do."""
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: never their turn
    monkeypatch.setenv("RAY_object_store_memory", str(80 * 2**20))
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    encoder = load_encoder(run)
    truth = encoder.embed(folder(photos), progress=False)
    with Gallery.open(shop) as gallery:
        Upgrade.start(gallery, to=encoder.space, order="random")
    with connected("local"):
        words = ["--encoder", run, "--ray", "local", "--workers", 1]
        report = call("upgrade", "run", shop, *words, code=1)  # one is no image
        check_embed(run, photos, tmp_path / "shipped.npz", truth, "--ship-images")
        check_embed(run, in_shards(photos), tmp_path / "shards.npz", truth)
    assert (report["stopped"], report["written"], report["given_up"]) == ("done", 12, 1)
    assert report["reasons"][0]["example"] == "broken"
    assert report["cluster"] == {"workers": 1, "nodes": 1, "lost": 0, "sent_again": 0}
    with Gallery.open(shop) as gallery:
        stored = gallery.vectors(truth.ids.tolist(), space=encoder.space.fingerprint)
        np.testing.assert_allclose(stored.vectors, truth.vectors, atol=1e-6)
        (failure,) = gallery.work.failures(after="", limit=9)
        assert failure.id == "broken"


def check_embed(run: Path, images: object, out: Path, truth: Embeddings, *words: str) -> None:
    """`embed --ray` gives what the encoder gives here."""
    more = ["--out", out, "--ray", "local", "--workers", 1, "--batch-size", 5, *words]
    assert call("embed", run, images, *more)["items"] == len(truth)
    there = Embeddings.load(out)
    assert there.ids.tolist() == truth.ids.tolist()
    assert there.space.same_as(truth.space)
    assert there.columns["labels"].tolist() == truth.columns["labels"].tolist()
    np.testing.assert_allclose(there.vectors, truth.vectors, atol=1e-6)


def in_shards(photos: Path) -> Path:
    """The same images in the same order, in two shards; returns their pattern."""
    files = sorted(photos.glob("*/*.png"))
    for number, part in enumerate((files[:7], files[7:])):
        entries: dict[str, bytes | str] = {}
        for file in part:
            name = file.relative_to(photos)
            entries |= {str(name): file.read_bytes(), f"{name.with_suffix('.cls')}": name.parts[0]}
        write_shard(photos.parent / "shards" / f"{number}.tar", entries)
    return photos.parent / "shards" / "{0..1}.tar"


def test_ray_shipped_images_equal_the_local_ones(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images in files, a set and a shard; some that are not there: as without shipping."""
    import ray

    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ray, "get_gpu_ids", list)
    pixels = np.random.default_rng(2).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "set.npz", images=pixels)
    shard = write_shard(tmp_path / "a.tar", {"c#0/1.png": picture(90)})
    uris = {
        "file": str(next(photos.glob("*/*.png"))),
        "row": f"{tmp_path / 'set.npz'}#2",
        "member": f"{shard}#c#0/1.png",
        "no row": f"{tmp_path / 'set.npz'}#3",
        "no member": f"{shard}#2.png",
        "no shard": f"{tmp_path / 'gone.tar'}#2.png",
        "gone": str(tmp_path / "gone.png"),
        "none": None,
    }
    items = [Item(id, uri, {}, 1, 0.0, 0.0, ()) for id, uri in uris.items()]
    parcel = shipped([Task(item, 0) for item in items])
    space, embed = carried(str(run))()  # loaded from a copy that is gone by now
    assert space.same_as(load_encoder(run).space)
    here = embed(items)
    assert parcel.opened is not None
    with parcel.opened(parcel.items) as there:
        assert [item.id for item in there] == list(uris)
        assert there[0].uri != items[0].uri
        made = embed(there)
    assert set(made.vectors.ids) == {"file", "row", "member"}
    again = made.vectors.take(here.vectors.ids)
    np.testing.assert_allclose(again.vectors, here.vectors.vectors, atol=1e-6)
    assert set(made.failed) == set(here.failed) == {"gone", "no shard"}
    assert set(made.hopeless) == set(here.hopeless) == {"none", "no row", "no member"}
    assert not Path(str(there[0].uri)).exists(), "the worker keeps no copy"
    seen = {item.id for item in items if seen_here(item)}
    assert seen == {"file", "row", "member", "no row", "no member"}
    assert load_on_worker(str(run), {})[0].same_as(space)  # by name, from a storage that all see


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["upgrade", "run", "SHOP", "--encoder", "RUN", "--workers", "2"], "without --ray"),
        (["upgrade", "run", "SHOP", "--encoder", "RUN", "--ship-images"], "without --ray"),
        (["upgrade", "run", "SHOP", "--ray", "auto"], "--ray requires --encoder"),
        (["upgrade", "run", "SHOP", "--ray", "auto", "--embeddings", "x.npz"], "need no workers"),
        (["upgrade", "run", "SHOP", "--encoder", "RUN", "--ray", "nowhere"], "got 'nowhere'"),
        (["embed", "RUN", "PHOTOS", "--out", "x.npz", "--gpus-per-worker", "1"], "without --ray"),
        (["embed", "RUN", "PHOTOS", "--out", "x.npz", "--ray", "auto", "--device", "cpu"], "gpus"),
    ],
)
def test_ray_unusable_settings_raise_config_error(
    run: Path, photos: Path, shop: str, words: list[str], match: str
) -> None:
    places = {"SHOP": shop, "RUN": str(run), "PHOTOS": str(photos)}
    if "nowhere" in words:
        with Gallery.open(shop) as gallery:
            Upgrade.start(gallery, to=load_encoder(run).space, order="random")
    with pytest.raises(ConfigError, match=match):
        call(*(places.get(word, word) for word in words))
