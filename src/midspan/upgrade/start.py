"""The start of an upgrade: what is refused, the one row that changes, the map, the priorities."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from midspan import progress
from midspan.bridges import Bridge, load_bridge
from midspan.errors import ConfigError, EvidenceFailed, GalleryError, SpaceMismatch
from midspan.evidence import Evidence
from midspan.gallery import Gallery, State
from midspan.gallery.records import MODES, Mode, Record
from midspan.gallery.routing import PairedSample, load_bridge_blob, store_bridge
from midspan.spaces import Embeddings, Space, fingerprint
from midspan.upgrade.embed import Embed
from midspan.upgrade.orders import Hints, default_order
from midspan.upgrade.priorities import (
    check_order,
    check_sample,
    kept_sample,
    order_hints,
    prioritise,
    priority_floors,
)
from midspan.upgrade.steps import change, check_override, check_traffic, open_record


class HasSpace(Protocol):
    """Embeddings, or an encoder."""

    @property
    def space(self) -> Space: ...


def start(
    gallery: Gallery,
    *,
    to: Space | HasSpace,
    mode: Mode,
    bridge: str | Path | None,
    order: str | None,
    sample: Embeddings | None,
    embed: Embed | None,
    sample_size: int,
    traffic: float,
    rollback: bool,
    override: str | None,
    seed: int,
    show: bool,
) -> None:
    """See Upgrade.start. What can be refused is refused before anything is embedded or written."""
    new, sample = space_of(to), sample_of(to, sample)
    check_order(gallery, order)
    check_traffic(traffic)
    reason = check_override(override)
    before = Record.of(gallery.state)
    if before is not None and before.phase == "mapping":
        if (before.mode, before.new) != (mode, new.fingerprint):
            raise _already_open(gallery, before)
    else:
        old = check_start(gallery, gallery.state, new, mode=mode, bridge=bridge)
        evidence = compatibility(old, new) if mode == "direct" else None
        check_evidence(gallery, evidence, override=reason)
        kept = kept_sample(
            gallery, old=old, new=new, given=sample, embed=embed, count=sample_size, seed=seed
        )
        check_sample(
            mode,
            old=old,
            new=new,
            exists=kept is not None,
            items=len(gallery),
            size=sample_size,
        )
        if sample is None and kept is not None:
            sample = Embeddings(kept[1].ids, kept[1].new, new)
        order = order or default_order(mode, sampled=kept is not None)
        hints = order_hints(gallery, order, old=old.fingerprint, sample=sample, seed=seed)
        record = Record(
            mode=mode,
            old=old.fingerprint,
            new=new.fingerprint,
            phase="mapping" if mode == "map-gallery" else "running",
            started=time.time(),
            rollback=rollback,
            sample=None if kept is None else kept[0],
            traffic=float(traffic),
            **_remembered(gallery, old=old, new=new),
        )
        if bridge is not None:
            # In the catalogue, where every host that searches has it.
            digest = store_bridge(gallery.blobs, bridge)
            record = dataclasses.replace(record, bridge=str(bridge), digest=digest)
        details: dict[str, Any] = {} if reason is None else {"override": reason}
        if evidence is not None:
            details["evidence"] = str(evidence)
        _open(gallery, record, old=old, new=new, bridge=bridge, details=details)
        _map(gallery, show=show)
        _write_order(gallery, order, hints, show=show)
        return
    _map(gallery, show=show)
    order = order or default_order(mode, sampled=before.sample is not None)
    reorder(gallery, order, sample=sample, seed=seed, show=show)


LOOKED = 2000  # lines of the audit log that are looked through for the last rollback


def _remembered(gallery: Gallery, *, old: Space, new: Space) -> dict[str, Any]:
    """The FAIL of the same vectors: a rollback and a start do not make them better."""
    if not gallery.count().stored.get(new.fingerprint):
        return {}
    for event in gallery.audit_log(limit=LOOKED):  # newest first
        said = event.details
        if event.what == "upgrade rollback" and said.get("from") == new.fingerprint:
            known = said.get("gate") == "FAIL" and said.get("to") == old.fingerprint
            return {"gate": "FAIL", "evidence": said.get("evidence")} if known else {}
    return {}


def _map(gallery: Gallery, *, show: bool) -> None:
    """Map all, switch over, and map what came in between."""
    record = open_record(gallery)
    if record.mapped is None:
        return
    mapped = record.mapped
    map_items(gallery, record, show=show)

    def switch(state: State) -> State:
        now = Record.of(state)
        if now is None or now.phase != "mapping":
            return state
        return dataclasses.replace(
            state,
            live=(now.new, mapped, now.old),
            target=now.new,
            upgrade=dataclasses.replace(now, phase="running").to_json(),
        )

    change(gallery, switch, what="upgrade mapped", details={"to": record.new})
    map_items(gallery, record)


def reorder(
    gallery: Gallery,
    order: str,
    *,
    sample: Embeddings | None = None,
    seed: int = 0,
    show: bool = False,
) -> int:
    """Write the priorities of what is left; at any time, with any order."""
    check_order(gallery, order)
    record = open_record(gallery)
    if gallery.state.target is None:
        raise GalleryError(
            f"{gallery.location}: the upgrade is {record.phase} and no item waits for its new "
            "vector; there is nothing to put in order"
        )
    if sample is None and record.sample is not None:
        kept = PairedSample.from_bytes(gallery.blobs.get(record.sample))
        sample = Embeddings(kept.ids, kept.new, gallery.state.spaces[record.new])
    hints = order_hints(gallery, order, old=record.old, sample=sample, seed=seed)
    return _write_order(gallery, order, hints, show=show)


def _write_order(gallery: Gallery, order: str, hints: Hints | None, *, show: bool) -> int:
    record, looked, floors = open_record(gallery), 0, None
    if hints is not None:
        floors = priority_floors(gallery, order, hints, space=record.old)
        looked = prioritise(gallery, order, hints, space=record.old, floors=floors, show=show)

    def step(state: State) -> State:
        now = Record.of(state)
        if now is None:
            return state
        return dataclasses.replace(state, upgrade=dataclasses.replace(now, order=order).to_json())

    details = {
        "order": order,
        "items": looked,
        "levels": None if floors is None else len(floors),
    }
    change(gallery, step, what="upgrade order", details=details)
    return looked


def space_of(to: Space | HasSpace) -> Space:
    return to if isinstance(to, Space) else to.space


def sample_of(to: Space | HasSpace, sample: Embeddings | None) -> Embeddings | None:
    if sample is None and isinstance(to, Embeddings):
        return to
    if sample is not None and not sample.space.same_as(space_of(to)):
        raise SpaceMismatch(f"the sample is in {sample.space}, the upgrade leads to {space_of(to)}")
    return sample


def check_start(
    gallery: Gallery, state: State, new: Space, *, mode: str, bridge: str | Path | None
) -> Space:
    """The space that is left; refuses what cannot be started."""
    check_bridge_given(mode, bridge)
    check_closed(gallery, state)
    old = state.spaces[state.live[0]]
    if new.fingerprint == old.fingerprint:
        raise SpaceMismatch(f"{gallery.location} is in {old} already; there is nothing to upgrade")
    if mode == "direct" and not (new.comparable_with(old) or new.prefix_for(old)):
        raise SpaceMismatch(
            f"{new} is not on record as compatible with {old}, so its queries cannot be "
            "compared with the stored vectors. Ways out: train the new encoder compatibly "
            "(method = 'bct'), start with `mode` both while the old encoder still runs, or fit "
            "a bridge and start with `mode` map-query or map-gallery"
        )
    if bridge is not None:
        check_bridge(load_bridge(bridge), mode=mode, old=old, new=new)
    return old


def check_closed(gallery: Gallery, state: State) -> None:
    """An upgrade begins where no other one is open."""
    if (record := Record.of(state)) is not None:
        raise _already_open(gallery, record)
    if len(state.live) > 1:
        raise GalleryError(
            f"{gallery.location} still holds mapped vectors of an earlier upgrade; embed the rest "
            "with midspan upgrade run first"
        )


def check_bridge_given(mode: str, bridge: str | Path | None) -> None:
    """The modes that map require a bridge, the others take none."""
    if mode not in MODES:
        raise ConfigError(f"expected mode {', '.join(MODES)}, got {mode!r}")
    maps = mode in ("map-query", "map-gallery")
    if maps and bridge is None:
        direction = "new to old" if mode == "map-query" else "old to new"
        raise ConfigError(
            f"mode {mode} requires a bridge from {direction} (`bridge`, a folder), got none; fit "
            "one with midspan bridge fit"
        )
    if not maps and bridge is not None:
        does = (
            "compares vectors as they are" if mode == "direct" else "searches each part by itself"
        )
        raise ConfigError(f"mode {mode} {does} and takes no bridge; leave out `bridge`")


def compatibility(old: Space, new: Space) -> Evidence:
    """What is on record about comparing the two as they are."""
    evidence = new.evidence_for(old)
    return evidence or Evidence.missing(old.fingerprint, why="recorded without evidence")


def check_evidence(gallery: Gallery, evidence: Evidence | None, *, override: str | None) -> None:
    """A FAIL of the encoder's own test is ignored only for a reason, which is recorded."""
    if evidence is not None and evidence.verdict == "FAIL" and override is None:
        raise EvidenceFailed(
            f"{gallery.location}: the test of the new encoder's training says that its queries "
            f"search the old gallery worse ({evidence}). Train it again, start in another mode, or "
            'start with `override` "reason"'
        )


