from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midspan.data import ImageSet
from midspan.data.decode import Pixels
from midspan.encoders import (
    Encoder,
    OnnxEncoder,
    Preprocessing,
    build_encoder,
    export_onnx,
    load_encoder,
    onnx_export,
)
from midspan.errors import EncoderError, FormatError, MissingDependency

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def trained(**settings: Any) -> Encoder:
    """With batch norm statistics that are not 0 and 1, so that folding them in is tried too."""
    encoder = build_encoder(seed=0, name="tiny", **settings)
    torch.manual_seed(0)
    p = encoder.preprocessing
    for _ in range(3):
        encoder.train()(torch.rand(8, p.channels, p.height, p.width))
    return encoder


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    made = trained(backbone="small-resnet", dim=16, head="linear-bn", settings={"width": 4})
    made.compatible_with = ("0123",)
    return made


@pytest.fixture(scope="module")
def exported(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = encoder.training, encoder.fingerprint()
    path = export_onnx(encoder, tmp_path_factory.mktemp("onnx") / "new" / "model.onnx")
    assert (encoder.training, encoder.fingerprint()) == before
    assert [other.name for other in path.parent.iterdir()] == ["model.onnx"]
    return path


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_onnx_export_embeds_as_the_encoder(
    exported: Path, encoder: Encoder, image_set: ImageSet, batch_size: int
) -> None:
    loaded = load_encoder(exported)
    assert isinstance(loaded, OnnxEncoder)
    assert loaded.space == encoder.space
    assert loaded.space.compatible_with == ("0123",)
    assert loaded.preprocessing == encoder.preprocessing
    result = loaded.embed(image_set, batch_size=batch_size, progress=False)
    expected = encoder.embed(image_set, progress=False)
    np.testing.assert_allclose(result.vectors, expected.vectors, atol=1e-5)
    assert result.ids.tolist() == expected.ids.tolist()
    assert result.columns.keys() == expected.columns.keys()


@pytest.mark.slow
def test_onnx_graph_gives_unit_vectors(exported: Path, encoder: Encoder) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).random((3, 3, 32, 32), dtype=np.float32)
    (vectors,) = session.run(["vectors"], {"input": x})
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


@pytest.mark.slow
def test_onnx_file_holds_no_path_of_this_machine(exported: Path) -> None:
    raw = exported.read_bytes()
    assert str(Path(onnx_export.__file__).parent).encode() not in raw
    assert b"Traceback" not in raw
    assert b"stack_trace" not in raw


@pytest.mark.slow
def test_onnx_encoder_runs_without_torch(exported: Path) -> None:
    code = f"""
import sys; sys.modules["torch"] = None
import numpy as np
from midspan.encoders import load_encoder
images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
print(load_encoder({str(exported)!r}).embed(images, progress=False).vectors.shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(2, 16)", done.stderr


@pytest.mark.slow
def test_onnx_changed_weights_raise_encoder_error(exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported)
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    values = onnx.numpy_helper.to_array(weight).astype(np.float16).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(model, tmp_path / "rounded.onnx")
    with pytest.raises(EncoderError, match="changed after its export"):
        OnnxEncoder(tmp_path / "rounded.onnx")
    p = load_encoder(exported).preprocessing
    own = OnnxEncoder(tmp_path / "rounded.onnx", preprocessing=p)
    assert not own.space.same_as(load_encoder(exported).space)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("note", "error", "message"),
    [
        ("{", FormatError, "metadata in the file is broken"),
        ("{}", FormatError, "metadata in the file is broken"),
        ('{"space": {"name": "x"}, "normalise": true}', FormatError, "space is not readable"),
    ],
)
def test_onnx_broken_note_raises(
    exported: Path, tmp_path: Path, note: str, error: type[Exception], message: str
) -> None:
    model = onnx.load(exported)
    onnx.helper.set_model_props(model, {"midspan": note})
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(error, match=message):
        OnnxEncoder(tmp_path / "model.onnx")


@pytest.mark.slow
def test_onnx_edited_metadata_raises_encoder_error(exported: Path, tmp_path: Path) -> None:
    model = onnx.load(exported)
    props = {entry.key: entry.value for entry in model.metadata_props}
    edited = props["midspan"].replace('"fit": "squash"', '"fit": "crop"')
    assert edited != props["midspan"]
    onnx.helper.set_model_props(model, {"midspan": edited})
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(EncoderError, match="changed after its export"):
        OnnxEncoder(tmp_path / "model.onnx")


@pytest.mark.slow
def test_export_onnx_outside_the_tolerance_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "TOLERANCE", -1.0)
    encoder = build_encoder(backbone="vectors", dim=2, settings={"inputs": 3})
    with pytest.raises(EncoderError, match="apart, more than"):
        export_onnx(encoder, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    export_onnx(encoder, tmp_path / "model.onnx", check=False)
    loaded = load_encoder(tmp_path / "model.onnx")
    vectors = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    np.testing.assert_allclose(
        loaded.embed(vectors, progress=False).vectors,
        encoder.embed(vectors, progress=False).vectors,
        atol=1e-5,
    )
    assert not loaded.takes_images
    with pytest.raises(EncoderError, match="no preprocessing"):
        _ = loaded.preprocessing


def test_export_onnx_unsupported_encoder_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = build_encoder(backbone="vectors", name="odd", dim=2, settings={"inputs": 3})

    def refuse(*arguments: Any, **more: Any) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(EncoderError, match=r"'odd' cannot be exported to ONNX \(no such operator"):
        export_onnx(encoder, tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["gem", "linear"])
def test_export_onnx_supports_each_network(head: str, tmp_path: Path, images: Pixels) -> None:
    if head == "gem":
        encoder = trained(backbone="small-cnn", dim=8, head="gem", settings={"width": 4})
    else:
        pytest.importorskip("transformers")
        from tests.encoders.backbones.test_contract import VIT

        encoder = build_encoder(backbone="hf", dim=8, normalise=False, settings={"config": VIT})
    loaded = load_encoder(export_onnx(encoder, tmp_path / "model.onnx"))
    result = loaded.embed(images, progress=False)
    np.testing.assert_allclose(
        result.vectors, encoder.embed(images, progress=False).vectors, atol=1e-5
    )
    assert loaded.space == encoder.space


# ---- files of others -----------------------------------------------------------------------------

RGB = Preprocessing(height=4, width=6, channels=3, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def foreign(path: Path, *, shape: list[Any], op: str = "ReduceMean", inputs: int = 1) -> Path:
    """The mean of each channel."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [2, 3])
    keep = 0 if op == "ReduceMean" else 1
    node = helper.make_node("ReduceMean", ["x0", "axes"], ["y"], keepdims=keep)
    takes = [helper.make_tensor_value_info(f"x{i}", kind, shape) for i in range(inputs)]
    gives = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([node], "foreign", takes, [gives], [axes])
    opset = helper.make_opsetid("", 18)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


