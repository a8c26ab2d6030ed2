"""Methods and losses in loops that are not ours."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan import losses, methods
from midspan.config import look_up
from midspan.errors import ConfigError
from midspan.losses import CosFace
from midspan.methods import AdvBCT, HotRefresh, TrustedMatching

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def clouds() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 8
    spots = torch.randn(8, 12, generator=generator)
    return spots[labels] + 0.4 * torch.randn(240, 12, generator=generator), labels


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return nn.Linear(12, 6), nn.Linear(12, 6)


@pytest.mark.parametrize("table", [methods.METHODS, losses.LOSSES], ids=["methods", "losses"])
def test_every_class_of_the_table_is_exported(table: dict[str, str]) -> None:
    package = methods if table is methods.METHODS else losses
    for name in table:
        cls = look_up(table, name, what="class")
        assert getattr(package, cls.__name__) is cls
        assert cls.__name__ in package.__all__
        assert issubclass(cls, nn.Module)


def test_for_old_gives_the_terms_of_a_run() -> None:
    images, labels = clouds()
    old, new = pair()
    with torch.no_grad():
        vectors = old(images)
    compat = HotRefresh.for_old(vectors, labels, dim=6, weight=2.0)
    z = new(images[:32])
    terms = compat(z, labels[:32], old=vectors[:32])
    assert set(terms) == {"contrastive"}
    again = HotRefresh.for_old(3.0 * vectors, labels, dim=6, weight=1.0)
    half = again(z, labels[:32], old=3.0 * vectors[:32])  # lengths do not count
    torch.testing.assert_close(terms["contrastive"], 2.0 * half["contrastive"])


def test_for_old_refuses_labels_that_are_no_classes() -> None:
    with pytest.raises(ConfigError, match="whole numbers 0"):
        AdvBCT.for_old(torch.randn(4, 3), torch.rand(4), dim=3)


def test_value_is_what_the_loop_computes() -> None:
    loss = CosFace.for_classes(4, dim=3, scale=5.0, margin=0.1)
    vectors, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 3, 0, 1])
    cosines = F.normalize(vectors) @ F.normalize(loss.class_rows()).T
    logits = 5.0 * (cosines - 0.1 * F.one_hot(labels, 4))
    torch.testing.assert_close(loss.value(vectors, labels), F.cross_entropy(logits, labels))


@pytest.mark.parametrize("name", ["own_loop_pytorch", "own_loop_metric_learning"])
def test_the_example_learns_a_compatible_encoder(name: str) -> None:
    if name.endswith("metric_learning"):
        pytest.importorskip("pytorch_metric_learning")
    images, labels = clouds()
    old, new = pair()
    before = F.cosine_similarity(new(images), old(images)).mean()
    found = example(name).train(new, old, images, labels, epochs=40)
    assert found[-1] < found[0]
    assert F.cosine_similarity(new(images), old(images)).mean() > before + 0.3


LIGHTNING = """
import sys
import torch
from torch.nn import functional as F
try:
    import torchvision
except ImportError:
    pass
except RuntimeError:  # its wheel wants CUDA; lightning's torchmetrics imports it without a use
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import lightning
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from own_loop_lightning import Compatible
from tests.methods.test_own_loop import clouds, pair
images, labels = clouds()
old, new = pair()
with torch.no_grad():
    vectors = old(images)
data = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, labels), batch_size=48, shuffle=True
)
before = F.cosine_similarity(new(images), vectors).mean().item()
lightning.Trainer(
    max_epochs=10, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    accelerator="cpu",
).fit(Compatible(new, old, vectors, labels), data)
print("cosines", before, F.cosine_similarity(new(images), vectors).mean().item())
"""


@pytest.mark.slow
def test_the_lightning_example_trains(tmp_path: Path) -> None:
    """In a process of its own, so that a broken torchvision does not reach other tests."""
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    root = EXAMPLES.parent
    command = [sys.executable, "-W", "ignore", "-c", LIGHTNING, str(EXAMPLES), str(root)]
    finished = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path
    )
    assert finished.returncode == 0, finished.stderr
    line = next(line for line in finished.stdout.splitlines() if line.startswith("cosines"))
    before, after = (float(part) for part in line.split()[1:])
    assert after > before + 0.1


def test_trust_without_rows_is_taken_from_the_centres() -> None:
    images, labels = clouds()
    old, new = pair()
    with torch.no_grad():
        vectors = F.normalize(old(images))
    compat = TrustedMatching.for_old(vectors, labels, dim=6)
    terms = compat(new(images[:16]), labels[:16], old=vectors[:16])
    assert terms["pull"] > 0
