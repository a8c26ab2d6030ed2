"""Shards on the command line: embedded, added to a gallery, upgraded from where they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from midspan.cli import app
from midspan.encoders import build_encoder
from midspan.gallery import Gallery
from midspan.spaces import Embeddings
from tests.data.shards import picture, write_shard

runner = CliRunner()


def done(*arguments: object) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def encoders(tmp_path: Path) -> tuple[Path, Path]:
    old, new = (
        build_encoder(backbone="small-cnn", dim=8, size=16, channels=1, name=name, seed=seed)
        for seed, name in enumerate(("old", "new"))
    )
    new.compatible_with = (old.space.fingerprint,)
    old.save(tmp_path / "old")
    new.save(tmp_path / "new")
    return tmp_path / "old", tmp_path / "new"


@pytest.mark.slow
def test_shards_embed_add_and_upgrade_work(
    tmp_path: Path, encoders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    old, new = encoders
    for number in range(6):
        name, content = f"c{number % 2}/{number}.png", picture(40 * number)
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shard = tmp_path / "shards" / f"train-{number:03}.tar"
        write_shard(shard, {name: content, f"c{number % 2}/{number}.cls": f"c{number % 2}"})
    pattern = tmp_path / "shards" / "train-{000..005}.tar"

    done("embed", old, pattern, "--out", tmp_path / "shards.npz")
    done("embed", old, tmp_path / "set", "--out", tmp_path / "set.npz")
    files = Embeddings.load(tmp_path / "set.npz")
    shards = Embeddings.load(tmp_path / "shards.npz").take(files.ids)
    np.testing.assert_array_equal(shards.vectors, files.vectors)
    np.testing.assert_array_equal(shards.columns["labels"], files.columns["labels"])

    gallery = tmp_path / "shop.midspan"
    done("gallery", "create", gallery, "--images", pattern, "--encoder", old)
    with Gallery.open(str(gallery)) as opened:
        assert opened.get("c1/3.png").uri == f"{tmp_path}/shards/train-003.tar#c1/3.png"
    done("upgrade", "start", gallery, "--encoder", new)
    told = json.loads(done("upgrade", "run", gallery, "--encoder", new, "--json"))
    assert told["new"] == 6, told
