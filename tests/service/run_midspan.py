"""The command line as it is; for tests an encoder that takes its time or talks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from midspan.cli import main
from midspan.data.decode import Pixels
from midspan.service.encoding import Encoders, Loaded
from midspan.spaces import FloatArray

if __name__ == "__main__":
    seconds = float(os.environ.get("TEST_SLOW_ENCODER", "0"))
    if seconds:
        plain = Loaded.vectors

        def slow(self: Loaded, images: Sequence[Pixels]) -> FloatArray:
            time.sleep(seconds)
            return plain(self, images)

        Loaded.vectors = slow  # type: ignore[method-assign]
    if notice := os.environ.get("TEST_NOTICE"):
        load = Encoders.load.__func__  # type: ignore[attr-defined]

        def talking(cls: type[Encoders], *args: object, **kwargs: object) -> Encoders:
            print(notice, file=sys.stderr, flush=True)
            loaded: Encoders = load(cls, *args, **kwargs)
            return loaded

        Encoders.load = classmethod(talking)  # type: ignore[method-assign,assignment,arg-type]
    main()
