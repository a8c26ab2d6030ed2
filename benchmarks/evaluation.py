"""Search, full-ranking mAP and backfill curves beside what people use, and beside bare BLAS.

    OMP_NUM_THREADS=2 python benchmarks/evaluation.py    # writes benchmarks/results/evaluation.csv

    a  leave-one-out mAP over the full ranking, 5,000 x 128-d: pytorch-metric-learning's
       AccuracyCalculator with k=None; ours also at 20,000 and 100,000
    b  top 100 of 1,000 queries over 1,000,000 x 128-d, and of 500 over 500,000: bare blocked
       product of the same shapes (written into one buffer, nothing else), faiss IndexFlatIP
    c  TAR at FAR over 15.6 million pairs: see benchmarks/verification.py, which is run too
    d  a backfill curve of 21 points: one evaluation

The arms of a comparison take turns, and the best and the median round of each are kept, so that
other load on the machine hits all alike. Peak memory is measured in a process of its own per arm,
above what was in use before the call (data and libraries loaded). Ratios are ours over theirs;
`bar` is what we want of it. --small tries everything out at a fraction of the size.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from midspan.evaluation import backfill_curve, evaluate, search_exact
from midspan.evaluation.search import GALLERY_BLOCK, QUERY_BLOCK
from midspan.spaces import Embeddings, Space

RESULTS = Path(__file__).parent / "results" / "evaluation.csv"
DIM, PER_CLASS, K, N_QUERIES = 128, 10, 100, 1000
Arm = Callable[[], object]
Arms = dict[str, Arm]


@dataclass
class Row:
    part: str
    case: str
    arm: str
    seconds_best: float
    seconds_median: float
    peak_mib: float | None = None
    ratio_of: str = ""  # this time / that time, or that memory
    ratio_best: float | None = None
    ratio_median: float | None = None
    bar: str = ""
    reached: str = ""


# ---- arms: each builds its data once and returns the calls to be timed ---------------------------


def labelled(n: int, *, noise: float = 1.5, seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) // PER_CLASS
    centres = np.random.default_rng(7).standard_normal((n // PER_CLASS + 1, DIM))
    vectors = (centres[labels] + noise * rng.standard_normal((n, DIM))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.array([f"{i:07d}" for i in range(n)])
    return Embeddings(ids, vectors, Space("bench", DIM), {"labels": labels})


def ranking_arms(n: int) -> Arms:
    items = labelled(n)

    def accuracy_calculator() -> object:
        import torch
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

        calculator = AccuracyCalculator(
            include=("mean_average_precision",), k=None, device=torch.device("cpu")
        )
        vectors, labels = (
            torch.from_numpy(items.vectors),
            torch.from_numpy(items.columns["labels"].astype(np.int64)),
        )
        return calculator.get_accuracy(vectors, labels)["mean_average_precision"]

    return {
        "ours": lambda: evaluate(items, metrics=["map"]).mean("map"),
        "AccuracyCalculator": accuracy_calculator,
    }


def search_arms(n: int, n_queries: int = N_QUERIES) -> Arms:
    rng = np.random.default_rng(0)
    gallery = _unit(rng.standard_normal((n, DIM), dtype=np.float32))
    queries = _unit(rng.standard_normal((n_queries, DIM), dtype=np.float32))
    room = np.empty(QUERY_BLOCK * GALLERY_BLOCK, dtype=np.float32)

    def bare_product() -> None:
        for first in range(0, n, GALLERY_BLOCK):
            block = gallery[first : first + GALLERY_BLOCK]
            for start in range(0, n_queries, QUERY_BLOCK):
                part = queries[start : start + QUERY_BLOCK]
                out = room[: len(part) * len(block)].reshape(len(part), len(block))
                np.matmul(part, block.T, out=out)

    def faiss_flat() -> object:
        import faiss

        faiss.omp_set_num_threads(_threads())
        index = faiss.IndexFlatIP(DIM)  # type: ignore[call-arg]
        index.add(gallery)
        started = time.perf_counter()
        index.search(queries, K)
        return time.perf_counter() - started  # filling the index is not searching

    return {
        "bare product": bare_product,
        "ours cosine": lambda: search_exact(queries, gallery, k=K),
        "ours dot": lambda: search_exact(queries, gallery, k=K, metric="dot"),
        "faiss IndexFlatIP": faiss_flat,
    }


def curve_arms(n: int) -> Arms:
    new = labelled(n)
    old = labelled(n, noise=2.0, seed=1)
    order = np.random.default_rng(2).permutation(n)
    return {
        "one evaluation": lambda: evaluate(new, old, metrics=["map"]),
        "curve of 21 points": lambda: backfill_curve(
            query=new, gallery_old=old, gallery_new=new, order=order
        ),
    }


ARMS = {"a": ranking_arms, "b": search_arms, "d": curve_arms}


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


# ---- measuring ----------------------------------------------------------------------------------


def take_turns(arms: Arms, *, rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    """Seconds of each round; the faiss arm returns its own."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    if warm_up:  # first calls load libraries and touch memory
        for arm in arms.values():
            arm()
    for _ in range(rounds):
        for name, arm in arms.items():
            started = time.perf_counter()
            result = arm()
            elapsed = time.perf_counter() - started
            own = name.startswith("faiss") and isinstance(result, float)
            seconds[name].append(result if own else elapsed)  # type: ignore[arg-type]
    return seconds


