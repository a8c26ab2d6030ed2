from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from midspan.errors import EvaluationError, FormatError
from midspan.evaluation.protocols.tinyface import TinyFace, load
from midspan.spaces import Embeddings, Space

PROBES = {"1_3.jpg": (1, 0.0), "2_2.jpg": (2, 60.0)}
MATES = {"1_1.jpg": (1, 10.0), "1_2.jpg": (1, 40.0), "2_1.jpg": (2, 90.0)}
DISTRACTORS = {"0001/d_1.jpg": 20.0, "d_2.jpg": 200.0}


def cells(names: Any) -> Any:
    """A MATLAB column of text cells."""
    column = np.empty((len(names), 1), dtype=object)
    column[:, 0] = list(names)
    return column


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "Testing_Set"
    (folder / "Gallery_Distractor" / "0001").mkdir(parents=True)
    for name in [*DISTRACTORS, "notes.txt"]:
        (folder / "Gallery_Distractor" / name).write_bytes(b"")
    write(folder / "probe_img_ID_pairs.mat", PROBES, "probe")
    write(folder / "gallery_match_img_ID_pairs.mat", MATES, "gallery")
    return tmp_path


def write(path: Path, faces: dict[str, tuple[int, float]], kind: str) -> None:
    numbers = np.array([[label] for label, _ in faces.values()], dtype=np.uint16)
    savemat(path, {f"{kind}_set": cells(faces), f"{kind}_ids": numbers})


def faces() -> Embeddings:
    named = {f"Probe/{name}": angle for name, (_, angle) in PROBES.items()}
    named |= {f"Gallery_Match/{name}": angle for name, (_, angle) in MATES.items()}
    named |= {f"Gallery_Distractor/{name}": angle for name, angle in DISTRACTORS.items()}
    radians = np.deg2rad(list(named.values()))
    vectors = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
    return Embeddings(np.array(list(named)), vectors, Space("a", 2))


def test_the_lists_and_the_distractors_are_read(root: Path) -> None:
    loaded = load(root)
    assert loaded.probe.ids.tolist() == ["Probe/1_3.jpg", "Probe/2_2.jpg"]
    assert loaded.probe.columns["labels"].tolist() == [1, 2]
    assert loaded.gallery.columns["labels"].tolist() == [1, 1, 2, -100, -100]
    assert loaded.gallery.ids[3:].tolist() == [
        "Gallery_Distractor/0001/d_1.jpg",
        "Gallery_Distractor/d_2.jpg",
    ]
    assert load(root / "Testing_Set").probe.ids.tolist() == loaded.probe.ids.tolist()


def test_ranks_and_precision_by_hand(root: Path) -> None:
    # Probe 1 at 0: 10 right, 20 distractor, 40 right, 90, 200. Probe 2 at 60: 40, 90 right, …
    metrics = ["recall@1", "recall@2", "map_trapezoid", "map"]
    result = TinyFace(root=root).evaluate(faces(), metrics=metrics)
    assert result.metrics["recall@1"] == 0.5
    assert result.metrics["recall@2"] == 1.0
    plain = (1 + 2 / 3) / 2, 1 / 2
    trapezoid = (1 + (1 / 2 + 2 / 3) / 2) / 2, (0 + 1 / 2) / 2
    np.testing.assert_allclose(result.per_query["map"], plain)
    np.testing.assert_allclose(result.per_query["map_trapezoid"], trapezoid)
    assert (result.n_queries, result.n_gallery) == (2, 5)


def test_columns_alone_do_as_well(root: Path) -> None:
    listed = load(root)
    probes, gallery = listed.probe.of(faces()), listed.gallery.of(faces())
    by_columns = TinyFace().evaluate(probes, gallery)
    assert by_columns.metrics == TinyFace(root=root).evaluate(faces()).metrics
    assert list(by_columns.metrics) == ["recall@1", "recall@5", "recall@20", "map_trapezoid"]
    with pytest.raises(EvaluationError, match="expected probes and a gallery"):
        TinyFace().evaluate(probes)
    with pytest.raises(EvaluationError, match="label -100, which marks distractors"):
        TinyFace().evaluate(gallery, gallery)


def test_broken_lists_are_refused(root: Path) -> None:
    path = root / "Testing_Set" / "probe_img_ID_pairs.mat"
    path.write_bytes(b"not MATLAB")
    with pytest.raises(FormatError, match=r"not a readable \.mat file"):
        load(root)
    savemat(path, {"other": 1})
    with pytest.raises(FormatError, match="expected the variables probe_set and probe_ids"):
        load(root)
    savemat(path, {"probe_set": cells(["a.jpg", "b.jpg"]), "probe_ids": np.array([1])})
    with pytest.raises(FormatError, match="2 names but 1 numbers"):
        load(root)
    savemat(path, {"probe_set": cells(["../../a.jpg"]), "probe_ids": np.array([1])})
    with pytest.raises(FormatError, match="not a path below"):
        load(root)
    savemat(path, {"probe_set": np.array([3.5]), "probe_ids": np.array([1])})
    with pytest.raises(FormatError, match="expected an image name"):
        load(root)
    savemat(path, {"probe_set": cells([np.array([1, 2])]), "probe_ids": np.array([1])})
    with pytest.raises(FormatError, match="in a cell, got 2 values"):
        load(root)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"has no file Testing_Set/probe_img_ID_pairs\.mat"):
        load(tmp_path)
    (tmp_path / "Testing_Set").mkdir()
    write(tmp_path / "Testing_Set" / "probe_img_ID_pairs.mat", PROBES, "probe")
    write(tmp_path / "Testing_Set" / "gallery_match_img_ID_pairs.mat", MATES, "gallery")
    with pytest.raises(FormatError, match="has no folder Gallery_Distractor"):
        load(tmp_path)
