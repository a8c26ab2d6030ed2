"""Divide & Conquer: clusters, their matching, whose batch it is, what a slice's loss touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from midspan.errors import ConfigError, Interrupted
from midspan.losses import RecognitionLoss
from midspan.losses.cosface import CosFace
from midspan.losses.margin import Margin
from midspan.losses.metric_learning import MetricLearning
from midspan.losses.proxy_anchor import ProxyAnchor
from midspan.losses.softmax import Softmax
from midspan.losses.supcon import SupCon
from midspan.training.divided import Phases, epoch_batches
from midspan.training.learners import batches, cluster, match
from midspan.training.loop import fit
from midspan.training.samplers import Balanced, Shuffled
from midspan.training.settings import TrainSettings
from midspan.training.step import Step
from tests.training.test_loop import CPU, SETTINGS, task, weights

DIVIDED = replace(SETTINGS, epochs=4, learners=3, recluster_epochs=2, conquer=0.25)


def test_cluster_separated_clouds_are_recovered() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=300)
    vectors = 5 * np.eye(4, 6)[truth] + rng.normal(size=(300, 6)) * 0.1
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    result = cluster(vectors, count=4, seed=3)
    assert len({(a, b) for a, b in zip(result, truth, strict=True)}) == 4  # one name for each
    np.testing.assert_array_equal(result, cluster(vectors, count=4, seed=3))


@pytest.mark.parametrize("relabel", [[1, 2, 3, 0], [3, 0, 1, 2], [1, 0, 3, 2], [0, 1, 2, 3]])
def test_match_relabelled_clusters_restores_all_labels(relabel: list[int]) -> None:
    old = np.random.default_rng(1).integers(4, size=200)
    new = np.array(relabel)[old]
    np.testing.assert_array_equal(match(new, old, count=4), old)


def test_match_clusters_maximises_intersection_over_union() -> None:
    # By plain overlap the large new cluster 0 would take old 0 (6 against 5); by IoU it does not.
    old = np.repeat([0, 1], [6, 14])
    new = np.concatenate([np.zeros(6), np.zeros(5), np.ones(9)]).astype(int)

    def total(assignment: np.ndarray) -> float:
        named = assignment[new]
        both = [((named == k) & (old == k)).sum() for k in (0, 1)]
        either = [((named == k) | (old == k)).sum() for k in (0, 1)]
        return float(both[0] / either[0] + both[1] / either[1])

    best = max((np.array([0, 1]), np.array([1, 0])), key=total)
    np.testing.assert_array_equal(match(new, old, count=2), best[new])


@pytest.mark.parametrize(
    "sampler", [Shuffled(batch_size=8), Balanced(classes_per_batch=5, images_per_class=2)]
)
def test_learner_batches_come_from_their_cluster_in_turn(sampler: Shuffled | Balanced) -> None:
    labels = np.arange(120) % 6
    clusters = (np.arange(120) // 6) % 3
    drawn = batches(clusters, labels, sampler=sampler, count=3, steps=10, seed=0, epoch=2)
    assert [learner for learner, _ in drawn] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    for learner, rows in drawn:
        assert (clusters[rows] == learner).all()
    again = batches(clusters, labels, sampler=sampler, count=3, steps=10, seed=0, epoch=2)
    other = batches(clusters, labels, sampler=sampler, count=3, steps=10, seed=0, epoch=3)
    assert all((a[1] == b[1]).all() for a, b in zip(drawn, again, strict=True))
    assert any((a[1] != b[1]).any() for a, b in zip(drawn, other, strict=True))


def test_learner_batches_leave_out_classes_of_one_image() -> None:
    labels = np.array([0, 0, 1, 1, 2, 3, 3, 0])
    clusters = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    drawn = batches(
        clusters,
        labels,
        sampler=Balanced(classes_per_batch=4, images_per_class=2),
        count=2,
        steps=4,
        seed=0,
        epoch=0,
    )
    assert set(labels[drawn[0][1]]) == {0, 1}
    # The second cluster has one class with pairs: too little, so its learner sees everything.
    assert len(set(labels[np.concatenate([rows for k, rows in drawn if k == 1])])) > 1


@pytest.mark.parametrize("loss", [CosFace(scale=4.0), Softmax(), ProxyAnchor(), SupCon(), Margin()])
def test_loss_part_has_no_gradient_outside_its_slice(loss: RecognitionLoss) -> None:
    torch.manual_seed(0)
    loss.prepare(num_classes=3, dim=6)
    vectors = torch.randn(8, 6, requires_grad=True)
    labels = torch.arange(8) % 3
    torch.manual_seed(1)
    total = loss.part(vectors, labels, slice(2, 4))
    inputs = [vectors] + ([loss.rows] if loss.rows is not None else [])
    for gradient in torch.autograd.grad(total, inputs):
        assert torch.count_nonzero(gradient[:, 2:4]) > 0
        assert torch.count_nonzero(gradient[:, [0, 1, 4, 5]]) == 0
    torch.manual_seed(1)
    alone = loss.part(vectors, labels, slice(0, 6))
    torch.manual_seed(1)
    whole = loss(vectors=vectors, logits=loss.logits(vectors), labels=labels)
    torch.testing.assert_close(alone, whole)  # one learner is plain training


def test_loss_part_of_a_library_proxy_loss_raises_with_an_alternative() -> None:
    loss = MetricLearning(loss="ProxyAnchorLoss")
    loss.prepare(num_classes=3, dim=4)
    with pytest.raises(ConfigError, match="proxy-anchor"):
        loss.part(torch.randn(4, 4), torch.arange(4) % 3, slice(0, 2))


def test_phases_follow_the_settings() -> None:
    # as in the released code: slices to 80, all dims on one cluster's images to 190
    assert Phases.of(TrainSettings(epochs=200, learners=8)) == Phases(0, 80, 190)
    paper = TrainSettings(epochs=200, learners=8, all_dims_from=1.0)
    assert Phases.of(paper) == Phases(0, 200, 190)
    warm = Phases.of(TrainSettings(epochs=10, learners=2, warm_up_learners=0.3, conquer=0.1))
    assert warm == Phases(3, 4, 9)
    assert [epoch for epoch in range(10) if warm.regroups(epoch, 2)] == [3, 5, 7]
    one = Phases.of(TrainSettings(epochs=4))
    assert not any(one.divided(epoch) for epoch in range(4))


def test_middle_phase_cluster_batch_trains_all_dims() -> None:
    what = task()
    step = Step(
        encoder=what.encoder,
        loss=what.loss,
        method=what.method,
        learners=3,
        images=len(what.labels),
    )
    step.clusters.copy_(torch.arange(len(what.labels)) % 3)
    for epoch, slices in ((0, True), (2, False)):
        turns = epoch_batches(
            step,
            what.labels,
            Shuffled(batch_size=8),
            phases=Phases(0, 2, 4),
            own_classes=False,
            steps=6,
            seed=0,
            epoch=epoch,
        )
        for place, turn in enumerate(turns):
            assert set(step.clusters[turn.rows].tolist()) == {place % 3}
            assert turn.learner == (place % 3 if slices else None)


def test_loss_over_cluster_classes_equals_a_smaller_classifier() -> None:
    loss = CosFace.for_classes(6, dim=8, scale=10.0, margin=0.1)
    vectors, classes = torch.randn(5, 8), torch.tensor([1, 3, 4])
    labels = torch.tensor([3, 1, 4, 4, 3])
    dims = slice(2, 6)
    small = CosFace.for_classes(3, dim=4, scale=10.0, margin=0.1)
    assert small.rows is not None
    with torch.no_grad():
        small.rows.copy_(loss.class_rows()[classes][:, dims])
    expected = small.value(vectors[:, dims], torch.tensor([1, 0, 2, 2, 1]))
    result = loss.part(vectors, labels, dims, classes=classes)
    torch.testing.assert_close(result, expected)
    (gradient,) = torch.autograd.grad(result, loss.class_rows())
    assert gradient[[0, 2, 5]].abs().sum() == 0
    with pytest.raises(ConfigError, match="cross-entropy over class weights"):
        ProxyAnchor.for_classes(6, dim=8).part(vectors, labels, dims, classes=classes)


def test_single_learner_equals_plain_training() -> None:
    plain, divided = task(), task()
    for what, settings in ((plain, SETTINGS), (divided, replace(SETTINGS, learners=1))):
        fit(what, settings=settings, seed=5, device=CPU, show_progress=False)
    for name, value in weights(plain.encoder).items():
        assert torch.equal(value, divided.encoder.state_dict()[name])


def test_learners_improve_recall() -> None:
    lines: list[Mapping[str, float]] = []
    what = task()
    fit(what, settings=DIVIDED, seed=5, device=CPU, on_epoch=lines.append, show_progress=False)
    assert len(lines) == 4
    assert lines[-1]["recognition"] < lines[0]["recognition"]


@pytest.mark.parametrize("stop_at", [9, 16])  # in the first epoch, and after a second clustering
def test_stopped_run_with_learners_continues_to_the_same_weights(
    tmp_path: Path, stop_at: int
) -> None:
    whole = task()
    fit(whole, settings=DIVIDED, seed=5, device=CPU, show_progress=False)
    checkpoint = tmp_path / "checkpoint.safetensors"
    options = {"settings": DIVIDED, "seed": 5, "device": CPU, "show_progress": False}
    with pytest.raises(Interrupted):
        fit(task(stop_at=stop_at), checkpoint=checkpoint, **options)  # type: ignore[arg-type]
    resumed = task()
    fit(resumed, checkpoint=checkpoint, **options)  # type: ignore[arg-type]
    for name, value in weights(whole.encoder).items():
        assert torch.equal(value, resumed.encoder.state_dict()[name]), name
