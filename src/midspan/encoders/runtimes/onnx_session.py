"""A graph in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midspan.encoders.runtimes import cpu_threads
from midspan.encoders.runtimes.session import GraphSession, import_extra
from midspan.errors import EncoderError, FormatError


def open_onnx(path: Path, *, device: str | None, workers: int = 1) -> GraphSession:
    runtime = import_extra("onnxruntime", required_for="an encoder in an ONNX file")
    if not path.is_file():
        raise EncoderError(f"{path}: no such ONNX file")
    cuda = "CUDAExecutionProvider" in runtime.get_available_providers()
    there = ["cuda", "cpu"] if cuda else ["cpu"]
    device = device or there[0]
    if device not in there:
        raise EncoderError(f"ONNX Runtime has no device {device!r} here; it has {there}")
    providers = ["CUDAExecutionProvider"] if device == "cuda" else []
    options = runtime.SessionOptions()
    options.intra_op_num_threads = max(1, cpu_threads() // workers)
    options.log_severity_level = 3  # errors
    # Threads that spin while they wait take the processors from those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = runtime.InferenceSession(
            str(path), sess_options=options, providers=[*providers, "CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own kinds, one for each failure
        raise FormatError(f"{path}: not a readable ONNX file ({error})") from error
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise EncoderError(f"{path}: has {len(inputs)} inputs, an encoder has one")
    (only,), output = inputs, session.get_outputs()[0].name

    def run(batch: Any) -> Any:
        return session.run([output], {only.name: batch})[0]

    return GraphSession(
        run=run,
        shape=tuple(only.shape),
        type=only.type,
        metadata=dict(session.get_modelmeta().custom_metadata_map),
        device=device,
        runtime="onnx",
        version=str(runtime.__version__),
    )
