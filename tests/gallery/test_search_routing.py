"""Every way to search gives one answer, in every mode and phase, for old and new clients."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from midspan.bridges import Procrustes
from midspan.errors import SpaceMismatch
from midspan.gallery import AuditEvent, Gallery, Hit
from midspan.gallery.records import Mode, Record
from midspan.gallery.routing import PairedSample, store_bridge, store_sample
from midspan.service.app import create_app
from midspan.service.auth import Tokens
from midspan.service.encoding import Encoders
from midspan.service.resources import Resources
from midspan.service.search_service import SearchService
from midspan.service.settings import GallerySettings, Limits
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Upgrade
from tests.cli.conftest import Command, midspan  # noqa: F401
from tests.gallery.conftest import PLACES, VECTORS, Locate
from tests.gallery.samples import DIM, OLD

TRAINED = Space(name="new", dim=DIM, fingerprint="f-new", compatible_with=("f-old",))
APART = Space(name="new", dim=DIM, fingerprint="f-new")  # only a bridge connects it
MAPPED = Space(name="mapped", dim=DIM, fingerprint="f-mapped", compatible_with=("f-new",))
IDS = [f"i{number:02}" for number in range(40)]


class World:
    """New vectors are old ones, turned and a little disturbed."""

    def __init__(self, mode: Mode, folder: Path) -> None:
        rng = np.random.default_rng(4)
        turn, _ = np.linalg.qr(rng.standard_normal((DIM, DIM)))
        turn = np.eye(DIM) if mode == "direct" else turn
        old = rng.standard_normal((len(IDS) + 5, DIM))
        new = old @ turn + 0.05 * rng.standard_normal(old.shape)
        names = np.array([*IDS, *(f"q{number}" for number in range(5))])
        self.mode = mode
        self.new_space = TRAINED if mode == "direct" else APART
        self.old = Embeddings(names, old.astype(np.float32), OLD)
        self.new = Embeddings(names, new.astype(np.float32), self.new_space)
        self.bridge = None
        if mode in ("map-query", "map-gallery"):
            ends = (self.new, self.old) if mode == "map-query" else (self.old, self.new)
            self.bridge = Procrustes().fit(*ends)
            self.bridge.save(folder)

    def start(self, gallery: Gallery, folder: Path, *, scaled: bool, traffic: float = 1.0) -> None:
        self.sample = PairedSample.of(self.old[::2], self.new) if scaled else None
        digest = None if self.bridge is None else store_bridge(gallery.blobs, folder)
        record = Record(
            mode=self.mode,
            old=OLD.fingerprint,
            new=self.new_space.fingerprint,
            phase="running",
            started=0.0,
            bridge=None if digest is None else str(folder),
            digest=digest,
            mapped=MAPPED.fingerprint if self.mode == "map-gallery" else None,
            sample=None
            if self.sample is None
            else store_sample(
                gallery.blobs, self.sample, old=OLD.fingerprint, new=self.new_space.fingerprint
            ),
            traffic=traffic,
        )
        spaces = {OLD.fingerprint: OLD, self.new_space.fingerprint: self.new_space}
        live: tuple[str, ...] = (self.new_space.fingerprint, OLD.fingerprint)
        if self.mode == "map-gallery":
            spaces[MAPPED.fingerprint] = MAPPED
            live = (self.new_space.fingerprint, MAPPED.fingerprint, OLD.fingerprint)
        after = dataclasses.replace(
            gallery.state,
            spaces=spaces,
            live=live,
            target=self.new_space.fingerprint,
            upgrade=record.to_json(),
        )
        gallery.change(after, event=AuditEvent(who="t", what="start"))

    def expected(self, query: str, done: int, *, new: bool) -> list[tuple[str, float, float]]:
        """(id, score, rank score) from the definitions, one item at a time."""
        place = self.old.ids.tolist().index(query)
        answers = []
        for row, id in enumerate(IDS):
            fresh = row < done
            asked, stored = self.pair(place, new=new, fresh=fresh)
            score = cosine(asked, stored(self.old.vectors[row], self.new.vectors[row]))
            rank = score
            if self.sample is not None and new:
                sample = zip(self.sample.old, self.sample.new, strict=True)
                usual = sorted(cosine(asked, stored(one, two)) for one, two in sample)[:-1]
                mean = np.mean(usual)
                above = [(one - mean) ** 2 for one in usual if one > mean]
                rank = float((score - mean) / np.sqrt(np.mean(above)))
            answers.append((id, score, float(rank)))
        return sorted(answers, key=lambda answer: (-answer[2], answer[0]))

    def pair(self, place: int, *, new: bool, fresh: bool) -> tuple[Any, Callable[[Any, Any], Any]]:
        """The query as it is compared, and how an item's vector comes from its old and new one."""
        mine = (self.new if new else self.old).vectors[place]
        if not new or (self.mode == "both" and not fresh):
            return self.old.vectors[place], lambda old, _: old
        if fresh:
            return mine, lambda _, new: new
        if self.mode == "direct":
            return mine, lambda old, _: old
        assert self.bridge is not None
        bridge = self.bridge
        if self.mode == "map-query":
            return bridge.apply(mine[None])[0], lambda old, _: old
        return mine, lambda old, _: bridge.apply(old[None])[0]

    def queries(self) -> Embeddings | list[Embeddings]:
        new = self.new[len(IDS) :]
        return [self.old[len(IDS) :], new] if self.mode == "both" else new


