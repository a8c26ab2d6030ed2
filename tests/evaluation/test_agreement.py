"""The same numbers as the libraries people use, where the definitions coincide."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from midspan.evaluation import evaluate, nmi, search_exact
from tests.evaluation.sets import clustered

ITEMS = clustered(400, classes=37, dim=24, noise=1.4, seed=3)
LABELS = ITEMS.columns["labels"].astype(np.int64)  # other libraries compare numbers
UNIT = ITEMS.normalised().vectors


def test_average_precision_of_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score

    ours = evaluate(ITEMS, metrics=["map"]).per_query["map"]
    scores = UNIT.astype(np.float64) @ UNIT.astype(np.float64).T
    for i in range(0, len(ITEMS), 17):
        others = np.arange(len(ITEMS)) != i
        theirs = average_precision_score(LABELS[others] == LABELS[i], scores[i, others])
        assert ours[i] == pytest.approx(theirs, abs=1e-6)


def test_nearest_neighbours_of_scikit_learn() -> None:
    from sklearn.neighbors import NearestNeighbors

    for metric, ours in (("euclidean", "l2"), ("cosine", "cosine")):
        theirs = NearestNeighbors(n_neighbors=9, metric=metric).fit(ITEMS.vectors)
        distances, rows = theirs.kneighbors(ITEMS.vectors[:50])
        scores, rows = search_exact(ITEMS.vectors[:50], ITEMS.vectors, k=9, metric=ours)  # type: ignore[arg-type]
        assert rows.tolist() == rows.tolist()
        expected = -np.square(distances) if ours == "l2" else 1 - distances
        np.testing.assert_allclose(scores, expected, atol=1e-4 if ours == "l2" else 1e-6)


def test_nmi_of_scikit_learn_on_the_same_clusters() -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score

    clusters = KMeans(37, n_init=1, random_state=0).fit_predict(UNIT)
    assert nmi(UNIT, LABELS) == pytest.approx(normalized_mutual_info_score(LABELS, clusters))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_accuracy_calculator() -> None:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {
        "precision_at_1": "precision@1",
        "r_precision": "r_precision",
        "mean_average_precision_at_r": "map@r",
        "mean_average_precision": "map",
    }
    calculator = AccuracyCalculator(include=tuple(names), k=None, device=torch.device("cpu"))
    theirs = calculator.get_accuracy(torch.from_numpy(UNIT), torch.from_numpy(LABELS))
    ours = evaluate(ITEMS, metrics=list(names.values()))
    for their_name, name in names.items():
        assert ours.mean(name) == pytest.approx(theirs[their_name], abs=1e-6), name


TORCHMETRICS = """
import json, sys
import torch
try:
    import torchvision
except RuntimeError:  # its wheel wants CUDA; torchmetrics imports it without using it here
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import numpy as np
from torchmetrics.functional import retrieval
lines = {"map": [], "recall@5": [], "precision@5": [], "r_precision": []}
with np.load(sys.argv[1]) as file:
    scores, targets = torch.from_numpy(file["scores"]), torch.from_numpy(file["targets"])
for line, target in zip(scores, targets):
    lines["map"].append(float(retrieval.retrieval_average_precision(line, target)))
    lines["recall@5"].append(float(retrieval.retrieval_hit_rate(line, target, top_k=5)))
    lines["precision@5"].append(float(retrieval.retrieval_precision(line, target, top_k=5)))
    lines["r_precision"].append(float(retrieval.retrieval_r_precision(line, target)))
print(json.dumps(lines))
"""


@pytest.mark.slow
def test_torchmetrics(tmp_path: Path) -> None:
    """In a process of its own, so that a broken torchvision does not reach other tests.

    torchmetrics takes scores for probabilities and drops relevant items at or below 0: shift them.
    """
    others = ~np.eye(len(ITEMS), dtype=bool)
    rows = np.arange(0, len(ITEMS), 5)
    scores = (UNIT @ UNIT.T)[others].reshape(len(ITEMS), -1)[rows]
    targets = (LABELS[:, None] == LABELS)[others].reshape(len(ITEMS), -1)[rows]
    np.savez(tmp_path / "lines.npz", scores=scores + 1.5, targets=targets)
    command = [sys.executable, "-W", "ignore", "-c", TORCHMETRICS, str(tmp_path / "lines.npz")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    theirs = json.loads(finished.stdout)
    ours = evaluate(ITEMS, metrics=list(theirs)).per_query
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name][rows], values, atol=1e-6, err_msg=name)
