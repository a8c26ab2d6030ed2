"""Writing items, vectors and state, in somebody's turn."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from midspan.errors import GalleryError, UnknownId
from midspan.gallery import rules
from midspan.gallery.items import Draft, Payload, payload_json
from midspan.gallery.records import Entry, Mode, State
from midspan.gallery.stores.turns.conditions import Among, Is
from midspan.gallery.stores.turns.records import ITEM, Job, Known, Stored, line
from midspan.gallery.stores.turns.turn import Turn
from midspan.spaces import Embeddings, Space

SPACES = 8  # that a gallery can know at once
PORTION = 100_000  # tasks that one write puts on the work list


def upsert(
    turn: Turn, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode
) -> None:
    known = turn.known
    rules.check_write(known.state, drafts, vectors)
    before = turn.view.by_id(draft.id for draft in drafts)
    rules.check_presence(before, drafts, mode=mode)
    forget(turn, before.values())
    rows = {draft.id: turn.stamp() for draft in drafts}
    stamps: dict[str, dict[int, int]] = {draft.id: {} for draft in drafts}
    for part in vectors:
        number = known.numbers[part.space.fingerprint]
        ids = part.ids.tolist()
        for id in ids:
            stamps[id][number] = turn.stamp()
        turn.put_vectors(
            part.space.fingerprint,
            (
                (stamps[id][number], rows[id], vector)
                for id, vector in zip(ids, part.vectors, strict=True)
            ),
        )
    now, items = time.time(), []
    for draft in drafts:
        former = before.get(draft.id)
        created = draft.created
        if created is None:
            created = former.created if former else now
        items.append(
            Stored(
                id=draft.id,
                uri=draft.uri,
                payload=draft.payload,
                revision=former.revision + 1 if former else 1,
                created=created,
                changed=now if draft.changed is None else draft.changed,
                number=former.number if former else rows[draft.id],
                row=rows[draft.id],
                vectors=stamps[draft.id],
            )
        )
    _put_items(turn, items)
    put_to_work(turn, items)


def forget(turn: Turn, items: Iterable[Stored]) -> None:
    """The items with all that belongs to them."""
    items = list(items)
    turn.remove(key for item in items for key in item.keys)
    for space, number in turn.known.numbers.items():
        turn.remove_vectors(
            space, (item.vectors[number] for item in items if number in item.vectors)
        )
    leave_work(turn, items)


def leave_work(turn: Turn, items: Iterable[Stored]) -> None:
    jobs = turn.view.jobs(item.row for item in items)
    turn.remove(key for job in jobs.values() for key in job.keys)


def put_to_work(turn: Turn, items: Iterable[Stored]) -> None:
    """Those that lack a vector in the target, unless the list is not there yet: it will be."""
    known = turn.known
    if known.state.target is None:
        return
    number = known.numbers[known.state.target]
    _put_jobs(
        turn,
        (
            item
            for item in items
            if number not in item.vectors and (known.listing is None or item.id <= known.listing)
        ),
    )


def _put_jobs(turn: Turn, items: Iterable[Stored]) -> None:
    turn.put(
        Job(id=item.id, number=item.number, row=item.row).record(
            turn.stamp(), epoch=turn.known.epoch
        )
        for item in items
    )


def list_work(turn: Turn) -> None:
    """Go on with the work list, by id: a portion, so that nobody waits long for his turn."""
    known, listed = turn.known, 0
    if known.listing is None or known.state.target is None:
        return
    lacking = (known.numbers[known.state.target],)
    after: str | None = None
    for page in turn.view.items(after=known.listing, masks=known.masks(lacking=lacking)):
        _put_jobs(turn, page)
        listed += len(page)
        if listed >= PORTION:
            after = page[-1].id
            break
    turn.change(dataclasses.replace(known, listing=after, parts=0))


def _put_items(turn: Turn, items: Iterable[Stored]) -> None:
    turn.put(item.record(turn.stamp(), plain=turn.engine.plain) for item in items)


def _rewrite(turn: Turn, before: Iterable[Stored], after: Iterable[Stored]) -> None:
    """The same items with another record."""
    turn.remove(key for item in before for key in item.keys)
    _put_items(turn, after)


def fill(turn: Turn, vectors: Embeddings, revisions: Sequence[int]) -> int:
    known = turn.known
    rules.check_fill(known.state, vectors, revisions)
    space = vectors.space.fingerprint
    number = known.numbers[space]
    ids = vectors.ids.tolist()
    there = turn.view.by_id(ids)
    places = [
        place
        for place, id in enumerate(ids)
        if id in there
        and there[id].revision == revisions[place]
        and number not in there[id].vectors
    ]
    if not places:
        return 0
    stamps = {place: turn.stamp() for place in places}
    turn.put_vectors(
        space,
        ((stamps[place], there[ids[place]].row, vectors.vectors[place]) for place in places),
    )
    before = [there[ids[place]] for place in places]
    after = [
        dataclasses.replace(item, vectors={**item.vectors, number: stamps[place]})
        for item, place in zip(before, places, strict=True)
    ]
    _rewrite(turn, before, after)
    if space == known.state.target:
        leave_work(turn, before)
    return len(places)


def annotate(turn: Turn, payloads: Mapping[str, Payload]) -> None:
    for id, payload in payloads.items():
        payload_json(payload, of=id)
    there = turn.view.by_id(payloads)
    if missing := payloads.keys() - there.keys():
        raise UnknownId(f"{len(missing)} ids are not in the gallery, first {min(missing)!r}")
    now = time.time()
    after = [
        dataclasses.replace(there[id], payload=payload, changed=now)
        for id, payload in payloads.items()
    ]
    _rewrite(turn, there.values(), after)


def delete(turn: Turn, ids: Sequence[str]) -> int:
    there = turn.view.by_id(ids)
    forget(turn, there.values())
    return len(there)


def drop(turn: Turn, space: str, limit: int) -> int:
    known = turn.known
    rules.check_droppable(known.state, space)
    number = known.numbers[space]
    pages = turn.view.items(masks=known.masks(having=number))
    before = list(islice((item for page in pages for item in page), limit))
    turn.remove_vectors(space, (item.vectors[number] for item in before))
    after = [
        dataclasses.replace(
            item, vectors={at: stamp for at, stamp in item.vectors.items() if at != number}
        )
        for item in before
    ]
    _rewrite(turn, before, after)
    return len(before)


# ---- state


def change(turn: Turn, state: State, entry: Entry) -> State:
    known = turn.known
    before = known.state
    after = rules.check_change(before, state)
    entry = rules.check_entry(entry, when=time.time())
    for fingerprint in before.spaces.keys() - after.spaces.keys():
        masks = known.masks(having=known.numbers[fingerprint])
        if left := turn.view.count([Is("kind", ITEM), Among("mask", masks)]):
            raise GalleryError(
                f"{left} vectors of {before.spaces[fingerprint]} are left; drop them before the "
                "gallery forgets the space"
            )
        turn.drop(known.collections[fingerprint])
    retarget = after.target != before.target
    turn.change(_with_spaces(turn, known, after, retarget=retarget))
    list_work(turn)
    turn.put([line(entry, turn.stamp())])
    return after


def _with_spaces(turn: Turn, known: Known, after: State, *, retarget: bool) -> Known:
    numbers = {space: known.numbers[space] for space in after.spaces if space in known.numbers}
    collections = {space: known.collections[space] for space in numbers}
    for fingerprint, space in after.spaces.items():
        if fingerprint not in numbers:
            free = sorted(set(range(SPACES)) - set(numbers.values()) - set(known.numbers.values()))
            if not free:
                raise GalleryError(
                    f"this gallery knows {len(known.numbers)} spaces, which is all that it can in "
                    f"{turn.engine.word}; forget one that is no longer needed"
                )
            numbers[fingerprint] = free[0]
            collections[fingerprint] = new_vectors(turn, space)
    for fingerprint in numbers.keys() - known.numbers.keys():
        turn.engine.wait_until_loaded(collections[fingerprint], beat=turn.beat)
    first = None if after.target is None else ""
    return dataclasses.replace(
        known,
        state=after,
        numbers=numbers,
        collections=collections,
        indexed={space: index for space, index in known.indexed.items() if space in numbers},
        epoch=turn.head.attempt if retarget else known.epoch,
        listing=first if retarget else known.listing,
        parts=0,
    )


def new_vectors(turn: Turn, space: Space) -> str:
    name = f"{turn.head.gallery}_vectors_{turn.stamp():x}"
    turn.engine.make_vectors(name, space)
    return name


def record(turn: Turn, entry: Entry) -> None:
    turn.put([line(rules.check_entry(entry, when=time.time()), turn.stamp())])
