"""`midspan train` and `midspan runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midspan.cli import exits
from midspan.cli.output import JSON_OPTION, percent, print_json, print_table
from midspan.cli.outputs import check_folder
from midspan.errors import ConfigError, Interrupted, ProcessLost, RunError


def train(
    file: Annotated[Path, typer.Argument(help="Run file (TOML).")],
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/ and the file's name.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: train.epochs=5. May be repeated."),
    ] = None,
    restart: Annotated[bool, typer.Option(help="Discard what the folder holds.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Train an encoder from a run file. Ctrl-C saves; the same command continues.

    On several GPUs: torchrun --nproc-per-node 8 -m midspan train FILE.
    """
    from midspan.training import RunConfig
    from midspan.training import train as run
    from midspan.training.distributed import launched_rank

    first = launched_rank() == 0
    try:
        name = None if out is None else out.name
        config = RunConfig.load(file, changes=change or [], default_name=name)
        folder = out or Path("runs") / config.name
        check_folder(folder, option="--out")
        result = run(config, out=folder, restart=restart, device=device)
    except (ConfigError, RunError) as error:
        if first or isinstance(error, ProcessLost):
            raise
        # the first process stops for the same reason, and reports it
        code = exits.INTERRUPTED if isinstance(error, Interrupted) else exits.ERROR
        raise typer.Exit(code) from error
    if not first:
        return
    if as_json:
        print_json({"run": str(result.path), **result.metrics})
        return
    rows = [
        [name, *(percent(value) for value in values.values())]
        for name, values in result.metrics.get("detail", {}).items()
    ]
    if rows:
        metrics = list(result.metrics["detail"]["self"])
        print_table(config.name, ["test, %", *metrics], rows, note=result.metrics.get("note", ""))
    elif "note" in result.metrics:
        print(result.metrics["note"])
    if "criterion" in result.metrics:
        from midspan.evidence import Evidence

        evidence = Evidence.from_dict(result.metrics["criterion"], source=str(result.path))
        print(f"new queries on the old gallery: {evidence}")
    print(f"run folder: {result.path}")


def runs(
    root: Annotated[Path, typer.Argument(help="Folder that holds run folders.")] = Path("runs"),
    as_json: bool = JSON_OPTION,
) -> None:
    """List the runs in a folder, newest first."""
    from midspan.training import list_runs

    listed = list_runs(root)
    if as_json:
        print_json(
            {
                "runs": [
                    {
                        "path": str(run.path),
                        "name": run.name,
                        "state": run.state,
                        "method": run.method,
                        "epochs": run.epochs,
                        "scores": run.scores,
                        "changed": run.changed,
                    }
                    for run in listed
                ]
            }
        )
        return
    rows = [
        [
            str(run.path),
            run.state,
            run.method,
            run.epochs,
            percent(run.scores.get("self")),
            percent(run.scores.get("cross", run.scores.get("cross_best"))),
            percent(run.scores.get("old_self")),
            run.changed,
        ]
        for run in listed
    ]
    columns = ["run", "state", "method", "epochs", "self", "cross", "old self", "changed (UTC)"]
    print_table(f"{len(listed)} runs in {root}", columns, rows)
