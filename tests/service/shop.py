"""A small shop: pictures of six kinds, an old and a new encoder, and a gallery of their vectors."""

from __future__ import annotations

import functools
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from midspan.data.decode import Pixels
from midspan.encoders import Encoder, build_encoder
from midspan.gallery import Gallery
from midspan.service.app import close_all
from midspan.service.encoding import Encoders
from midspan.service.resources import Resources
from midspan.service.search_service import SearchService
from midspan.service.settings import GallerySettings, Limits
from midspan.spaces import Embeddings

KINDS = 6
SIZE = 32
LOCAL = "http://127.0.0.1:8080"
QUICK = Limits(waiting=64, decode_workers=1, encode_wait=0.0)


@dataclass(frozen=True)
class Shop:
    folder: Path
    old: Path  # encoder folders
    new: Path
    images: Path


def picture(number: int) -> Pixels:
    """(32, 32, 3): stripes of the kind's direction and colour, with noise of its own."""
    kind = number % KINDS
    rng = np.random.default_rng(number)
    row, column = np.mgrid[:SIZE, :SIZE]
    wave = np.sin((row * np.cos(kind) + column * np.sin(kind)) * (0.3 + 0.1 * kind))
    colour = np.random.default_rng(100 + kind).uniform(60, 190, 3)
    values = colour + 50 * wave[..., None] + rng.normal(0, 12, (SIZE, SIZE, 3))
    made: Pixels = values.clip(0, 255).astype(np.uint8)
    return made


def encoded(number: int, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(number)).save(out, kind)
    return out.getvalue()


def name(number: int) -> str:
    return f"kind{number % KINDS}/{number:04d}"


def make_shop(folder: Path, *, pictures: int = 60) -> Shop:
    """The new encoder is the old one with slightly other weights, on record as compatible."""
    import torch

    images = folder / "images"
    images.mkdir(parents=True)
    for number in range(pictures):
        (images / f"{number:04d}.png").write_bytes(encoded(number))
    old = _encoder("old")
    new = _encoder("new")
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        for tensor in new.parameters():
            tensor.add_(0.03 * tensor.std() * torch.randn(tensor.shape, generator=generator))
    new.compatible_with = (old.space.fingerprint,)
    return Shop(folder, old.save(folder / "old"), new.save(folder / "new"), images)


def _encoder(name: str) -> Encoder:
    settings = {"width": 8}
    made = build_encoder(backbone="small-cnn", dim=16, seed=1, name=name, settings=settings)
    made.eval()
    return made


def make_gallery(shop: Shop, place: Path | str, *, count: int = 60) -> str:
    """A copy of one that was made before: most tests want their own."""
    shutil.copy(_first_gallery(shop, count), place)
    return str(place)


@functools.cache
def _first_gallery(shop: Shop, count: int) -> Path:
    encoder = _encoders(str(shop.old)).loaded[0]
    numbers = list(range(count))
    ids = np.array([name(n) for n in numbers])
    vectors = Embeddings(ids, encoder.vectors([picture(n) for n in numbers]), encoder.space)
    place = shop.folder / f"{count}.midspan"
    with Gallery.create(place, vectors.space) as gallery:
        gallery.add(
            vectors,
            uris=[str(shop.images / f"{n:04d}.png") for n in numbers],
            payloads=[{"labels": n % KINDS, "price": n} for n in numbers],
        )
    return place


def new_vectors(shop: Shop, *, count: int = 60) -> Embeddings:
    """What the new encoder makes of the gallery's pictures."""
    new = _encoders(str(shop.new)).loaded[0]
    ids = np.array([name(n) for n in range(count)])
    return Embeddings(ids, new.vectors([picture(n) for n in range(count)]), new.space)


@functools.cache
def _encoders(*folders: str) -> Encoders:
    return Encoders.load(folders)


def settings_for(shop: Shop, place: str, **changes: Any) -> GallerySettings:
    values: dict[str, Any] = {
        "gallery": place,
        "encoder": str(shop.old),
        "new_encoder": str(shop.new),
        "images": (shop.images,),
        "batch": 8,
    }
    return GallerySettings(**{**values, **changes})


def open_service(
    shop: Shop,
    place: str,
    *,
    limits: Limits = QUICK,
    resources: Resources | None = None,
    **changes: Any,
) -> SearchService:
    """SearchService.open with encoders loaded once. resources: of the default gallery."""
    settings = settings_for(shop, place, **changes)
    names = [one for one in (settings.encoder, settings.new_encoder) if one is not None]
    gallery = Gallery.open(place, who="service@test")
    return SearchService(
        settings,
        gallery=gallery,
        encoders=_encoders(*names),
        resources=resources or Resources(limits),
        default=resources is None,
    )


def close(service: SearchService) -> None:
    """One that no application closes."""
    close_all([service])
