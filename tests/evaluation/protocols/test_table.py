"""What holds for every protocol of the table."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from midspan.config import construct, look_up
from midspan.errors import ConfigError, FormatError, MidspanError
from midspan.evaluation.protocols import PROTOCOLS

NEED_A_ROOT = {"roxford", "rparis", "gldv2", "lfw", "ijbc-1v1", "ijbc-1vn"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_has_the_same_shape(name: str) -> None:
    protocol = look_up(PROTOCOLS, name, what="protocol")
    parameters = inspect.signature(protocol.evaluate).parameters
    assert list(parameters) == ["self", "query", "gallery", "metrics", "direct"]
    assert parameters["gallery"].default is None
    assert parameters["metrics"].default == protocol.default_metrics
    assert parameters["metrics"].kind is parameters["metrics"].KEYWORD_ONLY
    assert protocol.default_metrics
    assert protocol.__doc__
    settings = inspect.signature(protocol).parameters
    assert all(setting.kind is setting.KEYWORD_ONLY for setting in settings.values())
    assert ("root" in settings and settings["root"].default is inspect.Parameter.empty) == (
        name in NEED_A_ROOT
    )


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_built_from_plain_settings(name: str, tmp_path: Any) -> None:
    protocol = look_up(PROTOCOLS, name, what="protocol")
    settings: dict[str, Any] = {"root": str(tmp_path)} if name in NEED_A_ROOT else {}
    assert construct(protocol, settings, where="test").evaluate
    with pytest.raises(ConfigError, match="has no setting 'rot'"):
        construct(protocol, {**settings, "rot": "x"}, where="test")


@pytest.mark.parametrize(
    "name", sorted(set(PROTOCOLS) - {"ijbs", "leave-one-out", "query-gallery"})
)
def test_an_empty_folder_is_refused_by_name(name: str, tmp_path: Any) -> None:
    import numpy as np

    from midspan.spaces import Embeddings, Space

    one = Embeddings(np.array(["x"]), np.ones((1, 2), dtype=np.float32), Space("a", 2))
    protocol = look_up(PROTOCOLS, name, what="protocol")(root=tmp_path)
    with pytest.raises(FormatError, match=r"has no (file|folder)"):
        protocol.evaluate(one)


def test_an_unknown_name_is_an_error_with_a_hint() -> None:
    with pytest.raises(MidspanError, match="did you mean 'market1501'"):
        look_up(PROTOCOLS, "market", what="protocol")


def test_no_protocol_needs_torch() -> None:
    modules = sorted({target.partition(":")[0] for target in PROTOCOLS.values()})
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0
