"""Many hostile requests against a service: python benchmarks/fuzz_service.py --count 10000

Mutated images (bytes changed, cut, doubled; lying sizes), mutated JSON bodies, and the corpus of
tests/service/corpus with each thousand. What must hold: no 5xx, the service answers to the end, the
gallery verifies, no file outside of the gallery's own is touched. The result goes to
benchmarks/results/fuzz_service.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fastapi.testclient import TestClient

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.service import corpus  # noqa: E402
from tests.service.shop import LOCAL, make_gallery, make_shop, open_core  # noqa: E402
from tests.service.test_hostile import JSON_ROUTES, files  # noqa: E402

from midspan.service.app import create_app  # noqa: E402
from midspan.service.auth import Tokens  # noqa: E402
from midspan.service.settings import Limits  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "fuzz_service.json"
LIMITS = Limits(decode_workers=2, json_bytes=2**20, image_bytes=2**20, encode_wait=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="mutated requests")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "fuzz_service.json"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = fuzz(Path(folder), count=given.count, first=given.first)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    if result["faults"] or not result["verified"] or result["touched"]:
        sys.exit(1)


def fuzz(folder: Path, *, count: int, first: int) -> dict[str, object]:
    shop = make_shop(folder / "shop", pictures=12)
    (folder / "gallery").mkdir()
    place = make_gallery(shop, folder / "gallery" / "shop.midspan", count=12)
    before = files(folder / "shop")
    core = open_core(shop, place, limits=LIMITS, new_encoder=None)
    statuses: Counter[int] = Counter()
    faults: list[str] = []
    started = time.monotonic()

    def ask(client: TestClient, label: str, method: str, path: str, **what: object) -> None:
        answer = client.request(method, path, **what)  # type: ignore[arg-type]
        statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            faults.append(f"{label}: {method} {path} {answer.status_code} {answer.text[:200]}")

    headers = {"content-type": "application/json"}
    with TestClient(create_app(core, tokens=Tokens({})), base_url=LOCAL) as client:
        for seed in range(first, first + count):
            if seed % 2:
                method, path = JSON_ROUTES[seed % len(JSON_ROUTES)]
                body = corpus.mutated_body(seed)
                ask(client, f"body {seed}", method, path, content=body, headers=headers)
            else:
                path = "/v1/search/image" if seed % 4 else f"/v1/items/fuzz-{seed % 100}"
                method = "POST" if seed % 4 else "PUT"
                ask(client, f"image {seed}", method, path, files={"file": corpus.mutated(seed)})
            if seed % 1000 == 0:
                for name, data in corpus.images().items():
                    ask(client, name, "POST", "/v1/search/image", files={"file": data})
                for name, data in corpus.bodies().items():
                    for method, path in JSON_ROUTES:
                        ask(client, name, method, path, content=data, headers=headers)
                for name, kind, data in corpus.forms():
                    form = {"content-type": kind.decode()}
                    ask(client, name, "POST", "/v1/search/image", content=data, headers=form)
                print(seed, dict(statuses), file=sys.stderr, flush=True)
        verified = client.get("/v1/gallery/verify").json()["ok"]
    inside = {file.relative_to(folder).parts for file in folder.rglob("*") if file.is_file()}
    strangers = [
        "/".join(parts)
        for parts in inside
        if parts[0] != "shop" and not (parts[0] == "gallery" and "shop.midspan" in parts[1])
    ]
    touched = strangers + [name for name in files(folder / "shop") if name not in before]
    return {
        "command": f"python benchmarks/fuzz_service.py --count {count} --first {first}",
        "requests": sum(statuses.values()),
        "mutated": count,
        "statuses": {str(status): statuses[status] for status in sorted(statuses)},
        "faults": faults[:20],
        "decoders_replaced": core.decoder.replaced,
        "verified": verified,
        "touched": touched,
        "seconds": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    main()
