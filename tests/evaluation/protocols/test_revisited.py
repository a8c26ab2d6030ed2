from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import EvaluationError, FormatError, UnknownId
from midspan.evaluation.protocols.revisited import (
    SETUPS,
    GroundTruth,
    ROxford,
    RParis,
    evaluate,
    load,
)
from midspan.spaces import Embeddings, Space

RANKING = [7, 1, 9, 2, 3, 4, 5, 6, 8, 0]  # the micro-example of the protocol's reference
IMAGES = [f"oxford_{row:06d}" for row in range(10)]


def truth(**changes: Any) -> dict[str, Any]:
    entry = {"easy": [1, 5], "hard": [3], "junk": [7, 9], "bbx": [0, 0, 10.5, 20]}
    return {"imlist": IMAGES, "qimlist": ["all_souls_1"], "gnd": [{**entry, **changes}]}


def write(folder: Path, content: Any, name: str = "roxford5k") -> Path:
    (folder / f"gnd_{name}.json").write_text(json.dumps(content))
    return folder


def ranked_as(ranking: list[int]) -> Embeddings:
    """The query at 0 degrees, each image further away the later it stands in the ranking."""
    angles = np.empty(len(ranking))
    angles[ranking] = np.arange(1, len(ranking) + 1) * 5
    radians = np.deg2rad([0, *angles])
    vectors = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
    return Embeddings(np.array(["all_souls_1", *IMAGES]), vectors, Space("a", 2))


def test_the_micro_example(tmp_path: Path) -> None:
    result = ROxford(root=write(tmp_path, truth())).evaluate(ranked_as(RANKING))
    expected = {
        "easy": [0.708333, 1, 0.5, 0.5],
        "medium": [0.711111, 1, 0.6, 0.6],
        "hard": [0.25, 0, 0.5, 0.5],
    }
    for setup, values in expected.items():
        names = [f"{setup}:{metric}" for metric in ("map_trapezoid", "mp@1", "mp@5", "mp@10")]
        np.testing.assert_allclose([result.metrics[n] for n in names], values, atol=5e-7)
    assert len(result.metrics) == 12
    assert (result.n_queries, result.n_gallery) == (1, 10)


def test_one_setup_can_be_asked_for(tmp_path: Path) -> None:
    protocol = ROxford(root=write(tmp_path, truth()))
    result = protocol.evaluate(ranked_as(RANKING), metrics=["medium:map_trapezoid", "hard:map"])
    assert list(result.metrics) == ["medium:map_trapezoid", "hard:map"]
    with pytest.raises(EvaluationError, match="no known part; use easy, medium, hard"):
        protocol.evaluate(ranked_as(RANKING), metrics=["moderate:map"])
    with pytest.raises(EvaluationError, match="no metric is called 'tar@1'"):
        protocol.evaluate(ranked_as(RANKING), metrics=["tar@1"])


def test_queries_without_a_right_image_are_skipped(tmp_path: Path) -> None:
    content = truth()
    content["qimlist"].append("all_souls_2")
    content["gnd"].append({"easy": [2], "hard": [], "junk": [], "bbx": [0, 0, 1, 1]})
    both = ranked_as(RANKING)
    second = Embeddings(np.array(["all_souls_2"]), np.array([[0.0, 1]], np.float32), both.space)
    protocol = ROxford(root=write(tmp_path, content))
    result = protocol.evaluate(both.joined_with(second))
    assert result.metrics["hard:map_trapezoid"] == pytest.approx(0.25)
    assert np.isnan(result.per_query["hard:map_trapezoid"][1])
    assert result.metrics["easy:mp@1"] == 0.5  # here the second one counts
    empty = truth(hard=[])
    with pytest.raises(EvaluationError, match="hard:map_trapezoid: none of the 1 queries"):
        ROxford(root=write(tmp_path, empty)).evaluate(ranked_as(RANKING))


def test_distractors_push_images_down(tmp_path: Path) -> None:
    root = write(tmp_path, truth())
    both = ranked_as(RANKING)
    query, gallery = both[:1], both[1:]
    vectors = np.array([[1, 0.001]], dtype=np.float32)
    more = gallery.joined_with(Embeddings(np.array(["flickr_1"]), vectors, both.space))
    plain = ROxford(root=root).evaluate(query, more, metrics=["easy:mp@1"])
    assert (plain.metrics["easy:mp@1"], plain.n_gallery) == (1, 10)
    pushed = ROxford(root=root, distractors=True).evaluate(query, more, metrics=["easy:mp@1"])
    assert (pushed.metrics["easy:mp@1"], pushed.n_gallery) == (0, 11)
    with pytest.raises(EvaluationError, match="require a separate gallery"):
        ROxford(root=root, distractors=True).evaluate(both)


