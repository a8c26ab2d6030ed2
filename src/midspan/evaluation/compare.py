"""Old against new on the same labelled items: would an upgrade help, and whom would it hurt?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from midspan.errors import EvaluationError, MissingDependency, SpaceMismatch
from midspan.evaluation.bootstrap import bootstrap_means, percentile_interval
from midspan.evaluation.compatibility import gains, is_compatible, p_scores
from midspan.evaluation.retrieval import Retrieval, evaluate, labels_of, pairs_of
from midspan.evaluation.scores import FloatArray64
from midspan.html_table import html_table
from midspan.labels import warn_numbered
from midspan.spaces import Column, Embeddings, IntArray, StrArray, check_comparable

HIT = "recall@1"  # flips are first hits lost and won
SITUATIONS = ("old_self", "new_self", "cross", "upper_self")
FLIPS = ("negative_flips", "positive_flips")
Interval = tuple[float, float]


class Bridge(Protocol):
    """A map between two spaces; `source` and `target` say which, if it has them."""

    def transform(self, embeddings: Embeddings, /) -> Embeddings: ...


@dataclass(frozen=True, slots=True)
class Group:
    """The queries that share a value of the group column; cross_ci is that of cross − old_self."""

    name: str
    n_queries: int
    old_self: float
    new_self: float
    cross: float
    negative_flips: float
    positive_flips: float
    cross_minus_old_ci: Interval


@dataclass(frozen=True, slots=True)
class Comparison:
    """Means over queries, all fractions; None where no upper bound was given.

    old_self, new_self, upper_self: each encoder on its own vectors, leave-one-out.
    cross: new queries on the old gallery, as they are or through the bridge.
    Flips compare cross with old_self: what users see on the day the new encoder starts to answer.
    ci: 95 % percentile intervals over queries, of all that is a number.
    """

    metric: str
    direction: str  # direct, forward (gallery mapped) or backward (queries mapped)
    old_self: float
    new_self: float
    cross: float
    upper_self: float | None
    update_gain: float | None
    perf_gain: float | None
    upgrade_gain: float | None
    p_up: float | None
    p_comp: float | None
    p_1: float | None
    negative_flips: float
    positive_flips: float
    compatible: bool
    ci: Mapping[str, Interval]
    ids: StrArray  # (Q,)
    per_query: Mapping[str, FloatArray64]  # situation → (Q,)
    hits: Mapping[str, FloatArray64]  # situation → (Q,) first hits
    groups: tuple[Group, ...]
    old: Embeddings
    query: Embeddings  # new vectors as they ask in the cross test …
    gallery: Embeddings  # … and old vectors as they are searched

    def __repr__(self) -> str:
        return (
            f"Comparison({self.metric}: old self {self.old_self:.4f}, new self "
            f"{self.new_self:.4f}, cross {self.cross:.4f} ({self.direction}); negative flips "
            f"{self.negative_flips:.1%}; {len(self.ids):,} queries)"
        )

    def _repr_html_(self) -> str:
        def row(name: str) -> list[str]:
            low, high = self.ci.get(name, (math.nan, math.nan))
            return [
                name.replace("_", " "),
                f"{100 * getattr(self, name):.2f}",
                f"{100 * low:.2f} … {100 * high:.2f}",
            ]

        names = [name for name in _NUMBERS if getattr(self, name) is not None]
        note = f"{len(self.ids):,} queries; " + (
            "cross is above old self: the new encoder may search the old gallery"
            if self.compatible
            else "cross is not above old self: the new encoder would search the old gallery worse"
        )
        title = f"old against new, {self.metric}, {self.direction}"
        rows = [row(name) for name in names]
        return html_table(title, rows, head=["", "%", "95 % interval"], note=note)

    def to_html(self, path: str | Path) -> Path:
        """Write the page of `midspan compare --page`: numbers, plots, the queries that got worse.

        Args:
            path: Where to write it; one file, no network.

        Returns:
            The path.
        """
        from midspan.reports import compare_page

        return compare_page(self, path)

    def to_frame(self) -> Any:
        """One row for each query, as a pandas DataFrame.

        Returns:
            Columns: label, the value of the metric in each situation, and whether the first result
            was right in each; the index is the id.

        Raises:
            MissingDependency: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "pandas", extra="pandas", required_for="Comparison.to_frame"
            ) from error
        columns: dict[str, Any] = {"label": self.old.labels, **self.per_query}
        columns |= {f"{name}_first_hit": values for name, values in self.hits.items()}
        return pandas.DataFrame(columns, index=pandas.Index(self.ids, name="id"))

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `midspan compare`; values that are not defined are null."""
        numbers = {name: _defined(getattr(self, name)) for name in _NUMBERS}
        ci = {name: [_defined(end) for end in ends] for name, ends in self.ci.items()}
        return {**numbers, "compatible": self.compatible, "ci": ci}

    def worst(self, n: int = 10) -> IntArray:
        """Rows of the queries whose cross value dropped most below old_self, worst first."""
        drop = self.per_query["old_self"] - self.per_query["cross"]
        order = np.argsort(-np.nan_to_num(drop, nan=-np.inf), kind="stable")
        return order[: int((drop > 0).sum())][:n]


_NUMBERS = (
    "old_self",
    "new_self",
    "cross",
    "upper_self",
    "update_gain",
    "perf_gain",
    "upgrade_gain",
    "p_up",
    "p_comp",
    "p_1",
    "negative_flips",
    "positive_flips",
)


def compare(
    *,
    old: Embeddings,
    new: Embeddings,
    upper: Embeddings | None = None,
    metric: str = "map",
    direct: bool = True,
    bridge: Bridge | None = None,
    exclude_column: str | None = None,
    groups: str | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Self, cross, gains, P-scores and flips of a new encoder against the old one.

    Items are paired by id; labels come from old and must agree.

    Args:
        old: Labelled vectors of the old encoder.
        new: Vectors of the same items by the new encoder.
        upper: Vectors of an encoder trained alone with the new recipe. Without it the gains and the
            P-scores have no scale and are None: the new encoder itself would be no upper bound.
        metric: "map", "recall@1", "map@r" …; see `midspan.evaluation.METRICS`.
        direct: Compare vectors as they are, even if nothing connects the spaces; this is a
            measurement. False refuses unconnected spaces.
        bridge: Maps old vectors into the new space (forward) or new ones into the old (backward).
        exclude_column: Items that share this column's value with the query do not count.
        groups: A column of old (a class, a country …) to break the results down by.
        bootstrap: Resamples of the queries for the intervals.
        seed: Of the resamples.

    Returns:
        A Comparison: means, 95 % intervals, values per query and per group.

    Raises:
        SpaceMismatch: The spaces have different dimensions and there is no bridge.
        EvaluationError: No labels, labels that disagree, or nothing to find.
        UnknownId: The two sets share no id.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(10), 8)
        >>> centres = 2 * rng.normal(size=(10, 16))
        >>> def see(name, noise):
        ...     return ms.Embeddings(
        ...         np.arange(80).astype(str),
        ...         centres[labels] + noise * rng.normal(size=(80, 16)),
        ...         ms.Space(name, 16),
        ...         {"labels": labels},
        ...     )
        >>> report = ms.compare(old=see("old", 3.0), new=see("new", 0.5))
        >>> report.new_self > report.cross > report.old_self
        True
        >>> report.compatible
        True
    """
    old, new = pairs_of(old, new, what="old and new embeddings")
    if old.numbered and new.labels is not None and not new.numbered:
        old = old.with_labels_of(new)  # the same items, with the names of their classes
    new = _with_labels_of(old, new, "new")
    query, gallery, direction = _cross_sides(old, new, bridge=bridge, direct=direct)
    results = {
        "old_self": _measure(old, None, metric, exclude_column),
        "new_self": _measure(new, None, metric, exclude_column),
        "cross": _measure(query, gallery, metric, exclude_column),
    }
    if upper is not None:
        _, upper = pairs_of(old, upper, what="old and upper embeddings")
        upper = _with_labels_of(old, upper, "upper")
        results["upper_self"] = _measure(upper, None, metric, exclude_column)
    per_query = {name: result.per_query[metric] for name, result in results.items()}
    hits = {name: result.per_query[HIT] for name, result in results.items()}
    negative = np.where((hits["old_self"] == 1) & (hits["cross"] == 0), 1.0, 0.0)
    positive = np.where((hits["old_self"] == 0) & (hits["cross"] == 1), 1.0, 0.0)
    unanswered = ~np.isfinite(per_query["old_self"])
    negative[unanswered] = positive[unanswered] = np.nan
    values = {**per_query, "negative_flips": negative, "positive_flips": positive}
    means = {name: float(np.nanmean(column)) for name, column in values.items()}
    resampled = bootstrap_means(*values.values(), n=bootstrap, seed=seed)  # (V, n)
    drawn = [_derived(dict(zip(values, column, strict=True))) for column in resampled.T]
    derived = _derived(means)
    ci = {
        name: percentile_interval(np.array([one[name] for one in drawn], dtype=float))
        for name, value in derived.items()
        if value is not None and math.isfinite(value)  # what is undefined has no interval
    }
    return Comparison(
        metric=metric,
        direction=direction,
        **derived,
        compatible=is_compatible(cross=means["cross"], old=means["old_self"]),
        ci=ci,
        ids=old.ids,
        per_query=per_query,
        hits=hits,
        groups=_by_group(values, old, groups, bootstrap=bootstrap, seed=seed),
        old=old,
        query=query,
        gallery=gallery,
    )


