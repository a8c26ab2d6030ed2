"""Processor time of an image by the size of the step that an encoder embeds it in.

    OMP_NUM_THREADS=1 python benchmarks/embed_steps.py

Writes benchmarks/results/embed_steps.csv: for each encoder and step the least of several passes
over the same images, taken in turns so that a busy moment of the machine hits all of them. It
checks the default step, midspan.encoders.embedding.CPU_IMAGES.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import numpy as np
import torch

from midspan.encoders import build_encoder

OUT = Path(__file__).parent / "results" / "embed_steps.csv"
STEPS = (16, 32, 64, 128, 256, 512)
ENCODERS = (("small-cnn", 32), ("small-resnet", 32), ("small-resnet", 64))


def measure(backbone: str, size: int, *, images: int, passes: int) -> dict[int, float]:
    """Milliseconds of an image, by step."""
    encoder = build_encoder(backbone=backbone, dim=128, size=size, channels=3, seed=0)
    shape = (images, size, size, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    taken: dict[int, list[float]] = {step: [] for step in STEPS}
    for turn in range(passes + 1):
        for step in STEPS:
            started = time.process_time()
            encoder.embed(pixels, batch_size=step, progress=False)
            if turn:  # the first one warms up
                taken[step].append(time.process_time() - started)
    return {step: 1000 * min(seconds) / images for step, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with given.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["backbone", "pixels", "threads", "step", "cpu_ms_per_image"])
        for backbone, size in ENCODERS:
            found = measure(backbone, size, images=given.images, passes=given.passes)
            for step, took in found.items():
                table.writerow([backbone, size, torch.get_num_threads(), step, f"{took:.3f}"])
                print(f"{backbone} {size} px, steps of {step:3d}: {took:.3f} ms an image")


if __name__ == "__main__":
    main()
