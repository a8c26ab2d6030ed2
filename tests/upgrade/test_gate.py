"""The gate: verdicts on cases whose answer is known, and against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.errors import EvaluationError, SpaceMismatch
from midspan.upgrade import GateResult, gate

CLASSES, EACH, DIM = 20, 12, 16
LABELS = np.repeat(np.arange(CLASSES), EACH)


def cloud(noise: float, *, seed: int, space: str, labels: bool = True) -> Embeddings:
    centres = np.random.default_rng(42).normal(size=(CLASSES, DIM))
    jitter = np.random.default_rng(seed).normal(size=(len(LABELS), DIM))
    columns = {"labels": LABELS, "group": np.where(LABELS < 5, "few", "many")}
    return Embeddings(
        ids=np.array([f"i{n:03d}" for n in range(len(LABELS))]),
        vectors=(centres[LABELS] + noise * jitter).astype(np.float32),
        space=Space(space, DIM),
        columns=columns if labels else {},
    )


def values(result: GateResult) -> dict[str, float]:
    return {check.name: check.value for check in result.checks}


def test_nothing_changed_passes() -> None:
    same = cloud(1.0, seed=0, space="old")
    result = gate(before=same, after=same)
    assert result.verdict == "PASS"
    assert values(result) == {"retention": 1.0}
    assert result.flips is not None
    assert (result.flips.negative, result.flips.positive) == (0.0, 0.0)
    assert result.worst == ()


def test_a_better_encoder_passes_and_a_worse_one_fails() -> None:
    old = cloud(1.2, seed=0, space="old")
    better, worse = cloud(0.4, seed=1, space="new"), cloud(3.0, seed=1, space="new")
    assert gate(before=old, after=better).verdict == "PASS"
    result = gate(before=old, after=worse, max_negative_flips=0.01)
    assert result.verdict == "FAIL"
    assert {check.verdict for check in result.checks} == {"FAIL"}
    assert len(result.worst) == 10


def test_labelled_values_equal_plain_loops() -> None:
    old, new = cloud(1.5, seed=0, space="old"), cloud(1.6, seed=1, space="new")
    mapped = cloud(1.9, seed=2, space="new")
    result = gate(before=old, after=mapped, query=new, truth=new, metric="map")

    def per_query(query: Embeddings, gallery: Embeddings) -> tuple[list[bool], list[float]]:
        q = query.vectors / np.linalg.norm(query.vectors, axis=1, keepdims=True)
        g = gallery.vectors / np.linalg.norm(gallery.vectors, axis=1, keepdims=True)
        hits, precisions = [], []
        for row in range(len(q)):
            order = [int(i) for i in np.argsort(-(g @ q[row])) if i != row]
            right = [LABELS[i] == LABELS[row] for i in order]
            hits.append(bool(right[0]))
            found, total = 0, 0.0
            for rank, good in enumerate(right, start=1):
                if good:
                    found += 1
                    total += found / rank
            precisions.append(total / (EACH - 1))
        return hits, precisions

    before, _ = per_query(old, old)
    after, quality = per_query(new, mapped)
    _, best = per_query(new, new)
    flips = sum(b and not a for b, a in zip(before, after, strict=True)) / len(before)
    assert result.flips is not None
    assert result.flips.negative == pytest.approx(flips)
    assert values(result)["retention"] == pytest.approx(sum(quality) / sum(best), abs=1e-6)


def test_without_labels_the_new_encoder_does_not_fail_by_construction() -> None:
    """All items refreshed: the encoders disagree, and what they agree on is found."""
    old = cloud(1.0, seed=0, space="old", labels=False)
    new = cloud(1.0, seed=1, space="new", labels=False)
    whole = gate(before=old, after=new)
    assert (whole.verdict, whole.metric, whole.labelled) == ("PASS", "agreed@10", False)
    assert values(whole)["retention"] == 1.0
    assert 0.1 < values(whole)["agreement"] < 0.9
    assert "cannot tell whether the new encoder is better" in " ".join(whole.notes)
    noisy = gate(
        before=old, after=cloud(3.0, seed=2, space="new", labels=False), query=new, truth=new
    )
    assert noisy.verdict == "FAIL"
    assert values(noisy)["retention"] < 0.6


def test_without_labels_an_encoder_that_sees_nothing_fails() -> None:
    old = cloud(1.0, seed=0, space="old", labels=False)
    noise = np.random.default_rng(9).normal(size=old.vectors.shape).astype(np.float32)
    broken = Embeddings(ids=old.ids, vectors=noise, space=Space("new", DIM))
    result = gate(before=old, after=broken)
    assert result.verdict == "FAIL"
    assert [check.name for check in result.checks if check.verdict == "FAIL"] == ["agreement"]


def test_label_free_values_equal_sets() -> None:
    old = cloud(1.0, seed=0, space="old", labels=False)
    new = cloud(1.2, seed=3, space="new", labels=False)
    mixed = cloud(1.6, seed=4, space="new", labels=False)
    result = gate(before=old, after=mixed, query=new, truth=new, k=5)

    def top(query: Embeddings, gallery: Embeddings) -> list[set[int]]:
        q = query.vectors / np.linalg.norm(query.vectors, axis=1, keepdims=True)
        g = gallery.vectors / np.linalg.norm(gallery.vectors, axis=1, keepdims=True)
        scores = q @ g.T
        np.fill_diagonal(scores, -np.inf)
        return [set(np.argsort(-row)[:5].tolist()) for row in scores]

    both = [a & b for a, b in zip(top(old, old), top(new, new), strict=True)]
    served = top(new, mixed)
    kept = [len(s & r) / len(r) for s, r in zip(served, both, strict=True) if r]
    assert values(result)["retention"] == pytest.approx(float(np.mean(kept)))
    assert values(result)["agreement"] == pytest.approx(np.mean([len(r) / 5 for r in both]))


def test_uncertainty_is_a_warning() -> None:
    old, new = cloud(1.0, seed=0, space="old"), cloud(1.0, seed=1, space="new")
    free = gate(before=old, after=new, max_negative_flips=1.0, min_retention=0.0)
    flips, kept = free.checks
    assert flips.low <= flips.value <= flips.high
    between = (kept.low + kept.value) / 2
    result = gate(before=old, after=new, max_negative_flips=1.0, min_retention=between)
    assert result.verdict == "INCONCLUSIVE"
    beyond = gate(before=old, after=new, max_negative_flips=1.0, min_retention=kept.high + 0.01)
    assert beyond.verdict == "FAIL"


def test_classes_are_groups_where_that_is_asked_for() -> None:
    old, new = cloud(0.8, seed=0, space="old"), cloud(0.7, seed=1, space="new")
    assert gate(before=old, after=new).groups == {}
    assert len(gate(before=old, after=new, group_column="labels").groups) == CLASSES


def test_a_group_that_gets_worse_is_seen_behind_a_good_mean() -> None:
    old = cloud(0.8, seed=0, space="old")
    new = cloud(0.2, seed=1, space="new")
    vectors = new.vectors.copy()
    hurt = LABELS < 5
    vectors[hurt] = np.random.default_rng(5).normal(size=(int(hurt.sum()), DIM))
    broken = Embeddings(ids=new.ids, vectors=vectors, space=new.space, columns=dict(new.columns))
    result = gate(
        before=old,
        after=broken,
        max_negative_flips=0.5,
        min_retention=0.5,
        group_column="group",
    )
    assert result.verdict == "FAIL"
    assert "FAIL" not in {check.verdict for check in result.checks}
    assert {check.verdict for check in result.groups["many"]} == {"PASS"}
    assert "FAIL" in {check.verdict for check in result.groups["few"]}


def test_only_shared_items_count() -> None:
    old, new = cloud(1.0, seed=0, space="old"), cloud(0.5, seed=1, space="new")
    result = gate(before=old, after=new[60:], max_negative_flips=0.1)
    assert result.n_queries == len(LABELS) - 60


def test_what_cannot_be_compared_is_refused() -> None:
    old, new = cloud(1.0, seed=0, space="old"), cloud(1.0, seed=1, space="new")
    renamed = Embeddings(
        ids=np.array([f"x{n}" for n in range(len(new))]), vectors=new.vectors, space=new.space
    )
    with pytest.raises(EvaluationError, match="share 0 ids"):
        gate(before=old, after=renamed)
    with pytest.raises(
        EvaluationError, match=r"max_negative_flips.: expected a share between 0 and 1, got 1\.5"
    ):
        gate(before=old, after=new, max_negative_flips=1.5)
    with pytest.raises(EvaluationError, match="no column 'city' to group by"):
        gate(before=old, after=new, group_column="city")
    with pytest.raises(SpaceMismatch):
        gate(before=old, after=old, query=new)  # new queries on a gallery that was never mapped
