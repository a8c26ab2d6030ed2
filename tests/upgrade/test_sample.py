"""The sample is embedded once, after every check that needs none, and used again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.errors import ConfigError, DataError, MidspanError, SpaceMismatch
from midspan.gallery import Gallery, Item
from midspan.gallery.routing import FEWEST
from midspan.spaces import Space
from midspan.upgrade import Embed, Embedded, Record, Upgrade
from midspan.upgrade.priorities import embed_sample
from tests.upgrade.world import NEW, OLD, STRANGER, WIDE, bridge, encoder, ids, make, vectors


class Counting:
    """An encoder that knows how many items it was asked for."""

    def __init__(self, space: Space, **settings: Any) -> None:
        self.embed, self.items = encoder(space, **settings), 0

    def __call__(self, items: Sequence[Item]) -> Embedded:
        self.items += len(items)
        return self.embed(items)


def test_plan_start_and_the_start_after_a_rollback_embed_the_sample_once(tmp_path: Path) -> None:
    with make("sqlite", tmp_path) as gallery:
        embed = Counting(WIDE)
        plan = Upgrade.plan(gallery, to=WIDE, mode="both", embed=embed, sample_size=40)
        timed = embed.items
        assert (plan.searches_per_query, plan.encoders_per_query) == (2, 2)
        assert plan.standardised
        assert FEWEST <= plan.sample <= 60
        assert plan.curve is not None
        upgrade = Upgrade.start(gallery, to=WIDE, mode="both", embed=embed, sample_size=40)
        first = Record.of(gallery.state)
        upgrade.rollback()
        Upgrade.start(gallery, to=WIDE, mode="both", embed=embed, sample_size=40)
        again = Record.of(gallery.state)
        assert embed.items == timed
    assert first is not None
    assert again is not None
    assert first.sample == again.sample


def test_a_sample_that_is_too_small_by_now_is_made_again(tmp_path: Path) -> None:
    with make("sqlite", tmp_path, count=60) as gallery:
        embed = Counting(WIDE)
        Upgrade.plan(gallery, to=WIDE, mode="both", embed=embed, sample_size=25)
        before = embed.items
        plan = Upgrade.plan(gallery, to=WIDE, mode="both", embed=embed, sample_size=60)
        assert embed.items >= before + 55
        assert plan.sample == 60


def never(items: Sequence[Item]) -> Embedded:
    raise AssertionError("nothing is to be embedded before all is checked")


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"to": STRANGER}, SpaceMismatch, "not on record as compatible.*`mode` both"),
        ({"to": OLD}, SpaceMismatch, "already"),
        ({"to": NEW, "mode": "sideways"}, ConfigError, "both"),
        ({"to": NEW, "order": "alphabetical"}, ConfigError, "order"),
        ({"to": NEW, "order": "traffic"}, ConfigError, "record of searches"),
        ({"to": NEW, "traffic": 1.5}, ConfigError, "between 0"),
        ({"to": WIDE, "mode": "both", "bridge": "to-wide"}, ConfigError, "takes no bridge"),
        ({"to": WIDE, "mode": "map-query"}, ConfigError, "bridge from new to old"),
        ({"to": WIDE, "mode": "map-query", "bridge": "to-wide"}, SpaceMismatch, "map-gallery"),
    ],
)
def test_what_follows_from_the_request_is_refused_before_anything_is_embedded(
    tmp_path: Path, settings: dict[str, Any], error: type[MidspanError], words: str
) -> None:
    if "bridge" in settings:
        settings = {**settings, "bridge": bridge(tmp_path, OLD, WIDE)}
    with make("memory", tmp_path) as gallery:
        before = gallery.state
        with pytest.raises(error, match=words):
            Upgrade.start(gallery, embed=never, **settings)
        assert gallery.state == before


def test_images_that_cannot_be_read_are_found_out_by_the_first_few(tmp_path: Path) -> None:
    with make("memory", tmp_path) as gallery:
        embed = Counting(WIDE, missing=ids(60))
        with pytest.raises(DataError, match=r"none of the first 4 items.*no such file"):
            Upgrade.start(gallery, to=WIDE, mode="both", embed=embed)
        assert embed.items <= 8
        assert gallery.state.upgrade is None


def test_mode_both_without_a_sample_is_refused_unless_the_gallery_is_tiny(tmp_path: Path) -> None:
    with make("memory", tmp_path) as gallery, pytest.raises(ConfigError, match="or an encoder"):
        Upgrade.start(gallery, to=WIDE, mode="both")
    with make("memory", tmp_path, count=3) as gallery:
        Upgrade.start(gallery, to=WIDE, mode="both", order="random")
        both = [vectors(["q"], WIDE), vectors(["q"], OLD)]
        assert len(gallery.search(both, k=3)[0]) == 3


def test_spaces_of_different_metrics_are_merged_over_a_sample_only(tmp_path: Path) -> None:
    far = Space("far", 16, metric="l2", fingerprint="f-far")

    def embed(items: Sequence[Item]) -> Embedded:
        made = encoder(WIDE)(items).vectors
        return Embedded(type(made)(made.ids, made.vectors, far))

    with make("memory", tmp_path) as gallery:
        with pytest.raises(ConfigError, match="over a sample"):
            Upgrade.start(gallery, to=far, mode="both")
        upgrade = Upgrade.start(gallery, to=far, mode="both", embed=embed)
        upgrade.run(embed, limit=30)
        query = vectors(["q"], WIDE)
        (hits,) = gallery.search(
            [vectors(["q"], OLD), type(query)(query.ids, query.vectors, far)], k=60
        )
        ranks = [hit.rank_score for hit in hits]
        assert ranks == sorted(ranks, reverse=True)
        assert {hit.space.metric for hit in hits[:20]} == {"cosine", "l2"}


def test_a_sample_is_embedded_from_the_gallery_s_own_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.upgrade.priorities.PAGE", 7)
    with make("memory", tmp_path) as gallery:
        made = embed_sample(gallery, encoder(NEW, missing=["i0004"]), space=NEW, count=60)
        assert set(made.ids.tolist()) == set(ids(60)) - {"i0004"}
        assert np.array_equal(made.vectors, vectors(made.ids.tolist(), NEW).vectors)
        part = embed_sample(gallery, encoder(NEW), space=NEW, count=20)
        assert 8 <= len(part) <= 34  # each by its own chance
        again = embed_sample(gallery, encoder(NEW), space=NEW, count=20)
        assert again.ids.tolist() == part.ids.tolist()


def ranking(gallery: Gallery, names: list[str]) -> list[list[str]]:
    queries = [vectors(names, OLD), vectors(names, WIDE)]
    return [[hit.id for hit in hits] for hits in gallery.search(queries, k=20)]


def test_traffic_is_changed_on_the_way_and_the_audit_log_says_so(tmp_path: Path) -> None:
    names = ids(12, first=900)
    embed: Embed = encoder(WIDE)
    with make("sqlite", tmp_path) as gallery:
        before = [[hit.id for hit in hits] for hits in gallery.search(vectors(names, OLD), k=20)]
        upgrade = Upgrade.start(gallery, to=WIDE, mode="both", embed=embed, traffic=0.0)
        upgrade.run(embed)
        assert upgrade.status().traffic == 0.0
        assert ranking(gallery, names) == before, "shadow: all is answered as before"
        upgrade.set_traffic(1.0)
        after = ranking(gallery, names)
        assert after != before
        upgrade.set_traffic(0.5)
        split = ranking(gallery, names)
        assert all(mine in (was, now) for mine, was, now in zip(split, before, after, strict=True))
        assert split not in (before, after)
        events = [event.details for event in gallery.audit_log() if event.what == "upgrade traffic"]
        assert events == [{"from": 1.0, "to": 0.5}, {"from": 0.0, "to": 1.0}]
        with pytest.raises(ConfigError, match="between 0"):
            upgrade.set_traffic(5)
