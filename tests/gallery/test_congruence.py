"""The same random life on the reference and on another engine: every answer must be the same."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from midspan.errors import MidspanError
from midspan.gallery import Failed, Gallery, State
from midspan.gallery.filters import Eq, Exists, In, Range
from midspan.spaces import Space
from tests.gallery.conftest import Locate
from tests.gallery.samples import NEW, OLD, WIDE, drafts, embed, event, view

NAMES = [f"i{number:02}" for number in range(40)]
FILTERS = [
    *[None] * 3,
    Eq("n", 1),
    ~Eq("n", 1),
    In("n", [0, 2.0]) & Exists("name"),
    Range("name", gte="i05", lt="i25"),
]
WORK = {"claim", "release", "fail", "failures", "retry", "prioritise"}


class Life:
    """Random steps; each is done on both galleries and must end alike."""

    def __init__(self, seed: int, reference: Gallery, handles: list[Gallery]) -> None:
        self.random = random.Random(seed)
        self.reference = reference
        self.handles = handles  # on one gallery, as several processes have them
        self.seed = 0

    @property
    def galleries(self) -> tuple[Gallery, Gallery]:
        return self.reference, self.random.choice(self.handles)

    def both(self, verb: str, *arguments: Any, **settings: Any) -> Any:
        results = []
        for gallery in self.galleries:
            try:
                owner = gallery.work if verb in WORK else gallery
                results.append(getattr(owner, verb)(*arguments, **settings))
            except MidspanError as error:
                results.append((type(error), str(error)))
        assert results[0] == results[1], (verb, arguments, settings)
        return results[0]

    def some(self, most: int = 6) -> list[str]:
        return self.random.sample(NAMES, self.random.randint(1, most))

    def write(self) -> None:
        ids, self.seed = self.some(), self.seed + 1
        state = self.reference.state
        spaces = [state.spaces[space] for space in state.writable()]
        chosen = self.random.sample(spaces, self.random.randint(1, len(spaces)))
        payloads = [{"n": self.random.randint(0, 3), "at": self.seed} for _ in ids]
        self.both(
            "put_drafts",
            [
                dataclasses.replace(d, created=1.0, changed=float(self.seed))
                for d in drafts(ids, payloads)
            ],
            [embed(ids, space, seed=self.seed) for space in chosen],
            mode=self.random.choice(["add", "replace", "put", "put"]),
        )

    def delete(self) -> None:
        self.both("delete", self.some())

    def payload(self) -> None:
        known = [item.id for item in self.reference.get_many(self.some())]
        self.both("set_payload", {id: {"n": self.random.randint(0, 3), "name": id} for id in known})

    def fill(self) -> None:
        state = self.reference.state
        space = state.spaces[self.random.choice(state.writable())]
        tasks = self.reference.get_many(self.some(12))
        if tasks:
            self.seed += 1
            revisions = [item.revision - self.random.choice([0, 0, 0, 1]) for item in tasks]
            self.both(
                "add_missing_vectors",
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
        state = self.reference.state
        every = {space.fingerprint: space for space in (OLD, NEW, WIDE)}
        live = tuple(self.random.sample(sorted(every), self.random.randint(1, 3)))
        target = self.random.choice([None, *live])
        spaces = {**state.spaces, **{name: every[name] for name in live}}
        kept = {name: s for name, s in spaces.items() if name in live or self.random.random() < 0.7}
        for name in sorted(spaces.keys() - kept.keys()):
            unused = dataclasses.replace(state, live=live, target=target, spaces=spaces)
            self.both("change", unused, event=event("leave"))
            state = self.reference.state
            self.both("drop_vectors", name, event=event("drop"))
            state = self.reference.state
        after = State(state.version, kept, live, target, {"n": self.seed})
        self.both("change", after, event=event("change"))

    def optimise(self) -> None:
        self.random.choice(self.handles).optimise()

    def look(self) -> None:
        state = self.reference.state
        assert dataclasses.asdict(state) == dataclasses.asdict(self.galleries[1].state)
        self.both("count")
        self.both("get_many", NAMES)
        one, other = (one.work.failures(after="", limit=100) for one in self.galleries)
        assert [dataclasses.replace(failure, when=0.0) for failure in one] == [
            dataclasses.replace(failure, when=0.0) for failure in other
        ]
        self.both("scan", filter=Range("n", gte=2), after="i05", limit=9)
        for space in state.spaces:
            self.same_vectors(space)
        preference = self.random.choice([state.live, tuple(self.random.sample(state.live, 1))])
        for among in [(space,) for space in preference] + [preference]:
            self.search(state, preference, among)

    def same_vectors(self, space: str) -> None:
        one, other = (one.vectors(NAMES, space=space) for one in self.galleries)
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_array_equal(one.vectors, other.vectors)

    def search(self, state: State, preference: tuple[str, ...], among: tuple[str, ...]) -> None:
        spaces: list[Space] = [state.spaces[space] for space in among]
        if len({space.dim for space in spaces}) > 1:
            return
        names = ["q1", "q2", self.random.choice(NAMES)]
        settings: dict[str, Any] = {
            "k": self.random.choice([1, 3, 50]),
            "live": preference,
            "among": among,
            "filter": self.random.choice(FILTERS),
            "exact": self.random.random() < 0.5,
        }
        vectors = embed(names, spaces[0], seed=self.seed).vectors
        one, other = (view(gallery, vectors, **settings) for gallery in self.galleries)
        assert one == other, settings


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_equal_the_memory_engine(
    locate_engine: Locate, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an item whose payload is replaced says when
    monkeypatch.setattr("midspan.gallery.writing.time", SimpleNamespace(time=lambda: 5.0))
    location = locate_engine()
    served = "://" in location
    if served and seed:
        pytest.skip("the seeds differ in how a file's vectors are quantised")
    quantise = "none" if served else ["none", "int8", "binary"][seed]
    one = Gallery.create("memory:", OLD, who="tester")
    made = Gallery.create(location, OLD, quantise=quantise, who="tester")
    handles = [made, Gallery.open(location, who="tester")]
    life = Life(seed, one, handles)
    steps = [life.write] * 5 + [
        life.delete,
        life.payload,
        life.fill,
        life.fill,
        life.work,
        life.change,
        life.look,
        life.look,
        life.optimise,
    ]
    for _ in range(60 if served else 120):
        life.random.choice(steps)()
    life.look()
    assert made.verify().missing == 0
    made.optimise()
    assert made.garbage() == 0
    for handle in (one, *handles):
        handle.close()
