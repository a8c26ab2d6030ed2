"""The gate along the way, against a count by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from midspan.errors import EvaluationError
from midspan.gallery import Gallery
from midspan.spaces import Embeddings
from midspan.upgrade import MODES, Mode, Shadow, Upgrade, shadow_gate, watch
from tests.upgrade.world import (
    NEW,
    OLD,
    QUICK,
    encoder,
    ids,
    label,
    make,
    picture,
    settings_for,
    vectors,
)

NAMES = ids(30)  # items of the gallery themselves: their own hit does not count


def by_hand(gallery: Gallery, new: Embeddings, k: int) -> tuple[float, float]:
    """(negative flips, retention of precision@k)."""
    flips, before_sum, after_sum = 0, 0, 0
    live = ("f-old",)
    for row, name in enumerate(NAMES):
        old_hits = gallery.search(vectors([name], OLD), k=k + 1, live=live, among=live)[0]
        new_hits = Upgrade(gallery).search(new[[row]], k=k + 1)[0]
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
        upgrade = Upgrade.start(gallery, to=new, mode=mode, bridge=folder)
        shadow = Shadow(old=vectors(NAMES, OLD), new=vectors(NAMES, new), k=5)
        for _ in range(3):
            result = watch(gallery, shadow)()
            flips, retention = by_hand(gallery, shadow.new, 5)
            assert [check.value for check in result.checks] == pytest.approx([flips, retention])
            assert (result.labelled, result.metric, result.n_queries) == (True, "precision@5", 30)
            upgrade.run(encoder(new), limit=30, settings=QUICK)


def test_without_labels_the_old_results_stand_for_the_truth(tmp_path: Path) -> None:
    bare = [Embeddings(part.ids, part.vectors, part.space) for part in both()]
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        same = shadow_gate(gallery, Shadow(old=bare[0], new=bare[0]))
        assert (same.verdict, same.metric) == ("PASS", "overlap@10")
        assert [check.value for check in same.checks] == [0.0, 1.0]
        other = shadow_gate(gallery, Shadow(old=bare[0], new=bare[1], k=5))
        total = 0
        for row in range(len(NAMES)):
            found = []
            for part in bare:
                hits = Upgrade(gallery).search(part[[row]], k=6)[0]
                found.append(set([h.id for h in hits if h.id != NAMES[row]][:5]))
            total += len(found[0] & found[1])
        assert other.checks[1].value == pytest.approx(total / (5 * len(NAMES)))
        assert other.checks[1].value < 1


def both() -> tuple[Embeddings, Embeddings]:
    return vectors(NAMES, OLD), vectors(NAMES, NEW)


def test_limits_decide(tmp_path: Path) -> None:
    old, new = both()
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        strict = Shadow(old=old, new=new, max_negative_flips=0.0, min_retention=5.0)
        assert shadow_gate(gallery, strict).verdict == "FAIL"
        mild = Shadow(old=old, new=new, max_negative_flips=1.0, min_retention=0.0)
        assert shadow_gate(gallery, mild).verdict == "PASS"


def test_labels_that_are_not_those_of_the_payload_are_noticed(tmp_path: Path) -> None:
    old, new = both()
    with make("memory", tmp_path) as gallery:
        Upgrade.start(gallery, to=NEW)
        with pytest.raises(EvaluationError, match="payload's 'brand'"):
            shadow_gate(gallery, Shadow(old=old, new=new, label_key="brand"))