def _measure(
    query: Embeddings, gallery: Embeddings | None, metric: str, exclude_column: str | None
) -> Retrieval:
    metrics = list(dict.fromkeys([metric, HIT]))
    return evaluate(query, gallery, metrics=metrics, exclude_column=exclude_column, direct=True)


def _derived(means: Mapping[str, float]) -> dict[str, Any]:
    """All numbers of a comparison from the means of its situations."""
    numbers: dict[str, float | None] = dict.fromkeys(_NUMBERS)
    numbers.update({name: float(means[name]) for name in (*SITUATIONS, *FLIPS) if name in means})
    if "upper_self" in means:
        four = {
            "old": means["old_self"],
            "new": means["new_self"],
            "cross": means["cross"],
            "upper": means["upper_self"],
        }
        gain = gains(**four)
        numbers.update(
            update_gain=gain.update, perf_gain=gain.performance, upgrade_gain=gain.upgrade
        )
        if four["upper"] > 0:
            p = p_scores(**four)
            numbers.update(p_up=p.up, p_comp=p.comp, p_1=p.score)
    return numbers


def _with_labels_of(old: Embeddings, other: Embeddings, what: str) -> Embeddings:
    """The other set with the columns of the old one; both hold the same items, row by row."""
    labels = labels_of(old, "old set")
    theirs = other.labels
    if theirs is not None and not np.array_equal(labels, theirs):
        if other.numbered:  # the same items: the labels of one side are enough
            warn_numbered(what=f"{what} set")
            return other.with_columns(old.columns)
        row = int(np.flatnonzero(labels != theirs)[0])
        raise EvaluationError(
            f"{what} and old embeddings disagree on {int((labels != theirs).sum())} labels, first "
            f"{str(old.ids[row])!r}: {str(theirs[row])!r} and {str(labels[row])!r}; are the ids "
            "right?"
        )
    return other.with_columns(old.columns)


