"""Classes are known by name: old classifiers, files of old vectors, runs that continue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.errors import ConfigError, RunError
from midspan.labels import NumberedLabels
from midspan.training import RunConfig, RunFolder, train
from midspan.training.distributed import Processes
from midspan.training.inputs import read_inputs
from midspan.training.old import OldModel, artifacts

SPACE = Space("frozen", 12, fingerprint="f-frozen")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))


def features(path: Path, classes: list[str], *, per_class: int = 8) -> Path:
    """Vectors around a centre of each class, which depends on its name alone."""
    rows, ids, labels = [], [], []
    for name in classes:
        random = np.random.default_rng(sum(map(ord, name)))
        rows.append(random.normal(size=12) + 0.3 * random.normal(size=(per_class, 12)))
        ids += [f"{name}/{n}" for n in range(per_class)]
        labels += [name] * per_class
    vectors = np.concatenate(rows).astype(np.float32)
    return Embeddings(np.array(ids), vectors, SPACE, {"labels": np.array(labels)}).save(path)


def settings(data: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "data": {"name": "vectors", "path": str(data)},
        "encoder": {"backbone": "vectors", "dim": 6},
        "train": {"epochs": 1, "batch_size": 16},
        **more,
    }


def config(data: Path, **more: Any) -> RunConfig:
    return RunConfig.from_dict(settings(data, **more))


def test_old_class_weights_are_matched_by_name(tmp_path: Path) -> None:
    """'003' is class 1 of the old run and class 2 of the new one."""
    old_data = features(tmp_path / "old.npz", ["001", "003", "005"])
    train(config(old_data), out=tmp_path / "old", progress=False)
    assert json.loads((tmp_path / "old" / "classes.json").read_text()) == ["001", "003", "005"]
    new_data = features(tmp_path / "new.npz", ["005", "000", "003", "002"])
    new = config(new_data, old={"run": str(tmp_path / "old")}, method={"name": "bct"})
    inputs = read_inputs(new)
    assert inputs.class_names == ("000", "002", "003", "005")
    assert new.old is not None
    known = artifacts(
        OldModel.load(new.old), new.old, inputs, processes=Processes(), show_progress=False
    )
    assert known.label_map.tolist() == [-1, -1, 1, 2]


def test_old_classifier_without_a_common_class_raises(tmp_path: Path) -> None:
    old_data = features(tmp_path / "old.npz", ["001", "003"])
    train(config(old_data), out=tmp_path / "old", progress=False)
    new_data = features(tmp_path / "new.npz", ["002", "004"])
    method = {"name": "bct", "classifier": "old"}
    new = config(new_data, old={"run": str(tmp_path / "old")}, method=method)
    with pytest.raises(ConfigError, match="none of the training classes has the name of one"):
        train(new, out=tmp_path / "new", progress=False)


def test_train_class_names_against_numbers_warns(tmp_path: Path) -> None:
    old_data = features(tmp_path / "old.npz", ["0", "1"])
    train(config(old_data), out=tmp_path / "old", progress=False)
    new_data = features(tmp_path / "new.npz", ["ant", "bee"])
    new = config(new_data, old={"run": str(tmp_path / "old")}, method={"name": "bct"})
    with pytest.warns(UserWarning, match="the old run has '0', '1', the data 'ant', 'bee'; the"):
        train(new, out=tmp_path / "new", progress=False)


def test_train_numbered_labels_with_an_old_classifier_warns(tmp_path: Path) -> None:
    old_data = features(tmp_path / "old.npz", ["0", "1"])
    train(config(old_data), out=tmp_path / "old", progress=False)
    stored = Embeddings.load(features(tmp_path / "new.npz", ["1", "2"]))
    assert stored.labels is not None
    np.savez(  # as an earlier version wrote it
        tmp_path / "new.npz",
        vectors=stored.vectors,
        ids=stored.ids,
        labels=stored.labels.astype(np.int64),
        space=np.array(SPACE.to_json()),
    )
    new = config(tmp_path / "new.npz", old={"run": str(tmp_path / "old")}, method={"name": "bct"})
    with pytest.warns(NumberedLabels, match="the labels of the training vectors are numbers"):
        train(new, out=tmp_path / "new", progress=False)


def test_train_continued_with_other_classes_raises(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.keep_classes(["ant", "bee"])
    folder.keep_classes(["ant", "bee"])
    with pytest.raises(RunError, match=r"started with 2 classes, the data has 3 now \('cat' on on"):
        folder.keep_classes(["ant", "bee", "cat"])
    with pytest.raises(RunError, match="in another order"):
        folder.keep_classes(["bee", "ant"])


def test_old_embeddings_without_a_space_take_the_name_of_the_run_file(tmp_path: Path) -> None:
    stored = Embeddings.load(features(tmp_path / "a.npz", ["ant", "bee"]))
    assert stored.labels is not None
    np.savez(tmp_path / "bare.npz", vectors=stored.vectors, ids=stored.ids, labels=stored.labels)
    np.savez(tmp_path / "old.npz", vectors=stored.vectors[:, :6], ids=stored.ids)
    raw = settings(tmp_path / "bare.npz", method={"name": "l2"})
    raw["data"]["space"] = "r18"
    raw["old"] = {"embeddings": str(tmp_path / "old.npz"), "space": "old"}
    train(RunConfig.from_dict(raw), out=tmp_path / "run", progress=False)
    with pytest.raises(ConfigError, match=r"\[old\] space is for embeddings"):
        RunConfig.from_dict({**raw, "old": {"run": "runs/old", "space": "old"}})
