"""The command line as it is; for one test with an encoder that takes its time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from midspan.cli import main
from midspan.data.decode import Pixels
from midspan.service.encoding import Loaded
from midspan.spaces import FloatArray

if __name__ == "__main__":
    seconds = float(os.environ.get("TEST_SLOW_ENCODER", "0"))
    if seconds:
        plain = Loaded.vectors

        def slow(self: Loaded, images: Sequence[Pixels]) -> FloatArray:
            time.sleep(seconds)
            return plain(self, images)

        Loaded.vectors = slow  # type: ignore[method-assign]
    main()
