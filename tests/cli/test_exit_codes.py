"""0 done or PASS, 1 FAIL or incomplete, 2 error, 3 INCONCLUSIVE: the same for every verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.cli import doctor
from midspan.gallery import Gallery
from tests.cli.conftest import Command
from tests.upgrade.world import NEW, OLD, ids, make, vectors


def rows(path: Path, noise: float, *, space: str = "old") -> Path:
    """200 items of 20 classes around fixed centres."""
    labels = np.arange(200) % 20
    centres = np.random.default_rng(1).normal(size=(20, 16))
    noisy = centres[labels] + noise * np.random.default_rng(2).normal(size=(200, 16))
    return Embeddings(
        ids=np.array([f"i{n}" for n in range(200)]),
        vectors=noisy.astype(np.float32),
        space=Space(space, 16),
        columns={"labels": labels},
    ).save(path)


@pytest.mark.parametrize(
    ("limits", "verdict", "code"),
    [
        (["--max-negative-flips", 1, "--min-retention", 0], "PASS", 0),
        (["--max-negative-flips", 0], "FAIL", 1),
        (["--max-negative-flips", 0.12, "--min-retention", 0], "INCONCLUSIVE", 3),
    ],
)
def test_gate_exits_with_the_code_of_its_verdict(
    midspan: Command, tmp_path: Path, limits: list[object], verdict: str, code: int
) -> None:
    before, after = rows(tmp_path / "a.npz", 0.5), rows(tmp_path / "b.npz", 0.8)
    got, out, _ = midspan("gate", "--before", before, "--after", after, *limits, "--json")
    document = json.loads(out)
    assert (document["verdict"], got) == (verdict, code), document["checks"]


def test_gate_missing_file_exits_2_without_a_verdict(midspan: Command, tmp_path: Path) -> None:
    before = rows(tmp_path / "a.npz", 0.5)
    code, out, err = midspan("gate", "--before", before, "--after", tmp_path / "none.npz")
    assert (code, out) == (2, "")
    assert "no such file" in err


@pytest.mark.parametrize(
    "words",
    [
        ["gate", "--before", "OLD", "--after", "OLD", "--min-retention", 98],
        ["bridge", "compare", "--source", "OLD", "--target", "OLD", "--min-retention", 95],
    ],
)
def test_gate_percentage_instead_of_a_ratio_exits_2(
    midspan: Command, tmp_path: Path, words: list[Any]
) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    ids = np.array([f"i{n}" for n in range(40)])
    old = Embeddings(ids, rows, Space("old", 4), {"labels": np.arange(40) % 8})
    path = str(old.save(tmp_path / "old.npz"))
    code, out, err = midspan(*[path if word == "OLD" else word for word in words])
    assert (code, out) == (2, "")
    assert "--min-retention: expected a ratio between 0 and 2" in err


def test_eval_counts_queries_without_a_relevant_item(midspan: Command, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    space, names = Space("one", 4), np.array(["ant", "bee"]).repeat(10)
    query = Embeddings(np.arange(20).astype(str), rows, space, {"labels": names})
    gallery = Embeddings(np.arange(20, 30).astype(str), rows[:10], space, {"labels": names[:10]})
    words = ["eval", "--query", query.save(tmp_path / "q.npz")]
    words += ["--gallery", gallery.save(tmp_path / "g.npz")]
    assert "10 queries have nothing to find there" in " ".join(midspan(*words)[1].split())
    assert json.loads(midspan(*words, "--json")[1])["n_answerable"] == 10


def test_unknown_option_and_known_error_exit_2(midspan: Command, tmp_path: Path) -> None:
    assert midspan("gate", "--befor", "x")[0] == 2
    assert midspan("gallery", "info", tmp_path / "none.midspan")[0] == 2


def test_defect_and_operating_system_error_exit_2(
    midspan: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "_library", defect)
    code, _, err = midspan("doctor")
    assert code == 2
    assert "Traceback" in err  # nobody expected it: whoever mends it needs all of it
    monkeypatch.setattr(doctor, "_library", full)
    code, _, err = midspan("doctor")
    assert code == 2
    assert err == "error: [Errno 28] No space left on device\n"


def test_upgrade_gate_inconclusive_exits_3(midspan: Command, tmp_path: Path) -> None:
    with make("sqlite", tmp_path) as gallery:
        shop = gallery.location
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    assert midspan("upgrade", "start", shop, "--to", new)[0] == 0
    names = ids(40, first=900)
    old = vectors(names, OLD).save(tmp_path / "q-old.npz")
    fine = vectors(names, NEW).save(tmp_path / "q-new.npz")
    words = ["--shadow-old", old, "--shadow-new", fine, "--max-negative-flips", 1]
    seen = set()
    for limit in (0.0, 0.5, 0.9, 0.95, 1.0, 1.05, 1.1, 2.0):
        code, out, _ = midspan("upgrade", "gate", shop, *words, "--min-retention", limit, "--json")
        verdict = json.loads(out)["verdict"]
        assert code == {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}[verdict]
        seen.add(verdict)
    assert seen == {"PASS", "FAIL", "INCONCLUSIVE"}
    with Gallery.open(shop) as gallery:
        assert gallery.state.upgrade is not None
        assert gallery.state.upgrade["gate"] == "FAIL"


def test_help_explains_the_exit_codes(midspan: Command) -> None:
    code, out, _ = midspan("--help")
    assert code == 0
    assert "1 FAIL or incomplete, 2 error, 3 INCONCLUSIVE" in " ".join(out.split())
