"""A small real gallery: handwritten digits as PNG files, and two encoders that are compatible.

The new encoder is the old one with weights moved by a hair: another fingerprint and other vectors,
close enough for the gate. Some ids and payloads are what an attacker would choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from midspan.gallery import Gallery
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.encoders import Encoder

ITEMS = 60
HOSTILE = {
    3: '<img src=x onerror="window.hacked=1">',
    8: '"><script>window.hacked=2</script>',
    11: "5\u202egnp.exe",
    14: "../../v1/audit?a=b#c&d=%2F javascript:window.hacked=3",
}
PAYLOAD_ATTACK = '<svg onload="window.hacked=4">'


@dataclass(frozen=True, slots=True)
class Shop:
    location: str
    old: Path
    new: Path
    images: Path
    ids: list[str]
    payloads: list[dict[str, Any]]
    vectors: FloatArray  # (N, D) of the old encoder, normalised

    def alike(self, id: str, k: int) -> list[str]:
        """The k nearest items by the old vectors, without itself."""
        row = self.ids.index(id)
        order = np.argsort(-(self.vectors @ self.vectors[row]), kind="stable")
        return [self.ids[at] for at in order if at != row][:k]

    def image(self, id: str) -> Path:
        return self.images / f"{self.ids.index(id):03d}.png"


def make_shop(folder: Path) -> Shop:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = folder / "images"
    images.mkdir(parents=True)
    pixels = np.clip(digits.images[:ITEMS] * 16, 0, 255).astype(np.uint8)
    for row, image in enumerate(pixels):
        Image.fromarray(image).resize((48, 48)).convert("RGB").save(images / f"{row:03d}.png")
    ids = [HOSTILE.get(row, f"digit-{row:03d}") for row in range(ITEMS)]
    payloads: list[dict[str, Any]] = [
        {"labels": int(digits.target[row]), "price": row / 2, "shelf": f"row {row % 4}"}
        for row in range(ITEMS)
    ]
    for row in HOSTILE:
        payloads[row] = {PAYLOAD_ATTACK: PAYLOAD_ATTACK, **payloads[row]}
    old, new = _encoders(folder)
    made = old.embed(
        np.stack([np.asarray(Image.open(images / f"{row:03d}.png")) for row in range(ITEMS)]),
        ids=ids,
        progress=False,
    )
    location = str(folder / "shop.midspan")
    uris = [str(images / f"{row:03d}.png") for row in range(ITEMS)]
    with Gallery.create(location, old.space) as gallery:
        gallery.add(made, uris=uris, payloads=payloads)
    return Shop(
        location=location,
        old=old.save(folder / "old"),
        new=new.save(folder / "new"),
        images=images,
        ids=ids,
        payloads=payloads,
        vectors=made.vectors,
    )


def _encoders(folder: Path) -> tuple[Encoder, Encoder]:
    import torch

    from midspan.encoders import Encoder, build_encoder, load_encoder

    old = build_encoder(backbone="small-cnn", dim=32, size=32, name="digits-v1", seed=0)
    old.eval()
    old.save(folder / "copy")
    new = load_encoder(str(folder / "copy"))
    assert isinstance(new, Encoder)
    new.name = "digits-v2"
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in new.parameters():
            hair = torch.randn(weight.shape, generator=noise)
            weight.add_(0.004 * weight.std(correction=0) * hair)
    new.compatible_with = (old.fingerprint(),)
    return old, new
