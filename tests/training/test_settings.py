"""Run files: read, checked, changed from outside, written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from midspan.deprecation import RenamedWarning
from midspan.errors import ConfigError
from midspan.training.run_file import comparable, to_toml
from midspan.training.settings import RunConfig

TEXT = """
seed = 3

[data]
name = "npz"
path = "images.npz"

[encoder]
dim = 32

[train]
epochs = 2
augment = ["affine", "flip"]
lr = 1

[old]
run = "../old"
"""


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "my-run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_run_config_load_gives_defaults_types_and_paths(tmp_path: Path) -> None:
    config = RunConfig.load(write(tmp_path))
    assert (config.name, config.seed) == ("my-run", 3)
    assert config.train.augment == ("affine", "flip")
    assert config.train.lr == 1.0
    assert config.encoder.backbone == "small-resnet"
    assert config.method["name"] == "independent"
    assert config.data["path"] == str(tmp_path / "images.npz")
    assert config.old is not None
    assert config.old.run == str(tmp_path / "../old")


def test_run_config_changes_override_the_file(tmp_path: Path) -> None:
    config = RunConfig.load(
        write(tmp_path),
        changes=["train.epochs=7", "method.name=bct", "data.path=here.npz", "seed=9"],
    )
    assert config.train.epochs == 7
    assert config.method["name"] == "bct"
    assert config.data["path"] == "here.npz"  # meant from where we are
    assert config.seed == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nname='npz'\n[trian]\nepochs=1", "no section or setting 'trian'"),
        ("[data]\nname='npz'\n[train]\nepoch=1", "no setting 'epoch'; did you mean 'epochs'"),
        ("[data]\nname='npz'\n[train]\nepochs=0", "epochs: expected 1 or more, got 0"),
        ("[data]\nname='npz'\n[train]\nlr=-1.0", "lr: expected more than 0, got -1.0"),
        ("[data]\nname='npz'\n[train]\nsampler='all'", "one of 'shuffled', 'balanced'"),
        ("seed=1", r"\[data\] is missing"),
        ("seed='x'\n[data]\nname='npz'", "'seed': expected int"),
        ("[data]\nname='npz'\n[old]\n", "either run"),
        ("[data]\nname='npz'\n[allocation]\nkind='open-data'", "requires a value for 'part'"),
    ],
)
def test_run_config_mistake_is_named_in_the_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.load(write(tmp_path, text))


@pytest.mark.parametrize("change", ["epochs", "train.epochs", ".=3"])
def test_change_without_section_and_value_raises_config_error(tmp_path: Path, change: str) -> None:
    with pytest.raises(ConfigError):
        RunConfig.load(write(tmp_path), changes=[change])


def test_run_config_round_trip_is_equal(tmp_path: Path) -> None:
    raw = {
        "name": 'quote " and ü',
        "seed": 1,
        "data": {"name": "npz", "path": "a\\b.npz"},
        "encoder": {"dim": 8, "settings": {"hidden": 4, "flag": True}},
        "train": {"lr": 1e-05, "augment": ["affine"]},
    }
    path = write(tmp_path, to_toml(raw))
    from midspan.config import read_toml

    assert read_toml(path) == raw


def slices(encoder: dict[str, object], train: dict[str, object]) -> RunConfig:
    return RunConfig.from_dict({"data": {"name": "digits"}, "encoder": encoder, "train": train})


def test_sub_embeddings_default_to_the_number_of_learners() -> None:
    assert slices({"dim": 32}, {}).sub_embeddings == 1
    assert slices({"dim": 32}, {"learners": 4}).sub_embeddings == 4
    assert slices({"dim": 32, "sub_embeddings": 8}, {"learners": 4}).sub_embeddings == 8
    assert slices({"dim": 32, "sub_embeddings": 1}, {"learners": 4}).sub_embeddings == 1


@pytest.mark.parametrize(
    ("encoder", "train", "message"),
    [
        ({"dim": 30}, {"learners": 4}, "learners = 4 does not divide"),
        ({"dim": 32, "sub_embeddings": 5}, {}, "sub_embeddings = 5 does not divide"),
        ({"dim": 32, "sub_embeddings": 0}, {}, "expected 1 or more, got 0"),
        ({"dim": 32, "sub_embeddings": 8}, {"learners": 16}, "end inside a sub-embedding"),
        (
            {"dim": 32, "first_confidence": 1000.0},
            {},
            "first_confidence: expected more than .* got 1000.0",
        ),
        ({"dim": 32, "sub_embedings": 4}, {}, "did you mean 'sub_embeddings'"),
    ],
)
def test_run_config_unfit_learners_raise_config_error(
    encoder: dict[str, object], train: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        slices(encoder, train)


def test_comparable_run_file_of_an_earlier_release_equals_the_current_one() -> None:
    earlier = {"name": "a-hot_refresh", "method": {"name": "hot_refresh"}, "loss": {"name": "url"}}
    now = {
        "name": "a-hot-refresh",
        "method": {"name": "hot-refresh"},
        "loss": {"name": "universal"},
    }
    assert comparable(to_toml(earlier)) == comparable(to_toml(now)) == to_toml(now)


def test_from_dict_old_method_name_warns_unless_saved() -> None:
    raw = {"data": {"name": "digits"}, "method": {"name": "hot_refresh"}}
    with pytest.warns(RenamedWarning, match="the method 'hot_refresh' is now 'hot-refresh'"):
        assert RunConfig.from_dict(raw).method["name"] == "hot-refresh"
    assert RunConfig.from_dict(raw, saved=True).method["name"] == "hot-refresh"
