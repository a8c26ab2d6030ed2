"""How often is the gate right? PASS, FAIL and INCONCLUSIVE over many samples of queries.

    python -m benchmarks.gate_rates --case cub=LITE0.npz,LITE2.npz [--case …]

Old and new vectors of the same images, with labels; a column `split` names the training classes
(without one, half of the classes), on which bridges are fitted. Everything else is on test classes;
without `split`, what needs no bridge is on all classes.
What takes the place of the old service, for each case:

  new             the new encoder, everything embedded
  back            the other way round: the new encoder serves, the old one takes its place
  equal           new vectors with as much noise as makes precision@10 that of the old encoder
  map-query, map-gallery    the start of an upgrade with a ridge bridge
  wrong 10 %, wrong 50 %    new vectors, so many of which belong to other items

True retention: precision@10 of all test images as queries, as a share of the old service's; below
0.98 the gate should not pass, otherwise it should not fail. With labels, queries are drawn with
replacement and asked of the whole gallery (precision@10). Without, the drawn items are judged by
what both encoders agree on. "all items": galleries of about so many items, whole classes drawn, in
which every item asks, as `finish` does; their own retention may differ from that of all classes.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.never_worse import TRAIN

from midspan.bridges import Ridge
from midspan.evaluation import search_exact
from midspan.spaces import Embeddings, IntArray
from midspan.upgrade import gate
from midspan.upgrade.gate import judge
from midspan.upgrade.verdicts import MIN_RETENTION, Answers, Verdict

RESULTS = Path(__file__).parent / "results" / "gate_rates.csv"
SIZES = (100, 300, 1000)
K = 10
GALLERIES = (100, 300, 1000)  # items


@dataclass(frozen=True)
class Change:
    """Old and new service. `truth`: the new vectors, where `after` does not hold them."""

    name: str
    before: Embeddings
    query: Embeddings
    after: Embeddings
    truth: Embeddings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", required=True, metavar="NAME=OLD,NEW")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--free-draws", type=int, default=60, help="without labels")
    parser.add_argument("--all-items-only", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = []
    for case in given.case:
        name, _, files = case.partition("=")
        old, new = (Embeddings.load(Path(file)) for file in files.split(","))
        for change in changes(old, new):
            draws, free = given.draws, given.free_draws
            found = rates(change, draws=draws, free=free)
            if given.all_items_only:
                found = small_galleries(change, draws=free)
            for row in found:
                rows.append({"case": name, **row})
                print(*rows[-1].values(), flush=True)
    kept = []
    if given.out.exists():
        with given.out.open(newline="", encoding="utf-8") as file:
            mine = {row["case"] for row in rows}
            kept = [row for row in csv.DictReader(file) if row["case"] not in mine]
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows([*kept, *rows])


def changes(old: Embeddings, new: Embeddings) -> Iterator[Change]:
    old, new = old.paired_with(new)
    columns = {**old.columns, **new.columns}
    labels = columns["labels"].astype(np.str_)
    split = columns.get("split", np.array([])).astype(np.str_)
    fitting = split == "train"
    searched = split == "test"
    if not (fitting.any() and searched.any()):
        names = np.unique(labels)
        fitting = ~np.isin(labels, np.random.default_rng(0).permutation(names)[: len(names) // 2])
        searched = np.ones(len(labels), dtype=bool)
    plain = [Embeddings(one.ids, one.vectors, one.space, {"labels": labels}) for one in (old, new)]
    mine, theirs = (one[np.flatnonzero(searched)] for one in plain)
    yield Change("new", mine, theirs, theirs, theirs)
    yield Change("back", theirs, mine, mine, mine)
    equal = equally_good(mine, theirs)
    yield Change("equal", mine, equal, equal, equal)
    for share in (0.1, 0.5):
        wrong = exchanged(theirs, share)
        yield Change(f"wrong {share:.0%}", mine, theirs, wrong, wrong)
    mine, theirs = (one[np.flatnonzero(searched & ~fitting)] for one in plain)
    fit_old, fit_new = (one[np.flatnonzero(fitting)[:TRAIN]] for one in plain)
    backward, forward = Ridge().fit(fit_new, fit_old), Ridge().fit(fit_old, fit_new)
    yield Change("map-query", mine, backward.transform(theirs), mine, theirs)
    yield Change("map-gallery", mine, theirs, forward.transform(mine), theirs)


def equally_good(old: Embeddings, new: Embeddings) -> Embeddings:
    """Noise by bisection until precision@10 is the old encoder's."""
    noise = np.random.default_rng(1).standard_normal(new.vectors.shape).astype(np.float32)
    noise *= np.linalg.norm(new.vectors, axis=1, keepdims=True) / new.vectors.shape[1] ** 0.5
    goal = precision(old, old).mean()
    low, high = 0.0, 2.0
    if precision(new, new).mean() < goal:  # then the old encoder's vectors get the noise
        new, noise = old, noise[:, : old.vectors.shape[1]]
        goal = goal * 0.999  # a little, so that it is another encoder
    for _ in range(12):
        middle = (low + high) / 2
        made = with_vectors(new, new.vectors + np.float32(middle) * noise)
        low, high = (middle, high) if precision(made, made).mean() > goal else (low, middle)
    return made


