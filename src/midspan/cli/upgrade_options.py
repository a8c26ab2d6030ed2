"""Arguments and options that several commands of `midspan upgrade` share."""

from __future__ import annotations

from typing import Literal

import typer

LOCATION = typer.Argument(help="The gallery: shop.midspan, postgresql://…, milvus://…, qdrant://…")
TO = typer.Option("--to", help="Vectors of the new encoder (some or all items): .npz, .parquet.")
ENCODER = typer.Option(help="The new encoder: run folder, model.onnx, hf:… …")
MODE = typer.Option(
    help="direct: trained compatibly. map-query: a bridge new → old maps queries, nothing is "
    "written. map-gallery: a bridge old → new maps the stored vectors. both: each query is "
    "embedded by both encoders, no bridge."
)
BRIDGE = typer.Option(help="Folder of the bridge, for the two map modes.")
ORDER = typer.Option(
    help="uncertainty, disagreement (of bridges), traffic (what searches return), newest, random. "
    "Default: disagreement in the map modes if there is a sample, else uncertainty."
)
SAMPLE = typer.Option(
    min=0,
    help="Items that scores of old and new vectors are standardised over; with --encoder they are "
    "embedded once and kept. 0: scores are merged as they are.",
)
TRAFFIC = typer.Option(
    help="Share of the queries that the new way answers (5%, 0.05); 0: shadow. The rest is "
    "answered as before."
)
SHADOW_OLD = typer.Option(
    help="Queries of the old encoder, best with labels: .npz. Default: the kept sample."
)
SHADOW_NEW = typer.Option(help="The same queries (by id) of the new encoder: .npz.")
QUERIES = typer.Option(
    "--queries",
    help='Log of clicks, a line each: {"id": "query", "clicked": ["item", …]}; the ids are those '
    "of the shadow queries.",
)
GROUP = typer.Option(
    help="Column of the queries, or payload field: no group of it may be significantly worse."
)
MAX_FLIPS = typer.Option(
    help="A limit on the share of queries that turn from right to wrong; default: none."
)
MIN_RETENTION = typer.Option(help="Share of the old service's quality that must be left.")
OVERRIDE = typer.Option(
    metavar="REASON", help="Continue although the gate did not pass; the reason is recorded."
)
Mode = Literal["direct", "map-query", "map-gallery", "both"]


def share(text: str) -> float:
    """5%, 0.05."""
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}; expected a share: 5%, 0.05") from error
    if 1 < value <= 100 and not plain.endswith("%"):
        raise typer.BadParameter(f"{text!r}; expected a share: did you mean {plain}%?")
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{text!r}; expected a share between 0 and 100%")
    return value
