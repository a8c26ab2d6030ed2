"""The plan: which encoders are trained, on what, after whom; nothing is trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midspan.deprecation import RenamedWarning
from midspan.errors import ConfigError
from midspan.methods import METHODS
from midspan.training.bench import BenchSettings, Run, make_plan, read_settings
from midspan.training.bench.plan import run_folder
from midspan.training.bench.settings import data_section, encoder_section
from midspan.training.bench.variants import ablations


def settings(**more: Any) -> BenchSettings:
    given: dict[str, Any] = {"data": ("digits",), "methods": ("bct", "l2"), "seeds": 1, "epochs": 2}
    return BenchSettings(**given | more)


def of(runs: list[Run], **expected: Any) -> list[Run]:
    return [run for run in runs if all(getattr(run, k) == v for k, v in expected.items())]


def test_plan_every_case_has_old_encoder_upper_bound_and_methods() -> None:
    runs = make_plan(settings(seeds=3, allocations=("extended-class", "extended-data")))
    assert len(runs) == 3 * 2 * (1 + 1 + 2)
    for seed in range(3):
        for allocation in ("extended-class", "extended-data"):
            case = of(runs, seed=seed, allocation=allocation, kind="new")
            assert [run.method for run in case] == ["independent", "bct", "l2"]


def test_plan_default_methods_are_all_of_the_table() -> None:
    assert set(BenchSettings(data=("digits",)).methods) == METHODS.keys() - {"independent"}


def test_plan_cases_with_the_same_old_part_share_one_old_encoder() -> None:
    names = ("extended-data", "open-data", "extended-backbone-data", "extended-class", "open-class")
    runs = make_plan(settings(allocations=names))
    assert len(of(runs, kind="old")) == 2
    old = {run.allocation: run.old for run in of(runs, kind="new")}
    assert old["extended-data"] == old["open-data"] == old["extended-backbone-data"]
    assert old["extended-class"] == old["open-class"] != old["open-data"]


def test_plan_run_follows_the_run_it_needs_with_another_seed() -> None:
    runs = make_plan(settings(seeds=2, chain=("bct", "l2")))
    place = {run.key: number for number, run in enumerate(runs)}
    for run in runs:
        if run.old is not None:
            assert place[run.old] < place[run.key]
            before = runs[place[run.old]]
            assert before.settings["seed"] != run.settings["seed"]


def test_plan_encoders_of_a_case_share_schedule_loss_and_data() -> None:
    runs = make_plan(settings())
    for section in ("data", "loss", "train", "encoder", "evaluate"):
        assert (
            len({str(run.settings[section]) for run in of(runs, allocation="extended-class")}) == 1
        )


def test_plan_new_backbone_applies_to_new_encoders_of_backbone_cases() -> None:
    runs = make_plan(
        settings(
            allocations=("extended-class", "extended-backbone-class"),
            new_backbone="small-resnet,width=24,blocks=2",
        )
    )
    wide = {"backbone": "small-resnet", "dim": 128, "settings": {"width": 24, "blocks": 2}}
    for run in runs:
        is_new = run.kind == "new" and run.allocation == "extended-backbone-class"
        assert (run.settings["encoder"] == wide) == is_new
        if is_new:
            assert run.settings["allocation"]["kind"] == "extended-class"


def test_plan_backbone_without_a_larger_variant_requires_new_backbone() -> None:
    with pytest.raises(ConfigError, match="give `new_backbone`"):
        make_plan(settings(backbone="efficientnet-lite0", allocations=("extended-backbone-data",)))


def test_plan_chain_each_run_follows_the_previous() -> None:
    runs = of(make_plan(settings(chain=("bct", "l2"), allocations=("open-class",))), kind="chain")
    assert len(runs) == 1 + 2 * 2  # phi1 serves both methods
    bct = of(runs, method="bct")
    first = of(runs, method="independent")[0]
    assert [run.old for run in bct] == [first.key, bct[0].key]
    assert bct[1].chain == (first.key, bct[0].key, bct[1].key)
    shares = [run.settings["allocation"].get("old_fraction") for run in (first, *bct)]
    assert shares == [0.25, 0.5, None]
    assert bct[1].settings["allocation"]["part"] == "new"


def test_ablations_switch_off_one_set_of_terms_only() -> None:
    matches = {one.name: one for one in ablations({"threshold": 0.7})}
    assert len(matches) == 6
    for one in matches.values():
        assert one.ablation
        assert one.method["threshold"] == 0.7
    only_adv = matches["advbct: adv"]
    assert only_adv.method["p2s_weight"] == 0
    assert "adversarial_weight" not in only_adv.method
    assert only_adv.train == {"recognition_weight": 0.0}
    assert matches["advbct: cls + p2s"].method["adversarial_weight"] == 0
    assert matches["advbct: cls + p2s"].train == {}
    assert matches["advbct: all, not elastic"].method["elastic"] is False
    plain = len(make_plan(settings()))
    assert len(make_plan(settings(ablation=True))) == plain + 2 * 6


def test_plan_method_settings_reach_that_method_only() -> None:
    base, methods_of = read_settings(None, ["train.lr=0.01", "methods.bct.weight=2"])
    assert methods_of == {"bct": {"weight": 2}}
    runs = make_plan(settings(base=base, methods_of=methods_of))
    assert {run.settings["train"]["lr"] for run in runs} == {0.01}
    weights = {run.method: run.settings["method"].get("weight") for run in runs}
    assert weights == {"independent": None, "bct": 2, "l2": None}


def test_plan_settings_file_gives_sections_and_methods(tmp_path: Path) -> None:
    file = tmp_path / "bench.toml"
    file.write_text('[train]\nlr = 0.5\n[loss]\nname = "softmax"\n[methods.l2]\nweight = 3.0\n')
    base, methods_of = read_settings(file, ["train.batch_size=32"])
    assert base["train"]["lr"] == 0.5
    assert base["train"]["batch_size"] == 32
    assert base["loss"] == {"name": "softmax"}  # another loss has settings of its own
    assert methods_of == {"l2": {"weight": 3.0}}
    file.write_text('[old]\nrun = "x"\n')
    with pytest.raises(ConfigError, match="no section 'old' for all its runs"):
        read_settings(file, [])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"allocations": ("extended-clas",)}, "did you mean 'extended-class'"),
        ({"methods": ("btc",)}, "did you mean 'bct'"),
        ({"data": ()}, "`data` is missing"),
        ({"data": ("a/x.npz", "b/x.npz")}, "one name"),
        ({"seeds": 0}, "epochs of 1 or more"),
        ({"new_dim": 64}, "bct compare vectors as they are"),
    ],
)
def test_plan_wrong_settings_raise_before_training(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**more)


def test_plan_other_new_dim_lets_lce_learn_its_maps() -> None:
    runs = make_plan(settings(methods=("lce", "l2"), dim=128, new_dim=64))
    for run in runs:
        assert run.settings["encoder"]["dim"] == (128 if run.kind == "old" else 64)
    assert of(runs, method="lce")[0].settings["method"]["transformation"] == "rbt"


def test_encoder_section_parses_backbone_settings() -> None:
    assert encoder_section("timm:resnet18", dim=4) == {"backbone": "timm:resnet18", "dim": 4}
    with pytest.raises(ConfigError, match="expected NAME,key=value"):
        encoder_section("small-resnet,24", dim=4)


def test_data_section_of_file_folder_or_name_is_recognised(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    file.touch()
    assert data_section(str(file)) == {"name": "npz", "path": str(file)}
    assert data_section(str(tmp_path)) == {"name": "folder", "path": str(tmp_path)}
    assert data_section("digits") == {"name": "digits"}
    with pytest.raises(ConfigError, match="no such file or folder"):
        data_section("nothing.npz")


def test_bench_settings_old_spelling_of_a_method_warns_and_is_replaced() -> None:
    with pytest.warns(RenamedWarning, match="'hot_refresh' is now 'hot-refresh'"):
        settings = BenchSettings(
            data=("digits",), methods=("hot_refresh",), methods_of={"hot_refresh": {"weight": 2.0}}
        )
    assert settings.methods == ("hot-refresh",)
    assert settings.methods_of == {"hot-refresh": {"weight": 2.0}}


def test_run_folder_of_an_earlier_release_stays_in_use(tmp_path: Path) -> None:
    key = "digits/extended-class/hot-refresh/seed0"
    assert run_folder(tmp_path, key) == tmp_path / key
    earlier = tmp_path / "digits/extended-class/hot_refresh/seed0"
    earlier.mkdir(parents=True)
    assert run_folder(tmp_path, key) == earlier
