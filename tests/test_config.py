"""Run files are checked against signatures; what does not fit is an error with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from midspan.config import build, check_settings, construct, look_up, read_toml
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


def test_values_are_converted_to_the_annotated_types() -> None:
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
        ({"weight": "heavy"}, "'weight' wants float, got 'heavy'"),
        ({"count": 1.5}, "'count' wants int, got 1.5"),
        ({"count": True}, "'count' wants int, got True"),
        ({"flag": 1}, "'flag' wants bool, got 1"),
        ({"kind": "c"}, "one of 'a', 'b', got 'c'"),
        ({"names": "x"}, "'names' wants"),
        ({"names": [1]}, "'names' wants"),
        ({"box": [1, 2, 3]}, "'box' wants"),
        ({"path": 3}, "'path' wants"),
    ],
)
def test_what_does_not_fit_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        construct(Thing, settings, where="[thing]")
    assert message in str(caught.value)
    assert str(caught.value).startswith("[thing]")


def test_missing_and_unknown_names() -> None:
    with pytest.raises(ConfigError, match="wants a value for 'must'"):
        build(TABLE, {"name": "strict"}, what="thing")
    with pytest.raises(ConfigError, match="did you mean 'thing'"):
        look_up(TABLE, "thin", what="thing")
    with pytest.raises(ConfigError, match=r"\[thing\] wants a name; one of strict, thing"):
        build(TABLE, {"weight": 1.0}, what="thing")


def test_what_the_caller_gives_is_not_a_setting() -> None:
    with pytest.raises(ConfigError, match="no setting 'must'"):
        check_settings(Strict, {"must": 1}, where="here", taken=["must"])


def test_toml_files(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text("[a]\nb = 1\n", encoding="utf-8")
    (tmp_path / "bad.toml").write_text("[a\n", encoding="utf-8")
    assert read_toml(tmp_path / "good.toml") == {"a": {"b": 1}}
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="no such run file"):
        read_toml(tmp_path / "none.toml")
