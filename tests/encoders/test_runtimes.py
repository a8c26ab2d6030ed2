"""Vectors of one encoder in several runtimes: the same space, the same numbers, one cache."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from midspan.encoders import Encoder, OnnxEncoder, build_encoder, load_embedder, load_encoder
from midspan.encoders.onnx_export import export_onnx
from midspan.encoders.runtimes import auto, check_runtime
from midspan.encoders.runtimes.auto import AutoEncoder, known_graph
from midspan.encoders.runtimes.graph_cache import (
    Verdict,
    export_lock,
    graph_path,
    largest_difference,
    read_verdict,
    write_verdict,
)
from midspan.errors import ConfigError, EncoderError
from midspan.evaluation import search_exact

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

Pixels = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = build_encoder(backbone="small-cnn", seed=0, dim=32, name="tiny")
    return encoder.save(tmp_path_factory.mktemp("runtimes") / "tiny")


@pytest.fixture(scope="module")
def graph(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The export, made once for all tests of this file."""
    encoder = load_encoder(folder)
    assert isinstance(encoder, Encoder)
    path = export_onnx(encoder, tmp_path_factory.mktemp("graph") / "tiny.onnx")
    return path.read_bytes()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cached(folder: Path, graph: bytes) -> Path:
    """The graph is in the cache, and nobody has compared it with torch."""
    encoder = load_encoder(folder)
    path = graph_path(encoder.space.fingerprint)
    path.parent.mkdir(parents=True)
    path.write_bytes(graph)
    return path


