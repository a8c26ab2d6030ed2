"""Can the tests of the core fail? One small change at a time, and only the file's own tests.

    nice python benchmarks/mutation.py --count 150     # writes benchmarks/results/mutation.csv

A mutant swaps a comparison, an operator or and/or, drops a `not`, or adds one to a number in one
place of `evaluation/`, `methods/` or `spaces.py`, in a copy of the sources. It is killed if the
tests with the name of its file fail (`tests/evaluation/test_topk.py` for `evaluation/topk.py`), or
take longer than --seconds. Fast tests alone are run. The sample is fixed by --seed. A survivor is a
change that no test notices: one that changes nothing, or a gap.
"""

from __future__ import annotations

import argparse
import ast
import copy
import csv
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "mutation.csv"
PACKAGE = Path("src") / "midspan"

COMPARISONS: dict[type, type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type, type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}


@dataclass
class Row:
    file: str
    line: int
    before: str
    after: str
    outcome: str  # "killed", "survived" or "timeout"
    seconds: float


@dataclass(frozen=True)
class Place:
    """The n-th node of a file that can be changed."""

    file: Path  # below src/midspan
    number: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=180, help="of one mutant's tests")
    parser.add_argument("--until", type=float, default=24.0, help="hours after which none is begun")
    parser.add_argument("--only", default="", help="part of a file's path")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    import random

    places = [place for file in targets() if given.only in str(file) for place in changeable(file)]
    sample = random.Random(given.seed).sample(places, min(given.count, len(places)))
    started, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="midspan-mutants-") as folder:
        copied = Path(folder)
        for name in ("src", "tests", "benchmarks", "docs"):
            shutil.copytree(
                ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in ("pyproject.toml", "README.md", "Makefile"):
            shutil.copy(ROOT / name, copied / name)
        _warm_up(copied)
        sound: set[Path] = set()  # files whose tests pass without any change
        for place in sample:
            if time.monotonic() - started > 3600 * given.until:
                break
            row = try_out(place, copied, seconds=given.seconds)
            if row.outcome != "survived" and place.file not in sound:
                if (
                    _tests(copied, copied / test_of(place.file), seconds=given.seconds)
                    != "survived"
                ):
                    raise SystemExit(f"{test_of(place.file)} fails without any change")
                sound.add(place.file)
            rows.append(row)
            print("  ".join(str(value) for value in asdict(rows[-1]).values()), flush=True)
            write(given.out, rows)
    print(Counter(row.outcome for row in rows), f"of {len(places)} places")


def targets() -> list[Path]:
    """Files that have tests of their own name."""
    found = [Path("spaces.py")]
    for folder in ("evaluation", "methods"):
        found += sorted((ROOT / PACKAGE / folder).glob("*.py"))
    below = [file.relative_to(ROOT / PACKAGE) if file.is_absolute() else file for file in found]
    return [file for file in below if (ROOT / test_of(file)).is_file()]


def test_of(file: Path) -> Path:
    return Path("tests") / file.parent / f"test_{file.name}"


def changeable(file: Path) -> Iterator[Place]:
    tree = ast.parse((ROOT / PACKAGE / file).read_text(encoding="utf-8"))
    for number, _ in enumerate(_nodes(tree)):
        yield Place(file, number)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """In the order of the file; not in annotations, texts or error messages."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in (
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
            node if isinstance(node, ast.JoinedStr | ast.Raise) else None,
        )
        if part is not None
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if (
            (isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS)
            or (isinstance(node, ast.BinOp) and type(node.op) in OPERATORS)
            or isinstance(node, ast.BoolOp)
            or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
            or (isinstance(node, ast.Constant) and type(node.value) in (int, float))
        ):
            yield node


def mutated(source: str, number: int) -> tuple[str, int, str, str]:
    """(new source, line, expression before, expression after)."""
    tree = ast.parse(source)
    node = next(node for at, node in enumerate(_nodes(tree)) if at == number)
    before = copy.deepcopy(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.UnaryOp):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        node.value = node.value + 1  # type: ignore[operator]
    line = int(getattr(node, "lineno", 0))
    return (
        ast.unparse(ast.fix_missing_locations(tree)),
        line,
        ast.unparse(before),
        ast.unparse(node),
    )


def try_out(place: Place, folder: Path, *, seconds: int) -> Row:
    target = folder / PACKAGE / place.file
    source = target.read_text(encoding="utf-8")
    changed, line, before, after = mutated(source, place.number)
    target.write_text(changed, encoding="utf-8")
    started = time.monotonic()
    try:
        outcome = _tests(folder, folder / test_of(place.file), seconds=seconds)
    finally:
        target.write_text(source, encoding="utf-8")
    took = round(time.monotonic() - started, 1)
    return Row(str(place.file), line, before, after, outcome, took)


def _warm_up(folder: Path) -> None:
    """What every run imports; each mutant is a fork that begins there. Not our own package."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder / "src"))
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    import faiss  # noqa: F401
    import pytest  # noqa: F401
    import scipy.linalg  # noqa: F401
    import torch
    import typer.testing  # noqa: F401

    torch.set_num_threads(1)


def _tests(folder: Path, tests: Path, *, seconds: int) -> str:
    child = os.fork()
    if child == 0:
        import pytest

        code = 3  # an error of pytest itself: the mutant breaks the import of everything
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            signal.alarm(seconds)
            options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
            code = int(pytest.main([*options, "--rootdir", str(folder), str(tests)]))
        finally:  # never the parent's clean-up
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "survived" if os.WEXITSTATUS(status) == 0 else "killed"


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
