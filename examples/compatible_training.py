"""Train an old encoder, a compatible new one and an independent one, in twenty lines.

    python examples/compatible_training.py       # about a minute on two cores

Uses scikit-learn's 8 x 8 digits, so that it runs anywhere in seconds; ten classes are far too few
for good scores on unseen ones. `make demo` does the same on 385 classes and writes a page.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from midspan.training import RunConfig, train

BASE = {
    "data": {"name": "digits"},
    "encoder": {"backbone": "small-cnn", "dim": 32},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
    "train": {"epochs": 10, "batch_size": 64, "lr": 3e-3},
}


def main() -> None:
    runs = Path(tempfile.mkdtemp())
    # The old encoder saw 30 % of the images of each class.
    old = {**BASE, "seed": 0, "allocation": {"kind": "extended-data", "part": "old"}}
    train(RunConfig.from_dict(old), out=runs / "old")
    for method in ("bct", "independent"):
        new = {
            **BASE,
            "seed": 1,
            "method": {"name": method},
            "old": {"run": str(runs / "old")},
        }
        result = train(RunConfig.from_dict(new), out=runs / method)
        scores = {name: round(value, 3) for name, value in result.scores.items()}
        comparable = result.encoder.compatible_with != ()
        print(f"{method}: {scores}, may search the old gallery: {comparable}")


if __name__ == "__main__":
    main()
