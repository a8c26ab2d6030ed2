"""Whole runs on scikit-learn's digits: folders, going on after kill -9, every kind of old side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan import Embeddings, Space
from midspan.data import digits
from midspan.encoders import load_encoder
from midspan.errors import ConfigError, DataError, FormatError, LabelMismatch, RunError
from midspan.labels import ClassNames
from midspan.training import RunConfig, RunFolder, list_runs, train
from midspan.training.old import read_classifier

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "encoder": {"backbone": "small-cnn", "dim": 16, "settings": {"width": 8}},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
    "train": {"epochs": 3, "batch_size": 64, "lr": 3e-3},
}
OLD = {**BASE, "allocation": {"kind": "extended-data", "part": "old"}}


def config(raw: dict[str, Any], **more: Any) -> RunConfig:
    return RunConfig.from_dict({**raw, **more})


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDSPAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "old"
    train(config(OLD), out=out, progress=False)
    return out


def test_run_folder_has_all_documented_files(old_run: Path) -> None:
    names = {path.name for path in old_run.iterdir()}
    assert names == {
        "config.toml",
        "env.json",
        "classes.json",
        "log.jsonl",
        "metrics.json",
        "encoder",
        "classifier.safetensors",
    }
    metrics = json.loads((old_run / "metrics.json").read_text())
    assert metrics["train_classes"] == 7
    assert 0 < metrics["train_images"] < 500
    assert metrics["scores"]["self"] > 0.5  # three unseen digits: chance is about 0.33
    lines = [json.loads(line) for line in (old_run / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["recognition"] < lines[0]["recognition"]
    assert load_encoder(old_run).space.dim == 16


def features(path: Path) -> Path:
    """120 classes of noisy points seen through one random ReLU layer; 40 of them for the test."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(120), 12)
    points = rng.normal(size=(120, 16))[labels] + 0.6 * rng.normal(size=(1440, 16))
    return Embeddings(
        ids=np.array([f"i{n}" for n in range(1440)]),
        vectors=np.maximum(points @ rng.normal(size=(16, 48)), 0).astype(np.float32),
        space=Space("features", 48),
        columns={"labels": labels, "split": (labels >= 80).astype(np.uint8)},
    ).save(path)


def test_compatible_encoder_searches_the_old_gallery_and_independent_does_not(
    tmp_path: Path,
) -> None:
    base: dict[str, Any] = {
        "data": {"name": "vectors", "path": str(features(tmp_path / "features.npz"))},
        "encoder": {"backbone": "vectors", "dim": 16, "settings": {"hidden": 64}},
        "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
        "train": {"epochs": 12, "batch_size": 96, "lr": 1e-2},
    }
    allocation = {"kind": "extended-class", "part": "old"}
    # another seed than the new ones: encoders that share their first weights are not independent
    train(config(base, seed=7, allocation=allocation), out=tmp_path / "old", progress=False)
    old = {"run": str(tmp_path / "old")}
    compatible = train(
        config(base, method={"name": "bct"}, old=old), out=tmp_path / "bct", progress=False
    )
    independent = train(config(base, old=old), out=tmp_path / "ind", progress=False)
    assert compatible.scores["old_self"] == independent.scores["old_self"]
    assert independent.scores["cross"] < 0.1
    assert compatible.scores["cross"] > 0.3
    assert compatible.scores["self"] > 0.9 * independent.scores["self"]
    old_space = load_encoder(tmp_path / "old").space
    assert compatible.encoder.space.comparable_with(old_space)
    assert not independent.encoder.space.comparable_with(old_space)
    reloaded = load_encoder(tmp_path / "bct").space
    assert reloaded.comparable_with(old_space)  # the record is in the file


def test_train_old_encoder_given_as_a_file_of_vectors(old_run: Path, tmp_path: Path) -> None:
    stored = load_encoder(old_run).embed(digits(), progress=False)
    path = stored.save(tmp_path / "old.npz")
    result = train(
        config(BASE, method={"name": "bct"}, old={"embeddings": str(path)}),
        out=tmp_path / "new",
        progress=False,
    )
    assert result.scores["old_self"] > 0.5
    assert result.encoder.compatible_with == (stored.space.fingerprint,)


def test_train_missing_old_vectors_raises(old_run: Path, tmp_path: Path) -> None:
    stored = load_encoder(old_run).embed(digits(), progress=False)
    path = stored[:100].save(tmp_path / "few.npz")
    with pytest.raises(DataError, match="old vectors are missing"):
        train(
            config(BASE, method={"name": "bct"}, old={"embeddings": str(path)}),
            out=tmp_path / "new",
            progress=False,
        )


