"""The same promises for every name in BRIDGES."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.bridges import BRIDGES, Bridge, export_onnx, load_bridge
from midspan.config import build
from midspan.spaces import Embeddings
from tests.bridges.worlds import encoders, own_found_first

# Small and quick where the defaults are made for large spaces.
SMALL: dict[str, dict[str, Any]] = {
    "lambda-orthogonal": {"threshold": 2.0},
    "local": {"clusters": 3},
    "low-rank": {"rank": 8},
    "mlp": {"hidden": 32, "epochs": 4},
    "rbt": {"depth": 2, "paths": 2, "hidden": 8, "epochs": 3},
    "fct": {"width": 64, "epochs": 20},
}
# Where nobody asks how well it maps, a network is trained for a moment only.
BRIEF: dict[str, dict[str, Any]] = {
    "mlp": {"epochs": 1},
    "rbt": {"epochs": 1},
    "fct": {"epochs": 2},
}
DIMS = [(12, 12), (12, 20), (20, 12)]


def made(name: str, *, brief: bool = False) -> Bridge:
    settings = SMALL.get(name, {}) | (BRIEF.get(name, {}) if brief else {})
    bridge: Bridge = build(BRIDGES, {"name": name, **settings}, what="bridge")
    return bridge


@pytest.fixture(params=BRIDGES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("source_dim", "target_dim"), DIMS)
def test_maps_unseen_items_far_better_than_chance(
    name: str, source_dim: int, target_dim: int
) -> None:
    old, new = encoders(400, source_dim=source_dim, target_dim=target_dim)
    mapped = made(name).fit(old[:300], new[:300]).transform(old[300:])
    assert mapped.vectors.shape == (100, target_dim)
    assert own_found_first(new[300:], mapped) > 0.1  # chance is 0.01


def test_permuted_pairs_destroy_retrieval(name: str) -> None:
    old, new = encoders(400, labelled=False)
    wrong = Embeddings(new.ids, new.vectors[np.random.default_rng(0).permutation(400)], new.space)
    mapped = made(name).fit(old[:300], wrong[:300]).transform(old[300:])
    assert own_found_first(new[300:], mapped) < 0.06


def test_save_and_load_give_the_same_bits(name: str, tmp_path: Path) -> None:
    old, new = encoders(120, target_dim=9)
    bridge = made(name, brief=True).fit(old, new)
    again = load_bridge(bridge.save(tmp_path / "bridge"))
    assert type(again) is type(bridge)
    assert again.settings() == bridge.settings()
    assert (again.source, again.target) == (bridge.source, bridge.target)
    assert again.fitted().keys() == bridge.fitted().keys()
    assert np.array_equal(again.transform(old).vectors, bridge.transform(old).vectors)


def test_the_same_seed_gives_the_same_map(name: str) -> None:
    old, new = encoders(120)
    first, second = (made(name, brief=True).fit(old, new) for _ in range(2))
    assert np.array_equal(first.apply(old.vectors), second.apply(old.vectors))


def test_duplicates_and_constant_dims_do_not_break_it(name: str) -> None:
    old, new = encoders(200, labelled=False)
    vectors_old, vectors_new = old.vectors.copy(), new.vectors.copy()
    vectors_old[:, 3] = 0.25
    vectors_new[:, 5] = 0.0
    vectors_old[100:150], vectors_new[100:150] = vectors_old[:50], vectors_new[:50]
    old = Embeddings(old.ids, vectors_old, old.space)
    new = Embeddings(new.ids, vectors_new, new.space)
    mapped = made(name).fit(old[:150], new[:150]).transform(old[150:])
    assert np.isfinite(mapped.vectors).all()
    assert own_found_first(new[150:], mapped) > 0.1  # chance is 0.02


def test_works_in_a_space_of_distances(name: str) -> None:
    old, new = encoders(300, metric="l2", labelled=False)
    mapped = made(name).fit(old[:240], new[:240]).transform(old[240:])
    mean = new.vectors[:240].mean(axis=0)
    error = np.mean(np.sum((mapped.vectors - new.vectors[240:]) ** 2, axis=1))
    nothing = np.mean(np.sum((mean - new.vectors[240:]) ** 2, axis=1))
    assert error < nothing
    assert mapped.space.metric == "l2"


def test_the_onnx_file_maps_as_the_bridge_does(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    old, new = encoders(120, target_dim=9)
    bridge = made(name, brief=True).fit(old, new)
    path = export_onnx(bridge, tmp_path / "bridge.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (mapped,) = session.run(["mapped"], {"vectors": old.vectors * 3})
    np.testing.assert_allclose(mapped, bridge.apply(old.vectors), atol=2e-4)


def test_the_name_in_the_table_is_the_name_of_the_class(name: str) -> None:
    assert made(name).name == name