def _already_open(gallery: Gallery, record: Record) -> GalleryError:
    if record.phase in ("finished", "forgetting"):
        return GalleryError(
            f"{gallery.location}: the last upgrade is finished and its old vectors are kept; drop "
            "them with midspan upgrade forget, or roll back, before the next one"
        )
    return GalleryError(
        f"{gallery.location}: an upgrade ({record.mode}, {record.phase}) to "
        f"{gallery.state.spaces[record.new]} is open; continue it with midspan upgrade run, or "
        "finish it or roll it back before the next one"
    )


def _open(
    gallery: Gallery,
    record: Record,
    *,
    old: Space,
    new: Space,
    bridge: str | Path | None,
    details: Mapping[str, Any],
) -> None:
    """One transaction: the new space, what is live, what is to be made."""
    spaces = {new.fingerprint: new}
    live: tuple[str, ...] = (new.fingerprint, old.fingerprint)
    target = new.fingerprint
    if record.mode == "map-gallery":
        assert record.digest is not None
        mapped = mapped_space(record.digest, old=old, new=new)
        spaces[mapped.fingerprint] = mapped
        record = dataclasses.replace(record, mapped=mapped.fingerprint)
        live, target = (old.fingerprint,), mapped.fingerprint

    def step(state: State) -> State:
        check_start(gallery, state, new, mode=record.mode, bridge=bridge)
        return dataclasses.replace(
            state,
            spaces={**state.spaces, **spaces},
            live=live,
            target=target,
            upgrade=record.to_json(),
        )

    details = {
        "mode": record.mode,
        "from": old.fingerprint,
        "to": new.fingerprint,
        "traffic": record.traffic,
        **details,
    }
    change(gallery, step, what="upgrade start", details=details)


