"""What every bridge refuses, and in which words."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from midspan.bridges import FCT, MLP, RBT, LowRank, Procrustes, Ridge
from midspan.bridges.base import Bridge, unit
from midspan.errors import (
    MissingDependency,
    RunError,
    SpaceMismatch,
    UnknownId,
    VectorError,
)
from midspan.spaces import Embeddings, Space
from tests.bridges.worlds import embeddings, encoders


def test_ids_and_columns_are_carried_over_into_the_target_space() -> None:
    old, new = encoders(60, target_dim=9)
    bridge = Ridge().fit(old, new)
    mapped = bridge.transform(old[10:20])
    assert mapped.ids.tolist() == old.ids[10:20].tolist()
    assert mapped.columns["labels"].tolist() == old.columns["labels"][10:20].tolist()
    assert mapped.space.same_as(new.space)
    assert bridge.source == old.space
    assert bridge.target == new.space
    np.testing.assert_allclose(np.linalg.norm(mapped.vectors, axis=1), 1.0, atol=1e-6)


def test_pairs_are_found_by_id_in_any_order() -> None:
    old, new = encoders(80)
    shuffled = new[np.random.default_rng(1).permutation(80)]
    straight = Ridge(alpha=0.1).fit(old, new)
    bridge = Ridge(alpha=0.1).fit(old, shuffled)
    np.testing.assert_allclose(bridge.weight_, straight.weight_, atol=1e-6)


def test_pairs_may_be_a_part_of_both_sets() -> None:
    old, new = encoders(100)
    bridge = Ridge(alpha=0.1).fit(old[:70], new[30:])
    assert bridge.n_pairs_ == 40
    np.testing.assert_allclose(
        bridge.weight_, Ridge(alpha=0.1).fit(old[30:70], new[30:70]).weight_, atol=1e-6
    )


def test_length_of_cosine_vectors_does_not_matter() -> None:
    old, new = encoders(60)
    lengths = np.random.default_rng(0).uniform(0.1, 10, (60, 1)).astype(np.float32)
    stretched = Embeddings(old.ids, old.vectors * lengths, old.space)
    np.testing.assert_allclose(
        Ridge(alpha=0.5).fit(stretched, new).weight_,
        Ridge(alpha=0.5).fit(old, new).weight_,
        atol=1e-5,
    )
    bridge = Ridge(alpha=0.5).fit(old, new)
    np.testing.assert_allclose(
        bridge.apply(stretched.vectors), bridge.apply(old.vectors), atol=1e-6
    )


def test_one_vector_and_many_give_the_same() -> None:
    old, new = encoders(60)
    bridge = Ridge().fit(old, new)
    rows = bridge.apply(old.vectors[:3])
    np.testing.assert_allclose(bridge.apply(old.vectors[1]), rows[1], atol=1e-6)
    assert rows.dtype == bridge.apply(old.vectors[1]).dtype == np.float32


def test_unit_leaves_a_zero_vector() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], dtype=np.float32)
    assert unit(rows).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
    assert unit(rows[1]).tolist() == [0.0, 0.0]


def test_unpaired_ids() -> None:
    old, new = encoders(40)
    others = embeddings(new.vectors, "new", prefix="j")
    with pytest.raises(UnknownId, match=r"share no id .*'i0'.*'j0'.*pairs are found by id"):
        Ridge().fit(old, others)


@pytest.mark.parametrize(
    ("bridge", "pairs", "needed"),
    [
        (Procrustes(), 11, 12),
        (Procrustes(center=True), 12, 13),
        (Ridge(), 7, 8),
        (Ridge(alpha=0.0), 12, 13),
        (Ridge(alpha=1.0), 1, 2),
        (LowRank(), 7, 8),
        (MLP(), 31, 32),
        (RBT(), 31, 32),
        (FCT(), 31, 32),
    ],
)
def test_too_few_pairs_says_how_many_are_needed(bridge: Bridge, pairs: int, needed: int) -> None:
    old, new = encoders(40)
    with pytest.raises(
        VectorError, match=rf"{pairs} pairs .* needs at least {needed}: embed 1 more"
    ):
        bridge.fit(old[:pairs], new[:pairs])
    if not bridge.name.startswith(("mlp", "rbt", "fct")):
        bridge.clone().fit(old[:needed], new[:needed])


def test_procrustes_with_few_pairs_says_what_else_to_do() -> None:
    old, new = encoders(40)
    with pytest.raises(VectorError, match=r"use ridge.*few_pairs=True"):
        Procrustes().fit(old[:5], new[:5])


def test_swapped_spaces_are_recognised() -> None:
    old, new = encoders(40)
    bridge = Ridge().fit(old, new)
    with pytest.raises(SpaceMismatch, match=r"swapped: expected vectors in 'old'.*'new'"):
        bridge.transform(new)


def test_a_third_space_is_refused() -> None:
    old, new = encoders(40)
    bridge = Ridge().fit(old, new)
    other = embeddings(old.vectors, "someone-else")
    with pytest.raises(SpaceMismatch, match=r"expected vectors in 'old'.*'someone-else'"):
        bridge.transform(other)


def test_the_name_alone_does_not_make_a_space() -> None:
    old, new = encoders(40)
    bridge = Ridge().fit(old, new)
    renamed = Embeddings(old.ids, old.vectors, Space("old", 12, fingerprint="f" * 32))
    with pytest.raises(SpaceMismatch, match="expected vectors in 'old'"):
        bridge.transform(renamed)


def test_the_same_space_twice_is_no_bridge() -> None:
    old, _ = encoders(40)
    with pytest.raises(SpaceMismatch, match="nothing to bridge"):
        Ridge().fit(old, old)


def test_not_fitted() -> None:
    old, _ = encoders(40)
    for use in (lambda: Ridge().transform(old), lambda: Ridge().target):
        with pytest.raises(RunError, match="not fitted"):
            use()


def test_wrong_dim_in_the_fast_path() -> None:
    old, new = encoders(40)
    with pytest.raises(VectorError, match=r"shape \(2, 5\).*last dim must be 12"):
        Ridge().fit(old, new).apply(np.ones((2, 5), np.float32))


def test_nan_never_reaches_a_bridge() -> None:
    old, new = encoders(40)
    broken = old.vectors.copy()
    broken[3, 4] = np.nan
    with pytest.raises(VectorError, match=r"'i3' \(row 3\): .*NaN"):
        Ridge().fit(Embeddings(old.ids, broken, old.space), new)


@pytest.mark.parametrize("bridge", [MLP(), RBT(), FCT()])
def test_learned_bridges_say_which_extra_brings_torch(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = encoders(60)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"midspan\[train\]"):
        bridge.fit(old, new)


def test_solved_bridges_and_loading_need_no_torch() -> None:
    code = (
        "import sys, numpy as np, midspan.bridges as b\n"
        "from midspan.spaces import Embeddings, Space\n"
        "for name in b.__all__: getattr(b, name)\n"
        "v = np.random.default_rng(0).standard_normal((30, 4)).astype('f')\n"
        "i = [str(k) for k in range(30)]\n"
        "old, new = Embeddings(i, v, Space('a', 4)), Embeddings(i, v[:, ::-1], Space('b', 4))\n"
        "b.Blend().fit(old, new).transform(old)\n"
        "assert 'torch' not in sys.modules and 'onnx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_settings_and_clone() -> None:
    bridge = LowRank(rank=3, seed=5)
    assert bridge.settings() == {"rank": 3, "alpha": None, "seed": 5}
    assert bridge.clone().settings() == bridge.settings()
    assert repr(bridge) == "LowRank(rank=3, alpha=None, seed=5)"
