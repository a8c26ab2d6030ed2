"""The same random life on the reference and on another store: every answer must be the same."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from midspan.errors import MidspanError
from midspan.gallery.filters import Eq, Range
from midspan.gallery.index import upkeep
from midspan.gallery.records import Failed, Query, State
from midspan.gallery.stores import create_store, open_store
from midspan.gallery.stores.base import Store
from midspan.gallery.stores.memory import MemoryStore
from midspan.spaces import Space
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, WIDE, drafts, embed, entry

NAMES = [f"i{number:02}" for number in range(40)]


class Life:
    """Random steps; each is done on both stores and must end alike."""

    def __init__(self, seed: int, reference: Store, handles: list[Store]) -> None:
        self.random = random.Random(seed)
        self.reference = reference
        self.handles = handles  # on one gallery, as several processes have them
        self.seed = 0

    @property
    def stores(self) -> tuple[Store, Store]:
        return self.reference, self.random.choice(self.handles)

    def both(self, verb: str, *arguments: Any, **settings: Any) -> Any:
        results = []
        for store in self.stores:
            try:
                results.append(getattr(store, verb)(*arguments, **settings))
            except MidspanError as error:
                results.append((type(error), str(error)))
        assert results[0] == results[1], (verb, arguments, settings)
        return results[0]

    def some(self, most: int = 6) -> list[str]:
        return self.random.sample(NAMES, self.random.randint(1, most))

    def write(self) -> None:
        ids, self.seed = self.some(), self.seed + 1
        state = self.reference.state()
        spaces = [state.spaces[space] for space in state.writable()]
        chosen = self.random.sample(spaces, self.random.randint(1, len(spaces)))
        payloads = [{"n": self.random.randint(0, 3), "at": self.seed} for _ in ids]
        self.both(
            "upsert",
            [
                dataclasses.replace(d, created=1.0, changed=float(self.seed))
                for d in drafts(ids, payloads)
            ],
            [embed(ids, space, seed=self.seed) for space in chosen],
            mode=self.random.choice(["add", "replace", "put", "put"]),
        )

    def delete(self) -> None:
        self.both("delete", self.some())

    def fill(self) -> None:
        state = self.reference.state()
        space = state.spaces[self.random.choice(state.writable())]
        tasks = self.reference.get(self.some(12))
        if tasks:
            self.seed += 1
            revisions = [item.revision - self.random.choice([0, 0, 0, 1]) for item in tasks]
            self.both(
                "fill",
                embed([item.id for item in tasks], space, seed=self.seed),
                revisions=revisions,
            )

    def work(self) -> None:
        ids = self.some()
        self.both("prioritise", ids, [self.random.randint(0, 3) for _ in ids])
        claimed = self.both("claim", worker="w", limit=4, seconds=1000)
        if claimed and self.random.random() < 0.5:
            reports = [Failed(task.item.id, task.item.revision, "broken") for task in claimed]
            self.both("fail", reports, retry_after=None)
        if self.random.random() < 0.5:
            self.both("release", "w")
        if self.random.random() < 0.2:
            self.both("retry")

    def change(self) -> None:
        state = self.reference.state()
        every = {space.fingerprint: space for space in (OLD, NEW, WIDE)}
        live = tuple(self.random.sample(sorted(every), self.random.randint(1, 3)))
        target = self.random.choice([None, *live])
        spaces = {**state.spaces, **{name: every[name] for name in live}}
        kept = {name: s for name, s in spaces.items() if name in live or self.random.random() < 0.7}
        for name in spaces.keys() - kept.keys():
            unused = dataclasses.replace(state, live=live, target=target, spaces=spaces)
            self.both("change", unused, entry=entry("leave"))
            state = self.reference.state()
            self.both("drop", name, limit=1000)
        after = State(state.version, kept, live, target, {"n": self.seed})
        self.both("change", after, entry=entry("change"))

    def optimise(self) -> None:
        self.random.choice(self.handles).optimise()

    def look(self) -> None:
        state = self.reference.state()
        assert dataclasses.asdict(state) == dataclasses.asdict(self.stores[1].state())
        self.both("count")
        self.both("get", NAMES)
        one, other = (store.failures(after="", limit=100) for store in self.stores)
        assert [dataclasses.replace(failure, when=0.0) for failure in one] == [
            dataclasses.replace(failure, when=0.0) for failure in other
        ]
        self.both("scan", filter=Range("n", gte=2), missing=None, after="i05", limit=9)
        for space in state.spaces:
            self.same_vectors(space)
        view = self.random.choice([state.live, tuple(self.random.sample(state.live, 1))])
        for among in [(space,) for space in view] + [view]:
            self.search(state, view, among)

    def same_vectors(self, space: str) -> None:
        one, other = (store.vectors(NAMES, space=space) for store in self.stores)
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_array_equal(one.vectors, other.vectors)

    def search(self, state: State, view: tuple[str, ...], among: tuple[str, ...]) -> None:
        spaces: list[Space] = [state.spaces[space] for space in among]
        if len({space.dim for space in spaces}) > 1:
            return
        query = Query(
            vectors=embed(
                ["q1", "q2", self.random.choice(NAMES)], spaces[0], seed=self.seed
            ).vectors,
            k=self.random.choice([1, 3, 50]),
            live=view,
            among=among,
            filter=self.random.choice([None, None, Eq("n", 1), ~Eq("n", 1)]),
            exact=self.random.random() < 0.5,
            threshold=self.random.choice([None, None, 0.1]),
        )
        self.both("search", query)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_life_is_the_same_as_in_memory(
    locate_engine: Locate, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # with an index that looks into every list
        monkeypatch.setattr(upkeep, "FLAT_UP_TO", 64)
        monkeypatch.setattr("midspan.gallery.index.calibrate.RECALL", 1.1)
    one = MemoryStore.create("memory:", OLD, entry=entry("create"))
    location = locate_engine()
    lives = {"milvus": 1, "qdrant+local": 2}.get(location.partition(":")[0], 6)
    if seed >= lives:
        pytest.skip("here a life takes long: fewer of them, and shorter ones")
    quantise = "none" if "://" in location else ["none", "int8", "binary"][seed // 2]
    made = create_store(location, OLD, entry=entry("create"), quantise=quantise)
    handles = [made, open_store(location)]
    life = Life(seed, one, handles)
    steps = [life.write] * 5 + [
        life.delete,
        life.fill,
        life.fill,
        life.work,
        life.change,
        life.look,
        life.look,
        life.optimise,
    ]
    for _ in range(120 if lives == 6 else 60):
        life.random.choice(steps)()
    life.look()
    for handle in handles:
        handle.close()
