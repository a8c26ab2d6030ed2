"""`torchrun -m midspan train` with real processes: one is killed, then all are told to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from midspan.training import RunConfig, train
from midspan.training.settings import to_toml

RUN: dict[str, Any] = {
    "name": "shared",
    "data": {"name": "digits"},
    "encoder": {"backbone": "small-cnn", "dim": 16},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
    "train": {
        "epochs": 6,
        "batch_size": 64,
        "optimiser": "sgd",
        "lr": 5e-4,  # small steps: at 5e-3 a change of 1e-7 in the first weights grows to 1e-3
        "augment": ["affine"],
        "checkpoint_seconds": 0.0,
    },
}


@contextmanager
def torchrun(file: Path, out: Path, told: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "midspan", "train", str(file), "--out", str(out)]
    with told.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *command], stderr=stderr, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()  # not kill: its processes would stay behind
            process.wait()


def wait_for_epochs(out: Path, count: int, process: subprocess.Popen[bytes], told: Path) -> None:
    log = out / "log.jsonl"
    deadline = time.monotonic() + 600
    while not (log.exists() and len(log.read_text().splitlines()) >= count):
        assert process.poll() is None, told.read_text()
        assert time.monotonic() < deadline, told.read_text()
        time.sleep(0.01)


def process_of_rank(rank: int, launcher: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no process of rank {rank} among {children}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds its processes in /proc")
def test_torchrun_killed_and_stopped_run_is_finished_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    file, out, told = tmp_path / "run.toml", tmp_path / "run", tmp_path / "stderr"
    file.write_text(to_toml(RUN))

    with torchrun(file, out, told) as process:
        wait_for_epochs(out, 1, process, told)
        os.kill(process_of_rank(1, process.pid), signal.SIGKILL)
        assert process.wait(timeout=300) != 0  # and no hang
    said = told.read_text()
    assert "another process of this run is gone" in said
    assert "the same command continues" in said
    assert not (out / "metrics.json").exists()
    done = len((out / "log.jsonl").read_text().splitlines())

    with torchrun(file, out, told) as process:
        wait_for_epochs(out, done + 1, process, told)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) != 0
    said = told.read_text()
    assert said.count("the same command continues from here") == 1  # one process reports it
    assert not (out / "metrics.json").exists()
    assert (out / "checkpoint.safetensors").exists()

    # two processes have begun, one finishes: the same as one from start to end
    config = RunConfig.load(file)
    resumed = train(config, out=out, progress=False)
    whole = train(config, out=tmp_path / "whole", progress=False)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert resumed.scores["self"] == pytest.approx(whole.scores["self"], abs=0.01)
    for name, value in whole.encoder.state_dict().items():
        scale = max(0.1, float(value.double().abs().max()))  # biases are next to nothing
        torch.testing.assert_close(
            resumed.encoder.state_dict()[name], value, rtol=0, atol=0.02 * scale
        )
