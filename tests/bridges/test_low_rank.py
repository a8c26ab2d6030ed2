from __future__ import annotations

import numpy as np

from midspan.bridges import LowRank, Ridge
from tests.bridges.worlds import encoders, unit64


def test_equals_the_ridge_predictions_projected_on_their_top_directions() -> None:
    old, new = encoders(80, source_dim=14, target_dim=11)
    x, y = unit64(old.vectors), unit64(new.vectors)
    xc, yc = x - x.mean(axis=0), y - y.mean(axis=0)
    weight = np.linalg.solve(xc.T @ xc + 0.3 * np.eye(14), xc.T @ yc)
    _, _, vt = np.linalg.svd(xc @ weight)
    expected = y.mean(axis=0) + xc @ weight @ vt[:3].T @ vt[:3]
    mapped = LowRank(rank=3, alpha=0.3).fit(old, new).unnormalised(old.vectors)
    np.testing.assert_allclose(mapped, expected, atol=1e-5)


def test_the_waist_is_as_narrow_as_asked() -> None:
    old, new = encoders(80)
    bridge = LowRank(rank=3).fit(old, new)
    assert bridge.down_.shape == (12, 3)
    assert np.linalg.matrix_rank(bridge.down_ @ bridge.up_, tol=1e-5) == 3


def test_with_all_ranks_it_is_ridge() -> None:
    old, new = encoders(80, source_dim=14, target_dim=11)
    wide = LowRank(rank=64).fit(old, new).apply(old.vectors)
    np.testing.assert_allclose(wide, Ridge().fit(old, new).apply(old.vectors), atol=1e-5)


def test_more_rank_fits_closer() -> None:
    old, new = encoders(120)
    errors = [
        float(
            np.sum(
                (
                    LowRank(rank=rank, alpha=0.1).fit(old, new).apply(old.vectors)
                    - unit64(new.vectors)
                )
                ** 2
            )
        )
        for rank in (1, 3, 6, 12)
    ]
    assert errors == sorted(errors, reverse=True)
