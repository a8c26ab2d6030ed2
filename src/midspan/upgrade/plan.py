"""What an upgrade would do: how many items, how long, how much disk, and what the gate says.

Nothing is written but the sample, which `start` uses again. Times are measured on some of the
gallery's own items.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.average_precision import average_precision, hit_ranks
from midspan.bridges import Bridge
from midspan.errors import MidspanError
from midspan.gallery import Gallery
from midspan.gallery.engines.base import prepare
from midspan.gallery.routing import Float64, moments, sample_scores, standardise
from midspan.html_table import html_facts
from midspan.labels import codes
from midspan.spaces import Column, Embeddings, FloatArray, Metric, Space, unit_prefix
from midspan.upgrade.embed import Embed, embed_all
from midspan.upgrade.gate import gate
from midspan.upgrade.orders import default_order
from midspan.upgrade.priorities import (
    check_sample,
    kept_sample,
    order_hints,
    paired_sample,
    priorities_of,
)
from midspan.upgrade.start import compatibility

ROW_BYTES = 48  # besides its numbers, what a stored vector costs in the embedded store
WARM_UP, TIMED = 8, 64  # items embedded to measure the time
POINTS = 11
ASKED = 1500  # items of the sample that the expected curve is computed on


@dataclass(frozen=True, slots=True)
class Plan:
    """What an upgrade would do; `Upgrade.plan` makes it."""

    location: str
    mode: str
    order: str
    from_space: str
    to_space: str
    items: int
    to_embed: int  # items that have no vector in the new space yet
    searches_per_query: int
    encoders_per_query: int
    disk_bytes: int  # that the upgrade adds until it is finished
    seconds_per_item: float | None  # measured; None without an encoder
    seconds: float | None
    sample: int  # items whose new vectors the evidence is from
    compatibility: Mapping[str, Any] | None  # of mode direct: what the encoder's own test found
    gate: Mapping[str, Any] | None
    curve: Mapping[str, Any] | None  # expected along the backfill, with labels
    standardised: bool  # scores of the two parts are merged over the sample; else as they are
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        verdict = f", gate {self.gate['verdict']}" if self.gate else ""
        return (
            f"Plan({self.location}: {self.from_space} → {self.to_space}, mode {self.mode}, "
            f"{self.to_embed:,} of {self.items:,} items to embed{verdict})"
        )

    def _repr_html_(self) -> str:
        facts = self.to_dict()
        facts["gate"] = self.gate["verdict"] if self.gate else None
        for name in ("compatibility", "curve", "notes"):
            del facts[name]
        return html_facts("plan of an upgrade", facts, note=" ".join(self.notes))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(
    gallery: Gallery,
    *,
    old: Space,
    new: Space,
    mode: str,
    order: str | None,
    bridge: Bridge | None,
    sample: Embeddings | None,
    embed: Embed | None,
    sample_size: int,
) -> Plan:
    notes: list[str] = []
    counts = gallery.count()
    there = counts.stored.get(new.fingerprint, 0)
    to_embed = counts.items - there
    if there:
        notes.append(f"{there:,} items have a vector in {new} already: they are used")
    vectors = to_embed + (counts.items if mode == "map-gallery" else 0)
    kept = kept_sample(gallery, old=old, new=new, given=sample, embed=embed, count=sample_size)
    check_sample(
        mode,
        old=old,
        new=new,
        exists=kept is not None,
        items=counts.items,
        size=sample_size,
    )
    if sample is None and kept is not None:
        sample = Embeddings(kept[1].ids, kept[1].new, new)
    order = order or default_order(mode, sampled=kept is not None)
    by_prefix = mode == "direct" and new.dim != old.dim
    seconds_each = None if embed is None else seconds_per_item(gallery, embed, new, notes)
    evidence, curve, size = None, None, 0
    if sample is not None and len(sample):
        mine, theirs = paired_sample(gallery, old.fingerprint, sample)
        size = len(mine)
        try:
            evidence = _gate(mine, theirs, mode=mode, bridge=bridge).to_dict()
            hints = order_hints(gallery, order, old=old.fingerprint, sample=sample, seed=0)
            place = priorities_of(gallery, order, hints, mine)
            scaled = kept is not None
            curve = _curve(mine, theirs, place, mode=mode, bridge=bridge, scaled=scaled)
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
        searches_per_query=2
        if mode in ("map-query", "both") or kept is not None or by_prefix
        else 1,
        encoders_per_query=2 if mode == "both" else 1,
        disk_bytes=vectors * (new.dim * 4 + ROW_BYTES),
        seconds_per_item=seconds_each,
        seconds=None if seconds_each is None else seconds_each * to_embed,
        sample=size,
        compatibility=asdict(compatibility(old, new)) if mode == "direct" else None,
        gate=evidence,
        curve=curve,
        standardised=kept is not None,
        notes=tuple(notes),
    )


def seconds_per_item(gallery: Gallery, embed: Embed, new: Space, notes: list[str]) -> float | None:
    """Seconds for one item, after a warm-up; None if none could be embedded."""
    items = gallery.scan(limit=WARM_UP + TIMED)
    if not items:
        return None
    warm = items[:WARM_UP] if len(items) > WARM_UP else []
    timed = items[len(warm) :]
    if warm:
        embed_all(embed, warm, space=new)
    started = time.perf_counter()
    embedded = embed_all(embed, timed, space=new)
    seconds = (time.perf_counter() - started) / len(timed)
    failed = {**embedded.failed, **embedded.hopeless}
    if failed:
        id, why = next(iter(failed.items()))
        notes.append(f"{len(failed)} of {len(timed)} items could not be embedded, {id!r}: {why}")
    return seconds if len(embedded.vectors) else None


def _gate(mine: Embeddings, theirs: Embeddings, *, mode: str, bridge: Bridge | None) -> Any:
    """The first moment after the start: new queries, nothing refreshed.

    With labels today's service is the measure. Without, its ranking is no truth: that of the new
    vectors is.
    """
    truth = theirs if mine.labels is None else None
    if mode == "map-query" and bridge is not None:
        return gate(before=mine, after=mine, query=bridge.transform(theirs), truth=truth)
    if mode == "both":  # nothing is refreshed yet: that is the old service itself
        return gate(before=mine, after=mine, truth=truth)
    after = mine if bridge is None else bridge.transform(mine)
    dims = theirs.space.prefix_for(mine.space) if bridge is None else None
    query = theirs if dims is None else theirs.prefix(dims)
    return gate(before=mine, after=after, query=query, truth=truth)


def _curve(
    mine: Embeddings,
    theirs: Embeddings,
    priorities: Float64 | None,
    *,
    mode: str,
    bridge: Bridge | None,
    scaled: bool,
) -> dict[str, Any] | None:
    if theirs.labels is None or priorities is None:
        return None
    rows = np.sort(np.random.default_rng(0).permutation(len(mine))[:ASKED])
    curve = mixed_curve(
        mine[rows],
        theirs[rows],
        mode=mode,
        bridge=bridge,
        labels=theirs.columns["labels"][rows],
        order=np.argsort(-priorities[rows], kind="stable"),
        fractions=np.linspace(0.0, 1.0, POINTS),
        scaled=scaled,
    )
    return {
        "metric": "map",
        "fractions": curve.fractions.tolist(),
        "values": curve.values.tolist(),
        "negative_flips": curve.negative_flips.tolist(),
        "area": curve.area,
    }


# ---- expected quality along a backfill, all with all: for samples of some thousand items ---------


Bools = npt.NDArray[np.bool_]


def all_scores(query: FloatArray, items: FloatArray, metric: Metric) -> Float64:
    """(Q, G) the scores that a gallery gives."""
    return sample_scores(query, prepare(items, metric=metric), metric=metric)


def part_scores(
    old: Embeddings, new: Embeddings, *, mode: str, bridge: Bridge | None
) -> tuple[Float64, Float64]:
    """(N, N) scores of each item as a query, on the old part and on the new one."""
    query, items, metric = new.vectors, old.vectors, old.space.metric
    if mode == "both":
        query = old.vectors
    elif bridge is not None and mode == "map-query":
        query = bridge.transform(new).vectors
    elif bridge is not None:
        items, metric = bridge.transform(old).vectors, new.space.metric
    elif dims := new.space.prefix_for(old.space):
        query = unit_prefix(query, dims)
    fresh = all_scores(new.vectors, new.vectors, new.space.metric)
    return all_scores(query, items, metric), fresh


def on_one_scale(
    stale: Float64, fresh: Float64, sample: npt.NDArray[np.int64]
) -> tuple[Float64, Float64]:
    """(Q, G) scores of both parts standardised over these columns, as a search does it."""
    before, after = moments(stale[:, sample]), moments(fresh[:, sample])
    return standardise(stale, before), standardise(fresh, after)


def mixed_ranking(
    stale: npt.NDArray[Any], fresh: npt.NDArray[Any], refreshed: Bools, *, own: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """(Q, G − 1) columns from the best on, where some have fresh scores and the others stale ones.

    own: (Q,) the column of each query's own item, which is left out. Equal scores stand in the
    order of the columns.
    """
    both = np.where(refreshed, fresh, stale)
    both[np.arange(len(both)), own] = -np.inf
    ranking: npt.NDArray[np.int64] = np.argsort(-both, axis=1, kind="stable")[:, :-1]
    return ranking


@dataclass(frozen=True, slots=True)
class MixedCurve:
    """Along a backfill: mean average precision, and the queries that lost their first hit."""

    fractions: Float64
    values: Float64
    negative_flips: Float64  # share of the queries, against the old service

    @property
    def area(self) -> float:
        """Under the curve, over its width."""
        heights = (self.values[1:] + self.values[:-1]) / 2
        return float((np.diff(self.fractions) * heights).sum() / np.ptp(self.fractions))


def mixed_curve(
    old: Embeddings,
    new: Embeddings,
    *,
    mode: str,
    bridge: Bridge | None,
    labels: Column,
    order: npt.NDArray[np.int64],
    fractions: Float64,
    scaled: bool = True,
) -> MixedCurve:
    """Every item asks all others, in any mode of an upgrade; as `evaluation.backfill_curve`.

    order: rows, those that are refreshed first before the others. scaled: scores are standardised
    over these items, as they are over the upgrade's sample.
    """
    by_id = np.argsort(new.ids, kind="stable")  # equal scores stand in the order of the ids
    own = np.argsort(by_id, kind="stable")
    stale, fresh = (part[:, by_id] for part in part_scores(old, new, mode=mode, bridge=bridge))
    if scaled:
        stale, fresh = on_one_scale(stale, fresh, np.arange(len(old)))
    (kinds,) = codes(labels)
    matches = (kinds[:, None] == kinds[None, :])[:, by_id]
    matches[np.arange(len(own)), own] = False
    answered = matches.any(axis=1)
    before = all_scores(old.vectors, old.vectors, old.space.metric)[:, by_id]
    nothing = np.zeros(len(own), dtype=bool)
    was_right = _first_right(mixed_ranking(before, before, nothing, own=own), matches)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    values, flips = [], []
    for share in fractions:
        refreshed = place[by_id] < np.floor(share * len(order) + 1e-9)
        ranked = mixed_ranking(stale, fresh, refreshed, own=own)
        right = np.take_along_axis(matches, ranked, axis=1)
        values.append(average_precision(*hit_ranks(right))[answered].mean())
        lost = was_right & ~_first_right(ranked, matches)
        flips.append(lost[answered].mean())
    return MixedCurve(fractions, np.array(values), np.array(flips))


def _first_right(ranked: npt.NDArray[np.int64], matches: Bools) -> Bools:
    return np.asarray(matches[np.arange(len(ranked)), ranked[:, 0]])