def _cross_sides(
    old: Embeddings, new: Embeddings, *, bridge: Bridge | None, direct: bool
) -> tuple[Embeddings, Embeddings, str]:
    """(query, gallery, direction) of the cross test."""
    if bridge is None:
        if not direct:
            check_comparable(new.space, old.space, override="direct")
        if old.space.dim != new.space.dim:
            raise SpaceMismatch(
                f"old vectors are in {old.space}, new ones in {new.space}: they have different "
                "dimensions and cannot be compared as they are; pass a bridge between the two"
            )
        return new, old, "direct"
    source, target = getattr(bridge, "source", None), getattr(bridge, "target", None)
    if source is not None and source.same_as(new.space) and not source.same_as(old.space):
        mapped, direction = bridge.transform(new).with_columns(new.columns), "backward"
        query, gallery = mapped, old
    else:
        mapped, direction = bridge.transform(old).with_columns(old.columns), "forward"
        query, gallery = new, mapped
    if query.space.dim != gallery.space.dim:
        raise SpaceMismatch(
            f"expected a map between {old.space} and {new.space}, got vectors in {mapped.space} "
            f"from the bridge ({source} → {target})"
        )
    return query, gallery, direction


def _by_group(
    values: Mapping[str, FloatArray64],
    old: Embeddings,
    column: str | None,
    *,
    bootstrap: int,
    seed: int,
) -> tuple[Group, ...]:
    if column is None:
        return ()
    if column not in old.columns:
        have = ", ".join(old.columns)
        raise EvaluationError(f"the old set has no column {column!r} to group by; it has: {have}")
    names: Column = old.columns[column]
    answered = np.isfinite(values["old_self"])
    groups = []
    for name in np.unique(names[answered]).tolist():
        rows = np.flatnonzero((names == name) & answered)
        means = bootstrap_means(
            *(values[which][rows] for which in ("cross", "old_self")), n=bootstrap, seed=seed
        )
        columns: Sequence[str] = ("old_self", "new_self", "cross", *FLIPS)
        groups.append(
            Group(
                name=str(name),
                n_queries=len(rows),
                **{which: float(values[which][rows].mean()) for which in columns},
                cross_minus_old_ci=percentile_interval(means[0] - means[1]),
            )
        )
    return tuple(groups)


def _defined(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
