"""Exit codes, the same for every verb."""

from __future__ import annotations

import typer

DONE = 0  # done, or PASS
INCOMPLETE = 1  # FAIL, or something that was asked for is not there at the end
ERROR = 2  # nothing was decided: a missing file, a wrong option, a defect
INCONCLUSIVE = 3  # the evidence does not decide
INTERRUPTED = 130  # Ctrl-C, as shells expect

TEXT = (
    "Exit codes: 0 done or PASS, 1 FAIL or incomplete, 2 error, 3 INCONCLUSIVE, "
    "130 stopped by Ctrl-C."
)
_BY_VERDICT = {"PASS": DONE, "FAIL": INCOMPLETE, "INCONCLUSIVE": INCONCLUSIVE}


def exit_with(verdict: str) -> None:
    """Leave the command with the code of this verdict; PASS continues."""
    if code := _BY_VERDICT[verdict]:
        raise typer.Exit(code)
