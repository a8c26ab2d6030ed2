"""A made-up benchmark document for tests of its page."""

from __future__ import annotations

from typing import Any

from midspan.evaluation import p_scores

# method → (self, cross) beside old self 0.50 and upper 0.70
SCORES = {
    "independent": (0.70, 0.02),
    "bct": (0.69, 0.55),
    "lce": (0.60, 0.58),
    "l2": (0.65, 0.45),
}


def row(method: str, seed: int = 0, **more: Any) -> dict[str, Any]:
    own, cross = SCORES.get(method, (0.68, 0.52))
    own, cross = more.pop("new_self", own) + 0.01 * seed, more.pop("cross", cross) + 0.01 * seed
    p = p_scores(old=0.5, new=own, cross=cross, upper=0.7)
    values = {
        "allocation": "extended-class",
        "method": method,
        "seed": seed,
        "old_self": 0.5,
        "new_self": own,
        "upper_self": 0.7,
        "cross": cross,
        "p_up": p.up,
        "p_comp": p.comp,
        "p_1": p.score,
        "negative_flips": 0.1,
        "seconds": 12.0,
        "data": "letters",
        "group": "method",
        "direction": "direct",
        "compatible": cross > 0.5,
        "random_cross": 0.01,
        "positive_flips": 0.2,
        "update_gain": 0.1,
        "perf_gain": 0.2,
        "upgrade_gain": 0.1,
        "backfill_area": 0.6,
        "backfill": [cross, 0.55, 0.6, 0.65, own],
        "cross_direct": cross,
    }
    return {**values, **more}


def document(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "command": "midspan bench --data letters.npz",
        "settings": {"metric": "map", "data": ["letters"], "epochs": 3, "new_dim": None},
        "environment": {"torch": "2"},
        "rows": rows,
        "chains": [],
        "failures": {},
        **more,
    }
