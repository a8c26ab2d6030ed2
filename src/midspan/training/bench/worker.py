"""A process that trains and measures runs one after another: JSON lines in, JSON lines out.

    python -m midspan.training.bench.worker

One process for each, since the number of threads is fixed when torch starts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from midspan.errors import Interrupted, MidspanError
from midspan.training.bench.measure import MeasureSpec, measure
from midspan.training.run import train
from midspan.training.settings import RunConfig


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Train and measure, each unless it is done; returns the outcome."""
    folder = Path(task["folder"])
    how = MeasureSpec(**task["how"])
    try:
        config = RunConfig.from_dict(task["config"])
        train(config, out=folder, progress=False)
        if not how.matches(folder):
            measure(folder, config, how, chain=[Path(path) for path in task["chain"]])
    except (Interrupted, KeyboardInterrupt):
        return {"state": "stopped"}
    except MidspanError as error:
        return {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    except Exception as error:  # one failed run must not stop the others
        import traceback

        traceback.print_exc()
        return {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {"state": "done"}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inside train it means: save and stop
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # whatever a library prints must not be read as an answer
    for line in sys.stdin:
        print(json.dumps(work(json.loads(line))), file=answers, flush=True)


def _leave_with(parent: int) -> None:
    """Without its parent the answers are lost, and another benchmark may need the folder."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
