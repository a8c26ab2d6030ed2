"""A run with an old encoder says whether the criterion holds, on what, and with which interval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.encoders import load_encoder
from midspan.errors import FormatError
from midspan.evidence import Evidence
from midspan.training import RunConfig, train


def features(path: Path) -> Path:
    """400 vectors of 40 classes, the last 20 of them for the test."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 40
    rows = rng.normal(size=(40, 24))[labels] + 0.9 * rng.normal(size=(400, 24))
    return Embeddings(
        ids=np.array([f"i{n}" for n in range(400)]),
        vectors=rows.astype(np.float32),
        space=Space("features", 24),
        columns={"labels": labels, "split": (labels >= 20).astype(np.int64)},
    ).save(path)


def settings(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "data": {"name": "vectors", "path": str(path)},
        "encoder": {"backbone": "vectors", "dim": 16},
        "train": {"epochs": 3, "batch_size": 64},
        "evaluate": {"metrics": ["map"]},
        **more,
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("criterion")
    path = features(folder / "features.npz")
    train(RunConfig.from_dict(settings(path)), out=folder / "old", progress=False)
    old = {"run": str(folder / "old")}
    for name, method in (("new", "l2"), ("alone", "independent")):
        config = settings(path, old=old, method={"name": method}, seed=1)
        train(RunConfig.from_dict(config), out=folder / name, progress=False)
    return folder


def test_run_with_an_old_encoder_records_the_criterion_with_its_interval(runs: Path) -> None:
    metrics = json.loads((runs / "new" / "metrics.json").read_text())
    evidence = Evidence.from_dict(metrics["criterion"], source="metrics.json")
    assert evidence.old == load_encoder(runs / "old").space.fingerprint
    assert evidence.cross == pytest.approx(metrics["scores"]["cross"])
    assert evidence.old_self == pytest.approx(metrics["scores"]["old_self"])
    assert evidence.low is not None
    assert evidence.high is not None
    assert evidence.cross is not None
    assert evidence.old_self is not None
    assert evidence.low < evidence.cross - evidence.old_self < evidence.high
    assert (evidence.queries, evidence.data) == (200, "200 items of 20 test classes of vectors")


def test_run_of_an_independent_encoder_fails_the_criterion(runs: Path) -> None:
    evidence = json.loads((runs / "alone" / "metrics.json").read_text())["criterion"]
    assert evidence["verdict"] == "FAIL"
    assert evidence["high"] < 0
    assert load_encoder(runs / "alone").space.compatible_with == ()


def test_space_of_a_run_is_compatible_only_with_evidence(runs: Path, tmp_path: Path) -> None:
    encoder, old = load_encoder(runs / "new"), load_encoder(runs / "old")
    evidence = encoder.space.evidence_for(old.space)
    assert encoder.space.compatible_with == (old.space.fingerprint,)
    assert evidence is not None
    assert str(evidence).startswith(f"{evidence.verdict}: cross")
    again = Space.from_json(encoder.space.to_json())  # as galleries and files keep it
    assert again.evidence_for(old.space) == evidence
    made = Embeddings(np.array(["a"]), np.ones((1, 16), np.float32), encoder.space)
    loaded = Embeddings.load(made.save(tmp_path / "x.npz"))
    assert loaded.space.evidence == (evidence,)


def test_run_without_a_test_set_records_no_measurement(runs: Path, tmp_path: Path) -> None:
    config = settings(
        runs / "features.npz",
        old={"run": str(runs / "old")},
        method={"name": "l2"},
        evaluate={"metrics": []},
    )
    result = train(RunConfig.from_dict(config), out=tmp_path / "r", progress=False)
    (evidence,) = result.encoder.evidence
    assert (evidence.verdict, evidence.cross, evidence.data) == (
        "INCONCLUSIVE",
        None,
        "[evaluate] metrics = []",
    )


def test_spaces_and_run_folders_of_earlier_versions_are_read(runs: Path, tmp_path: Path) -> None:
    space = Space.from_json('{"name": "a", "dim": 4, "compatible_with": ["x"]}')
    assert (space.compatible_with, space.evidence) == (("x",), ())
    config = json.loads((runs / "new" / "encoder" / "config.json").read_text())
    del config["evidence"]
    folder = tmp_path / "earlier"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    weights = (runs / "new" / "encoder" / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights)
    assert load_encoder(folder).space.evidence == ()
    with pytest.raises(FormatError, match="incomplete"):
        Space.from_json('{"name": "a", "dim": 4, "evidence": [{"old": "x"}]}')
