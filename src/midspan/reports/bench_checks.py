"""What a benchmark should show, checked one by one, with the cases where it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midspan.reports.bench_summary import UPPER, BenchChain, MethodSummary
from midspan.reports.bench_tables import PARTS, by_method, ranked
from midspan.reports.numbers import fraction, percent

ENOUGH = 0.97  # of the upper bound's self
NEAR = 0.1  # of the way from random vectors to old self


@dataclass(frozen=True, slots=True)
class BenchCheck:
    holds: bool
    text: str
    exceptions: tuple[str, ...]


def checks(entries: Sequence[MethodSummary], chains: Sequence[BenchChain]) -> list[BenchCheck]:
    results = [_criterion(entries), _self(entries), _independent(entries)]
    if any(e.group == "ablation" for e in entries):
        results.append(_ablation(entries))
    if chains:
        results.append(_chains(chains))
    return results


def _criterion(entries: Sequence[MethodSummary]) -> BenchCheck:
    methods = by_method(entries)
    missed = tuple(
        f"{e.method}, {_case(e)}: {fraction(e.mean['cross'])}, old self "
        f"{fraction(e.mean['old_self'])} ({e.met} of {e.seeds} seeds)"
        for name in ranked(entries)
        for e in methods[name]
        if not e.meets
    )
    return BenchCheck(not missed, "cross is above old self for every method, case and seed", missed)


def _self(entries: Sequence[MethodSummary]) -> BenchCheck:
    methods = by_method(entries)
    short = tuple(
        f"{e.method}, {_case(e)}: {percent(e.self_share)}"
        for name in ranked(entries)
        for e in methods[name]
        if e.self_share < ENOUGH
    )
    text = f"new self is at least {ENOUGH:.0%} of an encoder trained alone"
    return BenchCheck(not short, text, short)


def _independent(entries: Sequence[MethodSummary]) -> BenchCheck:
    alone = [e for e in entries if e.method == UPPER]
    far = tuple(
        f"{_case(e)}: {fraction(e.mean['cross'])}, random vectors "
        f"{fraction(e.mean['random_cross'])}"
        for e in alone
        if e.mean["cross"] - e.mean["random_cross"]
        > NEAR * (e.mean["old_self"] - e.mean["random_cross"])
    )
    text = "the independent encoder finds hardly more in the old gallery than random vectors"
    return BenchCheck(not far, text, far)


def _ablation(entries: Sequence[MethodSummary]) -> BenchCheck:
    full = {(e.data, e.allocation): e for e in entries if e.method == "advbct"}
    above = []
    for e in entries:
        whole = full.get((e.data, e.allocation))
        if e.group != "ablation" or e.method not in PARTS or whole is None:
            continue
        if e.mean["p_1"] >= whole.mean["p_1"]:
            above.append(
                f"{e.method}, {_case(e)}: P 1 {fraction(e.mean['p_1'])}, all terms "
                f"{fraction(whole.mean['p_1'])}"
            )
    return BenchCheck(
        not above, "advbct with all its terms is above each of its parts", tuple(above)
    )


def _chains(chains: Sequence[BenchChain]) -> BenchCheck:
    cells = tuple(
        f"{one.method}, {one.data}, {one.allocation}: {cell}"
        for one in chains
        for cell in one.broken
    )
    text = "in chains of encoders every cross value lies between its two self values"
    return BenchCheck(not cells, text, cells)


def _case(entry: MethodSummary) -> str:
    return f"{entry.data} {entry.allocation}"
