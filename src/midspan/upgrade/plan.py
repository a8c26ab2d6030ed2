"""What an upgrade would do: how many items, how long, how much disk, and what the gate says.

Nothing is written. Times are measured on a sample of the gallery's own items.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from midspan.bridges import Bridge
from midspan.errors import MidspanError
from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space
from midspan.upgrade.embed import Embed, embed_all
from midspan.upgrade.gate import gate
from midspan.upgrade.mixing import Mixing
from midspan.upgrade.orders import Float64
from midspan.upgrade.priorities import order_hints, paired_sample, priorities_of
from midspan.upgrade.scores import mixed_curve
from midspan.upgrade.start import mixing_for

ROW_BYTES = 48  # beside its numbers, what a stored vector costs in the embedded store
WARM_UP, TIMED = 8, 64  # items embedded to measure the time
POINTS = 11
ASKED = 1500  # items of the sample that the expected curve is computed on


@dataclass(frozen=True, slots=True)
class Plan:
    location: str
    mode: str
    order: str
    from_space: str
    to_space: str
    items: int
    to_embed: int  # items that have no vector in the new space yet
    searches_per_query: int
    disk_bytes: int  # that the upgrade adds until it is finished
    seconds_per_item: float | None  # measured; None without an encoder
    seconds: float | None
    sample: int  # items whose new vectors the evidence is from
    gate: Mapping[str, Any] | None
    curve: Mapping[str, Any] | None  # expected along the backfill, with labels
    mixing: Mapping[str, Any] | None  # how scores of the two parts would be brought together
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(
    gallery: Gallery,
    *,
    old: Space,
    new: Space,
    mode: str,
    order: str,
    bridge: Bridge | None,
    calibrate: bool | None,
    sample: Embeddings | None,
    embed: Embed | None,
) -> Plan:
    notes: list[str] = []
    counts = gallery.store.count()
    there = counts.stored.get(new.fingerprint, 0)
    to_embed = counts.items - there
    if there:
        notes.append(f"{there:,} items have a vector in {new} already: they are used")
    vectors = to_embed + (counts.items if mode == "map-gallery" else 0)
    seconds_each = None if embed is None else seconds_per_item(gallery, embed, new, notes)
    evidence, curve, size = None, None, 0
    mixing: Mixing | None = None
    if sample is not None and len(sample):
        mine, theirs = paired_sample(gallery, old.fingerprint, sample)
        size = len(mine)
        try:
            evidence = _gate(mine, theirs, mode=mode, bridge=bridge).to_dict()
            forward = bridge if mode == "map-gallery" else None
            hints = order_hints(
                gallery, order, old=old.fingerprint, sample=sample, seed=0, by=forward
            )
            place = priorities_of(gallery, order, hints, mine)
            mixing = mixing_for(
                mine, theirs, mode=mode, bridge=bridge, calibrate=calibrate, priorities=place
            )
            curve = _curve(mine, theirs, place, bridge=bridge, mixing=mixing)
        except MidspanError as error:
            notes.append(f"no full evidence: {error}")
    else:
        notes.append("no gate evidence: give new vectors of a sample of items, best with labels")
    return Plan(
        location=gallery.location,
        mode=mode,
        order=order,
        from_space=str(old),
        to_space=str(new),
        items=counts.items,
        to_embed=to_embed,
        searches_per_query=2 if mode == "map-query" or (mixing and mixing.scores) else 1,
        disk_bytes=vectors * (new.dim * 4 + ROW_BYTES),
        seconds_per_item=seconds_each,
        seconds=None if seconds_each is None else seconds_each * to_embed,
        sample=size,
        gate=evidence,
        curve=curve,
        mixing=None if mixing is None else mixing.evidence(),
        notes=tuple(notes),
    )


def seconds_per_item(gallery: Gallery, embed: Embed, new: Space, notes: list[str]) -> float | None:
    """Seconds for one item, after a warm-up; None if none could be embedded."""
    items = gallery.store.scan(filter=None, missing=None, after="", limit=WARM_UP + TIMED)
    if not items:
        return None
    warm = items[:WARM_UP] if len(items) > WARM_UP else []
    timed = items[len(warm) :]
    if warm:
        embed_all(embed, warm, space=new)
    started = time.perf_counter()
    made = embed_all(embed, timed, space=new)
    seconds = (time.perf_counter() - started) / len(timed)
    failed = {**made.failed, **made.hopeless}
    if failed:
        id, why = next(iter(failed.items()))
        notes.append(f"{len(failed)} of {len(timed)} items could not be embedded, {id!r}: {why}")
    return seconds if len(made.vectors) else None


def _gate(mine: Embeddings, theirs: Embeddings, *, mode: str, bridge: Bridge | None) -> Any:
    """The first moment after the start: new queries, nothing refreshed.

    With labels today's service is the measure. Without, its ranking is no truth: that of the new
    vectors is.
    """
    truth = theirs if mine.labels is None else None
    if mode == "map-query" and bridge is not None:
        return gate(before=mine, after=mine, query=bridge.transform(theirs), truth=truth)
    after = mine if bridge is None else bridge.transform(mine)
    return gate(before=mine, after=after, query=theirs, truth=truth)


def _curve(
    mine: Embeddings,
    theirs: Embeddings,
    priorities: Float64 | None,
    *,
    bridge: Bridge | None,
    mixing: Mixing | None,
) -> dict[str, Any] | None:
    if theirs.labels is None or priorities is None:
        return None
    rows = np.sort(np.random.default_rng(0).permutation(len(mine))[:ASKED])
    curve = mixed_curve(
        mine[rows],
        theirs[rows],
        bridge=bridge,
        labels=theirs.columns["labels"][rows],
        order=np.argsort(-priorities[rows], kind="stable"),
        fractions=np.linspace(0.0, 1.0, POINTS),
        scores=None if mixing is None else mixing.scores,
    )
    return {
        "metric": "map",
        "fractions": curve.fractions.tolist(),
        "values": curve.values.tolist(),
        "negative_flips": curve.negative_flips.tolist(),
        "area": curve.area,
    }
