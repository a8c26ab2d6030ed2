"""Maps that a method learns: the saved bridge is the same function, and runs report through it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from midspan import Embeddings, Space
from midspan.bridges import load_bridge
from midspan.encoders import load_encoder
from midspan.evaluation import evaluate
from midspan.methods.transformation import Transformation
from midspan.training import RunConfig, train
from midspan.training.maps import as_bridge, load_maps, save_maps

NEW = Space("new", 7, fingerprint="f-new")
OLD = Space("old", 5, fingerprint="f-old")


def stirred(inputs: int, outputs: int, *, depth: int) -> Transformation:
    torch.manual_seed(0)
    module = Transformation(torch.randn(inputs, outputs), depth=depth, paths=3, hidden=6)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return module


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_as_bridge_equals_the_module(depth: int) -> None:
    module = stirred(7, 5, depth=depth)
    bridge = as_bridge(module, source=NEW, target=OLD, images=99)
    vectors = 3 * torch.randn(20, 7)
    with torch.no_grad():
        expected = F.normalize(module(vectors)).numpy()
    np.testing.assert_allclose(bridge.apply(vectors.numpy()), expected, atol=1e-6)
    assert bridge.n_pairs_ == 99


def test_saved_bridges_connect_the_right_spaces(tmp_path: Path) -> None:
    maps = {"backward": stirred(7, 5, depth=2), "forward": stirred(5, 7, depth=2)}
    made = save_maps(maps, run=tmp_path, new=NEW, old=OLD, images=10)
    loaded = load_maps(tmp_path)
    assert set(loaded) == set(made) == {"backward", "forward"}
    assert loaded["backward"].source.same_as(NEW)
    assert loaded["backward"].target.same_as(OLD)
    assert loaded["forward"].source.same_as(OLD)
    assert loaded["forward"].target.same_as(NEW)
    vectors = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    before = loaded["backward"].apply(vectors)
    np.testing.assert_array_equal(before, made["backward"].apply(vectors))
    maps["backward"].weight.data += 1  # what is saved does not change with the module
    np.testing.assert_array_equal(made["backward"].apply(vectors), before)


def test_run_without_maps_saves_no_bridges(tmp_path: Path) -> None:
    assert save_maps({}, run=tmp_path, new=NEW, old=OLD, images=10) == {}
    assert load_maps(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


# ---- whole runs ---------------------------------------------------------------------------------


def features() -> Embeddings:
    """90 classes of noisy points seen through one random ReLU layer; 30 of them for the test."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(90), 12)
    points = rng.normal(size=(90, 16))[labels] + 0.6 * rng.normal(size=(1080, 16))
    return Embeddings(
        ids=np.array([f"i{n}" for n in range(1080)]),
        vectors=np.maximum(points @ rng.normal(size=(16, 48)), 0).astype(np.float32),
        space=Space("features", 48),
        columns={"labels": labels, "split": (labels >= 60).astype(np.uint8)},
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("maps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDSPAN_CACHE", str(root / "cache"))
        path = features().save(root / "features.npz")
        settings: dict[str, Any] = {
            "data": {"name": "vectors", "path": str(path)},
            "encoder": {"backbone": "vectors", "dim": 16, "settings": {"hidden": 64}},
            "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
            "train": {"epochs": 10, "batch_size": 96, "lr": 1e-2},
        }
        old = {**settings, "seed": 7, "allocation": {"kind": "extended-class", "part": "old"}}
        train(RunConfig.from_dict(old), out=root / "old", progress=False)
        yield {**settings, "old": {"run": str(root / "old")}}


def run(base: dict[str, Any], out: Path, *, dim: int, **method: Any) -> Any:
    encoder = {**base["encoder"], "dim": dim}
    config = RunConfig.from_dict({**base, "encoder": encoder, "method": method})
    return train(config, out=out, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [12, 16, 24])
def test_lce_with_a_transformation_reports_both_directions(
    base: dict[str, Any], tmp_path: Path, dim: int
) -> None:
    result = run(base, tmp_path / "new", dim=dim, name="lce", transformation="rbt", depth=1)
    scores = result.scores
    assert set(scores) == {"self", "old_self", "cross_backward", "cross_forward", "cross_best"}
    assert scores["cross_best"] == max(scores["cross_backward"], scores["cross_forward"])
    assert result.metrics["best_cross"] in ("cross_backward", "cross_forward")
    assert min(scores["cross_backward"], scores["cross_forward"]) > 0.2  # chance is 0.05

    # the same numbers from what is in the folder, by anybody
    test = features()
    test = test[test.columns["split"] == 1]
    old_encoder, new_encoder = load_encoder(base["old"]["run"]), load_encoder(tmp_path / "new")
    old, new = old_encoder.embed(test, progress=False), new_encoder.embed(test, progress=False)
    assert not new.space.comparable_with(old.space)  # only through the bridges
    backward = load_bridge(tmp_path / "new" / "bridges" / "backward")
    forward = load_bridge(tmp_path / "new" / "bridges" / "forward")
    for query, gallery, name in (
        (backward.transform(new), old, "cross_backward"),
        (new, forward.transform(old), "cross_forward"),
    ):
        value = evaluate(query, gallery, metrics=("map",)).mean("map")
        assert value == pytest.approx(scores[name], abs=1e-6)
    assert set(result.bridges) == {"backward", "forward"}
    written = json.loads((tmp_path / "new" / "metrics.json").read_text())
    assert written["detail"]["cross_forward"]["map"] == scores["cross_forward"]


def test_run_of_a_direct_method_reports_one_cross_and_no_bridges(
    base: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("lce", "hot-refresh"):
        result = run(base, tmp_path / name, dim=16, name=name)
        assert set(result.scores) == {"self", "old_self", "cross", "cross_best"}
        assert result.scores["cross_best"] == result.scores["cross"]
        assert result.scores["cross"] > 0.3, name
        assert result.bridges == {}
        assert not (tmp_path / name / "bridges").exists()
        old = load_encoder(base["old"]["run"]).space
        assert load_encoder(tmp_path / name).space.comparable_with(old)


def test_train_restart_removes_the_bridges(base: dict[str, Any], tmp_path: Path) -> None:
    few = {**base, "train": {**base["train"], "epochs": 1}}
    run(few, tmp_path / "new", dim=24, name="l2")
    assert (tmp_path / "new" / "bridges" / "forward").is_dir()
    independent = RunConfig.from_dict(few)
    result = train(independent, out=tmp_path / "new", restart=True, progress=False)
    assert result.bridges == {}
    assert not (tmp_path / "new" / "bridges").exists()
