"""`midspan bridge fit | apply | compare | export`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midspan.cli.output import JSON_OPTION, percent, print_json, print_table
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.bridges import Bridge, Comparison, Selection
    from midspan.upgrade import Check

app = typer.Typer(
    help="Maps between the spaces of encoders that exist already.", no_args_is_help=True
)

SOURCE = typer.Option(help="Embeddings in the space to map from.")
TARGET = typer.Option(help="Embeddings of the same items (by id) in the space to map to.")


@app.command("fit")
def fit(
    source: Annotated[Path, SOURCE],
    target: Annotated[Path, TARGET],
    out: Annotated[Path, typer.Option(help="Folder for the bridge.")],
    method: Annotated[
        str, typer.Option(help="auto, or procrustes, ridge, low_rank, local, mlp, rbt, fct …")
    ] = "auto",
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method: alpha=0.1. May be repeated."),
    ] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Fit a map on pairs. `auto` tries the candidates by cross-validated retrieval and says why."""
    from midspan.bridges import fit_auto
    from midspan.spaces import Embeddings

    old, new = Embeddings.load(source), Embeddings.load(target)
    if method == "auto":
        if change:
            raise ConfigError("--set needs a --method: the candidates of auto have settings of own")
        selection = fit_auto(old, new, progress=True)
        path = selection.bridge.save(out)
        _print_selection(selection, path, as_json=as_json)
        return
    bridge = _made(method, change or []).fit(old, new)
    path = bridge.save(out)
    if as_json:
        print_json({"bridge": str(path), "method": method, "pairs": bridge.n_pairs_})
        return
    print(
        f"{method} on {bridge.n_pairs_:,} pairs: {bridge.source} → {bridge.target}, saved in {path}"
    )


@app.command("apply")
def apply(
    bridge: Annotated[Path, typer.Argument(help="Folder of a fitted bridge.")],
    source: Annotated[
        Path, typer.Option("--input", help="Embeddings in the bridge's source space.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write: .npz or .parquet.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Map embeddings into the target space."""
    from midspan.bridges import load_bridge
    from midspan.spaces import Embeddings

    mapped = load_bridge(bridge).transform(Embeddings.load(source))
    path = mapped.save(out)
    if as_json:
        print_json(
            {
                "embeddings": str(path),
                "items": len(mapped),
                "space": {"name": mapped.space.name, "fingerprint": mapped.space.fingerprint},
            }
        )
        return
    print(f"{len(mapped):,} vectors in {mapped.space} → {path}")


@app.command("compare")
def compare(
    source: Annotated[Path, SOURCE],
    target: Annotated[Path, TARGET],
    methods: Annotated[
        str, typer.Option(help="Comma-separated, or 'all'; default: those that are solved.")
    ] = "",
    min_retention: Annotated[float, typer.Option(help="Limit of the verdict.")] = 0.95,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the pairs, held out in turn.")] = 5,
    as_json: bool = JSON_OPTION,
) -> None:
    """How much of the new encoder's retrieval each bridge keeps, on pairs it has not seen."""
    from midspan.bridges import BRIDGES, compare_bridges
    from midspan.bridges.compare import SOLVED
    from midspan.spaces import Embeddings
    from midspan.upgrade import judged

    candidates = tuple(BRIDGES) if methods == "all" else tuple(filter(None, methods.split(",")))
    result = compare_bridges(
        Embeddings.load(source),
        Embeddings.load(target),
        candidates=candidates or SOLVED,
        folds=folds,
        progress=True,
    )
    checks = [
        judged("retention", row.retention, row.low, row.high, least=min_retention)
        for row in result.rows
    ]
    if as_json:
        document = result.to_dict()
        for row, check in zip(document["rows"], checks, strict=True):
            row["verdict"] = check.verdict
        print_json(document)
        return
    _print_comparison(result, checks)


@app.command("export")
def export(
    bridge: Annotated[Path, typer.Argument(help="Folder of a fitted bridge.")],
    out: Annotated[Path, typer.Option(help="Where to write bridge.onnx.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Write the map as one ONNX file, checked against the original."""
    from midspan.bridges import export_onnx, load_bridge

    loaded = load_bridge(bridge)
    path = export_onnx(loaded, out)
    if as_json:
        print_json({"onnx": str(path), "source": str(loaded.source), "target": str(loaded.target)})
        return
    print(f"{loaded.source} → {loaded.target}, as {path}")


def _made(method: str, changes: list[str]) -> Bridge:
    import tomllib

    from midspan.bridges import BRIDGES
    from midspan.config import build

    section: dict[str, Any] = {"name": method}
    for change in changes:
        key, separator, value = change.partition("=")
        if not separator:
            raise ConfigError(f"--set {change!r}: wanted key=value, e.g. alpha=0.1")
        try:
            section[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            section[key.strip()] = value.strip()  # a bare word is a string
    bridge: Bridge = build(BRIDGES, section, what="bridge")
    return bridge


def _print_selection(selection: Selection, path: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "bridge": str(path),
                "method": selection.chosen,
                "why": selection.why,
                "metric": selection.metric,
                "pairs": selection.bridge.n_pairs_,
                "tried": [
                    {
                        "method": one.name,
                        "score": one.score,
                        "retention": one.retention,
                        "seconds": one.seconds,
                        "note": one.note,
                    }
                    for one in selection.tried
                ],
            }
        )
        return
    rows = [
        [one.name, percent(one.score), percent(one.retention), _fit_time(one.seconds)]
        for one in selection.tried
    ]
    columns = ["bridge", f"{selection.metric}, %", "retention, %", "fit"]
    print_table("held-out pairs", columns, rows, note=f"chosen: {selection.why}")
    _print_notes({one.name: one.note for one in selection.tried})
    print(f"{selection.bridge.source} → {selection.bridge.target}, saved in {path}")


def _print_comparison(result: Comparison, checks: list[Check]) -> None:
    rows = [
        [
            row.name,
            percent(row.score),
            percent(row.retention),
            f"{percent(row.low)} … {percent(row.high)}",
            check.verdict,
            _fit_time(row.seconds),
        ]
        for row, check in zip(result.rows, checks, strict=True)
    ]
    print_table(
        f"{result.pairs:,} pairs, {result.held_out:,} held out in {result.folds} folds",
        ["bridge", f"{result.metric}, %", "retention, %", "95 % interval", "gate", "fit"],
        rows,
        note=f"true new gallery: {percent(result.true_score)}",
    )
    _print_notes({row.name: row.note for row in result.rows})


def _fit_time(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{seconds:.2f} s"


def _print_notes(notes: dict[str, str]) -> None:
    for name, note in notes.items():
        if note:
            print(f"{name}: {note}")
