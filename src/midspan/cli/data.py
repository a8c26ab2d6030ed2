"""`midspan data …`: lists of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midspan.cli.output import JSON_OPTION, print_json
from midspan.cli.outputs import FORCE, check_file
from midspan.cli.verbs import Verbs
from midspan.errors import ConfigError

app = typer.Typer(cls=Verbs, help="Lists of images.", no_args_is_help=True)

LIST = (".csv",)


@app.command("split")
def split(
    images: Annotated[Path, typer.Argument(help="Folder of class folders, or a .csv list.")],
    classes: Annotated[
        str,
        typer.Option(help="Classes of the first part: 1-100 (in sorted order), or names: cat,dog."),
    ],
    out: Annotated[Path, typer.Option(help="List of the images of these classes (.csv).")],
    rest: Annotated[Path | None, typer.Option(help="List of all other images (.csv).")] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Divide images by class, for encoders that must be tested on classes they have not seen.

    The lists name the files; nothing is copied. CUB-200-2011: --classes 1-100.
    """
    from midspan.data import in_classes, open_images, save_csv

    check_file(out, option="--out", suffixes=LIST, force=force)
    check_file(rest, option="--rest", suffixes=LIST, force=force)
    source = open_images(images)
    mask = in_classes(source, classes)
    if rest is not None and mask.all():
        raise ConfigError(f"--classes {classes}: every image is in these classes; none is left")
    written = [save_csv(source[mask], out)]
    if rest is not None:
        written.append(save_csv(source[~mask], rest))
    counts = [int(mask.sum()), int((~mask).sum())]
    if as_json:
        print_json({str(path): count for path, count in zip(written, counts, strict=False)})
        return
    for path, count in zip(written, counts, strict=False):
        print(f"{count:,} images → {path}")