def exchanged(new: Embeddings, share: float) -> Embeddings:
    rng = np.random.default_rng(2)
    rows = rng.permutation(len(new))[: round(share * len(new))]
    vectors = new.vectors.copy()
    vectors[rows] = new.vectors[np.roll(rows, 1)]
    return with_vectors(new, vectors)


def with_vectors(like: Embeddings, vectors: np.ndarray) -> Embeddings:
    return Embeddings(like.ids, vectors.astype(np.float32), like.space, dict(like.columns))


def results(query: Embeddings, gallery: Embeddings) -> IntArray:
    _, found = search_exact(query, gallery, k=K, exclude=np.arange(len(gallery)))
    return found


def precision(
    query: Embeddings, gallery: Embeddings, labels: np.ndarray | None = None
) -> np.ndarray:
    labels = gallery.labels if labels is None else labels
    assert labels is not None
    return np.asarray((labels[results(query, gallery)] == labels[:, None]).mean(axis=1))


def rates(change: Change, *, draws: int, free: int) -> Iterator[dict[str, object]]:
    labels = change.before.labels
    assert labels is not None
    right, quality = [], []
    for query, gallery in ((change.before, change.before), (change.query, change.after)):
        found = labels[results(query, gallery)] == labels[:, None]
        right.append(found[:, 0].astype(np.float64))
        quality.append(found.mean(axis=1))
    retention = quality[1].mean() / quality[0].mean()
    rng = np.random.default_rng(0)
    for queries in SIZES:
        verdicts = []
        for _ in range(draws):
            rows = rng.integers(0, len(labels), queries)
            verdicts.append(judge(Answers(*(one[rows] for one in (*right, *quality)))).verdict)
        yield line(change.name, retention, "labels", queries, verdicts)
    yield from small_galleries(change, draws=free)
    for queries in SIZES:
        if queries > len(labels):
            continue
        verdicts = []
        for _ in range(free if queries < 1000 else free // 2):
            rows = np.sort(rng.permutation(len(labels))[:queries])
            bare = [
                Embeddings(one.ids[rows], one.vectors[rows], one.space)
                for one in (change.before, change.after, change.query, change.truth)
            ]
            before, after, query, truth = bare
            found = gate(before=before, after=after, query=query, truth=truth, k=K)
            verdicts.append(found.verdict)
        yield line(change.name, retention, "none", queries, verdicts)


def small_galleries(change: Change, *, draws: int) -> Iterator[dict[str, object]]:
    labels = change.before.labels
    assert labels is not None
    sides = ((change.query, change.after), (change.before, change.before))
    new, old = (precision(*side, labels).mean() for side in sides)
    rng = np.random.default_rng(0)
    for items in GALLERIES:
        if 2 * items <= len(labels):
            verdicts = [all_items_asked(change, labels, items, rng=rng) for _ in range(draws)]
            yield line(change.name, new / old, "all items", items, verdicts)


def all_items_asked(
    change: Change, labels: np.ndarray, items: int, *, rng: np.random.Generator
) -> Verdict:
    names, sizes = np.unique(labels, return_counts=True)
    places = rng.permutation(len(names))
    classes = names[places[: np.searchsorted(np.cumsum(sizes[places]), items) + 1]]
    rows = np.flatnonzero(np.isin(labels, classes))
    before, query, after = (one[rows] for one in (change.before, change.query, change.after))
    found = [
        labels[rows][results(*s)] == labels[rows][:, None]
        for s in ((before, before), (query, after))
    ]
    first, quality = (
        [one[:, 0].astype(np.float64) for one in found],
        [one.mean(axis=1) for one in found],
    )
    return judge(Answers(*first, *quality), exhaustive=True).verdict


def line(
    name: str, retention: float, evidence: str, queries: int, verdicts: Sequence[str]
) -> dict[str, object]:
    counts, all_ = Counter(verdicts), len(verdicts)
    mistake = "FAIL" if retention >= MIN_RETENTION else "PASS"
    return {
        "change": name,
        "true_retention": f"{retention:.4f}",
        "evidence": evidence,
        "queries": queries,
        "draws": all_,
        "PASS": f"{counts['PASS'] / all_:.3f}",
        "INCONCLUSIVE": f"{counts['INCONCLUSIVE'] / all_:.3f}",
        "FAIL": f"{counts['FAIL'] / all_:.3f}",
        "wrong": f"{counts[mistake] / all_:.3f}",  # false alarm, or miss
    }


if __name__ == "__main__":
    main()
