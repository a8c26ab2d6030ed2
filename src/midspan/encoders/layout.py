"""Which memory layout is faster here: `python -m midspan.encoders.layout small-cnn …`.

The constants `channels_last` of the backbones come from this. Images/s of a bare forward, best of
5, OMP_NUM_THREADS=1, on one shared core of a Xeon with AVX-512 (2-core runs had the same order):

    backbone                plain   channels_last
    small-cnn              13,036          14,794
    small-resnet            7,100           7,912
    efficientnet-lite0         21              41

Precision is not tried: bf16 was 8 to 18 times slower on a CPU without the instructions, and on a
virtual machine that shows AMX without allowing it the process dies of an illegal instruction.
"""

from __future__ import annotations

import sys
import time

import torch

from midspan.encoders.build import build_encoder
from midspan.encoders.encoder import Encoder

LAYOUTS = ("plain", "channels_last")


def measure(encoder: Encoder, *, batch: int, repeats: int = 5) -> dict[str, float]:
    """Images per second of the network alone, by layout; the encoder keeps its own."""
    preprocessing = encoder.preprocessing
    shape = (batch, preprocessing.channels, preprocessing.height, preprocessing.width)
    device = encoder.device
    network = torch.nn.Sequential(encoder.backbone, encoder.head).eval()
    own = torch.channels_last if encoder.backbone.channels_last else torch.contiguous_format
    results = {}
    for name in LAYOUTS:
        layout = torch.contiguous_format if name == "plain" else torch.channels_last
        network.to(memory_format=layout)  # type: ignore[call-overload]
        x = torch.randn(shape, device=device).contiguous(memory_format=layout)
        best = float("inf")
        with torch.inference_mode():
            network(x)
            for _ in range(repeats):
                started = time.perf_counter()
                network(x)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                best = min(best, time.perf_counter() - started)
        results[name] = batch / best
    network.to(memory_format=own)  # type: ignore[call-overload]
    return results


def main(names: list[str]) -> None:
    print("backbone".ljust(20), *(layout.rjust(20) for layout in LAYOUTS))
    for name in names:
        encoder = build_encoder(backbone=name, seed=0)
        batch = 256 if encoder.preprocessing.height <= 64 else 16
        rates = measure(encoder, batch=batch)
        print(name.ljust(20), *(f"{rates[layout]:20,.0f}" for layout in LAYOUTS))


if __name__ == "__main__":
    main(sys.argv[1:] or ["small-cnn", "small-resnet", "efficientnet-lite0"])
