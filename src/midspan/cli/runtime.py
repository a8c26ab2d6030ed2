"""`--runtime`, `--device`, `--batch-size`: how an encoder that only embeds computes its vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import typer

RuntimeName = Literal["auto", "torch", "onnx", "openvino"]  # midspan.encoders.runtimes.Runtime
RUNTIME = typer.Option(
    help="What computes the vectors. auto: ONNX Runtime on a CPU where it pays and agrees with "
    "torch, else torch."
)
DEVICE = typer.Option(help="cpu, cuda, cuda:1 …")
BATCH = typer.Option(min=1, help="Images at once; default: what suits the device.")


@dataclass(frozen=True, slots=True)
class Computing:
    runtime: RuntimeName = "auto"
    device: str | None = None
    batch_size: int | None = None
