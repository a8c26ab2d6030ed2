"""`--runtime`: what computes the vectors of an encoder that only embeds."""

from __future__ import annotations

from typing import Literal

import typer

RuntimeName = Literal["auto", "torch", "onnx", "openvino"]  # midspan.encoders.runtimes.Runtime
RUNTIME = typer.Option(
    help="What computes the vectors. auto: ONNX Runtime on a CPU where it pays and agrees with "
    "torch, else torch."
)
