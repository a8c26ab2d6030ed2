"""What finish requires of the gate: a PASS on the gallery as it is now, or a reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import EvaluationError, GalleryError
from midspan.gallery import Gallery
from midspan.gallery.routing import find_sample, sample_kind
from midspan.spaces import Embeddings, Space
from midspan.upgrade import (
    GateResult,
    Record,
    Shadow,
    Upgrade,
    from_embeddings,
    judged_by,
    own_gate,
    shadow_gate,
    watch_own,
)
from midspan.upgrade.own_queries import GateSettings, own_queries
from tests.upgrade.world import NEW, OLD, QUICK, WIDE, add, encoder, ids, make, vectors

NAMES = ids(60)


def noise(names: list[str]) -> Embeddings:
    rows = np.random.default_rng(3).normal(size=(len(names), NEW.dim)).astype(np.float32)
    return Embeddings(np.array(names), rows, NEW)


def passed(gallery: Gallery) -> GateResult:
    result = shadow_gate(gallery, Shadow(vectors(NAMES, OLD), vectors(NAMES, NEW)))
    judged_by(gallery, result)
    return result


def start(gallery: Gallery, **settings: object) -> Upgrade:
    return Upgrade.start(gallery, to=vectors(NAMES, NEW), order="random", **settings)  # type: ignore[arg-type]


def test_a_pass_before_most_vectors_were_written_does_not_let_finish(gallery: Gallery) -> None:
    """PASS at a third, then random vectors: finish asks again, and the gate fails."""
    upgrade = start(gallery)
    upgrade.run(encoder(NEW), limit=20, settings=QUICK)
    assert passed(gallery).verdict == "PASS"
    upgrade.run(from_embeddings(noise(NAMES)), settings=QUICK)
    with pytest.raises(
        GalleryError, match=r"verdict of the gate is FAIL; expected PASS \(retention 0"
    ):
        upgrade.finish()
    assert (upgrade.status().phase, upgrade.status().gate) == ("paused", "FAIL")
    done = upgrade.finish(override="they are random on purpose")
    assert (done.gate, done.left) == ("FAIL", 0)


def test_a_gate_that_was_never_asked_is_asked_by_finish(gallery: Gallery) -> None:
    upgrade = start(gallery)
    upgrade.run(encoder(NEW), settings=QUICK)
    done = upgrade.finish()
    assert (done.gate, done.kept, done.traffic) == ("PASS", 60, 1.0)
    asked = next(line for line in gallery.audit_log() if line.what == "upgrade gate")
    assert (asked.details["queries"], asked.details["share"]) == (60, 1.0)


def test_without_a_sample_the_items_with_both_vectors_ask(tmp_path: Path) -> None:
    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        record = Record.of(gallery.state)
        assert record is not None
        assert record.sample is None
        with pytest.raises(EvaluationError, match=r"expected 20 or more items .* got 0"):
            own_gate(gallery)
        upgrade.run(encoder(NEW), settings=QUICK)
        assert upgrade.finish().gate == "PASS"


def test_a_verdict_on_the_gallery_as_it_is_is_not_asked_for_again(gallery: Gallery) -> None:
    """Evidence that somebody gave, with clicks or labels, is better than the gallery's own."""
    upgrade = start(gallery)
    upgrade.run(encoder(NEW), settings=QUICK)
    passed(gallery)
    upgrade.finish()
    assert sum(line.what == "upgrade gate" for line in gallery.audit_log()) == 1


def test_a_fail_is_not_forgotten_by_a_rollback_and_a_start(gallery: Gallery) -> None:
    upgrade = start(gallery)
    upgrade.run(from_embeddings(noise(NAMES)), settings=QUICK)
    assert passed(gallery).verdict == "FAIL"
    upgrade.rollback()
    again = start(gallery)
    status = again.status()
    assert (status.new, status.gate) == (60, "FAIL")
    assert status.evidence is not None
    assert status.evidence["limits"] == {"retention": 0.98}
    with pytest.raises(GalleryError, match="is FAIL; expected PASS"):
        again.finish()
    again.rollback(drop=True)
    assert start(gallery).status().gate is None, "other vectors, another verdict"


def test_the_kept_sample_asks_with_the_labels_of_the_payload(gallery: Gallery) -> None:
    upgrade = start(gallery)
    result = own_gate(gallery)
    assert (result.labelled, result.metric, result.n_queries) == (True, "precision@10", 60)
    by_files = shadow_gate(gallery, Shadow(vectors(NAMES, OLD), vectors(NAMES, NEW)))
    assert result.checks[0].value == pytest.approx(by_files.checks[0].value)
    report = upgrade.run(from_embeddings(noise(NAMES)), check=watch_own(gallery), settings=QUICK)
    assert report.stopped == "paused"


def test_items_that_are_gone_or_replaced_do_not_ask(gallery: Gallery) -> None:
    upgrade = start(gallery)
    gallery.delete(["i0001"])
    add(gallery, ["i0002"], OLD, version=2, replace=True)
    asked = set(own_queries(gallery, GateSettings()).old.ids.tolist())
    assert asked == set(NAMES) - {"i0001", "i0002"}
    upgrade.rollback()
    Upgrade.start(gallery, to=NEW, order="random")  # with the sample that was kept
    kept = find_sample(gallery.blobs, old=OLD.fingerprint, new=NEW.fingerprint)
    assert kept is not None
    assert set(kept[1].ids.tolist()) == asked
    record = Record.of(gallery.state)
    assert record is not None
    assert record.sample == kept[0]


