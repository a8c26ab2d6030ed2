"""A graph in OpenVINO, on the CPU."""

from __future__ import annotations

import queue
from functools import cache
from pathlib import Path
from typing import Any

from midspan.encoders.runtimes import cpu_threads
from midspan.encoders.runtimes.session import GraphSession, import_extra
from midspan.errors import EncoderError, FormatError


@cache
def _core() -> Any:
    """One for the life of the process. Each Core sets an alternate signal stack and, when it goes,
    puts back the one before it. Freed in any order but the last first, that one is gone already,
    and the next signal that Python handles ends the process.
    """
    return import_extra("openvino", required_for="runtime 'openvino'", extra="openvino").Core()


def open_openvino(path: Path, *, device: str | None, workers: int = 1) -> GraphSession:
    openvino = import_extra("openvino", required_for="runtime 'openvino'", extra="openvino")
    onnx = import_extra("onnx", required_for="runtime 'openvino'")
    if not path.is_file():
        raise EncoderError(f"{path}: no such ONNX file")
    if device not in (None, "cpu"):
        raise EncoderError(f"runtime 'openvino' runs on the CPU, not on {device!r}; use torch")
    try:
        model = _core().read_model(str(path))
        compiled = _core().compile_model(
            model,
            "CPU",
            {
                # One batch at a time on all threads, or one stream for each worker.
                **({"NUM_STREAMS": workers} if workers > 1 else {"PERFORMANCE_HINT": "LATENCY"}),
                "INFERENCE_PRECISION_HINT": "f32",  # else bf16 where the processor has it
                "INFERENCE_NUM_THREADS": cpu_threads(),
            },
        )
        metadata = {one.key: one.value for one in onnx.load(path).metadata_props}
    except Exception as error:  # openvino raises RuntimeError for everything
        raise FormatError(f"{path}: not a graph that OpenVINO reads ({error})") from error
    if len(model.inputs) != 1:
        raise EncoderError(f"{path}: has {len(model.inputs)} inputs, an encoder has one")
    shape = tuple(
        None if one.is_dynamic else one.get_length() for one in model.inputs[0].get_partial_shape()
    )
    kind = "float" if model.inputs[0].get_element_type().get_type_name() == "f32" else "other"
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()  # a request holds its own input and output
    for _ in range(workers):
        free.put(compiled.create_infer_request())

    def run(batch: Any) -> Any:
        request = free.get()
        try:
            request.infer({0: batch}, share_inputs=True)
            return request.get_output_tensor(0).data.copy()
        finally:
            free.put(request)

    return GraphSession(
        run=run,
        shape=shape,
        type=f"tensor({kind})",
        metadata=metadata,
        device="cpu",
        runtime="openvino",
        version=str(openvino.__version__),
    )
