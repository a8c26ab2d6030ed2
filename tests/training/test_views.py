"""Old vectors of the view that is shown: the same images, mixed alike, and said in the metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from midspan.data import digits
from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.errors import ConfigError
from midspan.methods import OldArtifacts
from midspan.spaces import Space
from midspan.training import RunConfig, train
from midspan.training.mixing import Mixing
from midspan.training.views import FeatureView, ShownView, converted

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "encoder": {"backbone": "small-cnn", "dim": 16, "settings": {"width": 8}},
    "loss": {"name": "cosface", "scale": 16.0, "margin": 0.1},
    "train": {"epochs": 2, "batch_size": 64, "lr": 3e-3, "augment": ["affine"]},
}
OLD = {**BASE, "allocation": {"kind": "extended-data", "part": "old"}}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDSPAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "old"
    train(RunConfig.from_dict(OLD), out=out, progress=False)
    return out


def an_encoder(**settings: Any) -> Encoder:
    return build_encoder(backbone="small-cnn", dim=6, seed=1, settings={"width": 8}, **settings)


def test_shown_view_is_embedded_as_by_the_old_encoder() -> None:
    old = an_encoder(size=16, channels=3).eval()
    images = np.random.default_rng(0).integers(0, 255, (5, 16, 16, 3), dtype=np.uint8)
    shown = old.preprocessing
    seen = ShownView(old, shown=shown)(shown.tensor(images), np.arange(5), None)
    expected = old.embed(images, progress=False).vectors
    np.testing.assert_allclose(seen.numpy(), expected, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in old.parameters())


def test_shown_view_converts_images_of_another_preprocessing() -> None:
    mine = an_encoder(size=16, channels=3).preprocessing
    theirs = build_encoder(backbone="efficientnet-lite0", head="none", size=(16, 16)).preprocessing
    images = np.random.default_rng(0).integers(0, 255, (2, 16, 16, 3), dtype=np.uint8)
    again = converted(mine.tensor(images), mine, theirs)
    torch.testing.assert_close(again, theirs.tensor(images).contiguous(), atol=1e-5, rtol=0)
    grey = an_encoder(size=8, channels=1).preprocessing
    assert converted(mine.tensor(images), mine, grey).shape == (2, 1, 8, 8)


def test_mixed_views_are_last_and_interpolate_two_images() -> None:
    mixing = Mixing.draw(10, 0.5, torch.Generator().manual_seed(0))
    assert mixing is not None
    assert mixing.count == 5
    images = torch.randn(10, 3, 4, 4)
    mixed = mixing(images)
    assert torch.equal(mixed[:5], images[:5])
    for place in range(5):
        partner, share = int(mixing.partners[place]), float(mixing.share[place])
        assert partner != 5 + place
        expected = share * images[5 + place] + (1 - share) * images[partner]
        torch.testing.assert_close(mixed[5 + place], expected)


def test_mixed_features_of_two_backbones_use_the_same_weights() -> None:
    old = build_encoder(backbone="vectors", dim=4, seed=1, settings={"inputs": 6}).eval()
    held = torch.randn(8, 6)
    mixing = Mixing.draw(8, 0.5, torch.Generator().manual_seed(0))
    rows = np.arange(8)
    view = FeatureView(old, load=lambda chosen: held[torch.from_numpy(chosen)])
    seen = view(torch.zeros(8, 3), rows, mixing)
    assert mixing is not None
    torch.testing.assert_close(seen, F.normalize(old(mixing(held))))


def test_old_centres_and_radii_equal_those_of_the_views() -> None:
    vectors = F.normalize(torch.randn(12, 3))
    views = F.normalize(torch.randn(4, 12, 3), dim=2)
    labels = torch.arange(12) % 3
    known = OldArtifacts.measure(
        space=Space("old", 3), vectors=vectors, labels=labels, num_classes=3, views=views
    )
    for label in range(3):
        own = views[:, labels == label].reshape(-1, 3)
        torch.testing.assert_close(known.centres[label], own.mean(0))
        unit = F.normalize(own.mean(0), dim=0)
        largest = torch.stack([torch.acos((v @ unit).clamp(-1, 1)) for v in own]).max()
        torch.testing.assert_close(known.angles[label], largest, atol=1e-3, rtol=0)
    torch.testing.assert_close(known.vectors, vectors)
    assert known.counts.tolist() == [4, 4, 4]


@pytest.mark.parametrize("views", ["shown", "cached"])
def test_run_metrics_name_the_views(
    views: str, old_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = {**BASE, "method": {"name": "advbct"}, "old": {"run": str(old_run), "views": views}}
    result = train(RunConfig.from_dict(raw), out=tmp_path / views, progress=False)
    assert result.metrics["old_views"] == views
    asked = "without augmentation: [old] views = 'cached' asks for it"
    assert (asked in result.metrics.get("old_views_note", "")) == (views == "cached")
    assert (asked in caplog.text) == (views == "cached")


def test_run_with_cached_views_and_no_augmentation_has_no_note(
    old_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = {**BASE, "train": {**BASE["train"], "augment": []}}
    raw = {**plain, "method": {"name": "l2"}, "old": {"run": str(old_run), "views": "cached"}}
    result = train(RunConfig.from_dict(raw), out=tmp_path / "plain", progress=False)
    assert result.metrics["old_views"] == "cached"
    assert "old_views_note" not in result.metrics
    assert "without augmentation" not in caplog.text


def test_run_with_old_vectors_only_notes_cached_views(
    old_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = load_encoder(old_run).embed(digits(), progress=False).save(tmp_path / "old.npz")
    raw = {**BASE, "method": {"name": "l2"}, "old": {"embeddings": str(path)}}
    result = train(RunConfig.from_dict(raw), out=tmp_path / "new", progress=False)
    assert result.metrics["old_views"] == "cached"
    assert "only vectors are left" in result.metrics["old_views_note"]
    assert "only vectors are left" in caplog.text
    raw["old"] = {"embeddings": str(path), "views": "shown"}
    with pytest.raises(ConfigError, match="only vectors are left; set views = 'cached'"):
        train(RunConfig.from_dict(raw), out=tmp_path / "wrong", progress=False)


def test_run_of_a_prefix_is_compared_by_its_first_dims(old_run: Path, tmp_path: Path) -> None:
    raw = {
        **BASE,
        "encoder": {**BASE["encoder"], "dim": 24, "start": "ridge"},
        "train": {**BASE["train"], "mixup": 0.5},
        "method": {"name": "trusted-matching"},
        "old": {"run": str(old_run)},
    }
    result = train(RunConfig.from_dict(raw), out=tmp_path / "wide", progress=False)
    space, old = load_encoder(result.path).space, load_encoder(old_run).space
    assert space.prefix_for(old) == 16
    assert space.compatible_dims == 16
    assert not space.comparable_with(old)  # not as they are
    assert result.scores["cross"] > 0.8 * result.scores["old_self"]
    raw["method"] = {"name": "bct"}
    with pytest.raises(ConfigError, match="has no term on mixtures"):
        train(RunConfig.from_dict(raw), out=tmp_path / "wrong", progress=False)