def peak_mib(part: str, n: int, arm: str) -> float:
    """Peak memory of one call above what was in use before it, in a process of its own."""
    command = [sys.executable, __file__, "--child", json.dumps([part, n, arm])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def child(part: str, n: int, arm: str) -> None:
    call = ARMS[part](n)[arm]
    if arm == "AccuracyCalculator":  # the libraries themselves are not its memory
        import faiss
        import torch  # noqa: F401
        from pytorch_metric_learning.utils import accuracy_calculator  # noqa: F401
    elif arm.startswith("faiss"):
        import faiss  # noqa: F401
    before = _status_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the data
    call()
    print(_status_mib("VmHWM") - before)


def _status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {name}")


def row(part: str, case: str, arm: str, seconds: list[float], peak: float | None = None) -> Row:
    best, median = min(seconds), statistics.median(seconds)
    return Row(
        part, case, arm, round(best, 4), round(median, 4), None if peak is None else round(peak, 1)
    )


def relate(mine: Row, theirs: Row, *, bar: float, what: str = "time") -> Row:
    """A row that says mine / theirs and whether it is at most the bar."""
    if what == "time":
        best = mine.seconds_best / theirs.seconds_best
        median = mine.seconds_median / theirs.seconds_median
    else:
        assert mine.peak_mib is not None
        assert theirs.peak_mib is not None
        best = median = mine.peak_mib / theirs.peak_mib
    return Row(
        part=mine.part, case=mine.case, arm=mine.arm,
        seconds_best=mine.seconds_best, seconds_median=mine.seconds_median, peak_mib=mine.peak_mib,
        ratio_of=f"{what} / {theirs.arm}", ratio_best=round(best, 4), ratio_median=round(median, 4),
        bar=f"<= {bar:g}", reached="yes" if best <= bar else "no",
    )  # fmt: skip


# ---- the parts ----------------------------------------------------------------------------------


def part_a(*, rounds: int, small: bool) -> list[Row]:
    n = 1000 if small else 5000
    seconds = take_turns(ranking_arms(n), rounds=rounds)
    case = f"{n} x {DIM}"
    both = [row("a", case, arm, times, peak_mib("a", n, arm)) for arm, times in seconds.items()]
    rows = [*both, relate(both[0], both[1], bar=1 / 8)]
    rows.append(relate(both[0], both[1], bar=1 / 4, what="memory"))
    before = both[0]
    for larger in (4 * n, 20 * n):
        times = take_turns({"ours": ranking_arms(larger)["ours"]}, rounds=1, warm_up=False)["ours"]
        this = row("a", f"{larger} x {DIM}", "ours", times, peak_mib("a", larger, "ours"))
        growth = (larger / int(before.case.split()[0])) ** 2
        rows += [this, relate(this, before, bar=growth)]
        rows[-1].ratio_of = f"time / {before.case}"
        before = this
    return rows


def part_b(*, rounds: int, small: bool) -> list[Row]:
    sizes = ((100_000, N_QUERIES, 1.2), (50_000, N_QUERIES // 2, 1.3))
    related = []
    for size, n_queries, bar in sizes:
        n = size if small else 10 * size
        seconds = take_turns(search_arms(n, n_queries), rounds=rounds)
        case = f"{n_queries} on {n} x {DIM}, top {K}"
        rows = {arm: row("b", case, arm, times) for arm, times in seconds.items()}
        related += rows.values()
        for arm in ("ours cosine", "ours dot"):
            related.append(relate(rows[arm], rows["bare product"], bar=bar))
            related.append(relate(rows[arm], rows["faiss IndexFlatIP"], bar=1.0))
            if n_queries < N_QUERIES:
                continue
            rows[arm].peak_mib = round(peak_mib("b", n, arm), 1)
            memory = Row(**asdict(rows[arm]))
            memory.ratio_of, memory.bar = "memory / 1 GiB", "<= 1"
            memory.ratio_best = memory.ratio_median = round((memory.peak_mib or 0) / 1024, 4)
            memory.reached = "yes" if memory.ratio_best <= 1 else "no"
            related.append(memory)
    return related


def part_c(*, rounds: int, small: bool) -> list[Row]:
    """Written by benchmarks/verification.py into its own file; here only its times."""
    from verification import benchmark_verification  # beside this file

    sizes = {"gallery": 350, "probes": 1900, "genuine": 1800, "impostor": 150_000} if small else {}
    results = Path("/dev/null") if small else RESULTS.with_name("verification.csv")
    measured = benchmark_verification(**sizes, results=results)  # type: ignore[arg-type]
    return [
        row(
            "c",
            f"{one.genuine + one.impostor} pairs",
            one.way,
            [one.seconds],
            one.peak_above_inputs_mib,
        )
        for one in measured
    ]


def part_d(*, rounds: int, small: bool) -> list[Row]:
    rows = []
    for n in (1000,) if small else (5000, 20_000):
        seconds = take_turns(curve_arms(n), rounds=rounds)
        case = f"{n} x {DIM}, {PER_CLASS} per class"
        one, curve = (row("d", case, arm, times) for arm, times in seconds.items())
        rows += [one, curve, relate(curve, one, bar=2)]
    return rows


PARTS = {"a": part_a, "b": part_b, "c": part_c, "d": part_d}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="abcd")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*json.loads(arguments.child))
        return
    print(f"{_threads()} threads, numpy {np.__version__}, load {os.getloadavg()[0]:.1f}")
    rows = []
    for part in arguments.parts:
        for one in PARTS[part](rounds=arguments.rounds, small=arguments.small):
            print(
                "  ".join(f"{name} {value}" for name, value in asdict(one).items() if value != "")
            )
            rows.append(one)
    if not arguments.small:
        with arguments.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(Row.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(asdict(one) for one in rows)
        print(arguments.out)


if __name__ == "__main__":
    main()
