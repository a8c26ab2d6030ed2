"""What computes an encoder's vectors: torch, or the encoder as a graph in another runtime.

The space does not depend on it: a graph is used only while it agrees with torch on real images.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

from midspan.errors import ConfigError

Runtime = Literal["auto", "torch", "onnx", "openvino"]

# runtime of a graph → the function that opens a file in it
GRAPH_RUNTIMES = {
    "onnx": "midspan.encoders.runtimes.onnx_session:open_onnx",
    "openvino": "midspan.encoders.runtimes.openvino_session:open_openvino",
}


def check_runtime(name: str) -> Runtime:
    if name not in get_args(Runtime):
        raise ConfigError(f"runtime {name!r}: expected one of {', '.join(get_args(Runtime))}")
    return name  # type: ignore[return-value]


def cpu_threads() -> int:
    """OMP_NUM_THREADS, else the processors that this process may run on."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1