def test_old_artifacts_are_cached_by_fingerprint_and_images(
    old_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from midspan.encoders import Encoder

    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    embedded: list[str] = []
    original = Encoder.embed

    def counting(self: Encoder, *args: Any, **options: Any) -> Embeddings:
        embedded.append(self.name)
        return original(self, *args, **options)

    monkeypatch.setattr(Encoder, "embed", counting)
    settings = config(
        {**BASE, "train": {**BASE["train"], "epochs": 1}},
        name="new",
        method={"name": "bct"},
        old={"run": str(old_run)},
    )
    train(settings, out=tmp_path / "one", progress=False)
    assert sorted(embedded) == ["new", "run", "run"]  # test by new; train and test by old
    train(settings, out=tmp_path / "two", progress=False)
    assert sorted(embedded) == ["new", "new", "run", "run"]
    for entry in (tmp_path / "cache" / "old").iterdir():
        entry.write_bytes(b"damaged")
    train(settings, out=tmp_path / "three", progress=False)
    assert sorted(embedded) == ["new", "new", "new", "run", "run", "run", "run"]


def test_train_finished_run_is_returned_and_other_settings_raise(old_run: Path) -> None:
    before = (old_run / "metrics.json").stat().st_mtime_ns
    again = train(config(OLD), out=old_run, progress=False)
    assert (old_run / "metrics.json").stat().st_mtime_ns == before
    assert again.encoder.space.same_as(load_encoder(old_run).space)
    with pytest.raises(RunError, match=r"other settings .*`restart`"):
        train(config(OLD, seed=1), out=old_run, progress=False)


def test_train_restart_trains_from_the_beginning(tmp_path: Path) -> None:
    small = {**BASE, "train": {**BASE["train"], "epochs": 1}}
    first = train(config(small), out=tmp_path / "r", progress=False)
    second = train(config(small, seed=1), out=tmp_path / "r", restart=True, progress=False)
    assert not first.encoder.space.same_as(second.encoder.space)


def test_train_into_a_foreign_folder_raises_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"precious")
    for restart in (False, True):
        with pytest.raises(RunError, match="not a run folder"):
            train(config(BASE), out=tmp_path, restart=restart, progress=False)
    assert (tmp_path / "holiday.jpg").read_bytes() == b"precious"


def test_train_validation_classes_come_from_the_training_classes(tmp_path: Path) -> None:
    result = train(
        config(BASE, evaluate={"validation": True, "validation_fraction": 0.3}),
        out=tmp_path / "v",
        progress=False,
    )
    assert result.metrics["train_classes"] == 5
    train_items = int((digits().train.labels is not None) and len(digits().train))
    assert result.metrics["train_images"] + result.metrics["test_items"] == train_items


