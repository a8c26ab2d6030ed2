"""The command line: parse → one library call → print. Each verb family has a file."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from typing import Any, TextIO

import typer

from midspan.cli import (
    bench,
    bridge,
    data,
    demo,
    doctor,
    embed,
    evaluate,
    exits,
    gallery,
    gate,
    serve,
    train,
    upgrade,
)
from midspan.cli.flags import with_flags
from midspan.cli.verbs import Verbs
from midspan.errors import Interrupted, MidspanError, MissingDependency

START, LEARN, BRIDGE = "Start here", "Learn", "Bridge encoders that exist"
MEASURE, SERVE, HELP = "Measure", "Store, search and upgrade", "Look around"
PANELS = (START, LEARN, MEASURE, BRIDGE, SERVE, HELP)


class Panels(Verbs):
    """The verbs as `--help` lists them: families in this order, groups of verbs among them."""

    def list_commands(self, ctx: Any) -> list[str]:
        def place(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return PANELS.index(panel) if panel in PANELS else len(PANELS)

        return sorted(super().list_commands(ctx), key=place)


app = typer.Typer(
    name="midspan",
    cls=Panels,
    help="Change the embedding model of a visual search service while it keeps serving.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.TEXT,
)

app.command("demo", rich_help_panel=START)(demo.demo)
app.command("train", rich_help_panel=LEARN)(train.train)
app.command("runs", rich_help_panel=LEARN)(train.runs)
app.command("embed", rich_help_panel=LEARN)(embed.embed)
app.command("export", rich_help_panel=LEARN)(embed.export)
app.add_typer(data.app, name="data", rich_help_panel=LEARN)
app.add_typer(bridge.app, name="bridge", rich_help_panel=BRIDGE)
app.command("eval", rich_help_panel=MEASURE)(evaluate.evaluate)
app.command("compare", rich_help_panel=MEASURE)(evaluate.compare)
app.command("bench", rich_help_panel=MEASURE)(bench.bench)
app.command("gate", rich_help_panel=MEASURE)(gate.gate)
app.add_typer(gallery.app, name="gallery", rich_help_panel=SERVE)
app.add_typer(upgrade.app, name="upgrade", rich_help_panel=SERVE)
app.command("serve", rich_help_panel=SERVE)(serve.serve)
app.command("doctor", rich_help_panel=HELP)(doctor.doctor)


def _version(requested: bool) -> None:
    if requested:
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


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our warnings are one line for users; others name their source."""
    text = f"warning: {message}\n"
    if not issubclass(category, UserWarning):
        text = warnings.formatwarning(message, category, filename, lineno, line)
    print(text, end="", file=file or sys.stderr)


def main() -> None:
    """Errors are exit code 2: known ones in one line, others with their traceback.

    Code 1 means FAIL or incomplete, so an uncaught exception, for which Python exits with 1, must
    not leave it as it is.
    """
    # OpenMP threads that spin while they wait make training 13 times slower with one other busy
    # process (2 cores, small-resnet: 86 images/s against 1,100). Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "TORCHELASTIC_RUN_ID" in os.environ:  # one log: torch's advice comes from every process
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except MidspanError as error:
        _report(type(error).__name__, str(error))
        sys.exit(exits.INTERRUPTED if isinstance(error, Interrupted) else exits.ERROR)
    except OSError as error:  # disk full, no permission, a file where a folder should be
        _report(type(error).__name__, str(error))
        sys.exit(exits.ERROR)
    except ModuleNotFoundError as error:
        missing = _missing_extra(error)
        if missing is None:
            traceback.print_exc()
        else:
            _report("MissingDependency", str(missing))
        sys.exit(exits.ERROR)
    except Exception:
        traceback.print_exc()
        sys.exit(exits.ERROR)


def _missing_extra(error: ModuleNotFoundError) -> MissingDependency | None:
    """A library of an extra that no verb has asked for by name; None for a defect of ours."""
    module = (error.name or "").partition(".")[0]
    for library, name, extra, _ in doctor.LIBRARIES:
        if extra and name == module:
            verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
            return MissingDependency(library, extra=extra, required_for=f"midspan {verb}")
    return None


def _report(kind: str, message: str) -> None:
    message = with_flags(message, sys.argv[1:])
    if "--json" in sys.argv:
        print(json.dumps({"error": {"type": kind, "message": message}}))
    print(f"error: {message}", file=sys.stderr)
