from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Blend, LowRank, Procrustes, Ridge
from midspan.errors import ConfigError, VectorError
from tests.bridges.worlds import encoders, unit64


def test_is_the_mean_of_the_normalised_members() -> None:
    old, new = encoders(80)
    blend = Blend(
        members=({"name": "ridge"}, {"name": "procrustes"}, {"name": "low-rank", "rank": 4})
    )
    members = (Ridge(), Procrustes(), LowRank(rank=4))
    parts = [bridge.fit(old, new).apply(old.vectors) for bridge in members]
    expected = unit64(np.mean(parts, axis=0))
    np.testing.assert_allclose(blend.fit(old, new).apply(old.vectors), expected, atol=1e-6)


def test_in_a_space_of_distances_nothing_is_normalised() -> None:
    old, new = encoders(80, metric="l2")
    blend = Blend(members=({"name": "ridge"}, {"name": "procrustes"})).fit(old, new)
    parts = [bridge.fit(old, new).apply(old.vectors) for bridge in (Ridge(), Procrustes())]
    np.testing.assert_allclose(blend.apply(old.vectors), np.mean(parts, axis=0), atol=1e-5)


def test_wants_members_that_exist() -> None:
    old, new = encoders(40)
    with pytest.raises(ConfigError, match="at least one member"):
        Blend(members=())
    with pytest.raises(ConfigError, match="'rigde'; did you mean 'ridge'"):
        Blend(members=({"name": "rigde"},)).fit(old, new)
    with pytest.raises(ConfigError, match="may not hold a blend"):
        Blend(members=({"name": "blend"},)).fit(old, new)


def test_needs_as_many_pairs_as_its_neediest_member() -> None:
    old, new = encoders(40)
    with pytest.raises(VectorError, match="needs at least 12"):
        Blend(members=({"name": "ridge"}, {"name": "procrustes"})).fit(old[:10], new[:10])