@pytest.fixture(scope="module")
def images() -> Pixels:
    """Smooth gradients with a square, as photographs have them; not noise."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:32, 0:32]
    made = np.empty((40, 32, 32, 3), dtype=np.uint8)
    for image in made:
        slopes = rng.uniform(-4, 4, (2, 3))
        image[:] = np.clip(128 + y[..., None] * slopes[0] + x[..., None] * slopes[1], 0, 255)
        top, left = rng.integers(0, 20, 2)
        image[top : top + 10, left : left + 10] = rng.integers(0, 256, 3)
    return made


def test_auto_with_a_graph_gives_the_vectors_and_neighbours_of_torch(
    folder: Path, cached: Path, images: Pixels
) -> None:
    torch_vectors = load_encoder(folder).embed(images, progress=False)
    first = load_embedder(folder)
    assert isinstance(first, AutoEncoder)
    assert first.computed_by == "torch"
    first.embed(images, progress=False)
    assert first.computed_by == "onnx"
    result = first.embed(images, progress=False)
    np.testing.assert_allclose(result.vectors, torch_vectors.vectors, atol=1e-5, rtol=0)
    assert result.space == torch_vectors.space
    assert list(result.ids) == list(torch_vectors.ids)
    expected = search_exact(torch_vectors, torch_vectors, k=10)[1]
    assert (search_exact(result, result, k=10)[1] == expected).all()


def test_load_embedder_verified_graph_opens_without_torch(
    folder: Path, cached: Path, images: Pixels
) -> None:
    load_embedder(folder).embed(images, progress=False)
    program = (
        "import sys; from midspan.encoders import load_embedder; "
        f"e = load_embedder({str(folder)!r}); "
        "print(type(e).__name__, 'torch' in sys.modules, e.name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["OnnxEncoder", "False", "tiny"]


def test_load_embedder_changed_weights_do_not_use_the_cached_graph(
    folder: Path, cached: Path, images: Pixels, tmp_path: Path
) -> None:
    load_embedder(folder).embed(images, progress=False)
    encoder = load_encoder(folder)
    assert isinstance(encoder, Encoder)
    with torch.no_grad():
        next(encoder.parameters()).mul_(1.01)
    other = load_embedder(encoder.save(tmp_path / "other"))
    assert isinstance(other, AutoEncoder)
    assert other.space.fingerprint != load_embedder(folder).space.fingerprint


def test_load_embedder_name_and_compatibility_come_from_the_folder(
    folder: Path, cached: Path, images: Pixels, tmp_path: Path
) -> None:
    load_embedder(folder).embed(images, progress=False)
    encoder = load_encoder(folder)
    assert isinstance(encoder, Encoder)
    encoder.name, encoder.compatible_with = "renamed", ("sha256:1",)
    again = load_embedder(encoder.save(tmp_path / "renamed"))
    assert isinstance(again, OnnxEncoder)
    assert (again.space.name, again.space.compatible_with) == ("renamed", ("sha256:1",))


def test_load_embedder_graph_outside_tolerance_falls_back_to_torch_with_a_message(
    folder: Path,
    cached: Path,
    images: Pixels,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "TOLERANCE", 1e-12)
    encoder = load_embedder(folder)
    assert isinstance(encoder, AutoEncoder)
    result = encoder.embed(images, progress=False)
    assert encoder.computed_by == "torch"
    assert "stays with torch" in capsys.readouterr().err
    np.testing.assert_array_equal(
        result.vectors, load_encoder(folder).embed(images, progress=False).vectors
    )
    again = load_embedder(folder)  # the verdict is remembered
    assert isinstance(again, AutoEncoder)
    again.embed(images, progress=False)
    assert again.computed_by == "torch"
    with pytest.raises(EncoderError, match="apart"):
        load_embedder(folder, runtime="onnx").embed(images, progress=False)


def test_auto_short_job_does_not_export(folder: Path, images: Pixels, cache: Path) -> None:
    encoder = load_embedder(folder)
    encoder.embed(images, progress=False)
    assert not list(cache.rglob("*.onnx"))


def test_auto_long_job_exports_midway_and_vectors_agree(
    folder: Path,
    images: Pixels,
    graph: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def export(encoder: Encoder, path: Path, *, check: bool) -> None:
        path.write_bytes(graph)

    monkeypatch.setattr("midspan.encoders.onnx_export.export_onnx", export)
    monkeypatch.setattr(auto, "EXPORT_AFTER", 0.0)
    encoder = load_embedder(folder)
    assert isinstance(encoder, AutoEncoder)
    result = encoder.embed(images, batch_size=10, progress=False)
    assert encoder.computed_by == "onnx"
    expected = load_encoder(folder).embed(images, progress=False)
    np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-5, rtol=0)


def test_auto_uses_onnx_only_after_enough_images(
    folder: Path, cached: Path, images: Pixels
) -> None:
    encoder = load_embedder(folder)
    assert isinstance(encoder, AutoEncoder)
    for row in range(auto.EVIDENCE):
        assert encoder.computed_by == "torch"
        encoder.embed(images[row : row + 1], progress=False)
    assert encoder.computed_by == "onnx"


def test_auto_other_runtime_version_is_compared_again(
    folder: Path, cached: Path, images: Pixels
) -> None:
    space = load_encoder(folder).space
    write_verdict(space.fingerprint, Verdict(True, 0.0), runtime="onnx", version="0.1")
    assert known_graph(space, runtime="onnx") is None
    assert read_verdict(space.fingerprint, runtime="onnx", version="0.1") == Verdict(True, 0.0)


def test_auto_damaged_graph_is_removed_and_torch_embeds(
    folder: Path, cached: Path, images: Pixels
) -> None:
    cached.write_bytes(b"not a graph")
    encoder = load_embedder(folder)
    assert isinstance(encoder, AutoEncoder)
    assert not cached.exists()
    assert len(encoder.embed(images, progress=False)) == len(images)


def _try_lock(fingerprint: str, answers: multiprocessing.Queue[bool]) -> None:
    with export_lock(fingerprint) as mine:
        answers.put(mine)


def test_auto_one_process_exports_and_others_do_not_wait() -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with export_lock("sha256:a") as mine:
        assert mine
        other = context.Process(target=_try_lock, args=("sha256:a", answers))
        other.start()
        assert answers.get(timeout=60) is False
        other.join()
    with export_lock("sha256:a") as mine:
        assert mine


def test_openvino_vectors_equal_those_of_torch(folder: Path, cached: Path, images: Pixels) -> None:
    pytest.importorskip("openvino")
    encoder = load_embedder(folder, runtime="openvino")
    encoder.embed(images, progress=False)
    result = encoder.embed(images, progress=False)
    expected = load_encoder(folder).embed(images, progress=False)
    np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-5, rtol=0)
    again = load_embedder(folder, runtime="openvino")
    assert isinstance(again, OnnxEncoder)
    assert again.session.runtime == "openvino"


def test_openvino_closed_sessions_restore_signal_handling(folder: Path, cached: Path) -> None:
    pytest.importorskip("openvino")
    load_embedder(folder, runtime="openvino")  # exports the graph
    code = """
import os, signal, sys
from midspan.encoders.load import load_embedder
sessions = [load_embedder(sys.argv[1], runtime="openvino") for _ in range(3)]
while sessions:
    del sessions[0]  # the oldest first
signal.signal(signal.SIGINT, lambda number, frame: print("heard"))
os.kill(os.getpid(), signal.SIGINT)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


def test_load_embedder_unknown_runtime_raises(folder: Path) -> None:
    with pytest.raises(ConfigError, match="expected one of auto, torch, onnx, openvino"):
        check_runtime("tensorrt")
    with pytest.raises(EncoderError, match="ONNX file"):
        load_embedder("model.onnx", runtime="torch")


def test_largest_difference_equals_values_by_hand() -> None:
    unit = np.array([[1, 0], [0, 1]], dtype=np.float32)
    assert largest_difference(3 * unit, unit) == 0
    assert largest_difference(unit, unit[:1]) == np.inf
    assert largest_difference(3 * unit, 3 * unit + np.float32(0.3)) == pytest.approx(0.1)
    assert largest_difference(unit, np.full((2, 2), np.nan, dtype=np.float32)) == np.inf
