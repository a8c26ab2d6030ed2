"""The shell blocks of README and docs run, one after another, in a folder with small inputs.

Every line of a block is either run or listed in NOT_RUN with the reason. The folder is prepared
once and copied for each page. Blocks of the tutorials are checked elsewhere: tests/test_pages.py,
tests/test_first_upgrade.py.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

import midspan as ms
from midspan.cli import app
from midspan.encoders import Encoder, build_encoder

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

# start of a line → why it is not run. Every entry must be in use.
NOT_RUN = {
    "pip install ": "changes the environment; tests/first_hour/run.sh installs the wheel",
    "make ": "CI runs these targets themselves (.ci/run)",
    "SHOP=": "names a server",
    "midspan gallery adopt $SHOP ": "needs PostgreSQL or Qdrant; tests/gallery/adoption runs it",
    "midspan upgrade start $SHOP ": "needs PostgreSQL; tests/gallery/adoption runs it",
    "midspan upgrade run $SHOP ": "needs PostgreSQL; tests/gallery/adoption runs it",
    "midspan upgrade finish $SHOP ": "needs PostgreSQL; tests/gallery/adoption runs it",
    "midspan upgrade rollback $SHOP": "needs PostgreSQL; tests/gallery/adoption runs it",
    "midspan gallery detach $SHOP": "needs PostgreSQL; tests/gallery/adoption runs it",
    "midspan gallery reconcile $SHOP": "needs Qdrant; tests/gallery/adoption runs it",
    "midspan gallery adopt 'postgresql:": "needs PostgreSQL; tests/gallery/adoption runs it",
    "midspan gallery adopt shop.midspan --from lance:": "a table at an absolute path",
    "midspan serve ": "a server; tests/service runs it",
    "curl ": "talks to the server of the block before",
    "torchrun ": "several processes; tests/training/test_distributed.py runs them",
    "midspan upgrade run shop.midspan --encoder runs/new --ray": "needs Ray; tests/cli/test_ray.py",
    "midspan embed runs/new photos/ --out new.npz --ray ": "needs Ray; tests/cli/test_ray.py",
    "python -m benchmarks.": "minutes of measurement",
    "python benchmarks/": "minutes of measurement",
}
CHECKED_ELSEWHERE = {"first_upgrade.md", "tutorials"}
RUN_FILE = """
[data]
name = "digits"
[encoder]
backbone = "small-cnn"
dim = 8
[train]
epochs = 1
"""


def shell_lines(page: Path) -> list[str]:
    """The commands of all shell blocks of a page; a line that ends in a backslash continues."""
    text = page.read_text(encoding="utf-8")
    lines = []
    for block in re.findall(r"^ *```(?:sh|bash|console)\n(.*?)```", text, flags=re.DOTALL | re.M):
        joined = block.replace("\\\n", " ")
        lines += [line for line in joined.splitlines() if line and not line.startswith("#")]
    return lines


def reason(line: str) -> str | None:
    return next((start for start in NOT_RUN if line.startswith(start)), None)


PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if page.name not in CHECKED_ELSEWHERE
    and page.parent.name not in CHECKED_ELSEWHERE
    and shell_lines(page)
]
RUN = [page for page in PAGES if any(reason(line) is None for line in shell_lines(page))]


def embeddings(space: ms.Space, first: int, count: int, noise: float) -> ms.Embeddings:
    """Items first … first + count of twelve classes; the name of the space seeds its rotation."""
    rng = np.random.default_rng(first)
    labels = np.arange(first, first + count) % 12 + 1  # 0 is no person in Market-1501
    points = np.eye(space.dim)[labels] + noise * rng.normal(size=(count, space.dim))
    rotation = np.random.default_rng(len(space.name)).normal(size=(space.dim, space.dim))
    columns = {
        "labels": np.array([f"{one:04d}" for one in labels]),
        "cameras": np.arange(count) // 12 % 3,
        "until": np.full(count, 1.0 if first else 4e9),  # what is added later has ended
    }
    ids = np.array([f"i{number}" for number in range(first, first + count)])
    return ms.Embeddings(ids, (points @ rotation).astype(np.float32), space, columns)


def write_photos(folder: Path, encoders: dict[str, Encoder]) -> None:
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / kind / f"{number}.jpg")
    for name, encoder in encoders.items():
        encoder.save(folder / "runs" / name)
    paths = sorted((folder / "photos").rglob("*.jpg"))
    rows = [
        f"{path.relative_to(folder)},{path.parent.name},{n // 2}" for n, path in enumerate(paths)
    ]
    (folder / "photos.csv").write_text(
        "\n".join(["path,label,item", *rows]) + "\n", encoding="utf-8"
    )
    (folder / "shards").mkdir()
    for shard in range(4):
        with tarfile.open(folder / "shards" / f"train-{shard:03d}.tar", "w") as tar:
            for path in paths[shard::4]:
                for suffix, data in ((".jpg", path.read_bytes()), (".cls", b"cat")):
                    entry = tarfile.TarInfo(f"{path.parent.name}-{path.stem}{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


def write_vectors(folder: Path) -> None:
    old_space, new_space = ms.Space("v1", 24), ms.Space("version2", 24)
    old, new = embeddings(old_space, 0, 240, 0.4), embeddings(new_space, 0, 240, 0.1)
    more, mapped = embeddings(old_space, 240, 24, 0.4), embeddings(new_space, 0, 240, 0.3)
    files = {
        **{
            "old": old,
            "new": new,
            "independent": new,
            "more": more,
            "gallery": old,
            "mapped": mapped,
        },
        **{"g": old, "q": old[:60], "queries": old[:5]},
        **{"old-queries": old[:60], "new-queries": new[:60]},
    }
    for name, made in files.items():
        made.save(folder / f"{name}.npz")
    for name in ("v1", "v2"):  # of another tool: without a space
        (folder / name).mkdir()
        np.savez(
            folder / name / "emb.npz",
            vectors=old.vectors,
            ids=old.ids,
            labels=old.columns["labels"],
        )
    np.save(folder / "vectors.npy", old.vectors)
    (folder / "ids.txt").write_text("\n".join(old.ids) + "\n", encoding="utf-8")
    table = {"sku": list(old.ids), "embedding": list(old.vectors), "image": list(old.ids)}
    table |= {"brand": ["acme"] * len(old), "price": list(range(len(old)))}
    pq.write_table(pa.table(table), folder / "products.parquet")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: photographs, encoders, vectors, a run file."""
    folder = tmp_path_factory.mktemp("inputs")
    encoders = {
        name: build_encoder(backbone="small-cnn", dim=8, name=name, seed=seed)
        for seed, name in enumerate(("old", "new"))
    }
    write_photos(folder, {name: one for name, one in encoders.items() if isinstance(one, Encoder)})
    write_vectors(folder)
    (folder / "new.toml").write_text(RUN_FILE, encoding="utf-8")
    return folder


