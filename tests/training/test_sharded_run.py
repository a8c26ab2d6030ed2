"""Whole runs with a classifier in parts, and on images in shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from midspan import Embeddings, Space
from midspan.errors import ConfigError, Interrupted
from midspan.training import RunConfig, train
from midspan.training.folders import CHECKPOINT_ROWS
from midspan.training.old import read_classifier
from tests.data.shards import write_shard

CLASSES, IMAGES = 30, 240


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))


def vectors(path: Path) -> str:
    rng = np.random.default_rng(0)
    labels = np.arange(IMAGES) % CLASSES
    Embeddings(
        ids=np.array([f"i{n}" for n in range(IMAGES)]),
        vectors=(rng.normal(size=(CLASSES, 12))[labels] + rng.normal(size=(IMAGES, 12))).astype(
            np.float32
        ),
        space=Space("features", 12),
        columns={"labels": labels},
    ).save(path)
    return str(path)


def config(tmp_path: Path, **more: Any) -> RunConfig:
    path = tmp_path / "features.npz"
    return RunConfig.from_dict(
        {
            "data": {"name": "vectors", "path": str(path) if path.exists() else vectors(path)},
            "encoder": {"backbone": "vectors", "dim": 8},
            "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
            "train": {"epochs": 2, "batch_size": 60, "lr": 1e-2},
            **more,
        }
    )


def test_sharded_run_at_rate_1_equals_the_whole_classifier(tmp_path: Path) -> None:
    """Eight steps of AdamW with clipping; tolerance 1e-4 of float32 sums in another order."""
    train(config(tmp_path), out=tmp_path / "whole", progress=False)
    sharded = config(tmp_path, classifier={"sharded": True})
    train(sharded, out=tmp_path / "parts", progress=False)
    for file in ("encoder/model.safetensors", "classifier.safetensors"):
        whole, parts = (load_file(tmp_path / run / file) for run in ("whole", "parts"))
        assert whole.keys() == parts.keys()
        for name, value in whole.items():
            torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-4)
    classifier, names = read_classifier(tmp_path / "parts")
    assert classifier is not None
    assert classifier.rows.shape == (CLASSES, 8)
    assert (classifier.scale, classifier.normalised, len(names)) == (16.0, True, CLASSES)
    left = {path.name for path in (tmp_path / "parts").iterdir()}
    assert left == {path.name for path in (tmp_path / "whole").iterdir()}


def test_stopped_sharded_run_continues_with_its_class_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled = config(tmp_path, classifier={"sharded": True, "sample_rate": 0.5})
    train(sampled, out=tmp_path / "once", progress=False)
    asked = iter([False, False, False, True])

    class Stop:
        def __enter__(self) -> Any:
            return lambda: next(asked)

        def __exit__(self, *_: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr("midspan.training.loop.interruptible", Stop)
        with pytest.raises(Interrupted):
            train(sampled, out=tmp_path / "twice", progress=False)
    assert len(list((tmp_path / "twice" / CHECKPOINT_ROWS).iterdir())) == 1
    train(sampled, out=tmp_path / "twice", progress=False)
    for file in ("encoder/model.safetensors", "classifier.safetensors"):
        once, twice = (load_file(tmp_path / run / file) for run in ("once", "twice"))
        for name, value in once.items():
            assert torch.equal(twice[name], value), name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"loss": {"name": "proxy-anchor"}}, "is not a softmax over class weights"),
        ({"method": {"name": "lce"}}, "needs the logits or the rows of all classes"),
        (
            {"method": {"name": "hot-refresh", "variant": "classifier", "negatives": "both"}},
            "needs the logits or the rows of all classes",
        ),
    ],
)
def test_sharded_classifier_incompatible_settings_raise_config_error(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    old = {"embeddings": vectors(tmp_path / "old.npz")}
    with pytest.raises(ConfigError, match=message):
        train(
            config(tmp_path, classifier={"sharded": True}, old=old, **more),
            out=tmp_path / "run",
            progress=False,
        )


def test_sharded_classifier_settings_are_checked(tmp_path: Path) -> None:
    assert not config(tmp_path).classifier.sharded
    with pytest.raises(ConfigError, match="requires sharded = true"):
        config(tmp_path, classifier={"sample_rate": 0.1})
    with pytest.raises(ConfigError, match="0 < sample_rate <= 1"):
        config(tmp_path, classifier={"sharded": True, "sample_rate": 0.0})
    with pytest.raises(ConfigError, match="did you mean 'sample_rate'"):
        config(tmp_path, classifier={"sample_rat": 0.1})


def test_train_shards_equal_the_folder_of_the_same_images(tmp_path: Path) -> None:
    """Bit for bit, though they are decoded anew whenever their turn comes."""
    rng = np.random.default_rng(0)
    entries: dict[str, bytes | str] = {}
    for number in range(24):
        name = f"c{number % 3}/{number:02}"
        file = tmp_path / "set" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (14, 14), dtype=np.uint8)).save(file)
        entries |= {f"{name}.png": file.read_bytes(), f"{name}.cls": f"c{number % 3}"}
    ordered = {name: entries[name] for name in sorted(entries, key=lambda n: n.split(".")[0])}
    names = list(ordered)
    for shard in range(2):
        part = {name: ordered[name] for name in names[24 * shard : 24 * shard + 24]}
        write_shard(tmp_path / f"train-{shard}.tar", part)
    states = []
    for data in (
        {"name": "folder", "path": str(tmp_path / "set")},
        {"name": "webdataset", "path": str(tmp_path / "train-{0..1}.tar")},
    ):
        raw = {
            "data": data,
            "encoder": {"backbone": "small-cnn", "dim": 8, "size": 12, "channels": 1},
            "train": {"epochs": 2, "batch_size": 8, "augment": ["flip"]},
        }
        out = tmp_path / data["name"]
        train(RunConfig.from_dict(raw, default_name="run"), out=out, progress=False)
        states.append(load_file(out / "encoder" / "model.safetensors"))
    for name, value in states[0].items():
        assert torch.equal(states[1][name], value), name
    metrics = json.loads((tmp_path / "webdataset" / "metrics.json").read_text())
    assert metrics["train_images"] == 24
    assert not (tmp_path / "cache" / "decoded").exists()
