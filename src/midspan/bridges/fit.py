"""`ms.fit_bridge`: the shortest way from pairs of vectors to a map between their spaces."""

from __future__ import annotations

from midspan.bridges.base import Bridge
from midspan.bridges.compare import Candidate, made
from midspan.bridges.select import fit_auto
from midspan.spaces import Embeddings

AUTO = "auto"


def fit_bridge(source: Embeddings, target: Embeddings, *, method: Candidate = "ridge") -> Bridge:
    """Fit a map from the space of `source` to the space of `target`.

    Pairs are found by id: items that only one side has are left out. Two hundred pairs are few,
    some thousands are plenty for linear maps.

    Args:
        source: Vectors in the space to map from.
        target: Vectors of the same items in the space to map to.
        method: A name from `midspan.bridges.BRIDGES`; a mapping of its name and settings, such as
            `{"name": "ridge", "alpha": 0.1}`; or "auto", which takes the one that retrieves best
            on pairs it has not seen.

    Returns:
        The fitted bridge; `bridge.transform(embeddings)` maps, `bridge.save(folder)` writes it.

    Raises:
        UnknownId: The two sets share no id.
        VectorError: Too few pairs, or vectors that cannot be fitted.
        ConfigError: There is no such method or setting.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        >>> ids = np.arange(500).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(500, 8)), ms.Space("old", 8))
        >>> new = ms.Embeddings(ids, old.vectors @ turn, ms.Space("new", 8))
        >>> bridge = ms.fit_bridge(old, new)
        >>> mapped = bridge.transform(old[:3])
        >>> mapped.space.name, np.allclose(mapped.normalised().vectors,
        ...                                new[:3].normalised().vectors, atol=0.05)
        ('new', True)
    """
    if method == AUTO:
        return fit_auto(source, target).bridge
    return made(method).fit(source, target)
