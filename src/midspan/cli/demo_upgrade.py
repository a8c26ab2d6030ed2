"""The last part of the demo: a gallery changes over to the new encoder while it is searched."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan import progress

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.encoders import Encoder
    from midspan.gallery import Gallery, Hit, Item
    from midspan.reports import LiveUpgrade
    from midspan.spaces import Embeddings, IntArray
    from midspan.upgrade import Embed, Embedded

NAME = "gallery.midspan"
ORDER = "uncertainty"
POINTS = 11  # of the curve
PER_CLASS = 1  # queries that measure it
DEPTH = 300  # results that it is measured on: a class has about 80 pictures
SAMPLE = 600  # items embedded ahead, from which the scores are brought to one scale
ASKED = 200  # old queries whose first answers must come back after the rollback
RESULTS = 10  # of a search
PAUSE = 0.005  # seconds between two searches of the client


class Traffic:
    """A client that searches all the time in its own thread, and counts the results."""

    def __init__(self, search: Callable[[Embeddings], list[list[Hit]]], query: Embeddings) -> None:
        self.query = query  # exchanged when the client changes its encoder
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._search = search
        self._row = 0

    def running(self) -> AbstractContextManager[None]:
        from midspan.upgrade.throttle import periodically

        return periodically(self._ask, every=PAUSE, name="demo searches")

    def _ask(self) -> None:
        query = self.query
        self._row += 1
        started = time.perf_counter()
        try:
            hits = self._search(query[[self._row % len(query)]])[0]
        except Exception as error:  # any error counts as a failed search
            self.failures.append(str(error))
            return
        self.seconds.append(time.perf_counter() - started)
        if len({hit.id for hit in hits}) != RESULTS:
            self.failures.append(f"{len(hits)} results, expected {RESULTS} different ones")

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.seconds, share)) if self.seconds else float("nan")


def live_upgrade(
    out: Path,
    *,
    old: Embeddings,
    new: Embeddings,
    encoder: Encoder,
    images: ImageSet,
    seed: int,
    override: str | None = None,
) -> LiveUpgrade:
    """Start, backfill with real images, roll back; `new` are only the queries.

    override: the reason to start although the test at the end of training failed.
    """
    from midspan.gallery import Gallery
    from midspan.reports import LiveUpgrade
    from midspan.upgrade import Upgrade
    from midspan.upgrade.finish import drop_unused

    for left in out.glob(f"{NAME}*"):  # of an earlier demo
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    embed = _embed(encoder, images)
    rows = _queries(new, seed=seed)
    asked = old[np.random.default_rng(seed).permutation(len(old))[:ASKED]]
    labels = old.columns["labels"].tolist()
    with Gallery.create(out / NAME, old.space) as gallery:
        gallery.add(
            old,
            uris=[images.uri(row) for row in range(len(images))],
            payloads=[{"labels": label} for label in labels],
        )

        def answer(query: Embeddings) -> list[list[Hit]]:
            return gallery.search(query, k=RESULTS)

        sizes = Counter(labels)
        before, old_value = answer(asked), quality(gallery, old[rows], sizes=sizes)
        traffic = Traffic(answer, old)
        with traffic.running():
            drawn = np.random.default_rng(seed + 1).permutation(len(images))[:SAMPLE]
            sample = encoder.embed(images[drawn], progress=False)
            upgrade = Upgrade.start(gallery, to=sample, order=ORDER, override=override)
            traffic.query = new
            fractions, values, worked = [0.0], [quality(gallery, new[rows], sizes=sizes)], 0.0
            with progress.bar("live upgrade", total=len(old), unit="images") as done:
                for point in range(1, POINTS):
                    part = round(len(old) * point / (POINTS - 1)) - upgrade.status().new
                    report = upgrade.run(embed, limit=part)
                    worked += report.seconds
                    done(report.written)
                    fractions.append(report.new / report.all)
                    values.append(quality(gallery, new[rows], sizes=sizes))
            standardised = upgrade.status().standardised
            traffic.query = old
            started = time.perf_counter()
            upgrade.rollback()
            rollback_seconds = time.perf_counter() - started
            after = answer(asked)
        drop_unused(gallery)  # the new vectors, so that a later run shows how they are made
    return LiveUpgrade(
        items=len(old),
        metric=f"map@{DEPTH}",
        queries=len(rows),
        order=ORDER,
        mixing="standardised" if standardised else "plain",
        fractions=tuple(fractions),
        values=tuple(values),
        old_value=old_value,
        seconds=worked,
        searches=len(traffic.seconds) + len(traffic.failures),
        failed=len(traffic.failures),
        p50=traffic.percentile(50),
        p99=traffic.percentile(99),
        rollback_seconds=rollback_seconds,
        asked=len(asked),
        same=sum(_answers(a) == _answers(b) for a, b in zip(before, after, strict=True)),
        location=str(out / NAME),
        vectors=str(out / "compatible" / "test.npz"),
    )


def quality(gallery: Gallery, query: Embeddings, *, sizes: Mapping[Any, int]) -> float:
    """map@DEPTH of the gallery's own answers, each query's own item left out."""
    from midspan.evaluation.ranking import NEVER, map_at_k

    results = gallery.search(query, k=DEPTH + 1)
    ranks = np.full((len(query), DEPTH), NEVER)  # (Q, R)
    labels = query.columns["labels"].tolist()
    for row, (own, label, hits) in enumerate(zip(query.ids.tolist(), labels, results, strict=True)):
        others = [hit for hit in hits if hit.id != own][:DEPTH]
        right = [place for place, hit in enumerate(others) if hit.payload["labels"] == label]
        ranks[row, : len(right)] = right
    relevant = np.array([sizes[label] - 1 for label in labels])  # (Q,)
    return float(np.nanmean(map_at_k(ranks, relevant, k=DEPTH)))


def _embed(encoder: Encoder, images: ImageSet) -> Embed:
    """The pictures of items, read and embedded by the new encoder."""
    from midspan.upgrade import Embedded

    places = {id: row for row, id in enumerate(images.ids.tolist())}

    def embed(items: Sequence[Item]) -> Embedded:
        rows = [places[item.id] for item in items]
        return Embedded(encoder.embed(images[rows], progress=False))

    return embed


def _queries(new: Embeddings, *, seed: int) -> IntArray:
    """Rows of PER_CLASS items of each class: every class counts the same."""
    order = np.random.default_rng(seed + 2).permutation(len(new))
    labels = new.columns["labels"][order]
    chosen = [order[labels == label][:PER_CLASS] for label in np.unique(labels)]
    return np.concatenate(chosen)


def _answers(hits: list[Hit]) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in hits]
