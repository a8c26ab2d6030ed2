"""What `midspan gallery create | add` store: vectors of a file, or images embedded in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import typer

from midspan import progress
from midspan.cli.batches import batches
from midspan.cli.spaces import SpaceNames
from midspan.cli.views import embedder_of_views, group_column, one_item_each
from midspan.errors import ConfigError, GalleryError, Interrupted, ItemError, MidspanError
from midspan.labels import warn_numbered

if TYPE_CHECKING:
    from midspan.cli.runtime import Computing
    from midspan.cli.views import EmbedViews
    from midspan.data import ImageSet
    from midspan.gallery import Gallery
    from midspan.gallery.tenants import Tenant
    from midspan.spaces import Column, Embeddings, IntArray, Space

LOOK_UP = 1000  # ids asked for at once
STEP = 64  # images of one step of an encoder on a CPU
FILL, FILLED = "create fill", "create filled"  # in the audit log, around the filling of a gallery

Uris = Sequence[str | None] | None


class ItemSource(Protocol):
    """Where the items of a gallery come from."""

    @property
    def space(self) -> Space: ...

    @property
    def key(self) -> str:
        """Names the source; the same source continues an interrupted command."""
        ...

    def write(self, gallery: Gallery | Tenant, *, replace: bool, skip_present: bool) -> None: ...


def items_from(
    embeddings: Path | None,
    images: Path | None,
    encoder: str | None,
    group_by: str | None,
    space_names: Sequence[str] | None,
    *,
    computing: Computing | None = None,
) -> ItemSource:
    """Vectors from a file (with --images: the image of each is known too), or embedded now."""
    if embeddings is None and images is None:
        raise ConfigError("give either --vectors, or --images with --encoder")
    if embeddings is not None:
        if encoder is not None:
            raise ConfigError("--vectors brings the vectors; leave --encoder out")
        spaces = SpaceNames.of(space_names, "vectors", "also")
        return _stored(spaces.load(embeddings, "vectors"), images, group_by)
    if space_names:
        raise ConfigError("--space is for --vectors; an encoder has its own space")
    if encoder is None:
        raise ConfigError("--images needs --encoder: the one whose vectors the gallery holds")
    from midspan.data import open_images

    assert images is not None
    pictures = open_images(images)
    for skipped in pictures.skipped:
        typer.echo(f"skipped {skipped}", err=True)
    space, embed = embedder_of_views(encoder, computing=computing)
    return ImageItems(space, embed, pictures, group_by)


def with_further(
    items: ItemSource,
    also: Path | None,
    also_encoder: str | None,
    space_names: Sequence[str] | None,
    *,
    computing: Computing | None = None,
) -> ItemSource:
    """The same items with vectors in a further space."""
    if also is not None:
        if not isinstance(items, VectorItems):
            raise ConfigError("--also goes with --vectors; with --images give --also-encoder")
        further = SpaceNames.of(space_names, "vectors", "also").load(also, "also")
        return replace_fields(items, also=further.take(items.vectors.ids))
    if also_encoder is not None:
        if not isinstance(items, ImageItems):
            raise ConfigError("--also-encoder goes with --images; with --vectors give --also")
        return replace_fields(items, also=embedder_of_views(also_encoder, computing=computing)[1])
    return items


def create_or_continue(location: str, items: ItemSource, *, quantise: str) -> Gallery:
    """A new gallery, or the one that the same command has begun to fill and did not finish."""
    from midspan.gallery import AuditEvent, Gallery

    try:
        gallery = Gallery.create(location, items.space, quantise=quantise)
    except GalleryError as refused:
        try:
            gallery = Gallery.open(location, encoder_space=items.space)
        except MidspanError:
            raise refused from None
        if not _unfinished(gallery, items.key):
            gallery.close()
            raise
        return gallery
    gallery.record(AuditEvent(who=gallery.who, what=FILL, details={"from": items.key}))
    return gallery


def mark_filled(gallery: Gallery, items: ItemSource) -> None:
    from midspan.gallery import AuditEvent

    gallery.record(AuditEvent(who=gallery.who, what=FILLED, details={"from": items.key}))


def _unfinished(gallery: Gallery, key: str) -> bool:
    begun = gallery.audit_log(limit=1, what=FILL)
    ended = gallery.audit_log(limit=1, what=FILLED)
    if not begun or (ended and ended[0].when >= begun[0].when):
        return False
    return bool(begun[0].details.get("from") == key)


@dataclass(frozen=True)
class VectorItems:
    vectors: Embeddings
    uris: Uris
    key: str
    also: Embeddings | None = None  # of the same items, in a further space

    @property
    def space(self) -> Space:
        return self.vectors.space

    def write(self, gallery: Gallery | Tenant, *, replace: bool, skip_present: bool) -> None:
        """`skip_present`: continue a filling; else the gallery refuses an id that is there."""
        if not skip_present:
            write(gallery, self.vectors, self.uris, replace=replace, also=self.also)
            return
        there = present(gallery, self.vectors.ids.tolist(), self.space)
        rows = [row for row, id in enumerate(self.vectors.ids.tolist()) if id not in there]
        if there:
            _say_present(len(there), len(self.vectors))
        uris = None if self.uris is None else [self.uris[row] for row in rows]
        write(gallery, self.vectors[rows], uris, replace=False)


@dataclass(frozen=True)
class ImageItems:
    """Embedded and written batch by batch, all views of an item in one batch."""

    space: Space
    embed: EmbedViews
    images: ImageSet
    group_by: str | None
    also: EmbedViews | None = None  # a further encoder

    @property
    def key(self) -> str:
        return f"{self.space.fingerprint} {self.group_by or ''} {self.images.source.signature()}"

    def write(self, gallery: Gallery | Tenant, *, replace: bool, skip_present: bool) -> None:
        """Items that have a vector of this encoder and the same uri are skipped."""
        images, item_ids = self._by_item()
        if not replace:
            images, item_ids = self._missing(gallery, images, item_ids)
        ends = np.flatnonzero(np.append(item_ids[1:] != item_ids[:-1], len(item_ids) > 0)) + 1
        start, before = 0, len(self.images) - len(images)
        label = f"embed with {self.space.name}"
        try:
            with progress.bar(label, total=len(images), unit="images", show=True) as done:
                for rows in batches(len(images), step=STEP):
                    if rows.stop <= start:
                        continue  # the views of the last item reached beyond its batch
                    stop = int(ends[np.searchsorted(ends, rows.stop)])
                    self._write_part(gallery, images[start:stop], replace=replace)
                    done(stop - start)
                    start = stop
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped: {before + start:,} of {len(self.images):,} images are in; run the same "
                "command to continue"
            ) from None

    def _write_part(self, gallery: Gallery | Tenant, images: ImageSet, *, replace: bool) -> None:
        vectors = self.embed(
            images, lambda name, why: typer.echo(f"skipped {name}: {why}", err=True)
        )
        if not len(vectors):
            return
        places = {str(name): row for row, name in enumerate(images.ids)}
        uris: Uris = [images.uri(places[str(name)]) for name in vectors.ids]
        vectors, uris = one_item_each(vectors, uris, group_by=self.group_by)
        further = None
        if self.also is not None:  # of those that the first encoder could read
            further, _ = one_item_each(
                self.also(images, lambda name, why: None), None, group_by=self.group_by
            )
            further = further.take(vectors.ids)
        write(gallery, vectors, uris, replace=replace, also=further)

    def _by_item(self) -> tuple[ImageSet, Column]:
        """(images, item of each); the views of an item follow one another."""
        if self.group_by is None:
            return self.images, self.images.ids
        images, groups = group_column(self.images, self.group_by)
        order = np.argsort(groups, kind="stable")
        return images[order], groups[order].astype(np.str_)

    def _missing(
        self, gallery: Gallery | Tenant, images: ImageSet, item_ids: Column
    ) -> tuple[ImageSet, Column]:
        names, first = np.unique(item_ids, return_index=True)
        there = present(gallery, names.tolist(), self.space)
        other = [
            id
            for id, row in zip(names.tolist(), first.tolist(), strict=True)
            if id in there and there[id] != images.uri(row)
        ]
        if other:
            raise ItemError(
                f"{gallery.location}: {len(other):,} of these ids exist already with another "
                f"image, first {other[0]!r}; give such items other ids, or add --replace"
            )
        if there:
            _say_present(len(there), len(names))
        rows: IntArray = np.flatnonzero(~np.isin(item_ids, list(there)))
        return images[rows], item_ids[rows]


def present(gallery: Gallery | Tenant, ids: Sequence[str], space: Space) -> dict[str, str | None]:
    """Id → uri of those that have a vector in this space."""
    uris: dict[str, str | None] = {}
    for start in range(0, len(ids), LOOK_UP):
        for item in gallery.get_many(ids[start : start + LOOK_UP]):
            if space.fingerprint in item.spaces:
                uris[item.id] = item.uri
    return uris


def write(
    gallery: Gallery | Tenant,
    vectors: Embeddings,
    uris: Uris,
    *,
    replace: bool,
    also: Embeddings | None = None,
) -> None:
    """Columns of the embeddings become the payload, as in `Gallery.add`."""
    (gallery.put if replace else gallery.add)(
        vectors, also=[] if also is None else [also], uris=uris
    )


def _stored(vectors: Embeddings, images: Path | None, group_by: str | None) -> VectorItems:
    from midspan.spaces import fingerprint

    if vectors.numbered:
        warn_numbered(what="file")
    uris = None
    if images is not None:
        from midspan.data import open_images

        pictures = open_images(images)
        row_of = {id: row for row, id in enumerate(pictures.ids.tolist())}
        missing = [id for id in vectors.ids.tolist() if id not in row_of]
        if missing:
            raise ConfigError(
                f"--images {images} has no image for {len(missing):,} of the "
                f"{len(vectors):,} ids of --vectors, first {missing[0]!r} (its first image is "
                f"{str(pictures.ids[0])!r}); images are found by id"
            )
        uris = [pictures.uri(row_of[id]) for id in vectors.ids.tolist()]
    key = fingerprint(vectors.space.fingerprint, group_by or "", "\n".join(vectors.ids.tolist()))
    fused, uris_of_items = one_item_each(vectors, uris, group_by=group_by)
    return VectorItems(fused, uris_of_items, key)


def _say_present(count: int, all_: int) -> None:
    typer.echo(f"{count:,} of {all_:,} items exist already: skipped", err=True)
