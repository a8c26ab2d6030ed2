"""DeepFashion In-Shop: shop photos searched by others of the same garment.

    list_eval_partition.txt    the number of images, 'image_name item_id evaluation_status', then
                               lines like 'img/WOMEN/…/01_1_front.jpg id_00000002 train'

Ids are the image names. Without `root`: query and gallery embeddings with labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from midspan.errors import FormatError
from midspan.evaluation.protocols.listing import Items, fields, find, image_id, items
from midspan.evaluation.protocols.outcome import Outcome
from midspan.evaluation.protocols.query_gallery import QueryGallery
from midspan.spaces import Embeddings

HEADER = "image_name item_id evaluation_status"


@dataclass(frozen=True, slots=True)
class Garments:
    """Column: labels (the item id)."""

    train: Items
    query: Items
    gallery: Items


def load(root: Path) -> Garments:
    name = "list_eval_partition.txt"
    path = find(Path(root), name, f"Eval/{name}", f"Anno/{name}")
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "query": [], "gallery": []}
    for where, (image, item, status) in fields(path, expected=HEADER, skip=2):
        if status not in parts:
            raise FormatError(f"{where}: expected status {', '.join(parts)}, got {status!r}")
        parts[status].append((image_id(image, where=where), item))
    loaded = {part: items(rows, columns=["labels"], source=path) for part, rows in parts.items()}
    return Garments(**loaded)


@dataclass(frozen=True, kw_only=True)
class InShop:
    """Recall at 1, 10, 20 and 30, as published."""

    root: Path | None = None

    default_metrics: ClassVar[tuple[str, ...]] = (
        "recall@1",
        "recall@10",
        "recall@20",
        "recall@30",
    )

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if self.root is not None:
            listed = load(self.root)
            query, gallery = (
                listed.query.of(query),
                listed.gallery.of(query if gallery is None else gallery),
            )
        return QueryGallery().evaluate(query, gallery, metrics=metrics, direct=direct)
