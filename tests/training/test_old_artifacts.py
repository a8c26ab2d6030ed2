"""Old artifacts in a file: the same numbers, and pages of the file instead of memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from midspan.methods import old as methods_old
from midspan.methods.mixbct import _reach
from midspan.training.old import artifacts_path, is_whole, read_artifacts, write_artifacts
from tests.methods.small import old_artifacts, old_classifier


def test_artifacts_round_trip_keeps_all_tensors(tmp_path: Path) -> None:
    known = old_artifacts(classifier=old_classifier())
    path = tmp_path / "old" / "a.safetensors"
    assert not is_whole(path)
    write_artifacts(path, known)
    assert is_whole(path)
    assert [file.name for file in path.parent.iterdir()] == ["a.safetensors"]
    read = read_artifacts(
        path, labels=known.labels, classifier=known.classifier, label_map=known.label_map
    )
    assert read.space == known.space
    for name in ("vectors", "labels", "counts", "centres", "radii", "angles", "label_map"):
        assert torch.equal(getattr(read, name), getattr(known, name)), name


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks /proc where memory is from")
def test_artifacts_vectors_are_memory_mapped(tmp_path: Path) -> None:
    known = old_artifacts()
    path = tmp_path / "a.safetensors"
    write_artifacts(path, known)
    read = read_artifacts(path, labels=known.labels, classifier=None, label_map=known.label_map)
    place = read.vectors.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= place < end:
            assert line.endswith(str(path))
            return
    raise AssertionError("the vectors are nowhere")


def test_artifacts_damaged_file_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_artifacts(path, old_artifacts())
    whole = path.read_bytes()
    for broken in (b"", b"damaged", whole[:-1], whole[:20]):
        path.write_bytes(broken)
        assert not is_whole(path)


def test_artifacts_path_depends_on_every_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDSPAN_CACHE", "/cache")
    paths = {
        artifacts_path(*key) for key in (("a", b"b"), ("a", b"c"), ("ab", b""), ("a", "b", "c"))
    }
    assert len(paths) == 4
    assert {path.parent for path in paths} == {Path("/cache/old")}


def test_artifacts_each_is_independent_of_the_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = old_artifacts()
    whole = _reach(known, 0.6)
    monkeypatch.setattr(methods_old, "PART", 3)
    assert torch.equal(_reach(known, 0.6), whole)
    norms = known.each(lambda vectors, labels: vectors.norm(dim=1) + labels)
    torch.testing.assert_close(norms, 1.0 + known.labels)
