"""Export an encoder to one ONNX file that knows its own preprocessing and space.

The graph gives vectors as they are stored: normalised where the encoder normalises.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.atomic_write import atomic_write
from midspan.encoders.encoder import Encoder
from midspan.encoders.onnx import NOTE, file_digest
from midspan.encoders.runtimes.session import import_extra, open_session
from midspan.errors import EncoderError

TOLERANCE = 1e-4  # between torch and ONNX Runtime, in any number of any vector


def export_onnx(encoder: Encoder, path: str | Path, *, check: bool = True) -> Path:
    """Write the encoder as ONNX, for any batch size.

    Args:
        encoder: Of images, or of vectors.
        path: The file.
        check: Compare the graph with torch first.

    Returns:
        The path.

    Raises:
        EncoderError: The encoder cannot be exported, or the graph gives other vectors.
        MissingDependency: The extra "onnx" is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> from midspan.encoders import OnnxEncoder, build_encoder, export_onnx
        >>> encoder = build_encoder(backbone="small-cnn", dim=8, name="tiny", seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_onnx(encoder, pathlib.Path(folder, "tiny.onnx"))
        ...     exported = OnnxEncoder(path, device="cpu")
        >>> exported.space == encoder.space
        True
    """
    onnx = import_extra("onnx", required_for="an ONNX export")
    import_extra("onnxscript", required_for="an ONNX export")
    path = Path(path)
    wrapped = _Vectors(copy.deepcopy(encoder).cpu()).eval()
    try:
        with _quiet():
            program = torch.onnx.export(
                wrapped,
                (_example_input(encoder, batch=2),),
                dynamo=True,
                input_names=["input"],
                output_names=["vectors"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except Exception as error:  # the exporter raises many types
        raise EncoderError(
            f"encoder {encoder.name!r} cannot be exported to ONNX ({error})"
        ) from error
    assert program is not None
    model = program.model_proto
    _strip(model)
    note = {
        "space": json.loads(encoder.space.to_json()),
        "normalise": encoder.normalise,
        "preprocessing": encoder.preprocessing.to_dict() if encoder.takes_images else None,
    }
    if not encoder.takes_images:
        note["source"] = encoder.backbone.config()["source"]
    note["digest"] = file_digest(model, note)
    onnx.helper.set_model_props(model, {NOTE: json.dumps(note, sort_keys=True)})
    with atomic_write(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
        if check:
            _check_against_torch(temporary, encoder=encoder, wrapped=wrapped)
    return path


class _Vectors(nn.Module):
    """Prepared images (B, C, H, W) or vectors (B, F) → vectors (B, D) as they are stored."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.encoder(x)
        return F.normalize(z, dim=1) if self.encoder.normalise else z


def _example_input(encoder: Encoder, *, batch: int) -> Tensor:
    """Noise, prepared as for the encoder; the same each time."""
    generator = np.random.default_rng(0)
    if encoder.takes_images:
        p = encoder.preprocessing
        shape = (batch, p.height, p.width, p.channels)
        images = generator.integers(0, 256, shape, dtype=np.uint8)
        return p.tensor(images).contiguous()
    inputs = encoder.backbone.config()["inputs"]
    return torch.from_numpy(generator.standard_normal((batch, inputs), dtype=np.float32))


def _check_against_torch(path: Path, *, encoder: Encoder, wrapped: Any) -> None:
    session = open_session(path, device="cpu")
    for batch in (1, 5):
        x = _example_input(encoder, batch=batch)
        with torch.inference_mode():
            expected = wrapped(x).numpy()
        got = session.run(x.numpy())
        apart = float(np.abs(expected - got).max()) if expected.shape == got.shape else np.inf
        if not apart <= TOLERANCE:
            raise EncoderError(
                f"encoder {encoder.name!r}: ONNX Runtime and torch are {apart:.1e} apart, more "
                f"than {TOLERANCE:.0e}; the export was not written"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's internal warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _strip(model: Any) -> None:
    """The exporter writes stack traces, with the paths of this machine, to every node."""
    graph = model.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, graph):
        del part.metadata_props[:]
    for part in (*graph.node, *graph.initializer):
        part.doc_string = ""
