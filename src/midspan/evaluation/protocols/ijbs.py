"""IJB-S: surveillance video against a gallery of stills; closed-set rank k, open-set TPIR.

From columns alone: `labels` are the subjects, `templates` (optional) say which vectors belong
together (a video track; the booking poses of a subject), else each vector stands for itself. Not
media-normalised: a template is the plain mean of its members, or their `fusion`.

The data set splits its subjects into two galleries. With a gallery column `galleries` each part is
searched by all probes and open-set rates are the mean over the parts; closed-set ranks are over the
whole gallery, where every probe is mated. (Our reading; the published tables do not say more.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.identification import identified_at_fpir_rank, identify
from midspan.evaluation.protocols.faces import column, identification, make_templates
from midspan.evaluation.protocols.outcome import Outcome, sides
from midspan.evaluation.templates import Fusion, Templates
from midspan.spaces import Embeddings

Labels = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class IJBS:
    """Surveillance-to-single and -to-booking; ranks and FPIRs of the URL supplement's table.

    A mate counts if it is first and scores at least τ, the ⌊n·FPIR⌋-th largest maximum of the n
    non-mated probes.
    """

    fusion: Fusion | None = None

    default_metrics: ClassVar[tuple[str, ...]] = (
        "rank@1",
        "rank@5",
        "rank@10",
        "tpir@0.01",
        "tpir@0.1",
    )

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        """`per_query` has one value for each probe template, in rising order of their ids."""
        if gallery is None:
            raise EvaluationError("ijbs: expected probes and a gallery, got no gallery; give both")
        query, gallery = sides(query, gallery, direct=direct)
        probes, probe_subjects = self._templates(query)
        enrolled, subjects = self._templates(gallery)
        parts = [np.ones(len(enrolled), dtype=bool)]
        if "galleries" in gallery.columns:
            part_of = _of_templates(gallery, gallery.columns["galleries"], enrolled)
            parts += [part_of == part for part in np.unique(part_of)]
        results = [
            identify(
                probes.vectors,
                enrolled.vectors[part],
                probe_labels=probe_subjects,
                gallery_labels=subjects[part],
            )
            for part in parts
        ]
        values: dict[str, float] = {}
        per_query: dict[str, npt.NDArray[np.float64]] = {}
        for name in metrics:
            one = identification(
                results[1:] if name.startswith("tpir") and len(results) > 1 else results[:1],
                metrics=[name],
                protocol="ijbs",
                at_fpir=lambda each, fpir: identified_at_fpir_rank(each, fpir=fpir),
            )
            values.update(one.metrics)
            per_query.update(one.per_query)
        return Outcome(values, per_query, n_queries=len(probes), n_gallery=len(enrolled))

    def _templates(self, embeddings: Embeddings) -> tuple[Templates, Labels]:
        """Templates and the subject of each."""
        names = embeddings.columns.get("templates", embeddings.ids)
        rows = np.arange(len(embeddings))
        templates = make_templates(
            embeddings,
            rows=rows,
            template_ids=names,
            media_ids=rows,  # each member a medium of its own: the plain mean
            requested=np.unique(names),
            fusion=self.fusion,
        )
        return templates, _of_templates(embeddings, column(embeddings, "labels"), templates)


def _of_templates(embeddings: Embeddings, values: Labels, templates: Templates) -> Labels:
    """The value that all members of a template share."""
    names = embeddings.columns.get("templates", embeddings.ids)
    rows = templates.rows_of(names)
    firsts = np.zeros(len(templates), dtype=np.int64)
    firsts[rows[::-1]] = np.arange(len(rows))[::-1]
    shared: Labels = values[firsts]
    differs = shared[rows] != values
    if differs.any():
        raise EvaluationError(
            f"template {names[differs][0]!s} holds images of {shared[rows][differs][0]!s} and of "
            f"{values[differs][0]!s}; a template shows one subject of one gallery"
        )
    return shared