def cosine(one: Any, two: Any) -> float:
    one, two = one.astype(np.float64), two.astype(np.float64)
    return float(one @ two / np.sqrt((one @ one) * (two @ two)))


def same(hits: list[Hit], expected: list[tuple[str, float, float]]) -> None:
    best = expected[: len(hits)]
    assert [hit.id for hit in hits] == [id for id, _, _ in best]
    for field, place in (("score", 1), ("rank_score", 2)):
        found = [getattr(hit, field) for hit in hits]
        np.testing.assert_allclose(found, [float(one[place]) for one in best], atol=5e-6)


WAYS = [
    pytest.param(engine, mode, scaled, marks=PLACES[engine][1])
    for engine in VECTORS
    for mode in ("direct", "map-query", "map-gallery", "both")
    for scaled in (False, True)
    # the routing is above the engines: the others are asked in the modes with most to merge
    if engine in ("embedded", "postgresql")
    or (scaled and (mode == "both" or (mode == "map-gallery" and engine != "milvus")))
]


@pytest.mark.parametrize(("engine", "mode", "scaled"), WAYS)
def test_search_from_every_entry_point_gives_the_routed_answer(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, mode: Mode, scaled: bool
) -> None:
    folder = tmp_path / "bridge"
    world = World(mode, folder)
    with Gallery.create(PLACES[engine][0](request, "g" + uuid.uuid4().hex[:12]), OLD) as gallery:
        gallery.add(world.old[: len(IDS)])
        before = gallery.search(world.old[len(IDS) :], k=10, exact=True)
        world.start(gallery, folder, scaled=scaled)
        if world.bridge is not None:
            shutil.rmtree(folder)  # another host has no such path
            if mode == "map-gallery":
                mapped = world.bridge.apply(world.old.vectors[: len(IDS)])
                gallery.add_missing_vectors(
                    Embeddings(np.array(IDS), mapped, MAPPED), revisions=[1] * len(IDS)
                )
        for done in (0, len(IDS) // 2, len(IDS)):
            part = world.new[:done]
            gallery.add_missing_vectors(part, revisions=[1] * done)
            assert gallery.search(world.old[len(IDS) :], k=10, exact=True) == before  # old clients
            for place, hits in enumerate(gallery.search(world.queries(), k=10, exact=True)):
                same(hits, world.expected(f"q{place}", done, new=True))
            more_like(gallery, world, done)


Answer = list[list[tuple[str, float, float]]]  # (id, score, rank score) of each query's hits


def shown(found: list[list[Hit]]) -> Answer:
    return [[(hit.id, hit.score, hit.rank_score) for hit in hits] for hits in found]


def by_command(midspan: Command, location: str, queries: list[Embeddings], folder: Path) -> Answer:  # noqa: F811
    words: list[object] = []
    for number, query in enumerate(queries):
        file = folder / f"{number}.npz"
        query.save(file)
        words += ["--vectors", file]
    code, out, err = midspan("gallery", "search", location, *words, "--exact", "--json")
    assert code == 0, err
    return [
        [(hit["id"], hit["score"], hit["rank_score"]) for hit in hits]
        for hits in json.loads(out)["results"]
    ]


def by_service(client: TestClient, queries: list[Embeddings]) -> Answer:
    first, *others = (
        {"space": query.space.fingerprint, "vectors": query.vectors.tolist()} for query in queries
    )
    answer = client.post("/v1/search/vector", json={**first, "also": others, "exact": True})
    assert answer.status_code == 200, answer.text
    return [
        [(hit["id"], hit["score"], hit["rank_score"]) for hit in hits]
        for hits in answer.json()["results"]
    ]


@pytest.mark.parametrize("mode", ["direct", "map-query", "map-gallery", "both"])
def test_library_command_and_service_give_one_answer(
    tmp_path: Path,
    midspan: Command,  # noqa: F811
    mode: Mode,
) -> None:
    """Gallery.search, Upgrade.search, `midspan gallery search` and POST /v1/search/vector."""
    world, place = World(mode, tmp_path / "bridge"), tmp_path / "shop.midspan"
    with Gallery.create(place, OLD) as gallery:
        gallery.add(world.old[: len(IDS)])
        world.start(gallery, tmp_path / "bridge", scaled=True)
        if mode == "map-gallery":
            assert world.bridge is not None
            mapped = world.bridge.apply(world.old.vectors[: len(IDS)])
            gallery.add_missing_vectors(
                Embeddings(np.array(IDS), mapped, MAPPED), revisions=[1] * len(IDS)
            )
        service = SearchService(
            GallerySettings(gallery=str(place)),
            gallery=Gallery.open(place),
            encoders=Encoders.load([]),
            resources=Resources(Limits(decode_workers=1)),
        )
        app = create_app(service, tokens=Tokens({}))
        with TestClient(app, base_url="http://127.0.0.1:8080") as client:
            for done in (0, len(IDS) // 2, len(IDS)):
                gallery.add_missing_vectors(world.new[:done], revisions=[1] * done)
                new = world.queries()
                for queries in ([world.old[len(IDS) :]], new if isinstance(new, list) else [new]):
                    answer = shown(gallery.search(queries, k=10, exact=True))
                    assert all(len(hits) == 10 for hits in answer)
                    assert shown(Upgrade(gallery).search(queries, k=10, exact=True)) == answer
                    assert by_command(midspan, str(place), queries, tmp_path) == answer
                    assert by_service(client, queries) == answer


@pytest.fixture
def both(locate: Locate, tmp_path: Path) -> Iterator[tuple[Gallery, World]]:
    world = World("both", tmp_path)
    with Gallery.create(locate(), OLD) as gallery:
        gallery.add(world.old[: len(IDS)])
        yield gallery, world


def ids_of(found: list[list[Hit]]) -> list[list[str]]:
    return [[hit.id for hit in hits] for hits in found]


def test_mode_both_equals_old_at_the_start_and_new_at_the_end(
    both: tuple[Gallery, World], tmp_path: Path
) -> None:
    gallery, world = both
    before = gallery.search(world.old[len(IDS) :], k=40, exact=True)
    world.start(gallery, tmp_path, scaled=True)
    start = gallery.search(world.queries(), k=40, exact=True)
    assert [[hit[:5] for hit in hits] for hits in start] == [[h[:5] for h in b] for b in before]
    gallery.add_missing_vectors(world.new[: len(IDS)], revisions=[1] * len(IDS))
    end = gallery.search(world.queries(), k=40, exact=True)
    with Gallery.create(f"memory:{tmp_path.name}-new", APART) as fresh:
        fresh.add(world.new[: len(IDS)])
        wanted = fresh.search(world.new[len(IDS) :], k=40)
    assert ids_of(end) == ids_of(wanted)


def test_mode_both_with_one_query_raises_with_the_remedy(
    both: tuple[Gallery, World], tmp_path: Path
) -> None:
    gallery, world = both
    world.start(gallery, tmp_path, scaled=True)
    with pytest.raises(SpaceMismatch, match="embed each query with both encoders"):
        gallery.search(world.new[len(IDS) :])
    with pytest.raises(SpaceMismatch, match="equal ids"):
        gallery.search([world.old[:2], world.new[1:3]])


def test_threshold_during_an_upgrade_applies_to_the_cosine(
    both: tuple[Gallery, World], tmp_path: Path
) -> None:
    gallery, world = both
    world.start(gallery, tmp_path, scaled=True)
    gallery.add_missing_vectors(world.new[:20], revisions=[1] * 20)
    hits = gallery.search(world.queries(), k=40, exact=True)[0]
    limit = sorted(hit.score for hit in hits)[20]
    found = gallery.search(world.queries(), k=15, exact=True, threshold=limit)[0]
    assert found == [hit for hit in hits if hit.score >= limit][:15]
    assert len(found) == 15


def test_traffic_splits_queries_in_both_spaces_stably_between_old_and_new(
    both: tuple[Gallery, World], tmp_path: Path
) -> None:
    gallery, world = both
    queries = [world.old[:40], world.new[:40]]
    before = ids_of(gallery.search(queries[0], k=5, exact=True))
    new_ways = []
    for share in (0.0, 0.3, 1.0):
        world.start(gallery, tmp_path, scaled=True, traffic=share)
        gallery.add_missing_vectors(world.new[:40], revisions=[1] * 40)
        wanted = ids_of(gallery.search(queries, k=5, exact=True, arm="new"))
        assert ids_of(gallery.search(queries, k=5, exact=True, arm="old")) == before
        found = gallery.search(queries, k=5, exact=True)
        new = [hits[0].space.fingerprint == "f-new" for hits in found]
        chosen = [wanted[row] if way else before[row] for row, way in enumerate(new)]
        assert ids_of(found) == chosen
        new_ways.append(new)
        of_client = gallery.search(queries, k=1, exact=True, client="shop")
        clients = {hits[0].space.fingerprint for hits in of_client}
        assert len(clients) == 1, "a client is answered one way"
    assert not any(new_ways[0])
    assert 3 <= sum(new_ways[1]) <= 24
    assert all(new_ways[2])


def more_like(gallery: Gallery, world: World, done: int) -> None:
    """As a search with the item's own live vector, without the item; k of them."""
    for id in ("i00", "i39"):
        live = next(s for s in gallery.state.live if s in gallery.get(id).spaces)
        query: Any = gallery.vectors([id], space=live)
        if world.mode == "both" and live == APART.fingerprint:
            query = [query, gallery.vectors([id], space=OLD.fingerprint)]
        if live == MAPPED.fingerprint:
            query = Embeddings(query.ids, query.vectors, world.new_space)
        wanted = [hit for hit in gallery.search(query, k=40, exact=True)[0] if hit.id != id]
        assert gallery.more_like(id, k=39, exact=True) == wanted
        assert len(wanted) == 39
        assert gallery.more_like(id, k=5, exact=True) == wanted[:5]


def test_public_searches_take_no_internal_arguments() -> None:
    for door in (Gallery.search, Gallery.more_like, Upgrade.search):
        assert not {"live", "among"} & set(inspect.signature(door).parameters)
