"""Arguments and options that several commands of `midspan upgrade` share."""

from __future__ import annotations

from typing import Literal

import typer

LOCATION = typer.Argument(help="The gallery: shop.midspan, postgresql://…, milvus://…, qdrant://…")
TO = typer.Option("--to", help="Vectors of the new encoder (some or all items): .npz, .parquet.")
ENCODER = typer.Option(help="The new encoder: run folder, model.onnx, hf:… …")
MODE = typer.Option(
    help="direct: trained compatibly. map-query: a bridge new → old maps queries, nothing is "
    "written. map-gallery: a bridge old → new maps the stored vectors."
)
BRIDGE = typer.Option(help="Folder of the bridge, for the two map modes.")
ORDER = typer.Option(
    help="uncertainty, random, newest, most_seen, least_confidence, margin, entropy, "
    "class_distance, bridge_error, disagreement."
)
CALIBRATE = typer.Option(
    "--calibrate/--plain",
    help="Bring scores of old and new vectors to one scale: better ranking, two searches. Default: "
    "if that ranks better on held-out queries of --to NEW.npz, with labels.",
)
SAMPLE = typer.Option(
    min=0,
    help="With --encoder: items embedded first, from which evidence and scales of scores are "
    "learnt. Best where items have labels.",
)
SHADOW_OLD = typer.Option(help="Queries of the old encoder, best with labels: .npz.")
SHADOW_NEW = typer.Option(help="The same queries (by id) of the new encoder: .npz.")
MAX_FLIPS = typer.Option(help="Share of the shadow queries that may turn from right to wrong.")
MIN_RETENTION = typer.Option(help="Share of the old service's quality that must be left.")
Mode = Literal["direct", "map-query", "map-gallery"]
