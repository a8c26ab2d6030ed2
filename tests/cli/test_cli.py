"""The command line as people use it: output, exit codes, --json, help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from midspan import Embeddings, Space
from midspan.cli import app
from tests.cli.conftest import Command

RUN_FILE = """
[data]
name = "digits"

[encoder]
backbone = "small-cnn"
dim = 16

[train]
epochs = 1
batch_size = 64
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from midspan.training import train

    folder = tmp_path_factory.mktemp("cli")
    (folder / "run.toml").write_text(RUN_FILE)
    train(folder / "run.toml", out=folder / "runs" / "first", progress=False)
    return folder


def vectors(path: Path, *, seed: int = 0, labels: bool = True, space: str = "v") -> Path:
    rng = np.random.default_rng(seed)
    classes = np.arange(40) % 8
    centres = np.random.default_rng(99).normal(size=(8, 12))
    Embeddings(
        ids=np.array([f"i{n:02d}" for n in range(40)]),
        vectors=(centres[classes] + 0.8 * rng.normal(size=(40, 12))).astype(np.float32),
        space=Space(space, 12),
        columns={"labels": classes} if labels else {},
    ).save(path)
    return path


def test_help_names_every_verb(midspan: Command) -> None:
    code, out, _ = midspan("--help")
    assert code == 0
    for command in app.registered_commands:
        assert command.name is not None
        assert re.search(rf"\b{command.name}\b", out), command.name
    assert "Start here" in out


def test_every_verb_has_help_and_json(midspan: Command) -> None:
    for command in app.registered_commands:
        code, out, _ = midspan(command.name, "--help")
        assert code == 0
        if command.name != "serve":  # it prints nothing but its log
            assert "--json" in out, command.name
        assert command.callback is not None
        assert (command.callback.__doc__ or "").strip(), command.name


def test_version_option_prints_the_version(midspan: Command) -> None:
    from midspan import __version__

    assert midspan("--version")[1].strip() == f"midspan {__version__}"


def test_train_prints_one_json_document(midspan: Command, trained: Path, tmp_path: Path) -> None:
    code, out, err = midspan("train", trained / "run.toml", "--out", tmp_path / "r", "--json")
    assert code == 0
    document = json.loads(out)
    assert 0 < document["scores"]["self"] <= 1
    assert "train:" in err  # progress goes elsewhere


def test_train_prints_a_summary_and_takes_changes(
    midspan: Command, trained: Path, tmp_path: Path
) -> None:
    code, out, _ = midspan(
        "train", trained / "run.toml", "--out", tmp_path / "r", "--set", "encoder.dim=8"
    )
    assert code == 0
    assert "recall@1" in out
    assert "run folder" in out
    code, _, err = midspan("train", trained / "run.toml", "--set", "train.epoch=8")
    assert code == 2
    assert err.strip().endswith("did you mean 'epochs'?")


def test_known_errors_are_one_line_and_exit_1(midspan: Command, tmp_path: Path) -> None:
    code, out, err = midspan("train", tmp_path / "none.toml")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    code, out, _ = midspan("train", tmp_path / "none.toml", "--json")
    assert code == 2
    assert json.loads(out)["error"]["type"] == "ConfigError"


def test_runs_lists_state_and_method(midspan: Command, trained: Path) -> None:
    code, out, _ = midspan("runs", trained / "runs", "--json")
    assert code == 0
    (only,) = json.loads(out)["runs"]
    assert (only["state"], only["method"]) == ("finished", "independent")
    assert "finished" in midspan("runs", trained / "runs")[1]


