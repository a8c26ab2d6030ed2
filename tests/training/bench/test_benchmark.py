"""Whole benchmarks on scikit-learn's digits: rows, going on, failures, another metric."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from midspan.cli import app
from midspan.data import digits, save_npz
from midspan.encoders import load_encoder
from midspan.errors import RunError
from midspan.evaluation import compare, evaluate
from midspan.training import RunConfig
from midspan.training.bench import BenchResult, BenchSettings, bench, read_results, read_settings
from midspan.training.inputs import read_inputs

pytestmark = pytest.mark.slow  # whole benchmarks

COLUMNS = [
    *("allocation", "method", "seed", "old_self", "new_self", "upper_self", "cross"),
    *("p_up", "p_comp", "p_1", "negative_flips", "seconds"),
]
OPTIONS = [
    *("--allocations", "extended-class", "--methods", "bct"),
    *("--backbone", "small-cnn,width=4", "--dim", "16", "--epochs", "2", "--seeds", "1"),
    *("--chain", "bct", "--set", "train.batch_size=128", "--set", "methods.bct.weight=2.0"),
]


def pictures() -> str:
    """Every second digit in a file: each process would import scikit-learn for them."""
    return str(Path(os.environ["MIDSPAN_CACHE"]) / "digits.npz")


def settings(**more: Any) -> BenchSettings:
    base, methods_of = read_settings(None, ["train.batch_size=128", "methods.bct.weight=2.0"])
    plain = BenchSettings(
        data=(pictures(),),
        allocations=("extended-class",),
        methods=("bct",),
        backbone="small-cnn,width=4",
        dim=16,
        epochs=2,
        seeds=1,
        chain=("bct",),
        base=base,
        methods_of=methods_of,
    )
    return replace(plain, **more)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDSPAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OMP_NUM_THREADS", "1")
        save_npz(digits()[::2], pictures())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def result(folder: Path) -> BenchResult:
    return bench(settings(), out=folder, progress=False)


def times(folder: Path, name: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob(name)}


def test_bench_row_equals_an_independent_measurement(result: BenchResult, folder: Path) -> None:
    row = next(row for row in result.rows if row["method"] == "bct")
    runs = folder / "runs" / "digits"
    config = RunConfig.load(runs / "extended-class" / "bct" / "seed0" / "config.toml")
    test = read_inputs(config).test
    assert test is not None
    old, new, upper = (
        load_encoder(runs / place / "seed0").embed(test, progress=False)
        for place in ("old-class", "extended-class/bct", "extended-class/independent")
    )
    truth = compare(old=old, new=new, upper=upper, bootstrap=10)
    # Vectors are the same to 1e-5 only (another number of threads adds in another order), so that
    # two neighbours at one distance may change places.
    for name in ("old_self", "new_self", "upper_self", "cross"):
        assert row[name] == pytest.approx(getattr(truth, name), abs=1e-5), name
    for name in ("p_up", "p_comp", "p_1", "perf_gain", "upgrade_gain"):  # quotients of those
        assert row[name] == pytest.approx(getattr(truth, name), abs=1e-3), name
    for name in ("negative_flips", "positive_flips"):
        assert row[name] == pytest.approx(getattr(truth, name), abs=1.5 / len(test)), name
    assert row["compatible"] == truth.compatible
    assert row["backfill"][0] == row["cross"]
    assert row["backfill"][-1] == row["new_self"]
    assert 0 < row["random_cross"] < row["old_self"]


def test_bench_every_run_has_a_row_and_its_own_upper_bound(result: BenchResult) -> None:
    assert [row["method"] for row in result.rows] == ["independent", "bct"]
    for row in result.rows:
        assert list(row)[: len(COLUMNS)] == COLUMNS
    alone = result.rows[0]
    assert alone["new_self"] == alone["upper_self"] == result.rows[1]["upper_self"]
    assert alone["p_up"] == 0.5


def test_bench_chain_matrix_equals_its_encoders_scores(result: BenchResult, folder: Path) -> None:
    (chain,) = result.chains
    assert [len(line) for line in chain["matrix"]] == [1, 2, 3]
    runs = folder / "runs" / "digits" / "chain-class"
    config = RunConfig.load(runs / "bct" / "seed0" / "phi3" / "config.toml")
    test = read_inputs(config).test
    assert test is not None
    first = load_encoder(runs / "independent" / "seed0" / "phi1").embed(test, progress=False)
    third = load_encoder(runs / "bct" / "seed0" / "phi3").embed(test, progress=False)
    cross = evaluate(third, first, metrics=["map"], direct=True).mean("map")
    assert chain["matrix"][2][0] == pytest.approx(cross, abs=1e-9)


def test_bench_finished_runs_are_not_repeated(result: BenchResult, folder: Path) -> None:
    before = times(folder, "*.safetensors"), times(folder / "runs", "bench.json")
    again = bench(settings(), out=folder, progress=False)
    assert again.rows == result.rows
    assert (times(folder, "*.safetensors"), times(folder / "runs", "bench.json")) == before


def test_bench_folder_of_other_settings_raises_run_error(result: BenchResult, folder: Path) -> None:
    with pytest.raises(RunError, match=r"other settings \(now epochs = 3\)"):
        bench(settings(epochs=3), out=folder, progress=False)


def test_read_results_equals_what_was_written(
    result: BenchResult, folder: Path, tmp_path: Path
) -> None:
    assert read_results(folder)["rows"] == result.rows
    with pytest.raises(RunError, match="no results of a benchmark there"):
        read_results(tmp_path)


def test_bench_command_prints_rows_and_writes_tables_and_page(
    result: BenchResult, folder: Path
) -> None:
    ran = CliRunner().invoke(
        app, ["bench", "--data", pictures(), *OPTIONS, "--out", str(folder), "--json"]
    )
    assert ran.exit_code == 0, ran.output
    printed = json.loads(ran.stdout)
    assert set(printed) == {"rows", "chains"}
    assert [list(row)[: len(COLUMNS)] for row in printed["rows"]] == [COLUMNS] * 2
    assert printed["rows"][1]["cross"] == pytest.approx(result.rows[1]["cross"])
    for name in ("rows.csv", "summary.csv", "chains.csv"):
        assert "bct" in (folder / name).read_text()
    assert "extended-class" in (folder / "index.html").read_text()


def test_bench_page_joins_several_folders(
    result: BenchResult, folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    ran = CliRunner().invoke(
        app, ["bench", "--report", str(folder), "--report", str(folder), "--out", str(page)]
    )
    assert ran.exit_code == 0, ran.output
    assert "2 seeds" in page.read_text()
    assert "bct" in ran.stdout


def test_bench_failed_run_is_reported_and_others_continue(tmp_path: Path) -> None:
    # a classifier of an old encoder that has none: only this method fails
    base, _ = read_settings(None, ["train.batch_size=128", "loss.name=softmax"])
    chosen = settings(
        methods=("bct", "l2"),
        epochs=1,
        base=base,
        methods_of={"bct": {"classifier": "distilled"}},
        chain=(),
    )
    result = bench(chosen, out=tmp_path, jobs=2, progress=False)
    assert [row["method"] for row in result.rows] == ["independent", "l2"]
    ((title, reason),) = result.failures.items()
    assert "bct" in title
    assert "ConfigError" in reason


def test_bench_runs_that_need_a_failed_run_fail_with_it(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    np.savez(
        broken,
        images=np.zeros((32, 8, 8, 1), dtype=np.uint8),
        labels=np.repeat(np.arange(8), 4),
        split=np.zeros(32, dtype=np.uint8),  # nothing to test on
    )
    result = bench(settings(data=(str(broken),), chain=()), out=tmp_path / "out", progress=False)
    assert result.rows == []
    reasons = list(result.failures.values())
    assert len(reasons) == 3
    assert "no test split" in reasons[0]
    assert sum("not started, because" in reason for reason in reasons) == 2


def children(pid: int) -> list[str]:
    """Of any thread: each worker was started by one."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def lives(pid: str) -> bool:
    """Where nobody collects the dead, they stay in /proc as zombies."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds its processes in /proc")
def test_bench_killed_continues_from_its_last_state(tmp_path: Path) -> None:
    code = "from midspan.cli import app; app()"
    words = [
        "bench",
        "--data",
        pictures(),
        *OPTIONS,
        "--chain",
        "",
        "--out",
        str(tmp_path),
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 240
    while len(times(tmp_path / "runs", "bench.json")) < 1:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until, "no run was finished"
        time.sleep(0.02)
    workers = children(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while any(lives(worker) for worker in workers):
        assert time.monotonic() < until, "the workers do not notice that they are alone"
        time.sleep(0.05)
    finished = [Path(path).parent for path in times(tmp_path / "runs", "bench.json")]
    assert 1 <= len(finished) < 3
    before = [times(place, "*") for place in finished]
    ran = CliRunner().invoke(app, words)  # the same command
    assert ran.exit_code == 0, ran.output
    assert [row["method"] for row in json.loads(ran.stdout)["rows"]] == ["independent", "bct"]
    assert [times(place, "*") for place in finished] == before


def test_bench_with_another_metric_measures_without_training(
    result: BenchResult, folder: Path
) -> None:
    before = times(folder, "*.safetensors")
    again = bench(settings(metric="recall@1"), out=folder, progress=False)
    assert times(folder, "*.safetensors") == before
    assert again.rows[0]["new_self"] != result.rows[0]["new_self"]