def test_more_items_ask_where_the_sample_does_not_decide(tmp_path: Path) -> None:
    """An equally good encoder: 25 queries cannot tell, several hundred can."""
    names = ids(600)
    with make("memory", tmp_path, count=600) as gallery:
        embed = encoder(WIDE)
        few = vectors(names, WIDE)[:25]
        upgrade = Upgrade.start(gallery, to=WIDE, mode="both", sample=few, order="random")
        upgrade.run(embed, settings=dataclasses.replace(QUICK, batch=200))
        strict = GateSettings(min_retention=1.18)
        assert len(own_queries(gallery, strict).old) == 25
        first = shadow_gate(gallery, own_queries(gallery, strict))
        assert first.verdict == "INCONCLUSIVE"
        assert own_gate(gallery, strict).n_queries > 25


def small(folder: Path, count: int, space: Space = NEW) -> Upgrade:
    gallery = make("memory", folder, count=count)
    return Upgrade.start(gallery, to=space, order="random")


def test_finish_of_a_small_gallery_with_a_good_encoder_needs_no_override(tmp_path: Path) -> None:
    """Twelve items cannot narrow an interval, but all of them can ask."""
    upgrade = small(tmp_path, 12)
    with upgrade.gallery as gallery:
        upgrade.run(encoder(NEW), settings=QUICK)
        result = own_gate(gallery)
        assert (result.verdict, result.metric, result.n_queries) == ("PASS", "precision@2", 12)
        assert any("every item that can ask has asked" in note for note in result.notes)
        assert upgrade.finish().gate == "PASS"


def test_finish_of_a_small_gallery_with_a_worse_encoder_is_inconclusive_and_refused(
    tmp_path: Path,
) -> None:
    upgrade = small(tmp_path, 12)
    with upgrade.gallery as gallery:
        upgrade.run(from_embeddings(noise(ids(12))), settings=QUICK)
        assert own_gate(gallery).verdict == "INCONCLUSIVE", "FAIL needs 20 queries"
        with pytest.raises(GalleryError, match="is INCONCLUSIVE; expected PASS"):
            upgrade.finish()


def test_finish_of_two_items_without_override_is_refused(tmp_path: Path) -> None:
    upgrade = small(tmp_path, 2)
    with upgrade.gallery:
        upgrade.run(encoder(NEW), settings=QUICK)
        with pytest.raises(GalleryError, match="expected 3 or more items that have both vectors"):
            upgrade.finish()
        assert upgrade.finish(override="two items").left == 0


def test_gate_of_a_small_gallery_half_way_decides_nothing(tmp_path: Path) -> None:
    upgrade = small(tmp_path, 12)
    with upgrade.gallery as gallery:
        upgrade.run(encoder(NEW), limit=6, settings=QUICK)
        with pytest.raises(EvaluationError, match=r"expected 20 or more items .* got 0"):
            own_gate(gallery)


def test_a_fail_that_was_overridden_pauses_again_only_if_it_is_worse(tmp_path: Path) -> None:
    def verdict(after: float) -> GateResult:
        with make("memory", tmp_path) as other:
            Upgrade.start(other, to=NEW)
            real = shadow_gate(other, Shadow(vectors(NAMES, OLD), vectors(NAMES, NEW)))
        return dataclasses.replace(real, verdict="FAIL", before=0.5, after=after)

    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW)
        judged_by(gallery, verdict(0.4))
        assert upgrade.status().phase == "paused"
        upgrade.resume(override="a trial")
        judged_by(gallery, verdict(0.395))
        status = upgrade.status()
        assert (status.phase, status.gate) == ("running", "FAIL")
        assert status.override is not None
        judged_by(gallery, verdict(0.3))
        assert upgrade.status().phase == "paused"


def test_a_later_pass_clears_the_reason_of_the_pause(tmp_path: Path) -> None:
    with make("memory", tmp_path) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW)
        bad = Shadow(vectors(NAMES, OLD), noise(NAMES))
        judged_by(gallery, shadow_gate(gallery, bad))
        assert str(upgrade.status().reason).startswith("gate: retention")
        passed(gallery)
        status = upgrade.status()
        assert (status.phase, status.gate, status.reason) == ("paused", "PASS", None)
        upgrade.resume()
        upgrade.pause(reason="lunch")
        passed(gallery)
        assert upgrade.status().reason == "lunch", "not the gate's"


def test_traffic_of_a_finished_upgrade_is_refused_and_not_shown(gallery: Gallery) -> None:
    upgrade = start(gallery, traffic=0.0)
    upgrade.run(encoder(NEW), settings=QUICK)
    done = upgrade.finish()
    assert done.traffic == 0.0
    assert upgrade.status().traffic is None
    with pytest.raises(GalleryError, match="the upgrade is finished, and the new vectors answer"):
        upgrade.set_traffic(0.5)


def test_forget_leaves_no_old_vector_in_a_sample_or_bridge(gallery: Gallery) -> None:
    Upgrade.plan(gallery, to=vectors(NAMES, WIDE), mode="both")  # a sample of another encoder
    upgrade = start(gallery)
    assert len(gallery.blobs.of_kind(sample_kind(OLD.fingerprint))) == 2
    upgrade.run(encoder(NEW), settings=QUICK)
    upgrade.finish()
    upgrade.forget()
    assert gallery.blobs.of_kind(sample_kind(OLD.fingerprint)) == []