def slow(ranking: list[int], right: set[int], ignored: set[int], k: int) -> tuple[float, float]:
    """AP and mP@k from the equations."""
    kept = [row for row in ranking if row not in ignored]
    ranks = [place for place, row in enumerate(kept) if row in right]
    area = 0.0
    for j, r in enumerate(ranks):
        area += 0.5 * ((j / r if r else 1.0) + (j + 1) / (r + 1))
    cut = min(k, max(ranks) + 1)
    return area / len(right), sum(r < cut for r in ranks) / cut


@settings(max_examples=60, deadline=None)
@given(
    ranking=st.permutations(range(10)), kinds=st.lists(st.integers(0, 3), min_size=10, max_size=10)
)
def test_every_setup_equals_the_equations(ranking: list[int], kinds: list[int]) -> None:
    rows = {
        kind: np.flatnonzero(np.array(kinds) == code)
        for code, kind in enumerate(("easy", "hard", "junk"))
    }
    ground = GroundTruth(
        images=np.array(IMAGES),
        queries=np.array(["all_souls_1"]),
        boxes=np.zeros((1, 4)),
        easy=(rows["easy"],),
        hard=(rows["hard"],),
        junk=(rows["junk"],),
    )
    for setup, (right_kinds, ignored_kinds) in SETUPS.items():
        right = {int(row) for kind in right_kinds for row in rows[kind]}
        ignored = {int(row) for kind in ignored_kinds for row in rows[kind]}
        if not right:
            continue
        result = evaluate(
            ground,
            ranked_as(ranking),
            None,
            metrics=[f"{setup}:map_trapezoid", f"{setup}:mp@3"],
            direct=False,
            distractors=False,
        )
        assert list(result.metrics.values()) == pytest.approx(slow(ranking, right, ignored, 3))


def test_paris_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "rparis6k").mkdir()
    write(tmp_path / "rparis6k", truth(), name="rparis6k")
    result = RParis(root=tmp_path).evaluate(ranked_as(RANKING), metrics=["easy:mp@1"])
    assert result.metrics == {"easy:mp@1": 1.0}
    with pytest.raises(FormatError, match=r"has no file gnd_roxford5k\.json"):
        ROxford(root=tmp_path).evaluate(ranked_as(RANKING))


def test_a_pickle_is_never_read_but_its_conversion_is_named(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    published = tmp_path / "gnd_roxford5k.pkl"
    published.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(FormatError, match="is a pickle, which may run any code"):
        load(tmp_path, "roxford5k")
    assert not (tmp_path / "sprung").exists()


def test_the_named_conversion_works(tmp_path: Path) -> None:
    content = truth(easy=np.array([1, 5]), junk=np.array([], dtype=np.int64))
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(FormatError) as caught:
        load(tmp_path, "roxford5k")
    command = str(caught.value).split("convert it once: ")[1]
    assert command.startswith("python -c ")
    command = command.replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, timeout=240)
    loaded = load(tmp_path, "roxford5k")
    assert loaded.easy[0].tolist() == [1, 5]
    assert loaded.junk[0].tolist() == []
    assert loaded.boxes.tolist() == [[0, 0, 10.5, 20]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "expected the keys imlist, qimlist and gnd"),
        ({"imlist": IMAGES}, "expected the keys"),
        (truth() | {"imlist": "abc"}, "imlist is not a list of names"),
        (truth() | {"imlist": []}, "imlist is not a list of names"),
        (truth() | {"imlist": ["a", "a"]}, "imlist names an image twice"),
        (truth() | {"qimlist": ["../x"]}, "not a path below"),
        (truth() | {"gnd": []}, "one entry of gnd for each of 1 queries"),
        (truth() | {"gnd": [3]}, r"gnd\[0\]: expected easy, hard, junk and bbx"),
        (truth(easy=[10]), r"gnd\[0\].easy: expected a list of rows below 10"),
        (truth(junk=[-1]), r"gnd\[0\].junk: expected a list of rows"),
        (truth(hard=[True]), r"gnd\[0\].hard: expected a list of rows"),
        (truth(hard=None), r"gnd\[0\].hard"),
        (truth(bbx=[1, 2]), r"bbx: expected four numbers"),
        (truth(bbx=[1, 2, 3, "x"]), r"bbx: expected four numbers"),
    ],
)
def test_broken_ground_truth_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load(write(tmp_path, content), "roxford5k")


def test_text_that_is_not_json_and_unknown_ids_are_refused(tmp_path: Path) -> None:
    (tmp_path / "gnd_roxford5k.json").write_text("{")
    with pytest.raises(FormatError, match="not readable as JSON"):
        load(tmp_path, "roxford5k")
    with pytest.raises(UnknownId, match="first 'oxford_000009'"):
        ROxford(root=write(tmp_path, truth())).evaluate(ranked_as(RANKING)[:-1])
