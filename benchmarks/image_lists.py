"""Image lists of CUB-200-2011 and Market-1501, for run files and `midspan bench`.

    python benchmarks/image_lists.py --cub FOLDER --market FOLDER --out LISTS

CUB-200-2011 (`images/<class>/<file>`): classes 1-100 train, 101-200 test. Market-1501 by its own
folders: bounding_box_train trains; query and bounding_box_test are the test part, with the columns
`cameras` and `part`. The lists hold absolute paths, so LISTS can be anywhere.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from midspan.evaluation.protocols.market1501 import NAME

PARTS = ("bounding_box_train", "bounding_box_test", "query")


def cub(root: Path) -> list[dict[str, str]]:
    rows = []
    for folder in sorted((root / "images").iterdir()):
        split = "train" if int(folder.name[:3]) <= 100 else "test"
        for file in sorted(folder.glob("*.jpg")):
            rows.append({"path": str(file.resolve()), "label": folder.name, "split": split})
    return rows


def market(root: Path) -> list[dict[str, str]]:
    rows = []
    for part in PARTS:
        for file in sorted((root / part).glob("*.jpg")):
            match = NAME.fullmatch(file.name)
            assert match is not None, file
            rows.append(
                {
                    "path": str(file.resolve()),
                    "label": match[1],
                    "split": "train" if part == "bounding_box_train" else "test",
                    "cameras": match[2],
                    "part": part,
                }
            )
    return rows


def write(rows: list[dict[str, str]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    print(f"{path}: {len(rows)} images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cub", type=Path)
    parser.add_argument("--market", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.cub:
        write(cub(given.cub), given.out / "cub.csv")
    if given.market:
        write(market(given.market), given.out / "market.csv")


if __name__ == "__main__":
    main()