# ---- bridges in an upgrade: which one it is, the space its vectors get, the pass over the gallery

PAGE = 2000  # items mapped in one transaction


def mapped_space(digest: str, *, old: Space, new: Space) -> Space:
    """The space of mapped vectors: never taken for true new ones, comparable with them.

    Its fingerprint is derived from the bridge and both ends, so another bridge makes another
    space, and the same one finds what it has mapped before.
    """
    return Space(
        name=f"{new.name} from {old.name}",
        dim=new.dim,
        metric=new.metric,
        fingerprint=f"mapped:{fingerprint(digest, old.fingerprint, new.fingerprint)}",
        compatible_with=(new.fingerprint,),
    )


def check_bridge(bridge: Bridge, *, mode: str, old: Space, new: Space) -> None:
    """map-query requires new → old, map-gallery old → new."""
    expected = (new, old) if mode == "map-query" else (old, new)
    if bridge.source.same_as(expected[0]) and bridge.target.same_as(expected[1]):
        return
    if bridge.source.same_as(expected[1]) and bridge.target.same_as(expected[0]):
        other = "map-gallery" if mode == "map-query" else "map-query"
        raise SpaceMismatch(
            f"this bridge leads from {bridge.source} to {bridge.target}: that is the direction of "
            f"mode {other}. Start in that mode, or fit the other direction for {mode}: "
            "midspan bridge fit, with source and target exchanged"
        )
    raise SpaceMismatch(
        f"mode {mode}: expected a bridge from {expected[0]} to {expected[1]}, got one from "
        f"{bridge.source} to {bridge.target}"
    )


def check_end(folder: str | Path, *, mode: str, old: Space) -> None:
    """The end of the bridge that the gallery is at; the other one is known with the encoder."""
    bridge = load_bridge(folder)
    mine, expected = (bridge.target, "to") if mode == "map-query" else (bridge.source, "from")
    if not mine.same_as(old):
        raise SpaceMismatch(
            f"this bridge leads from {bridge.source} to {bridge.target}; mode {mode} requires one "
            f"that leads {expected} {old}, which the gallery is in"
        )


def map_items(gallery: Gallery, record: Record, *, show: bool = False) -> int:
    """Give a mapped vector to each item that has an old one and no true new one.

    May be repeated and stopped at any moment: an item that has its vector is passed over.
    """
    assert record.mapped is not None
    bridge = load_bridge_blob(gallery.blobs, record)
    space = gallery.state.spaces[record.mapped]
    written, after = 0, ""
    with progress.bar("map", total=gallery.count().items, unit="items", show=show) as done:
        while page := gallery.scan(missing=record.mapped, after=after, limit=PAGE):
            after = page[-1].id
            wanting = {item.id: item.revision for item in page if record.new not in item.spaces}
            old = gallery.vectors(list(wanting), space=record.old)
            if len(old):
                vectors = Embeddings(old.ids, bridge.transform(old).vectors, space)
                revisions = [wanting[id] for id in old.ids.tolist()]
                written += gallery.add_missing_vectors(vectors, revisions=revisions)
            done(len(page))
    return written
