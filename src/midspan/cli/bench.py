"""`midspan bench`: every method by one protocol."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midspan.cli import exits
from midspan.cli.evaluate import EXCLUDE
from midspan.cli.output import JSON_OPTION, percent, print_json, print_table
from midspan.cli.outputs import PAGE, check_file, check_folder
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.training.bench import BenchSettings

ALL = "all"


def bench(
    data: Annotated[
        list[str] | None,
        typer.Option(help=".npz, .csv, folder, or a name such as digits. May be repeated."),
    ] = None,
    allocations: Annotated[
        str, typer.Option(help="What the old encoder has seen; names with commas.")
    ] = "extended-class,extended-data",
    methods: Annotated[str, typer.Option(help="Comma-separated names, or all.")] = ALL,
    backbone: Annotated[
        str, typer.Option(help="NAME or NAME,key=value, e.g. small-resnet,width=12.")
    ] = "small-resnet",
    new_backbone: Annotated[
        str | None, typer.Option(help="Of the new encoders in the extended-backbone cases.")
    ] = None,
    dim: Annotated[int, typer.Option(min=1, help="Dim of the encoders.")] = 128,
    new_dim: Annotated[
        int | None, typer.Option(min=1, help="Another dim for the new ones.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of every encoder.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds: how often everything is repeated.")] = 3,
    metric: Annotated[str, typer.Option(help="map, recall@1 …")] = "map",
    exclude_column: Annotated[str | None, EXCLUDE] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Judge by classes cut from the training classes.")
    ] = False,
    ablation: Annotated[bool, typer.Option("--ablation", help="The terms of AdvBCT too.")] = False,
    chain: Annotated[
        str | None, typer.Option(help="Methods (or all) that train chains of three too.")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help=r"TOML: \[train] …, \[methods.NAME] …")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="train.lr=1e-3, methods.bct.weight=2 … May be repeated."),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(help="No training: a page (--out) of such folders. May be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs, tables and the page.")] = Path(
        "bench"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each if > 1.")] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="With --report: replace an existing page.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Train old, independent and compatible encoders by one protocol, and compare the methods.

    Ctrl-C saves; the same command continues, and what is finished is never repeated. The folder
    gets rows.csv (a row per run), summary.csv (mean and spread over seeds) and index.html.
    """
    from midspan.reports.bench_page import write_bench
    from midspan.training.bench import bench as run
    from midspan.training.bench import read_results

    if report:
        check_file(_page(out), option="--out", suffixes=PAGE, force=force)
        documents = [read_results(folder) for folder in report]
        folder = out.parent if out.suffix == ".html" else out
        page = write_bench(documents, page=_page(out), tables=folder)
        rows = [row for document in documents for row in document["rows"]]
        _show(rows, {}, page, as_json=as_json)
        return
    check_folder(out, option="--out")
    chosen = _settings(
        data=data or [],
        allocations=allocations,
        methods=methods,
        chain=chain or "",
        settings=settings,
        change=change or [],
        plain={
            "backbone": backbone,
            "new_backbone": new_backbone,
            "dim": dim,
            "new_dim": new_dim,
            "epochs": epochs,
            "seeds": seeds,
            "metric": metric,
            "exclude_column": exclude_column,
            "validation": validation,
            "ablation": ablation,
        },
    )
    result = run(chosen, out=out, jobs=jobs, command=_command())
    page = _page(out)
    if result.rows:
        write_bench([result.document], page=page, tables=out)
    _show(result.rows, result.failures, page, chains=result.chains, as_json=as_json)
    if result.failures:
        raise typer.Exit(exits.INCOMPLETE)


def _settings(
    *,
    data: Sequence[str],
    allocations: str,
    methods: str,
    chain: str,
    settings: Path | None,
    change: Sequence[str],
    plain: dict[str, Any],
) -> BenchSettings:
    from midspan.methods import METHODS
    from midspan.training.bench import BenchSettings, read_settings
    from midspan.training.bench.settings import UPPER
    from midspan.training.bench.variants import ACROSS_DIMS

    base, methods_of = read_settings(settings, change)
    able = METHODS if plain["new_dim"] in (None, plain["dim"]) else ACROSS_DIMS
    chosen = list(able) if methods == ALL else _names(methods)
    chained = list(METHODS) if chain == ALL else _names(chain)
    if not _names(allocations):
        raise ConfigError("--allocations is empty; e.g. extended-class,extended-data")
    return BenchSettings(
        data=tuple(data),
        allocations=tuple(_names(allocations)),
        methods=tuple(name for name in chosen if name != UPPER),
        chain=tuple(name for name in chained if name != UPPER),
        base=base,
        methods_of=methods_of,
        **plain,
    )


def _show(
    rows: Sequence[Any],
    failures: Any,
    page: Path,
    *,
    chains: Sequence[Any] = (),
    as_json: bool,
) -> None:
    if as_json:
        more: dict[str, Any] = {"failures": dict(failures)} if failures else {}
        if chains:
            more["chains"] = list(chains)
        print_json({"rows": list(rows), **more})
    else:
        _print_cases(rows)
        if rows:
            print(f"page: {page.resolve()}")
    for name, reason in failures.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)


def _print_cases(rows: Sequence[Any]) -> None:
    from midspan.reports.bench_summary import summarise

    entries = summarise(rows)
    for data, allocation in dict.fromkeys((entry.data, entry.allocation) for entry in entries):
        case = [e for e in entries if (e.data, e.allocation) == (data, allocation)]
        lines = [
            [
                entry.method,
                *(percent(entry.mean[name]) for name in ("new_self", "cross")),
                f"{entry.met} of {entry.seeds}",
                *(percent(entry.mean[name]) for name in ("p_up", "p_comp", "p_1")),
            ]
            for entry in case
        ]
        title = f"{data} · {allocation} · old self {percent(case[0].mean['old_self'])} %"
        columns = ["mean over seeds, %", "self", "cross", "> old self", "P up", "P comp", "P 1"]
        print_table(title, columns, lines)


def _page(out: Path) -> Path:
    return out if out.suffix == ".html" else out / "index.html"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _command() -> str:
    """As it was typed, with files instead of paths of this machine."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["midspan", *words])
