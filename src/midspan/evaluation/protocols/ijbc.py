"""IJB-C 1:1 (test 1) and 1:N (test 4), from the lists that come with the data set's crops.

    meta/ijbc_face_tid_mid.txt             image, template, medium
    meta/ijbc_template_pair_label.txt      gallery template, probe template, 1 if the same subject
    meta/ijbc_1N_gallery_G1.csv, _G2.csv   TEMPLATE_ID, SUBJECT_ID, …
    meta/ijbc_1N_probe_mixed.csv           the same

Ids are the image names of the first file. Templates are pooled by media from the vectors as they
are given (their lengths count; give unit vectors if they should not). Gallery templates are made of
the gallery embeddings, probe templates of the query embeddings: two encoders make the cross test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from midspan.errors import FormatError
from midspan.evaluation.identification import Identified, identified_at_fpir, identify
from midspan.evaluation.pairs import score_pairs, verify
from midspan.evaluation.protocols.faces import identification, make_templates
from midspan.evaluation.protocols.listing import (
    fields,
    find,
    image_id,
    known_rows,
    table,
    whole,
    whole_numbers,
)
from midspan.evaluation.protocols.outcome import Outcome, sides, split_name
from midspan.evaluation.templates import Fusion, Templates
from midspan.evaluation.verification import BoolArray
from midspan.spaces import Embeddings, StrArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Members:
    """Which image belongs to which template and medium."""

    ids: StrArray  # (N,)
    templates: IntArray  # (N,)
    media: IntArray  # (N,)


@dataclass(frozen=True, slots=True)
class TemplatePairs:
    gallery: npt.NDArray[np.int32]  # (P,) template ids
    probe: npt.NDArray[np.int32]  # (P,)
    same: BoolArray  # (P,)


@dataclass(frozen=True, slots=True)
class Subjects:
    templates: IntArray  # (T,) rising
    subjects: IntArray  # (T,)


def load_members(root: Path) -> Members:
    path = _file(root, "ijbc_face_tid_mid.txt")
    ids, templates, media = [], [], []
    for where, (name, template, medium) in fields(path, expected="image template_id media_id"):
        ids.append(image_id(name, where=where))
        templates.append(whole(template, where=where))
        media.append(whole(medium, where=where))
    if not ids:
        raise FormatError(f"{path}: is empty")
    return Members(np.array(ids, dtype=np.str_), np.array(templates), np.array(media))


def load_pairs(root: Path) -> TemplatePairs:
    path = _file(root, "ijbc_template_pair_label.txt")
    rows = whole_numbers(path, expected="template_id template_id label")
    if not np.isin(rows[:, 2], (0, 1)).all():
        bad = int(np.flatnonzero(~np.isin(rows[:, 2], (0, 1)))[0])
        raise FormatError(f"{path}: pair {bad + 1}: expected the label 0 or 1, got {rows[bad, 2]}")
    # Copies, so that the file's 16 million rows are not held as well.
    return TemplatePairs(rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2] == 1)


def load_subjects(root: Path, name: str) -> Subjects:
    """A gallery or the probes; a template has a row for each of its images."""
    path = _file(root, name)
    subject_of: dict[int, int] = {}
    for where, row in table(path, columns=("TEMPLATE_ID", "SUBJECT_ID")):
        template, subject = (whole(text, where=where) for text in row)
        if subject_of.setdefault(template, subject) != subject:
            raise FormatError(f"{where}: template {template} belongs to two subjects")
    if not subject_of:
        raise FormatError(f"{path}: lists no template")
    templates = np.array(sorted(subject_of), dtype=np.int64)
    return Subjects(templates, np.array([subject_of[one] for one in templates.tolist()]))


@dataclass(frozen=True, kw_only=True)
class IJBCVerification:
    """1:1, 19,557 genuine and 15,638,932 impostor pairs: TAR at a FAR, in bounded memory.

    `weights` names a column of detector scores, `fusion` takes the place of pooling (with a column
    'variances'). `skip_missing`: an image without a vector had no face; a template of only such
    images scores −∞. The FARs are those of the published tables.
    """

    root: Path
    weights: str | None = None
    fusion: Fusion | None = None
    skip_missing: bool = False

    default_metrics: ClassVar[tuple[str, ...]] = ("tar@1e-4", "tar@1e-5", "tar@1e-6")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        """`n_queries` counts the pairs, `per_query` has one value for each genuine pair."""
        fars = []
        for name in metrics:
            _, far = split_name(name, known=("tar@FAR",), protocol="ijbc-1v1")
            assert far is not None
            fars.append(far)
        query, gallery = sides(query, gallery, direct=direct)
        members, pairs = load_members(self.root), load_pairs(self.root)
        enrolled = _templates(self, gallery, members, requested=np.unique(pairs.gallery))
        probes = _templates(self, query, members, requested=np.unique(pairs.probe))
        scored = score_pairs(
            np.concatenate([enrolled.vectors, probes.vectors]),
            enrolled.rows_of(pairs.gallery),
            probes.rows_of(pairs.probe) + len(enrolled),
            present=np.concatenate([enrolled.present, probes.present]),
        )
        result = verify(
            ((scores, pairs.same[part]) for part, scores in scored),
            far=fars,
            n_impostor=len(pairs.same) - int(pairs.same.sum()),
        )
        accepted = [(result.genuine > one).astype(np.float64) for one in result.thresholds]
        return Outcome(
            metrics=dict(zip(metrics, result.tar.tolist(), strict=True)),
            per_query=dict(zip(metrics, accepted, strict=True)),
            n_queries=len(pairs.same),
            n_gallery=len(enrolled),
        )


@dataclass(frozen=True, kw_only=True)
class IJBCIdentification:
    """1:N, mixed probes against two galleries, averaged: TPIR at a FPIR, and rank k.

    A probe is mated in the gallery that has its subject and non-mated in the other. Settings as
    for `IJBCVerification`; FPIR 1 % and 10 % and ranks 1, 5, 10 as in the published tables.
    """

    root: Path
    weights: str | None = None
    fusion: Fusion | None = None
    skip_missing: bool = False

    default_metrics: ClassVar[tuple[str, ...]] = (
        "tpir@0.01",
        "tpir@0.1",
        "rank@1",
        "rank@5",
        "rank@10",
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
        query, gallery = sides(query, gallery, direct=direct)
        members = load_members(self.root)
        listed = load_subjects(self.root, "ijbc_1N_probe_mixed.csv")
        probes = _templates(self, query, members, requested=listed.templates)
        results: list[Identified] = []
        for name in ("ijbc_1N_gallery_G1.csv", "ijbc_1N_gallery_G2.csv"):
            enrolled = load_subjects(self.root, name)
            templates = _templates(self, gallery, members, requested=enrolled.templates)
            results.append(
                identify(
                    probes.vectors,
                    templates.vectors,
                    probe_labels=listed.subjects,
                    gallery_labels=enrolled.subjects,
                    probe_present=probes.present,
                    gallery_present=templates.present,
                )
            )
        return identification(
            results,
            metrics=metrics,
            protocol="ijbc-1vn",
            at_fpir=lambda one, fpir: identified_at_fpir(one, fpir=fpir),
        )


def _file(root: Path, name: str) -> Path:
    return find(Path(root), name, f"meta/{name}")


def _templates(
    protocol: IJBCVerification | IJBCIdentification,
    embeddings: Embeddings,
    members: Members,
    *,
    requested: IntArray,
) -> Templates:
    needed = np.isin(members.templates, requested)
    listed = np.isin(requested, members.templates)
    if not listed.all():
        raise FormatError(
            f"{protocol.root}: template {requested[~listed][0]} has no image in "
            f"ijbc_face_tid_mid.txt ({int((~listed).sum())} such templates)"
        )
    rows, known = known_rows(
        embeddings,
        members.ids[needed],
        skip_missing=protocol.skip_missing,
        meaning="count them as images without a face",
    )
    return make_templates(
        embeddings,
        rows=rows[known],
        template_ids=members.templates[needed][known],
        media_ids=members.media[needed][known],
        requested=requested,
        weights=protocol.weights,
        fusion=protocol.fusion,
    )