def test_embed_folder_with_a_broken_image(midspan: Command, trained: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9, 9), dtype=np.uint8)).save(path)
    broken = tmp_path / "photos" / "b" / "2.jpg"  # a fine header, and half of the picture
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(broken)
    broken.write_bytes(broken.read_bytes()[:-1500])
    arguments = ["embed", trained / "runs" / "first", tmp_path / "photos"]
    code, out, _ = midspan(*arguments, "--out", tmp_path / "e.npz", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["items"] == 3
    assert [Path(path).name for path, _ in document["skipped"]] == ["2.jpg"]
    loaded = Embeddings.load(tmp_path / "e.npz")
    assert loaded.space.fingerprint == document["space"]["fingerprint"]
    code, out, _ = midspan(*arguments, "--out", tmp_path / "e.npz", "--force")
    assert "2.jpg" in out
    code, _, err = midspan(*arguments, "--out", tmp_path / "f.npz", "--strict")
    assert code == 2
    assert "2.jpg" in err
    assert not list(tmp_path.glob("f.npz*"))


def test_embed_no_images_or_broken_encoder_exits_2(
    midspan: Command, trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for encoder, images in (
        (trained / "runs" / "first", tmp_path / "empty"),
        (trained / "runs" / "first", tmp_path / "none"),
        (tmp_path / "empty", tmp_path / "empty"),
    ):
        code, _, err = midspan("embed", encoder, images, "--out", tmp_path / "e.npz")
        assert code == 2
        assert err.startswith("error: ")
        assert not (tmp_path / "e.npz").exists()


def test_eval_json_contract(midspan: Command, tmp_path: Path) -> None:
    path = vectors(tmp_path / "q.npz")
    code, out, _ = midspan("eval", "--query", path, "--metrics", "map,recall@1,map@r", "--json")
    assert code == 0
    document = json.loads(out)
    assert set(document) == {"protocol", "n_queries", "n_answerable", "n_gallery", "metrics"}
    assert document["protocol"] == "leave-one-out"
    assert set(document["metrics"]) == {"map", "recall@1", "map@r"}
    assert all(0 < value <= 1 for value in document["metrics"].values())
    assert "map" in midspan("eval", "--query", path)[1]


def test_eval_two_spaces_requires_direct(midspan: Command, tmp_path: Path) -> None:
    query = vectors(tmp_path / "q.npz", space="one")
    gallery = vectors(tmp_path / "g.npz", space="two", seed=1)
    code, _, err = midspan("eval", "--query", query, "--gallery", gallery)
    assert code == 2
    assert "--direct" in err
    code, out, _ = midspan("eval", "--query", query, "--gallery", gallery, "--direct", "--json")
    assert code == 0
    assert json.loads(out)["n_gallery"] == 40


def test_eval_unknown_metric_or_protocol_exits_2(midspan: Command, tmp_path: Path) -> None:
    path = vectors(tmp_path / "q.npz")
    for words in (
        ["--metrics", "mapp"],
        ["--protocol", "market"],
        ["--metrics", "recall@0"],
    ):
        code, _, err = midspan("eval", "--query", path, *words)
        assert code == 2, words
        assert err.startswith("error: ")
    bare = vectors(tmp_path / "bare.npz", labels=False)
    code, _, err = midspan("eval", "--query", bare)
    assert code == 2
    assert "labels" in err


def test_compare_json_contract(midspan: Command, tmp_path: Path) -> None:
    old = vectors(tmp_path / "o.npz", seed=0, space="old")
    new = vectors(tmp_path / "n.npz", seed=1, space="new")
    upper = vectors(tmp_path / "u.npz", seed=2, space="upper")
    words: list[Any] = ["compare", "--old", old, "--new", new, "--metric", "map"]
    code, out, _ = midspan(*words, "--upper", upper, "--direct", "--json")
    assert code == 0
    document = json.loads(out)
    assert set(document) == {
        "old_self",
        "new_self",
        "cross",
        "upper_self",
        "update_gain",
        "perf_gain",
        "upgrade_gain",
        "p_up",
        "p_comp",
        "p_1",
        "negative_flips",
        "positive_flips",
        "compatible",
        "ci",
    }
    assert document["compatible"] == (document["cross"] > document["old_self"])
    without = json.loads(midspan(*words, "--json")[1])
    assert without["upper_self"] is None
    assert without["old_self"] == document["old_self"]
    code, out, _ = midspan(*words, "--page", tmp_path / "page.html")
    assert code == 0
    assert "old self" in out
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_compare_direct_and_bridge_together_exits_2(midspan: Command, tmp_path: Path) -> None:
    path = vectors(tmp_path / "o.npz")
    code, _, err = midspan("compare", "--old", path, "--new", path, "--direct", "--bridge", "b")
    assert code == 2
    assert "exclude each other" in err


def test_doctor_lists_libraries_and_devices(midspan: Command) -> None:
    code, out, _ = midspan("doctor", "--json")
    assert code == 0
    document = json.loads(out)
    states = {entry["name"]: entry["state"] for entry in document["libraries"]}
    assert states["torch"] == "ok"
    assert document["devices"]["torch threads"] >= 1
    assert "libraries" in midspan("doctor")[1]


@pytest.mark.slow
def test_ctrl_c_exits_130_and_resumes(trained: Path, tmp_path: Path) -> None:
    import signal
    import time

    words = [
        sys.executable,
        "-c",
        "from midspan.cli import main; main()",
        "train",
        str(trained / "run.toml"),
        "--out",
        str(tmp_path / "r"),
        "--set",
        "train.epochs=200",
        "--json",
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "r" / "log.jsonl"
    deadline = time.monotonic() + 240
    while not log.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "the same command continues" in err
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert (tmp_path / "r" / "checkpoint.safetensors").exists()


def test_gate_exit_codes_and_json(midspan: Command, tmp_path: Path) -> None:
    old = vectors(tmp_path / "o.npz", seed=0)
    code, out, _ = midspan("gate", "--before", old, "--after", old, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["verdict"] == "PASS"
    assert [check["name"] for check in document["checks"]] == ["retention"]
    noise = Embeddings.load(old)
    rng = np.random.default_rng(0)
    worse = Embeddings(
        ids=noise.ids, vectors=rng.normal(size=(40, 12)).astype(np.float32), space=Space("w", 12)
    ).save(tmp_path / "w.npz")
    code, out, _ = midspan("gate", "--before", old, "--after", worse)
    assert code == 1
    assert "FAIL" in out
    code, out, _ = midspan(
        "gate", "--before", old, "--after", worse, "--max-negative-flips", 1, "--min-retention", 0
    )
    assert code == 0


def paired(tmp_path: Path) -> tuple[Path, Path]:
    """Two encoders of the same 200 items: the second is a rotation of the first, and some noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 20
    first = rng.normal(size=(20, 12))[labels] + 0.7 * rng.normal(size=(200, 12))
    turn, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    ids = np.array([f"i{n:03d}" for n in range(200)])
    paths = []
    for name, values in (("old", first), ("new", first @ turn + 0.1 * rng.normal(size=(200, 12)))):
        e = Embeddings(ids, values.astype(np.float32), Space(name, 12), {"labels": labels})
        paths.append(e.save(tmp_path / f"{name}.npz"))
    return paths[0], paths[1]


def test_bridge_fit_apply_and_use(midspan: Command, tmp_path: Path) -> None:
    old, new = paired(tmp_path)
    folder = tmp_path / "bridge"
    words = ["bridge", "fit", "--source", old, "--target", new, "--out", folder]
    code, out, _ = midspan(*words, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["method"] in {one["method"] for one in document["tried"]}
    assert document["why"].startswith(document["method"])
    assert document["pairs"] == 200
    mapped = tmp_path / "mapped.npz"
    code, out, _ = midspan("bridge", "apply", folder, "--input", old, "--out", mapped, "--json")
    assert code == 0
    assert Embeddings.load(mapped).space.same_as(Embeddings.load(new).space)
    graph = tmp_path / "bridge.onnx"
    code, out, _ = midspan("bridge", "export", folder, "--out", graph, "--json")
    assert code == 0
    assert json.loads(out)["onnx"] == str(graph)
    assert graph.stat().st_size > 0
    words = ["compare", "--old", old, "--new", new, "--json"]
    with_bridge = json.loads(midspan(*words, "--bridge", folder)[1])
    without = json.loads(midspan(*words)[1])
    assert with_bridge["cross"] > 0.9 * with_bridge["new_self"] > 2 * without["cross"]
    code, _, err = midspan(
        "bridge", "apply", folder, "--input", new, "--out", tmp_path / "other.npz"
    )
    assert code == 2  # the wrong side
    assert "new" in err
    code, out, _ = midspan(
        "gate",
        "--before",
        old,
        "--after",
        mapped,
        "--query",
        new,
        "--truth",
        new,
        "--max-negative-flips",
        0.2,
        "--page",
        tmp_path / "gate.html",
    )
    assert code == 0, out
    assert (tmp_path / "gate.html").exists()


def test_bridge_fit_settings_are_passed_and_mistakes_exit_2(
    midspan: Command, tmp_path: Path
) -> None:
    old, new = paired(tmp_path)
    words = ["bridge", "fit", "--source", old, "--target", new, "--out", tmp_path / "b"]
    code, out, _ = midspan(*words, "--method", "procrustes")
    assert code == 0
    assert "200 pairs" in out
    for extra, message in (
        (["--method", "ridg"], "did you mean 'ridge'"),
        (["--method", "ridge", "--set", "alhpa=1.0"], "did you mean 'alpha'"),
        (["--method", "ridge", "--set", "alpha"], "expected key=value"),
        (["--set", "alpha=1.0"], "needs a --method"),
    ):
        code, _, err = midspan(*words, *extra, "--force")
        assert code == 2, extra
        assert message in err


def test_bridge_compare_table(midspan: Command, tmp_path: Path) -> None:
    old, new = paired(tmp_path)
    words = ["bridge", "compare", "--source", old, "--target", new, "--methods"]
    code, out, _ = midspan(*words, "procrustes,ridge", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["rows"]}
    assert list(rows) == ["none", "procrustes", "ridge"]
    assert rows["none"]["verdict"] == "FAIL"
    assert rows["procrustes"]["retention"] > 3 * rows["none"]["retention"]
    assert (
        rows["procrustes"]["low"] <= rows["procrustes"]["retention"] <= rows["procrustes"]["high"]
    )
    assert "procrustes" in midspan(*words, "procrustes")[1]
