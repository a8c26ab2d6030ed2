"""Long jobs on a CPU: batches side by side, in the runtime that is faster here."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from midspan.encoders import Encoder, OnnxEncoder, build_encoder, load_embedder, load_encoder
from midspan.encoders.embedding import _blocks, _in_parallel
from midspan.encoders.onnx_export import export_onnx
from midspan.encoders.runtimes import parallel
from midspan.encoders.runtimes.graph_cache import (
    Verdict,
    graph_path,
    read_bulk_runtime,
    read_verdict,
    write_bulk_runtime,
    write_verdict,
)
from midspan.encoders.runtimes.parallel import RuntimeTrial, worker_count
from midspan.encoders.runtimes.session import GraphSession, open_session
from midspan.errors import ImageError
from midspan.spaces import FloatArray, IntArray

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

Pixels = npt.NDArray[np.uint8]
HERE = {"onnx": "1", "openvino": "2", "threads": "2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = build_encoder(backbone="small-cnn", seed=0, dim=32, name="tiny")
    return encoder.save(tmp_path_factory.mktemp("parallel") / "tiny")


@pytest.fixture(scope="module")
def graph(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    encoder = load_encoder(folder)
    assert isinstance(encoder, Encoder)
    path = export_onnx(encoder, tmp_path_factory.mktemp("graph") / "tiny.onnx", check=False)
    return path.read_bytes()


@pytest.fixture
def opened(
    folder: Path, graph: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OnnxEncoder:
    """By `auto`, with a graph that agreed with torch, on two processors."""
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    fingerprint = load_encoder(folder).space.fingerprint
    path = graph_path(fingerprint)
    path.parent.mkdir(parents=True)
    path.write_bytes(graph)
    version = OnnxEncoder(path).session.version
    write_verdict(fingerprint, Verdict(True, 0.0), runtime="onnx", version=version)
    encoder = load_embedder(folder)
    assert isinstance(encoder, OnnxEncoder)
    return encoder


@pytest.fixture(scope="module")
def images() -> Pixels:
    made = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), dtype=np.uint8)
    return np.repeat(np.repeat(made, 8, axis=1), 8, axis=2)


def test_embed_parallel_batches_equal_torch_in_image_order(
    folder: Path, opened: OnnxEncoder, images: Pixels
) -> None:
    ids = [f"image {row}" for row in range(len(images))]
    result = opened.embed(images, batch_size=3, ids=ids, progress=False)
    assert opened.workers(8) is not None
    assert result.ids.tolist() == ids
    expected = load_encoder(folder).embed(images, progress=False)
    np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-5, rtol=0)


def test_embed_parallel_unreadable_image_is_reported_and_left_out(
    opened: OnnxEncoder, images: Pixels, tmp_path: Path
) -> None:
    from PIL import Image

    from midspan.data import open_images

    place = tmp_path / "images"
    place.mkdir()
    for row, image in enumerate(images):
        Image.fromarray(image).save(place / f"{row:02d}.png")
    pictures = open_images(place)
    for row in (7, 25):
        whole = (place / f"{row:02d}.png").read_bytes()
        (place / f"{row:02d}.png").write_bytes(whole[: len(whole) // 2])
    failed: list[str] = []
    result = opened.embed(
        pictures, batch_size=3, progress=False, on_failure=lambda item, _: failed.append(item)
    )
    assert failed == ["07.png", "25.png"]
    assert len(result) == 38
    with pytest.raises(ImageError, match=r"07\.png"):
        opened.embed(pictures, batch_size=3, progress=False)


@pytest.mark.parametrize(("batches", "processors", "expected"), [(7, 2, 1), (8, 2, 2), (99, 64, 4)])
def test_worker_count_follows_batches_and_processors(
    batches: int, processors: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(processors))
    assert worker_count(batches) == expected


def test_in_parallel_runs_concurrently_in_order_with_a_bounded_queue() -> None:
    both, started = threading.Barrier(2, timeout=60), []

    def compute(rows: IntArray) -> int:
        started.append(int(rows[0]))
        both.wait()  # a thread alone would wait for ever
        return int(rows[0])

    coming = _in_parallel(compute, _blocks(20, 1), 2)
    assert next(coming) == 0
    assert len(started) <= 6
    assert list(coming) == list(range(1, 20))


# ---- which runtime ------------------------------------------------------------------------------


def fake(runtime: str, *, seconds: float, value: float = 1.0) -> GraphSession:
    def run(batch: FloatArray) -> FloatArray:
        time.sleep(seconds)
        vectors = np.zeros((len(batch), 2), dtype=np.float32)
        vectors[:, 0], vectors[:, 1] = value, np.sqrt(1 - value**2)
        return vectors

    return GraphSession(run, ("n", 2), "tensor(float)", {}, "cpu", runtime, "0")


@pytest.mark.parametrize(("seconds", "chosen"), [(0.001, "openvino"), (0.03, "onnx")])
def test_runtime_trial_faster_runtime_is_recorded(
    seconds: float, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path))
    known, rival = fake("onnx", seconds=0.015), fake("openvino", seconds=seconds)
    trial = RuntimeTrial("f", known, rival, apart=0.0, here=HERE)
    for _ in range(2 * parallel.TRIAL_BATCHES + 2):
        trial.run(np.zeros((2, 2), dtype=np.float32))
    assert read_bulk_runtime("f", here=HERE) == chosen
    assert read_bulk_runtime("f", here={**HERE, "openvino": "3"}) is None
    verdict = read_verdict("f", runtime="openvino", version="0")
    assert verdict is not None
    assert verdict.agrees


def test_runtime_trial_faster_runtime_with_other_vectors_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path))
    known, rival = fake("onnx", seconds=0.005), fake("openvino", seconds=0, value=0.999)
    trial = RuntimeTrial("f", known, rival, apart=0.0, here=HERE)
    for _ in range(2 * parallel.TRIAL_BATCHES + 2):
        assert (trial.run(np.zeros((2, 2), dtype=np.float32))[:, 0] == 1).all()
    assert read_bulk_runtime("f", here=HERE) == "onnx"


def test_runtime_trial_differences_from_torch_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path))
    known, rival = fake("onnx", seconds=0), fake("openvino", seconds=0)
    trial = RuntimeTrial("f", known, rival, apart=2e-5, here=HERE)
    trial.run(np.zeros((2, 2), dtype=np.float32))
    assert read_bulk_runtime("f", here=HERE) == "onnx"


def test_embed_long_job_tries_openvino_and_records_the_choice(
    folder: Path, opened: OnnxEncoder, images: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(parallel, "TRIAL_FROM", 16)
    expected = load_encoder(folder).embed(images, progress=False)
    result = opened.embed(images, batch_size=2, progress=False)
    np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-5, rtol=0)
    here = parallel._installed()
    assert read_bulk_runtime(opened.space.fingerprint, here=here) in {"onnx", "openvino"}


def test_embed_recorded_openvino_choice_is_used_without_a_trial(
    opened: OnnxEncoder, images: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    write_bulk_runtime(opened.space.fingerprint, "openvino", here=parallel._installed())
    seen: list[str] = []
    real = open_session

    def spy(path: Path, *, device: str | None, runtime: str, workers: int) -> GraphSession:
        seen.append(runtime)
        return real(path, device=device, runtime=runtime, workers=workers)

    monkeypatch.setattr(parallel, "open_session", spy)
    opened.embed(images, batch_size=3, progress=False)
    assert seen == ["openvino"]


def test_load_embedder_explicit_runtime_is_the_only_one_used(
    folder: Path, opened: OnnxEncoder, images: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "TRIAL_FROM", 1)
    asked = load_embedder(folder, runtime="onnx")
    asked.embed(images, batch_size=3, progress=False)
    here = parallel._installed()
    assert read_bulk_runtime(opened.space.fingerprint, here=here) is None
