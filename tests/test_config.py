"""Run files are checked against signatures; what does not fit is an error with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from midspan.config import build, check_settings, construct, current_name, look_up, read_toml
from midspan.deprecation import RenamedWarning
from midspan.errors import ConfigError


class Thing:
    def __init__(
        self,
        *,
        weight: float = 1.0,
        count: int = 2,
        kind: Literal["a", "b"] = "a",
        names: tuple[str, ...] = (),
        box: tuple[int, int] = (1, 1),
        path: Path | None = None,
        flag: bool = False,
    ) -> None:
        self.values = (weight, count, kind, names, box, path, flag)


class Strict:
    def __init__(self, *, must: int) -> None:
        self.must = must


TABLE = {"thing": "tests.test_config:Thing", "strict": "tests.test_config:Strict"}


def test_build_converts_values_to_the_annotated_types() -> None:
    thing = build(
        TABLE,
        {"name": "thing", "weight": 3, "names": ["x"], "box": [2, 3], "path": "p", "flag": True},
        what="thing",
    )
    assert thing.values == (3.0, 2, "a", ("x",), (2, 3), Path("p"), True)
    assert isinstance(thing.values[0], float)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wieght": 1.0}, "Thing has no setting 'wieght'; did you mean 'weight'?"),
        ({"zzz": 1}, "known: box, count"),
        ({"weight": "heavy"}, "'weight': expected float, got 'heavy'"),
        ({"count": 1.5}, "'count': expected int, got 1.5"),
        ({"count": True}, "'count': expected int, got True"),
        ({"flag": 1}, "'flag': expected bool, got 1"),
        ({"kind": "c"}, "one of 'a', 'b', got 'c'"),
        ({"names": "x"}, "'names': expected"),
        ({"names": [1]}, "'names': expected"),
        ({"box": [1, 2, 3]}, "'box': expected"),
        ({"path": 3}, "'path': expected"),
    ],
)
def test_construct_unfit_setting_is_named_in_the_error(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        construct(Thing, settings, where="[thing]")
    assert message in str(caught.value)
    assert str(caught.value).startswith("[thing]")


def test_build_missing_or_unknown_name_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="requires a value for 'must'"):
        build(TABLE, {"name": "strict"}, what="thing")
    with pytest.raises(ConfigError, match="did you mean 'thing'"):
        look_up(TABLE, "thin", what="thing")
    with pytest.raises(
        ConfigError, match=r"\[thing\] name: expected one of strict, thing, got None"
    ):
        build(TABLE, {"weight": 1.0}, what="thing")


def test_look_up_underscore_for_hyphen_warns_and_finds_the_entry() -> None:
    table = {"two-words": "tests.test_config:Thing"}
    with pytest.warns(RenamedWarning, match="the thing 'two_words' is now 'two-words'"):
        assert look_up(table, "two_words", what="thing") is Thing
    assert look_up(table, "two_words", what="thing", warn=False) is Thing
    assert look_up({"two_words": "tests.test_config:Thing"}, "two_words", what="thing") is Thing


def test_current_name_renamed_loss_warns() -> None:
    with pytest.warns(RenamedWarning, match="the loss 'url' is now 'universal'"):
        assert current_name("url", what="loss") == "universal"
    assert current_name("url", what="backbone") == "url"


def test_build_renamed_setting_warns_and_is_passed_on() -> None:
    from midspan.losses import LOSSES

    with pytest.warns(RenamedWarning, match=r"'rows_lr' of \[loss\] is now 'proxy_lr'"):
        loss = build(LOSSES, {"name": "proxy-anchor", "rows_lr": 7.0}, what="loss")
    assert loss.proxy_lr == 7.0


def test_check_settings_argument_of_the_caller_is_refused() -> None:
    with pytest.raises(ConfigError, match="no setting 'must'"):
        check_settings(Strict, {"must": 1}, where="here", taken=["must"])


def test_read_toml_invalid_or_missing_file_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("[a]\nb = 1\n", encoding="utf-8")
    (tmp_path / "bad.toml").write_text("[a\n", encoding="utf-8")
    assert read_toml(tmp_path / "good.toml") == {"a": {"b": 1}}
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="no such run file"):
        read_toml(tmp_path / "none.toml")
