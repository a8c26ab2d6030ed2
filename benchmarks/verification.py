"""TAR at FAR 1e-4 … 1e-6 over as many template pairs as IJB-C 1:1 has, in bounded memory.

    OMP_NUM_THREADS=2 python benchmarks/verification.py

The vectors are synthetic, the sizes are those of the data set: 3,531 gallery and 19,593 probe
templates of 512 dimensions, 19,557 genuine and 15,638,932 impostor pairs, listed gallery template
by gallery template. Beside our stream stands the usual way: fetch both rows of each pair in
batches of 100,000, keep all scores, sort. Appends to benchmarks/results/verification.csv.
"""

from __future__ import annotations

import csv
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from midspan.evaluation.pairs import score_pairs, verify
from midspan.evaluation.verification import allowed

RESULTS = Path(__file__).parent / "results" / "verification.csv"
FARS = (1e-4, 1e-5, 1e-6)
GALLERY, PROBES, DIM = 3_531, 19_593, 512
GENUINE, IMPOSTOR = 19_557, 15_638_932


@dataclass(frozen=True)
class Row:
    date: str
    way: str
    genuine: int
    impostor: int
    dim: int
    threads: str
    seconds: float
    peak_above_inputs_mib: float
    peak_rss_mib: float
    tar_1e4: float
    tar_1e5: float
    tar_1e6: float
    numpy: str
    machine: str


@dataclass(frozen=True)
class Pairs:
    templates: npt.NDArray[np.float32]  # (T, D) gallery first, then probes
    left: npt.NDArray[np.int32]  # (P,) gallery rows, rising
    right: npt.NDArray[np.int32]  # (P,) probe rows
    same: npt.NDArray[np.bool_]  # (P,)


def synthetic_pairs(
    *, gallery: int, probes: int, genuine: int, impostor: int, dim: int, seed: int = 0
) -> Pairs:
    """Each probe is its subject's vector plus noise of its own strength, so that TAR falls."""
    rng = np.random.default_rng(seed)
    subjects = rng.standard_normal((gallery, dim), dtype=np.float32)
    mate = rng.integers(0, gallery, probes)
    strength = rng.uniform(1.0, 6.0, (probes, 1)).astype(np.float32)
    noisy = subjects[mate] + strength * rng.standard_normal((probes, dim), dtype=np.float32)
    templates = np.concatenate([subjects, noisy])
    templates /= np.linalg.norm(templates, axis=1, keepdims=True)

    listed = rng.permutation(probes)[:genuine]  # the probes whose mate is in the list
    share = np.diff(np.linspace(0, impostor, gallery + 1).round().astype(np.int64))
    # Filled in place: freed pieces would stay with the process and hide what is measured later.
    left = np.empty(genuine + impostor, dtype=np.int32)
    right = np.empty(genuine + impostor, dtype=np.int32)
    same = np.empty(genuine + impostor, dtype=bool)
    start = 0
    for row in range(gallery):
        own = listed[mate[listed] == row]
        others = rng.choice(np.flatnonzero(mate != row), share[row], replace=False)
        both = np.concatenate([own, others])
        order = np.argsort(both)
        part = slice(start, start + len(both))
        left[part], right[part] = row, both[order] + gallery
        same[part] = (np.arange(len(both)) < len(own))[order]
        start = part.stop
    return Pairs(templates, left, right, same)


def by_stream(pairs: Pairs) -> list[float]:
    scored = score_pairs(pairs.templates, pairs.left, pairs.right)
    blocks = ((scores, pairs.same[part]) for part, scores in scored)
    impostors = len(pairs.same) - int(pairs.same.sum())
    return [float(tar) for tar in verify(blocks, far=FARS, n_impostor=impostors).tar]


def by_fetching_and_sorting(pairs: Pairs) -> list[float]:
    scores = []
    for start in range(0, len(pairs.left), 100_000):
        part = slice(start, start + 100_000)
        one, other = pairs.templates[pairs.left[part]], pairs.templates[pairs.right[part]]
        scores.append(np.sum(one * other, axis=-1))
    every = np.concatenate(scores)
    impostor = np.sort(every[~pairs.same])[::-1]
    genuine = every[pairs.same]
    return [float(np.mean(genuine > impostor[allowed(far, len(impostor))])) for far in FARS]


def benchmark_verification(
    *,
    gallery: int = GALLERY,
    probes: int = PROBES,
    genuine: int = GENUINE,
    impostor: int = IMPOSTOR,
    dim: int = DIM,
    results: Path = RESULTS,
) -> list[Row]:
    pairs = synthetic_pairs(
        gallery=gallery, probes=probes, genuine=genuine, impostor=impostor, dim=dim
    )
    rows = []
    for way in (by_stream, by_fetching_and_sorting):
        _forget_peak()
        inputs = _status_mib("VmRSS")
        started = time.perf_counter()
        tar = way(pairs)
        seconds = time.perf_counter() - started
        peak = _status_mib("VmHWM")
        row = Row(
            date=time.strftime("%Y-%m-%d"),
            way=way.__name__,
            genuine=int(pairs.same.sum()),
            impostor=int((~pairs.same).sum()),
            dim=dim,
            threads=os.environ.get("OMP_NUM_THREADS", "all"),
            seconds=round(seconds, 2),
            peak_above_inputs_mib=round(peak - inputs, 1),
            peak_rss_mib=round(peak, 1),
            tar_1e4=round(tar[0], 6),
            tar_1e5=round(tar[1], 6),
            tar_1e6=round(tar[2], 6),
            numpy=np.__version__,
            machine=f"{platform.machine()} {os.cpu_count()} cores",
        )
        print(", ".join(f"{name} {value}" for name, value in asdict(row).items()))
        rows.append(row)
    _append(rows, results)
    return rows


def _forget_peak() -> None:
    """Linux only, as the next: making the inputs took more memory than the measured part."""
    Path("/proc/self/clear_refs").write_text("5")


def _status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {name}")


def _append(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(Row.__dataclass_fields__))
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    benchmark_verification()
