"""`upgrade plan` shows what the training's test found; `start` ignores no FAIL without a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from midspan import Embeddings
from midspan.evidence import Evidence
from midspan.gallery import Gallery
from tests.cli.conftest import Command
from tests.upgrade.world import NEW, ids, make, vectors


def judged(path: Path, low: float, high: float) -> Path:
    evidence = Evidence.measured(
        old="f-old",
        metric="map",
        cross=0.5 + (low + high) / 2,
        old_self=0.5,
        low=low,
        high=high,
        queries=900,
        data="900 items of 30 test classes of birds",
    )
    made = vectors(ids(60), NEW)
    return Embeddings(
        made.ids, made.vectors, replace(NEW, evidence=(evidence,)), made.columns
    ).save(path)


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with make("sqlite", tmp_path) as gallery:
        return gallery.location


def test_plan_shows_the_evidence_of_compatibility(
    midspan: Command, shop: str, tmp_path: Path
) -> None:
    bad = judged(tmp_path / "bad.npz", -0.04, -0.02)
    code, out, _ = midspan("upgrade", "plan", shop, "--to", bad, "--json")
    assert code == 0
    assert json.loads(out)["compatibility"]["verdict"] == "FAIL"
    code, out, _ = midspan("upgrade", "plan", shop, "--to", bad)
    assert "FAIL: cross 47.00 %, old self 50.00 %" in " ".join(out.replace("│", " ").split())


def test_start_failed_criterion_requires_a_reason(
    midspan: Command, shop: str, tmp_path: Path
) -> None:
    bad = judged(tmp_path / "bad.npz", -0.04, -0.02)
    code, _, err = midspan("upgrade", "start", shop, "--to", bad)
    assert code == 1
    assert "FAIL: cross 47.00 %" in err
    assert "--override" in err
    with Gallery.open(shop) as gallery:
        assert gallery.state.upgrade is None
    assert midspan("upgrade", "start", shop, "--to", bad, "--override", "a trial")[0] == 0
    code, out, _ = midspan("upgrade", "audit", shop, "--json")
    entry = next(e for e in json.loads(out)["entries"] if e["what"] == "upgrade start")
    assert entry["details"]["override"] == "a trial"
    assert entry["details"]["evidence"].startswith("FAIL: cross 47.00 %")


def test_start_warns_only_without_evidence(midspan: Command, shop: str, tmp_path: Path) -> None:
    good = judged(tmp_path / "good.npz", 0.02, 0.04)
    code, _, err = midspan("upgrade", "start", shop, "--to", good)
    assert code == 0
    assert "compatib" not in err
    assert midspan("upgrade", "rollback", shop)[0] == 0
    plain = vectors(ids(60), NEW).save(tmp_path / "plain.npz")
    code, _, err = midspan("upgrade", "start", shop, "--to", plain)
    assert code == 0
    assert "compatibility is not shown: INCONCLUSIVE: not measured" in err
