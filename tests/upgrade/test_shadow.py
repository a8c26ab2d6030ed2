"""The gate along the way, against a count by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import EvaluationError, SpaceMismatch
from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space
from midspan.upgrade import MODES, Mode, Shadow, Upgrade, from_embeddings, shadow_gate, watch
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    STRANGER,
    encoder,
    ids,
    label,
    make,
    picture,
    settings_for,
    vectors,
)

NAMES = ids(30)  # items of the gallery themselves: their own hit does not count


def by_hand(gallery: Gallery, new: list[Embeddings], k: int) -> tuple[float, float]:
    """(negative flips, retention of precision@k)."""
    flips, before_sum, after_sum = 0, 0, 0
    for row, name in enumerate(NAMES):
        old_hits = gallery.search(vectors([name], OLD), k=k + 1)[0]
        new_hits = Upgrade(gallery).search([one[[row]] for one in new], k=k + 1)[0]
        rights = []
        for hits in (old_hits, new_hits):
            others = [hit.id for hit in hits if hit.id != name][:k]
            rights.append([label(picture(id)) == label(picture(name)) for id in others])
        flips += rights[0][0] and not rights[1][0]
        before_sum += sum(rights[0])
        after_sum += sum(rights[1])
    return flips / len(NAMES), after_sum / before_sum


@pytest.mark.parametrize("mode", MODES)
def test_flips_and_retention_are_counted_right(tmp_path: Path, mode: Mode) -> None:
    new, folder = settings_for(mode, tmp_path)
    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=folder, embed=encoder(new))
        shadow = Shadow(
            old=vectors(NAMES, OLD), new=vectors(NAMES, new), k=5, max_negative_flips=0.01
        )
        asked = [vectors(NAMES, one) for one in ((OLD, new) if mode == "both" else (new,))]
        for _ in range(3):
            result = watch(gallery, shadow)()
            flips, retention = by_hand(gallery, asked, 5)
            assert [check.value for check in result.checks] == pytest.approx([flips, retention])
            assert result.flips is not None
            assert result.flips.negative == pytest.approx(flips)
            assert (result.labelled, result.metric, result.n_queries) == (True, "precision@5", 30)
            upgrade.run(encoder(new), limit=30, settings=QUICK)


@pytest.mark.parametrize("mode", MODES)
def test_without_labels_an_upgrade_does_not_fail_at_its_end(tmp_path: Path, mode: Mode) -> None:
    """Each encoder has its own ranking: what both agree on is found by both."""
    new, folder = settings_for(mode, tmp_path)
    names = ids(60)
    bare = [without_labels(vectors(names, space)) for space in (OLD, new)]
    with make("sqlite", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=folder, embed=encoder(new))
        shadow = Shadow(old=bare[0], new=bare[1])
        first = shadow_gate(gallery, shadow)
        assert (first.labelled, first.metric) == (False, "agreed@2")
        upgrade.run(encoder(new), settings=QUICK)
        last = shadow_gate(gallery, shadow)
        assert last.verdict == "PASS"
        kept = {check.name: check.value for check in last.checks}
        assert kept["retention"] == 1.0
        assert kept["agreement"] < 0.9
        assert "cannot tell" in " ".join(last.notes)


def test_without_labels_wrong_vectors_fail(tmp_path: Path) -> None:
    """Vectors that were given to the wrong items are noticed without a label."""
    names = ids(60)
    bare = [without_labels(vectors(names, space)) for space in (OLD, NEW)]
    mixed_up = from_embeddings(replace(bare[1], vectors=np.roll(bare[1].vectors, 1, axis=0)))
    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW)
        upgrade.run(mixed_up, settings=QUICK)
        assert shadow_gate(gallery, Shadow(old=bare[0], new=bare[1])).verdict == "FAIL"


def test_without_labels_queries_must_be_items(tmp_path: Path) -> None:
    names = ids(30, first=900)
    strange = [without_labels(vectors(names, space)) for space in (OLD, NEW)]
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        with pytest.raises(EvaluationError, match="0 of 30 shadow queries are items"):
            shadow_gate(gallery, Shadow(old=strange[0], new=strange[1]))


def test_near_duplicates_that_are_lost_are_noticed(tmp_path: Path) -> None:
    """Each picture is there twice; the second ones get vectors of something else."""
    names = ids(60)
    twins = [f"{name}-twin" for name in names]
    old, new = (without_labels(vectors(names, space)) for space in (OLD, NEW))
    noise = np.random.default_rng(0).normal(size=new.vectors.shape).astype(np.float32)
    with make("memory", tmp_path) as gallery:
        gallery.add(replace(old, ids=np.array(twins)), payloads=[{}] * 60)
        upgrade = Upgrade.start(gallery, to=NEW)
        shadow = Shadow(old=old, new=new)
        found = {check.name: check for check in shadow_gate(gallery, shadow).checks}
        assert found["near-duplicates"].value > 0.9
        both = np.concatenate([new.vectors, noise])
        upgrade.run(from_embeddings(Embeddings(np.array(names + twins), both, NEW)), settings=QUICK)
        # By the new vectors they are no near-duplicates any more, so nothing is lost for certain.
        assert "near-duplicates" not in {c.name for c in shadow_gate(gallery, shadow).checks}


def test_clicks_say_what_is_right(tmp_path: Path) -> None:
    old, new = both()
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        served = gallery.search(new, k=6)
        clicked = {
            name: [next(hit.id for hit in hits if hit.id != name)]
            for name, hits in zip(NAMES, served, strict=True)
        }
        happy = shadow_gate(gallery, Shadow(old=old, new=new, k=5, clicks=clicked))
        assert happy.metric == "clicked@5"
        assert happy.checks[0].value >= 1.0
        assert "people click on what they were shown" in " ".join(happy.notes)
        first = gallery.search(old, k=60)
        gone = {
            name: [hit.id for hit in hits if hit.id != name][:1]
            for name, hits in zip(NAMES, first, strict=True)
        }
        some = shadow_gate(gallery, Shadow(old=old, new=new, k=1, clicks=gone))
        assert some.checks[0].value < 1.0
        with pytest.raises(EvaluationError, match="none of the 30 shadow queries has a click"):
            shadow_gate(gallery, Shadow(old=old, new=new, clicks={"x": ["y"]}))


def test_groups_come_from_the_payload_of_items(tmp_path: Path) -> None:
    old, new = both()
    with make("memory", tmp_path) as gallery:
        gallery.set_payload(
            {
                name: {"labels": label(picture(name)), "shop": "a" if row % 2 else "b"}
                for row, name in enumerate(NAMES)
            }
        )
        Upgrade.start(gallery, to=NEW)
        found = shadow_gate(gallery, Shadow(old=old, new=new, group_key="shop"))
        assert set(found.groups) == {"a", "b"}
        with pytest.raises(EvaluationError, match="no group 'city'"):
            shadow_gate(gallery, Shadow(old=old, new=new, group_key="city"))


def without_labels(part: Embeddings) -> Embeddings:
    return Embeddings(part.ids, part.vectors, part.space)


def both() -> tuple[Embeddings, Embeddings]:
    return vectors(NAMES, OLD), vectors(NAMES, NEW)


def test_limits_decide(tmp_path: Path) -> None:
    old, new = both()
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        strict = Shadow(old=old, new=new, max_negative_flips=0.0, min_retention=2.0)
        assert shadow_gate(gallery, strict).verdict == "FAIL"
        mild = Shadow(old=old, new=new, max_negative_flips=1.0, min_retention=0.0)
        assert shadow_gate(gallery, mild).verdict == "PASS"


def test_labels_that_are_not_those_of_the_payload_are_noticed(tmp_path: Path) -> None:
    old, new = both()
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        with pytest.raises(EvaluationError, match="payload's 'brand'"):
            shadow_gate(gallery, Shadow(old=old, new=new, label_key="brand"))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [(OLD, STRANGER, "new"), (OLD, OLD, "new"), (NEW, OLD, "old"), (STRANGER, NEW, "old")],
)
def test_queries_of_another_space_than_the_upgrade_s_are_refused(
    tmp_path: Path, old: Space, new: Space, named: str
) -> None:
    """A wrong file, the same one twice or both swapped: no verdict, and nothing is paused."""
    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW)
        shadow = Shadow(old=vectors(NAMES, old), new=vectors(NAMES, new))
        with pytest.raises(SpaceMismatch, match=f"the {named} shadow queries are in"):
            shadow_gate(gallery, shadow)
        assert (upgrade.status().phase, upgrade.status().gate) == ("running", None)
