"""Moving a gallery from one space to the next. So far: the gate that says whether to."""

from midspan.upgrade.gate import Check, GateResult, gate, judged

__all__ = ["Check", "GateResult", "gate", "judged"]
