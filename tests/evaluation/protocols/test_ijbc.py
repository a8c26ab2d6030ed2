from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from midspan.errors import EvaluationError, FormatError, SpaceMismatch, UnknownId
from midspan.evaluation.protocols import ijbc
from midspan.evaluation.protocols.ijbc import IJBCIdentification, IJBCVerification
from midspan.evaluation.templates import inverse_variance_fusion
from midspan.spaces import Embeddings, Space

Floats = npt.NDArray[np.float64]

SUBJECTS, DIM = 6, 8


def write_meta(folder: Path, *, seed: int = 0) -> dict[int, list[tuple[str, int]]]:
    """Six subjects; templates 1-6 are enrolled (1-3 in G1, 4-6 in G2), 11-22 are probes.

    Returns the members (image, medium) of each template.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    members: dict[int, list[tuple[str, int]]] = {}
    image = 0
    for template in [*range(1, 7), *range(11, 23)]:
        members[template] = []
        for _ in range(rng.integers(1, 6)):
            image += 1
            members[template].append((f"{image}.jpg", int(rng.integers(0, 3))))
    (folder / "ijbc_face_tid_mid.txt").write_text(
        "".join(f"{name} {t} {m}\n" for t, own in members.items() for name, m in own)
    )
    pairs = [(g, p, int(subject(g) == subject(p))) for g in range(1, 7) for p in range(11, 23)]
    (folder / "ijbc_template_pair_label.txt").write_text(
        "".join(f"{g} {p} {same}\n" for g, p, same in pairs)
    )
    for name, templates in (
        ("ijbc_1N_gallery_G1.csv", range(1, 4)),
        ("ijbc_1N_gallery_G2.csv", range(4, 7)),
        ("ijbc_1N_probe_mixed.csv", range(11, 23)),
    ):
        rows = [f"{t},{subject(t)},img/{name},1.0" for t in templates for name, _ in members[t]]
        (folder / name).write_text("\n".join(["TEMPLATE_ID,SUBJECT_ID,FILENAME,FACE_X", *rows]))
    return members


def subject(template: int) -> int:
    return 100 + (template - 1) % SUBJECTS if template < 10 else 100 + (template - 11) % SUBJECTS


def embed(
    members: dict[int, list[tuple[str, int]]], *, noise: float, name: str = "a", seed: int = 1
) -> Embeddings:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(SUBJECTS, DIM))
    ids, vectors = [], []
    for template, own in members.items():
        for image, _ in own:
            ids.append(image)
            vectors.append(centres[subject(template) - 100] + noise * rng.normal(size=DIM))
    order = rng.permutation(len(ids))  # files and embeddings need not be in the same order
    return Embeddings(
        ids=np.array(ids)[order],
        vectors=np.array(vectors)[order].astype(np.float32),
        space=Space(name, DIM),
        columns={"variances": rng.uniform(0.5, 2, len(ids)), "seen": rng.uniform(0.2, 1, len(ids))},
    )


def slow_template(
    members: list[tuple[str, int]], vectors: dict[str, Floats], weights: dict[str, float]
) -> Floats:
    total = np.zeros(DIM)
    for medium in {m for _, m in members}:
        own = [vectors[name] * weights[name] for name, m in members if m == medium]
        total += np.mean(own, axis=0)
    return total / np.linalg.norm(total)


def slow_templates(
    members: dict[int, list[tuple[str, int]]], embeddings: Embeddings, weights: Floats | None = None
) -> dict[int, Floats]:
    vectors = dict(zip(embeddings.ids, embeddings.vectors.astype(np.float64), strict=True))
    values = np.ones(len(embeddings)) if weights is None else weights
    by_name = dict(zip(embeddings.ids, values, strict=True))
    return {t: slow_template(own, vectors, by_name) for t, own in members.items()}


def slow_tar(enrolled: dict[int, Floats], probes: dict[int, Floats], k: int) -> float:
    pairs = [(g, p) for g in range(1, 7) for p in range(11, 23)]
    genuine = [enrolled[g] @ probes[p] for g, p in pairs if subject(g) == subject(p)]
    impostor = [enrolled[g] @ probes[p] for g, p in pairs if subject(g) != subject(p)]
    threshold = sorted(impostor, reverse=True)[k]
    return float(np.mean([score > threshold for score in genuine]))


def slow_1n(
    enrolled: dict[int, Floats], probes: dict[int, Floats], index: int
) -> tuple[float, float]:
    """(TPIR with the threshold at this index of the non-mated maxima, rank-1), both averaged."""
    tpirs, ranks = [], []
    for templates in (range(1, 4), range(4, 7)):
        maxima, mated = [], []
        for probe in range(11, 23):
            scores = {g: enrolled[g] @ probes[probe] for g in templates}
            best = max(scores, key=lambda g: scores[g])
            if any(subject(g) == subject(probe) for g in templates):
                mated.append((subject(best) == subject(probe), scores[best]))
            else:
                maxima.append(scores[best])
        threshold = sorted(maxima, reverse=True)[index]
        tpirs.append(np.mean([first and score > threshold for first, score in mated]))
        ranks.append(np.mean([first for first, _ in mated]))
    return float(np.mean(tpirs)), float(np.mean(ranks))


# ---- the lists ----------------------------------------------------------------------------------


def test_the_lists_are_read_from_the_folder_or_its_meta(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    for root in (tmp_path, tmp_path / "meta"):
        loaded = ijbc.load_members(root)
        assert len(loaded.ids) == sum(len(own) for own in members.values())
        first = (loaded.ids[0], loaded.media[0])
        assert (loaded.templates[0], first) == (1, members[1][0])
    pairs = ijbc.load_pairs(tmp_path)
    assert (len(pairs.same), pairs.same.sum()) == (72, 12)
    gallery = ijbc.load_subjects(tmp_path, "ijbc_1N_gallery_G2.csv")
    assert gallery.templates.tolist() == [4, 5, 6]
    assert gallery.subjects.tolist() == [103, 104, 105]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ijbc_face_tid_mid.txt", "1.jpg 1\n", ":1: expected 'image template_id media_id'"),
        ("ijbc_face_tid_mid.txt", "1.jpg 1 x\n", ":1: expected a whole number"),
        ("ijbc_face_tid_mid.txt", "../1.jpg 1 1\n", "not a path below"),
        ("ijbc_face_tid_mid.txt", "", "is empty"),
        ("ijbc_template_pair_label.txt", "1 11\n", "expected lines of"),
        ("ijbc_template_pair_label.txt", "1 11 2\n", "pair 1: expected the label 0 or 1, got 2"),
        ("ijbc_template_pair_label.txt", "1 99 1\n1 11 0\n", "template 99 has no image"),
    ],
)
def test_broken_lists_of_1v1_are_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    members = write_meta(tmp_path / "meta")
    (tmp_path / "meta" / name).write_text(text)
    with pytest.raises(FormatError, match=message):
        IJBCVerification(root=tmp_path).evaluate(embed(members, noise=1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TEMPLATE,SUBJECT\n1,2\n", "expected the columns TEMPLATE_ID, SUBJECT_ID"),
        ("TEMPLATE_ID,SUBJECT_ID\n1,x\n", ":2: expected a whole number"),
        ("TEMPLATE_ID,SUBJECT_ID\n1,7\n1,8\n", ":3: template 1 belongs to two subjects"),
        ("TEMPLATE_ID,SUBJECT_ID\n", "lists no template"),
    ],
)
def test_broken_lists_of_1vn_are_refused(tmp_path: Path, text: str, message: str) -> None:
    members = write_meta(tmp_path / "meta")
    (tmp_path / "meta" / "ijbc_1N_gallery_G1.csv").write_text(text)
    with pytest.raises(FormatError, match=message):
        IJBCIdentification(root=tmp_path).evaluate(embed(members, noise=1))


def test_a_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no file ijbc_face_tid_mid.txt or meta/ijbc_face"):
        ijbc.load_members(tmp_path)


# ---- 1:1 ----------------------------------------------------------------------------------------


def test_1v1_equals_loops(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    embeddings = embed(members, noise=2.5)
    templates = slow_templates(members, embeddings)
    result = IJBCVerification(root=tmp_path).evaluate(
        embeddings, metrics=["tar@0", "tar@0.05", "tar@0.5"]
    )
    # 60 impostor pairs: k = 0, 3, 30
    expected = [slow_tar(templates, templates, k) for k in (0, 3, 30)]
    assert list(result.metrics.values()) == expected
    assert 0 < expected[0] < expected[2]
    assert (result.n_queries, result.n_gallery) == (72, 6)
    for name, value in result.metrics.items():
        assert result.per_query[name].shape == (12,)
        assert result.per_query[name].mean() == pytest.approx(value)


def test_detector_scores_weigh_the_images(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    embeddings = embed(members, noise=2.5)
    weighted = slow_templates(members, embeddings, embeddings.columns["seen"])
    result = IJBCVerification(root=tmp_path, weights="seen").evaluate(
        embeddings, metrics=["tar@0.05"]
    )
    assert result.metrics["tar@0.05"] == slow_tar(weighted, weighted, 3)
    with pytest.raises(EvaluationError, match="no column 'blur'; they have seen, variances"):
        IJBCVerification(root=tmp_path, weights="blur").evaluate(embeddings)


def test_fusion_takes_the_place_of_pooling(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    embeddings = embed(members, noise=2.5)
    rows = {name: row for row, name in enumerate(embeddings.ids)}
    fused = {}
    for template, own in members.items():
        mine = [rows[name] for name, _ in own]
        certainty = 1 / embeddings.columns["variances"][mine]
        total = (embeddings.vectors[mine] * certainty[:, None]).sum(axis=0)
        fused[template] = total / np.linalg.norm(total)
    protocol = IJBCVerification(root=tmp_path, fusion=inverse_variance_fusion)
    result = protocol.evaluate(embeddings, metrics=["tar@0.05"])
    assert result.metrics["tar@0.05"] == slow_tar(fused, fused, 3)
    both = IJBCVerification(root=tmp_path, fusion=inverse_variance_fusion, weights="seen")
    with pytest.raises(EvaluationError, match="either weights or a fusion"):
        both.evaluate(embeddings)


def test_the_cross_test_enrols_the_old_and_probes_with_the_new(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    old, new = embed(members, noise=2.5, name="old"), embed(members, noise=1.5, name="new", seed=1)
    protocol = IJBCVerification(root=tmp_path)
    with pytest.raises(SpaceMismatch):
        protocol.evaluate(new, old)
    cross = protocol.evaluate(new, old, direct=True, metrics=["tar@0.05"])
    expected = slow_tar(slow_templates(members, old), slow_templates(members, new), 3)
    assert cross.metrics["tar@0.05"] == expected


def test_images_without_a_vector_must_be_expected(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    embeddings = embed(members, noise=1.5)
    faceless = {name for name, _ in members[2]} | {members[12][0][0]}
    fewer = embeddings[np.array([name not in faceless for name in embeddings.ids])]
    with pytest.raises(UnknownId, match="images without a face"):
        IJBCVerification(root=tmp_path).evaluate(fewer)
    result = IJBCVerification(root=tmp_path, skip_missing=True).evaluate(fewer, metrics=["tar@1"])
    # Template 2 has no face at all: its two genuine pairs score -inf and are never accepted.
    left_out = result.per_query["tar@1"] == 0
    single = len(members[12]) == 1
    assert left_out.sum() == 2
    assert result.metrics["tar@1"] == pytest.approx(10 / 12)
    assert not single, "template 12 must keep a face for this test to mean something"
    strangers = Embeddings(np.array(["x"]), np.ones((1, DIM), np.float32), Space("a", DIM))
    with pytest.raises(UnknownId, match="none of the protocol's"):
        IJBCVerification(root=tmp_path, skip_missing=True).evaluate(strangers)


# ---- 1:N ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_1vn_equals_loops(tmp_path: Path, seed: int) -> None:
    members = write_meta(tmp_path / "meta", seed=seed)
    embeddings = embed(members, noise=3.0, seed=seed)
    templates = slow_templates(members, embeddings)
    result = IJBCIdentification(root=tmp_path).evaluate(
        embeddings, metrics=["tpir@0.01", "tpir@0.5", "rank@1", "rank@3"]
    )
    # 6 non-mated probes for each gallery: index max(floor(.06)-1, 0) = 0, floor(3)-1 = 2
    strict, rank_1 = slow_1n(templates, templates, 0)
    loose, _ = slow_1n(templates, templates, 2)
    assert result.metrics["tpir@0.01"] == pytest.approx(strict)
    assert result.metrics["tpir@0.5"] == pytest.approx(loose)
    assert result.metrics["rank@1"] == pytest.approx(rank_1)
    assert result.metrics["rank@3"] == 1.0
    assert (result.n_queries, result.n_gallery) == (12, 6)
    # Each probe is mated in one gallery, both have as many mated ones: means agree.
    assert result.per_query["rank@1"].mean() == pytest.approx(rank_1)


def test_1vn_by_two_encoders(tmp_path: Path) -> None:
    members = write_meta(tmp_path / "meta")
    old, new = embed(members, noise=3, name="old"), embed(members, noise=2, name="new")
    cross = IJBCIdentification(root=tmp_path).evaluate(
        new, old, direct=True, metrics=["tpir@0.5", "rank@1"]
    )
    expected = slow_1n(slow_templates(members, old), slow_templates(members, new), 2)
    assert tuple(cross.metrics.values()) == pytest.approx(expected)


def test_probes_without_a_mate_are_left_out_and_a_gallery_of_strangers_refused(
    tmp_path: Path,
) -> None:
    members = write_meta(tmp_path / "meta")
    embeddings = embed(members, noise=0.1)
    path = tmp_path / "meta" / "ijbc_1N_probe_mixed.csv"
    path.write_text("TEMPLATE_ID,SUBJECT_ID\n11,100\n12,999\n14,103\n")
    result = IJBCIdentification(root=tmp_path).evaluate(embeddings, metrics=["rank@1"])
    assert result.metrics["rank@1"] == 1
    np.testing.assert_array_equal(result.per_query["rank@1"], [1, np.nan, 1])
    path.write_text("TEMPLATE_ID,SUBJECT_ID\n11,998\n12,999\n")
    with pytest.raises(EvaluationError, match="none of the 2 probes has a mate"):
        IJBCIdentification(root=tmp_path).evaluate(embeddings, metrics=["rank@1"])
    with pytest.raises(EvaluationError, match="ijbc-1vn has no metric 'tar@1e-4'"):
        IJBCIdentification(root=tmp_path).evaluate(embeddings, metrics=["tar@1e-4"])