@pytest.mark.parametrize("batch", ["n", 1, 4])
def test_onnx_foreign_file_with_preprocessing_embeds(tmp_path: Path, batch: Any) -> None:
    path = foreign(tmp_path / "means.onnx", shape=[batch, 3, 4, 6])
    images = np.random.default_rng(0).integers(1, 256, (9, 4, 6, 3), dtype=np.uint8)
    encoder = OnnxEncoder(path, preprocessing=RGB)
    result = encoder.embed(images, batch_size=5, progress=False)
    means = images.reshape(9, -1, 3).mean(axis=1)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(result.vectors, expected, atol=1e-5)
    assert (encoder.name, encoder.dim, encoder.space.metric) == ("means", 3, "cosine")
    raw = OnnxEncoder(path, preprocessing=RGB, normalise=False, name="raw")
    assert raw.name == "raw"
    assert raw.space.metric == "l2"
    np.testing.assert_allclose(raw.embed(images, progress=False).vectors, means / 255, atol=1e-5)
    assert raw.space.fingerprint != encoder.space.fingerprint
    assert OnnxEncoder(path, preprocessing=RGB).space == encoder.space


def test_onnx_unfit_foreign_file_raises_encoder_error(tmp_path: Path) -> None:
    path = foreign(tmp_path / "means.onnx", shape=["n", 3, 4, 6])
    with pytest.raises(EncoderError, match="was not exported by midspan"):
        load_encoder(path)
    nhwc = foreign(tmp_path / "nhwc.onnx", shape=["n", 4, 6, 3])
    with pytest.raises(EncoderError, match=r"of shape \['n', 4, 6, 3\], but its images come as"):
        OnnxEncoder(nhwc, preprocessing=RGB)
    maps = foreign(tmp_path / "maps.onnx", shape=["n", 3, 4, 6], op="keep")
    with pytest.raises(EncoderError, match=r"for one image, got \(1, 3, 1, 1\)"):
        OnnxEncoder(maps, preprocessing=RGB)
    two = foreign(tmp_path / "two.onnx", shape=["n", 3, 4, 6], inputs=2)
    with pytest.raises(EncoderError, match="has 2 inputs"):
        OnnxEncoder(two, preprocessing=RGB)


def test_onnx_missing_or_invalid_file_raises(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="no such ONNX file"):
        load_encoder(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"not at all")
    with pytest.raises(FormatError, match="not a readable ONNX file"):
        load_encoder(tmp_path / "model.onnx")


@pytest.mark.slow
def test_onnx_unknown_or_other_device_raises_encoder_error(exported: Path, images: Pixels) -> None:
    with pytest.raises(EncoderError, match="no device 'tpu'"):
        OnnxEncoder(exported, device="tpu")
    loaded = OnnxEncoder(exported, device="cpu")
    with pytest.raises(EncoderError, match="was opened on 'cpu', not 'cuda'"):
        loaded.embed(images, device="cuda", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["onnxruntime", "onnx"])
def test_onnx_without_its_libraries_raises_missing_dependency(
    exported: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=r"midspan\[onnx\]"):
        load_encoder(exported)
