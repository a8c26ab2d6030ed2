"""Filters that few of many items pass, on every engine: the k best that pass, or all there are.

More than 20,000 rows, which is where the indexes of servers stop looking by default. Engines
without such an index compare row by row in Python: a tenth of the rows shows the same.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midspan.gallery import Gallery
from midspan.gallery.engines.base import pair_scores, prepare
from midspan.gallery.filters import Eq, Exists, Filter, In, Not, Range, matches
from midspan.spaces import Embeddings, FloatArray
from tests.gallery.conftest import Locate
from tests.gallery.samples import OLD, unit, view

COUNT, FEW, K = 20_500, 2_050, 10
RNG = np.random.default_rng(3)
VECTORS = unit(RNG, COUNT)
QUERIES = unit(RNG, 2)
RARE = {*RNG.choice(COUNT, 30, replace=False).tolist(), *range(7, FEW, 100)}
PAYLOADS = [
    {"n": row, "maker": {"name": f"m{row % 4000}"}, **({"rare": True} if row in RARE else {"c": 1})}
    for row in range(COUNT)
]
IDS = np.array([f"i{row:05}" for row in range(COUNT)])
SIZES = {"embedded": FEW, "qdrant+local": FEW, "milvus+lite": FEW}  # the others: COUNT

ROWS = st.one_of(st.integers(0, FEW - 1), st.integers(0, COUNT - 1))
LEAVES: st.SearchStrategy[Filter] = st.one_of(
    st.builds(lambda row: Eq("n", row), ROWS),
    st.builds(lambda rows: In("n", tuple(rows)), st.lists(ROWS, max_size=5)),
    st.builds(lambda row, more: Range("n", gte=row, lt=row + more), ROWS, st.integers(0, 40)),
    st.builds(lambda row: Eq("maker.name", f"m{row % 4000}"), ROWS),
    st.sampled_from([Eq("rare", True), ~Exists("c"), Eq("c", None), Not(Range("n", gte=12))]),
)
FILTERS = st.builds(
    reduce,
    st.sampled_from([and_, or_]),
    st.lists(LEAVES, min_size=1, max_size=3),
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Local mode is not recommended")
def test_rare_filter_finds_the_k_best_or_all(
    locate_engine: Locate, request: pytest.FixtureRequest
) -> None:
    count = SIZES.get(request.node.callspec.params["locate_engine"], COUNT)
    with Gallery.create(locate_engine(), OLD) as gallery:
        for at in range(0, count, 5000):
            part = slice(at, min(at + 5000, count))
            gallery.add(Embeddings(IDS[part], VECTORS[part], OLD), payloads=PAYLOADS[part])
        gallery.optimise()

        @settings(max_examples=8, deadline=None, database=None)
        @given(filter=FILTERS)
        @example(filter=Eq("rare", True))
        @example(filter=Eq("rare", True) & Range("n", lt=count // 3))
        def holds(filter: Filter) -> None:
            passing = [row for row in range(count) if matches(filter, PAYLOADS[row])]
            found = view(gallery, QUERIES, k=K, filter=filter)
            true = view(gallery, QUERIES, k=K, filter=filter, exact=True)
            for query, hits, best in zip(QUERIES, found, true, strict=True):
                assert [(hit.id, hit.score) for hit in best] == _best(query, passing)
                assert len(hits) == len(best)
                assert {hit.id for hit in hits} <= set(IDS[passing].tolist())

        holds()


def _best(query: FloatArray, passing: list[int]) -> list[tuple[str, float]]:
    """By comparing each that passes."""
    if not passing:
        return []
    rows = prepare(VECTORS[passing], metric="cosine")
    scores = pair_scores(prepare(query[None], metric="cosine")[0], rows, metric="cosine")
    order = sorted(zip((-scores).tolist(), passing, strict=True))[:K]
    return [(str(IDS[row]), -score) for score, row in order]