def prepare(page: str) -> None:
    """Where a page begins with a gallery, or with files of another kind than the others."""
    if page == "labels_ids_and_spaces.md":
        for name in ("queries", "gallery"):
            shutil.copy("v1/emb.npz", f"{name}.npz")
    if page in ("upgrade.md", "backup.md"):
        with ms.Gallery.create("shop.midspan", ms.Embeddings.load("old.npz").space) as made:
            made.add(ms.Embeddings.load("old.npz"))
    if page == "bridges.md":  # its block makes the mapped vectors
        Path("mapped.npz").unlink()
        done = "gallery create shop.midspan --images photos/ --encoder runs/old"
        assert CliRunner().invoke(app, done.split()).exit_code == 0
    if page == "training.md":
        shutil.rmtree("runs/new")


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_shell_blocks_of_a_page_run_one_after_another(
    page: Path, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(inputs, tmp_path / "page")
    monkeypatch.chdir(folder)
    prepare(page.name)
    for line in shell_lines(page):
        if reason(line) is not None:
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        assert words[0] == "midspan", f"{page.name}: {line}: neither run nor listed in NOT_RUN"
        done = CliRunner().invoke(app, words[1:])
        # 1 and 3 are answers, such as a gate's FAIL and INCONCLUSIVE; 2 is an error
        assert done.exit_code in (0, 1, 3), (line, done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), line


def test_every_entry_of_the_list_of_lines_not_run_is_in_use() -> None:
    used = {reason(line) for page in PAGES for line in shell_lines(page)}
    assert NOT_RUN.keys() - used == set()


def test_every_block_with_commands_says_its_language() -> None:
    """A block without a language is neither run nor coloured."""
    found = []
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        fences = re.findall(r"^ *```(.*)\n(.*)", page.read_text(encoding="utf-8"), flags=re.M)
        bare = [first for language, first in fences[::2] if language == ""]
        found += [
            f"{page.name}: {line}"
            for line in bare
            if re.match(r"(\$ )?(midspan|python|pip) ", line)
        ]
    assert found == []
