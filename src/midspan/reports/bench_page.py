"""The page of `midspan bench`: which methods keep the old gallery searchable, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midspan.reports.bench_checks import BenchCheck, checks
from midspan.reports.bench_plots import backfill_plot, self_cross_plot
from midspan.reports.bench_summary import (
    BenchChain,
    MethodSummary,
    joined,
    over_data,
    summarise,
    summarise_chains,
    summary_rows,
)
from midspan.reports.bench_tables import (
    PARTS,
    ablation_table,
    by_method,
    detail_table,
    main_table,
    ranked,
)
from midspan.reports.matrix_plot import matrix_plot
from midspan.reports.numbers import duration, fraction, metric_name
from midspan.reports.page import render, write_text
from midspan.reports.tables import write_csv
from midspan.reports.verdict import PageVerdict, Tile

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 1.0)


def write_bench(
    documents: Sequence[Mapping[str, Any]], *, page: str | Path, tables: str | Path | None = None
) -> Path:
    """One page of one or several benchmarks (`bench.json`); rows.csv, summary.csv in `tables`."""
    rows, chains, _ = joined(documents)
    entries = summarise(rows)
    if tables is not None:
        folder = Path(tables)
        write_csv([_flat(row) for row in rows], folder / "rows.csv")
        write_csv(summary_rows(entries), folder / "summary.csv")
        if chains:
            write_csv(_chain_rows(chains), folder / "chains.csv")
    return bench_page(documents, page)


def bench_page(documents: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    rows, chains, failures = joined(documents)
    entries, chained = summarise(rows), summarise_chains(chains)
    metric = metric_name(documents[0]["settings"]["metric"])
    facts = checks(entries, chained)
    verdict = bench_verdict(entries)
    context = {
        "title": f"{verdict.headline} · midspan bench",
        "eyebrow": f"midspan bench · {', '.join(dict.fromkeys(e.data for e in entries))}",
        "verdict": verdict,
        "metric": metric,
        "tiles": _tiles(entries),
        "checks": facts,
        "cases": _cases(entries, metric),
        "ablations": _ablations(entries),
        "chains": [_chain(one, number) for number, one in enumerate(chained)],
        "failures": failures,
        "benchmarks": [_again(document) for document in documents],
    }
    return write_text(render("bench.html.j2", context), path)


def bench_verdict(entries: Sequence[MethodSummary]) -> PageVerdict:
    """Who meets the criterion in every run, who does not, who is best: in two sentences."""
    methods = by_method([e for e in entries if e.method in ranked(entries)])
    order = ranked(entries)
    cases = len({(e.data, e.allocation) for e in entries})
    where = "in every case" if cases > 1 else "here"
    if not order:
        return PageVerdict(False, "No compatible method was run.", "Name methods to compare.")
    good = [name for name in order if all(e.meets for e in methods[name])]
    bad = [name for name in order if name not in good]
    if not bad:
        who = "All methods" if len(good) > 1 else good[0]
        headline = f"{who} can search the old gallery {where}: cross is above old self."
    elif good:
        headline = f"{len(good)} of {len(order)} methods can search the old gallery {where}."
    else:
        headline = f"No method can search the old gallery {where}."
    best = order[0]
    sentences = []
    if good and bad:
        sentences.append(f"Above old self in every run: {', '.join(good)}.")
    if bad:
        some = (f"{name} ({_met(methods[name])} of {len(methods[name])})" for name in bad)
        sentences.append(f"Cases in which the others meet it: {', '.join(some)}.")
    sentences.append(
        f"The best balance of old and new gallery has {best} (P 1 "
        f"{fraction(over_data(methods[best], 'p_1'))}, mean over {cases} "
        f"case{'s' if cases > 1 else ''})."
    )
    return PageVerdict(holds=not bad, headline=headline, sentence=" ".join(sentences))


def _tiles(entries: Sequence[MethodSummary]) -> list[Tile]:
    """The best three by P 1, over all cases."""
    methods = by_method(entries)
    tiles = []
    for name in ranked(entries)[:3]:
        met = _met(methods[name])
        share = sum(e.self_share for e in methods[name]) / len(methods[name])
        note = f"criterion in {met} of {len(methods[name])} cases, self {share:.1%} of the upper"
        tiles.append(Tile(name, fraction(over_data(methods[name], "p_1")), note, "new"))
    return tiles


def _met(entries: Sequence[MethodSummary]) -> int:
    return sum(entry.meets for entry in entries)


def _cases(entries: Sequence[MethodSummary], metric: str) -> list[dict[str, Any]]:
    """One section for each allocation: its table and the plots of each data set."""
    sections = []
    for number, allocation in enumerate(dict.fromkeys(e.allocation for e in entries)):
        inside = [e for e in entries if e.allocation == allocation]
        plots = []
        for place, data in enumerate(dict.fromkeys(e.data for e in inside)):
            own = [e for e in inside if e.data == data]
            tag = f"{number}-{place}"
            first = self_cross_plot(
                own,
                metric=metric,
                title=f"{data}, {allocation}: self against cross of each method",
                name=f"selfcross-{tag}",
            )
            second = backfill_plot(
                own,
                FRACTIONS,
                metric=metric,
                title=f"{data}, {allocation}: {metric} while the gallery is renewed",
                name=f"backfill-{tag}",
            )
            plots.append((data, first, second))
        seeds = sorted({e.seeds for e in inside})
        counted = "1 seed" if seeds == [1] else f"{' or '.join(map(str, seeds))} seeds"
        sections.append(
            {
                "name": allocation,
                "id": f"case-{number}",
                "table": main_table(
                    inside,
                    caption=f"{metric}, mean ± standard deviation, {counted}. ✓ cross above old "
                    "self in every seed, ✗ not; ★ best of the methods",
                ),
                "details": detail_table(inside, caption=f"{allocation}: gains, flips, backfill"),
                "plots": plots,
            }
        )
    return sections


def _ablations(entries: Sequence[MethodSummary]) -> list[tuple[str, Any]]:
    tables = []
    for allocation in dict.fromkeys(e.allocation for e in entries if e.group == "ablation"):
        covered = {e.data for e in entries if e.group == "ablation" and e.allocation == allocation}
        inside = [
            e
            for e in entries
            if e.allocation == allocation and e.data in covered and e.method in PARTS
        ]
        caption = f"{allocation}: ✓ a term is on, ✓ and ✗ at cross: the criterion"
        tables.append((allocation, ablation_table(inside, caption=caption)))
    return tables


def _chain(entry: BenchChain, number: int) -> dict[str, Any]:
    names = [f"φ{place + 1}" for place in range(len(entry.values))]
    title = f"{entry.data}, {entry.allocation}, {entry.method}: queries of each on each gallery"
    return {
        "title": f"{entry.method} · {entry.data} · {entry.allocation}",
        "plot": matrix_plot(entry.values, names, title=title, name=f"chain-{number}"),
        "broken": entry.broken,
    }


def _again(document: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in document["settings"].items() if value is not None}
    seconds = sum(row["seconds"] for row in document["rows"])
    return {
        "command": document["command"],
        "facts": {
            **{name: _plain(value) for name, value in settings.items()},
            "training time": f"{duration(seconds)} for {len(document['rows'])} new encoders",
            "machine": _plain(document["environment"]),
        },
    }


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return (
        {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    )


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The curve in separate columns."""
    flat = {name: value for name, value in row.items() if name != "backfill"}
    for share, value in zip(FRACTIONS, row.get("backfill") or [math.nan] * 5, strict=True):
        flat[f"backfill_{share:g}"] = value
    return {"data": flat.pop("data"), **flat}


def _chain_rows(chains: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for chain in chains:
        matrix = chain["matrix"]
        for t, line in enumerate(matrix):
            for k, value in enumerate(line):
                low, high = sorted((matrix[k][k], line[t]))
                rows.append(
                    {
                        **{n: chain[n] for n in ("data", "allocation", "method", "seed")},
                        "queries": f"phi{t + 1}",
                        "gallery": f"phi{k + 1}",
                        "value": value,
                        "between_self_values": low <= value <= high,
                    }
                )
    return rows


__all__ = ["BenchCheck", "bench_page", "bench_verdict", "write_bench"]
