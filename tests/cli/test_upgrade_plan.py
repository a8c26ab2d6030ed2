"""`midspan upgrade plan --items`: a billion items on paper, and what a gallery tells beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from midspan.cli.upgrade import app
from midspan.errors import ConfigError, MidspanError
from tests.upgrade.world import NEW, ids, make, vectors


def run(*words: object, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["plan", *map(str, words)])
    if isinstance(result.exception, MidspanError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def test_a_billion_items_are_planned_without_a_gallery() -> None:
    arguments = ["--items", "1e9", "--workers", 64, "--image-kb", 50, "--price-per-worker-hour", 2]
    made = json.loads(run(*arguments, "--json"))
    assert made["items"] == 10**9
    assert made["dim"] == 512
    assert made["image_bytes"] == 5e13
    stores = {one["store"]: one for one in made["stores"]}
    assert list(stores) == ["embedded", "pgvector", "milvus", "qdrant"]
    hours = stores["embedded"]["backfill_seconds"] / 3600
    assert stores["embedded"]["money"] == pytest.approx(64 * hours * 2)
    shown = run(*arguments)
    assert "1,000,000,000 items, 512 dimensions, 50 kB an image; 64 workers" in shown
    first = stores["embedded"]["limits"][0]
    assert f"· embedded, above {first['items']:,} items: {first['what']}" in shown


def test_costs_of_one_s_own_and_a_gallery_that_tells_the_rest(tmp_path: Path) -> None:
    costs = tmp_path / "costs.csv"
    rows = [
        ",decode_seconds_per_kb,0.001",
        ",embed_seconds,0.9",
        "embedded,write_seconds,0.002",
    ]
    costs.write_text("\n".join(["store,name,value", *rows]))
    with make("sqlite", tmp_path) as gallery:
        shop = gallery.location
    made = json.loads(run(shop, "--items", 1000, "--costs", costs, "--json"))
    assert [one["store"] for one in made["stores"]] == ["embedded"]
    assert made["dim"] == 12
    assert made["embed_seconds"] == pytest.approx(1000 * (0.001 * 100 + 0.9))
    assert made["stores"][0]["write_seconds"] == pytest.approx(2.0)
    new = vectors(ids(60), NEW).save(tmp_path / "new.npz")
    told = json.loads(run(shop, "--items", 1000, "--to", new, "--dim", 7, "--json"))
    assert told["dim"] == 7, "an option comes before what the gallery tells"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "64"], "--workers belongs to a plan for --items"),
        (["--machine-gb", "64"], "--machine-gb belongs to a plan for --items"),
        ([], "which gallery"),
        (["--items", "1e9", "--gpus", "4"], "how fast is one"),
        (["--items", "1e9", "--encoder", "runs/new"], "name the gallery"),
    ],
)
def test_a_plan_says_what_it_lacks(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(*arguments)


@pytest.mark.parametrize("text", ["many", "0", "1.5", "-3", "1e99"])
def test_items_are_a_whole_number(text: str) -> None:
    assert "wanted a" in run("--items", text, code=2)
