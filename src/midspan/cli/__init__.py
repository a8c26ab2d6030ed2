"""The command line: parse → one library call → print. Each verb family has a file."""

from __future__ import annotations

import json
import os
import sys

import typer

from midspan.cli import (
    bench,
    bridge,
    demo,
    doctor,
    embed,
    evaluate,
    gallery,
    gate,
    serve,
    train,
    upgrade,
)
from midspan.errors import Interrupted, MidspanError

app = typer.Typer(
    name="midspan",
    help="Change the embedding model of a visual search service while it goes on serving.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

START, LEARN, BRIDGE = "Start here", "Learn", "Bridge encoders that exist"
MEASURE, SERVE, HELP = "Measure", "Store, search and upgrade", "Look around"

app.command("demo", rich_help_panel=START)(demo.demo)
app.command("train", rich_help_panel=LEARN)(train.train)
app.command("runs", rich_help_panel=LEARN)(train.runs)
app.command("embed", rich_help_panel=LEARN)(embed.embed)
app.command("export", rich_help_panel=LEARN)(embed.export)
app.add_typer(bridge.app, name="bridge", rich_help_panel=BRIDGE)
app.command("eval", rich_help_panel=MEASURE)(evaluate.evaluate)
app.command("compare", rich_help_panel=MEASURE)(evaluate.compare)
app.command("bench", rich_help_panel=MEASURE)(bench.bench)
app.command("gate", rich_help_panel=MEASURE)(gate.gate)
app.add_typer(gallery.app, name="gallery", rich_help_panel=SERVE)
app.add_typer(upgrade.app, name="upgrade", rich_help_panel=SERVE)
app.command("serve", rich_help_panel=SERVE)(serve.serve)
app.command("doctor", rich_help_panel=HELP)(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        from midspan import __version__

        typer.echo(f"midspan {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main() -> None:
    """Known errors become one line and exit code 1; Ctrl-C is 130, as shells expect."""
    # OpenMP threads that spin while they wait make training 13 times slower beside one other busy
    # process (2 cores, small-resnet: 86 images/s against 1,100). Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # one log: torch's advice comes from every process
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        app()
    except MidspanError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        print(f"error: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Interrupted) else 1)
