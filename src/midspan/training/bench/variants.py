"""What is compared: a method with its settings, or a part of AdvBCT as in its Table 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from midspan.methods import METHODS


@dataclass(frozen=True)
class Variant:
    name: str
    method: Mapping[str, Any]  # [method] of the run file
    train: Mapping[str, Any] = field(default_factory=dict)  # in addition to the common [train]
    ablation: bool = False

    @property
    def folder(self) -> str:
        return self.name.replace(": ", "-").replace(" + ", "-").replace(" ", "-")


# What a benchmark needs besides a method's defaults: more classes than dims are usual.
OWN: dict[str, dict[str, Any]] = {"simplex": {"projected": True}}
# Methods that can change dims, and the settings for it.
ACROSS_DIMS: dict[str, dict[str, Any]] = {"l2": {}, "lce": {"transformation": "rbt"}}


def plain(
    method: str, settings: Mapping[str, Any] | None = None, *, new_dim: bool = False
) -> Variant:
    across = ACROSS_DIMS.get(method, {}) if new_dim else {}
    return Variant(method, {"name": method, **OWN.get(method, {}), **across, **(settings or {})})


# name → (recognition, adversarial, point to set, elastic boundary); AdvBCT's Table 2, rows 3 to 7,
# and the boundary at the old radius. Row 8, all terms, is the method itself.
ADVBCT_PARTS = {
    "advbct: adv": (False, True, False, True),
    "advbct: p2s": (False, False, True, True),
    "advbct: cls + adv": (True, True, False, True),
    "advbct: cls + p2s": (True, False, True, True),
    "advbct: adv + p2s": (False, True, True, True),
    "advbct: all, not elastic": (True, True, True, False),
}


def ablations(settings: Mapping[str, Any]) -> list[Variant]:
    """The parts of AdvBCT, each with the method's other settings as they are."""
    if "advbct" not in METHODS:
        return []
    variants = []
    for name, (recognition, adversarial, point_to_set, elastic) in ADVBCT_PARTS.items():
        method: dict[str, Any] = {"name": "advbct", **settings}
        if not adversarial:
            method["adversarial_weight"] = 0.0
        if not point_to_set:
            method["p2s_weight"] = 0.0
        if not elastic:
            method["elastic"] = False
        train = {} if recognition else {"recognition_weight": 0.0}
        variants.append(Variant(name, method, train, ablation=True))
    return variants
