"""Lives on until it is killed: python -m tests.gallery.crash_worker LOCATION SEED FIRST-STEP.

After each step it says so; what it said must be there after its death.
"""

from __future__ import annotations

import sys

from midspan.gallery import Gallery
from tests.gallery.script import step


def main() -> None:
    location, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    gallery = Gallery.open(location)
    print("open", flush=True)
    while True:
        step(gallery, seed, number)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main()
