"""`midspan bridge fit | apply | compare | export`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midspan.cli.exits import exit_with
from midspan.cli.output import JSON_OPTION, percent, print_json, print_table
from midspan.cli.outputs import EMBEDDINGS, FORCE, ONNX, check_file, check_folder
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.cli.verbs import Verbs
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.bridges import Bridge, Comparison, Selection
    from midspan.upgrade import Check

app = typer.Typer(
    cls=Verbs, help="Maps between the spaces of encoders that exist already.", no_args_is_help=True
)

SOURCE = typer.Option(help="Embeddings in the space to map from.")
TARGET = typer.Option(help="Embeddings of the same items (by id) in the space to map to.")


@app.command("fit")
def fit(
    out: Annotated[Path, typer.Option(help="Folder for the bridge.")],
    source: Annotated[Path | None, SOURCE] = None,
    target: Annotated[Path | None, TARGET] = None,
    gallery: Annotated[
        str | None, typer.Option(help="Instead of files: a gallery, and --encoder for its images.")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="The new encoder: run folder, model.onnx, hf:… …")
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=2, help="Items of --gallery that are embedded, at random.")
    ] = 3000,
    method: Annotated[
        str, typer.Option(help="auto, or procrustes, ridge, low-rank, local, mlp, rbt, fct …")
    ] = "auto",
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method: alpha=0.1. May be repeated."),
    ] = None,
    space: Annotated[list[str] | None, SPACE] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Fit a map on pairs, of two files or of a gallery and a new encoder.

    `auto` chooses by cross-validated retrieval and prints why.
    """
    from midspan.bridges import fit_auto

    check_folder(out, option="--out", force=force)
    if (gallery is None) != (encoder is None) or (gallery is None) == (source is None):
        raise ConfigError("give either --source and --target, or --gallery and --encoder")
    if gallery is not None and encoder is not None:
        from midspan.cli.bridge_pairs import pairs_of_gallery

        old, new = pairs_of_gallery(gallery, encoder, most=pairs)
    elif source is None or target is None:
        raise ConfigError("--source and --target go together: the same items in two spaces")
    else:
        spaces = SpaceNames.of(space, "source", "target")
        old, new = spaces.load(source, "source"), spaces.load(target, "target")
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
        Path, typer.Option("--vectors", help="Vectors in the bridge's source space.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write: .npz or .parquet.")],
    space: Annotated[list[str] | None, SPACE] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Map embeddings into the target space."""
    from midspan.bridges import load_bridge

    check_file(out, option="--out", suffixes=EMBEDDINGS, force=force)
    mapped = load_bridge(bridge).transform(SpaceNames.of(space, "vectors").load(source, "vectors"))
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
    metric: Annotated[
        str | None,
        typer.Option(
            help="map (others of the class are relevant) or mrr (the same item is); default: map "
            "if there are labels."
        ),
    ] = None,
    min_retention: Annotated[float, typer.Option(help="Limit of the verdict.")] = 0.95,
    gallery_size: Annotated[
        int | None,
        typer.Option(min=1, help="Items of your gallery; default: as many as there are pairs."),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the pairs, held out in turn.")] = 5,
    space: Annotated[list[str] | None, SPACE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """How much of the new encoder's retrieval each bridge keeps, on classes it has not seen.

    Without labels, on pairs. The verdict is about your gallery's size: an estimate from the small
    galleries that were measured. The exit code is that of the best bridge.
    """
    from midspan.bridges import BRIDGES, compare_bridges
    from midspan.bridges.compare import SOLVED
    from midspan.upgrade import judged
    from midspan.upgrade.verdicts import check_ratio

    check_ratio(min_retention)
    spaces = SpaceNames.of(space, "source", "target")
    candidates = tuple(BRIDGES) if methods == "all" else tuple(filter(None, methods.split(",")))
    result = compare_bridges(
        spaces.load(source, "source"),
        spaces.load(target, "target"),
        candidates=candidates or SOLVED,
        metric=metric,
        folds=folds,
        gallery_size=gallery_size,
        progress=True,
    )
    checks = [
        judged(
            "retention",
            row.estimate,
            row.estimate_low,
            row.estimate_high,
            queries=result.held_out,
            least=min_retention,
        )
        for row in result.rows
    ]
    checks = [  # a bridge that could not be fitted has retention 0
        check if math.isfinite(check.value) else dataclasses.replace(check, verdict="FAIL")
        for check in checks
    ]
    if as_json:
        document = result.to_dict()
        for row, check in zip(document["rows"], checks, strict=True):
            row["verdict"] = check.verdict
        print_json(document)
    else:
        _print_comparison(result, checks)
    verdicts = {check.verdict for check in checks[1:]}  # the first is no bridge at all
    exit_with(next((v for v in ("PASS", "INCONCLUSIVE") if v in verdicts), "FAIL"))


@app.command("export")
def export(
    bridge: Annotated[Path, typer.Argument(help="Folder of a fitted bridge.")],
    out: Annotated[Path, typer.Option(help="Where to write bridge.onnx.")],
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write the map as one ONNX file, checked against the original."""
    from midspan.bridges import export_onnx, load_bridge

    check_file(out, option="--out", suffixes=ONNX, force=force)
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
            raise ConfigError(f"--set: expected key=value, e.g. alpha=0.1, got {change!r}")
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
            percent(row.estimate),
            f"{percent(row.estimate_low)} … {percent(row.estimate_high)}",
            check.verdict,
            _fit_time(row.seconds),
        ]
        for row, check in zip(result.rows, checks, strict=True)
    ]
    print_table(
        f"{result.pairs:,} pairs; held out: {result.held_out:,} in {result.folds} folds, by "
        f"{result.held_out_by}",
        [
            "bridge",
            f"{result.metric}, %",
            f"retention at {result.measured_at:,}, %",
            "95 % interval",
            f"estimate at {result.gallery_size:,}, %",
            "95 % interval",
            "gate",
            "fit",
        ],
        rows,
        note=(
            f"True new gallery: {percent(result.true_score)}. Retention was measured in galleries "
            f"of {result.measured_at:,} items; the estimate counts a wrong item as often as "
            "your gallery is larger, and assumes that its further items are like these."
        ),
    )
    _print_notes({row.name: row.note for row in result.rows})


def _fit_time(seconds: float) -> str:
    return "–" if math.isnan(seconds) else f"{seconds:.2f} s"


def _print_notes(notes: dict[str, str]) -> None:
    for name, note in notes.items():
        if note:
            print(f"{name}: {note}")