def test_train_head_over_vectors_learns_and_saves(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 6
    centres = rng.normal(size=(6, 12)) * 2
    embeddings = Embeddings(
        ids=np.array([f"i{n}" for n in range(120)]),
        vectors=(centres[labels] + rng.normal(size=(120, 12))).astype(np.float32),
        space=Space("frozen", 12),
        columns={"labels": labels, "split": (labels >= 4).astype(np.uint8)},
    )
    path = embeddings.save(tmp_path / "features.npz")
    result = train(
        config(
            {
                "data": {"name": "vectors", "path": str(path)},
                "encoder": {"backbone": "vectors", "dim": 4},
                "train": {"epochs": 5, "batch_size": 16},
            }
        ),
        out=tmp_path / "head",
        progress=False,
    )
    assert result.metrics["train_classes"] == 4
    assert 0 < result.scores["self"] <= 1
    with pytest.raises(ConfigError, match="does not fit"):
        train(
            config({**BASE, "encoder": {"backbone": "vectors", "settings": {"inputs": 64}}}),
            out=tmp_path / "wrong",
            progress=False,
        )


def test_train_old_vectors_are_scored_with_the_labels_of_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 6
    features = Embeddings(
        ids=np.array([f"i{n}" for n in range(120)]),
        vectors=rng.normal(size=(120, 12)).astype(np.float32),
        space=Space("frozen", 12),
        columns={"labels": labels, "split": (labels >= 4).astype(np.uint8)},
    )
    old = Embeddings(features.ids, features.vectors[:, :4], Space("old", 4))
    settings = {
        "data": {"name": "vectors", "path": str(features.save(tmp_path / "features.npz"))},
        "encoder": {"backbone": "vectors", "dim": 4},
        "train": {"epochs": 1, "batch_size": 16},
        "method": {"name": "l2"},
        "old": {"embeddings": str(old.save(tmp_path / "old.npz"))},
    }
    bare = train(config(settings), out=tmp_path / "bare", progress=False).scores
    assert "cross" in bare
    old.with_columns({"labels": labels}).save(tmp_path / "old.npz")
    assert train(config(settings), out=tmp_path / "named", progress=False).scores == bare
    old.with_columns({"labels": np.roll(labels, 1)}).save(tmp_path / "old.npz")
    with pytest.raises(LabelMismatch, match="first 'i0': there '5', in the data '0'"):
        train(config(settings), out=tmp_path / "wrong", progress=False)
    train_part = old[labels < 4]  # of the test items it has no vector: no cross test, as before
    settings["old"] = {"embeddings": str(train_part.save(tmp_path / "part.npz"))}
    note = train(config(settings), out=tmp_path / "part", progress=False).metrics["note"]
    assert note.startswith("no cross test")


def test_train_labels_are_mapped_by_class_name(old_run: Path) -> None:
    classifier, names = read_classifier(old_run)
    assert classifier is not None
    assert classifier.rows.shape == (7, 16)
    assert len(names) == 7
    assert ClassNames(("b", "x", "a")).places_in(["a", "b"]).tolist() == [1, -1, 0]
    assert json.loads((old_run / "classes.json").read_text()) == list(names)


def test_run_folder_damaged_files_raise_format_error(old_run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(old_run, copy)
    (copy / "classifier.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(FormatError, match="not a readable classifier"):
        read_classifier(copy)
    (copy / "metrics.json").write_text("{")
    with pytest.raises(FormatError, match="not readable"):
        RunFolder(copy).metrics()


def test_list_runs_gives_state_epochs_and_scores(old_run: Path, tmp_path: Path) -> None:
    runs = list_runs(old_run.parent)
    assert [run.path for run in runs] == [old_run]
    assert (runs[0].state, runs[0].epochs, runs[0].method) == ("finished", "3/3", "independent")
    assert runs[0].scores["self"] > 0.5
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.toml").write_text("[nothing]")
    assert [run.state for run in list_runs(tmp_path)] == ["unreadable"]
    with pytest.raises(RunError, match="no such folder"):
        list_runs(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": {"name": "bct"}}, r"needs the old encoder: add \[old\]"),
        ({"method": {"name": "btc"}}, "did you mean 'bct'"),
        ({"loss": {"name": "cosface", "marign": 0.2}}, "did you mean 'margin'"),
        ({"encoder": {"backbone": "small-resnett"}}, "did you mean 'small-resnet'"),
        ({"data": {"name": "digit"}}, "did you mean 'digits'"),
    ],
)
def test_train_unfit_settings_raise_config_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config({**BASE, **change}), out=tmp_path / "x", progress=False)


def test_train_other_dim_than_the_old_encoder_raises_config_error(
    old_run: Path, tmp_path: Path
) -> None:
    wrong = {**BASE, "encoder": {"backbone": "small-cnn", "dim": 8}}
    with pytest.raises(ConfigError, match="dim = 16"):
        train(
            config(wrong, method={"name": "bct"}, old={"run": str(old_run)}),
            out=tmp_path / "x",
            progress=False,
        )


KILLED = """
import sys
from midspan.training import RunConfig, train
import json
train(RunConfig.from_dict(json.loads(sys.argv[1])), out=sys.argv[2], progress=False)
"""


@pytest.mark.slow
def test_train_killed_run_continues_to_the_same_weights(tmp_path: Path) -> None:
    settings = {
        **BASE,
        "train": {**BASE["train"], "epochs": 6, "augment": ["affine"], "checkpoint_seconds": 0.0},
    }
    whole = train(config(settings), out=tmp_path / "whole", progress=False)
    out = tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(settings), str(out)], env=environment
    )
    log = out / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and len(log.read_text().splitlines()) >= 2):
        assert time.monotonic() < deadline, "the run did not start"
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "metrics.json").exists()
    resumed = train(config(settings), out=out, progress=False)
    for name, value in whole.encoder.state_dict().items():
        assert torch.equal(value, resumed.encoder.state_dict()[name]), name
    assert resumed.encoder.space.same_as(whole.encoder.space)
    assert resumed.scores == whole.scores
    epochs = [json.loads(line)["epoch"] for line in log.read_text().splitlines()]
    assert epochs == [1, 2, 3, 4, 5, 6]
