"""A core install, without torch: every verb gives its result, or names the extra that it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from midspan import Embeddings, Space
from midspan.bridges import Ridge
from midspan.cli import app

WITHOUT = "import sys; sys.modules['torch'] = None\n"
SCRIPT = WITHOUT + (
    "import json, shlex\n"
    "from midspan.cli import main\n"
    "for line in open(sys.argv[1], encoding='utf-8'):\n"
    "    sys.argv = ['midspan', *shlex.split(line)]\n"
    "    code = 0\n"
    "    print('>>>', line.strip(), flush=True)\n"
    "    try:\n        main()\n"
    "    except SystemExit as stop:\n        code = stop.code or 0\n"
    "    sys.stdout.flush(); sys.stderr.flush()\n"
    "    print('<<<', code, flush=True)\n"
)
NEEDS = 'pip install "midspan[train]"'

# verb → (words, what a core install gives: an exit code, or NEEDS)
VERBS: dict[str, tuple[str, int | str]] = {
    "demo": ("demo --out demo", NEEDS),
    "train": ("train run.toml --out r", NEEDS),
    "runs": ("runs .", 0),
    "embed": ("embed efficientnet-lite0 photos --out e.npz", NEEDS),
    "export": ("export encoder --out m.onnx", NEEDS),
    "bridge fit": ("bridge fit --source old.npz --target new.npz --method ridge --out b", 0),
    "bridge apply": ("bridge apply bridge --input old.npz --out mapped.npz", 0),
    "bridge compare": (
        "bridge compare --source old.npz --target new.npz --methods ridge --min-retention 0.01",
        0,
    ),
    "bridge export": ("bridge export bridge --out bridge.onnx", 0),
    "eval": ("eval --query old.npz", 0),
    "compare": ("compare --old old.npz --new new.npz --page page.html", 0),
    "data split": ("data split photos --classes 1-8 --out first.csv", 0),
    "bench": ("bench --data digits --out bench", NEEDS),
    "gate": ("gate --before old.npz --after old.npz", 0),
    "gallery create": ("gallery create shop.midspan --embeddings old.npz --images photos", 0),
    "gallery add": ("gallery add shop.midspan --embeddings old.npz --replace", 0),
    "gallery search": ("gallery search shop.midspan --vectors old.npz -k 2", 0),
    "gallery info": ("gallery info shop.midspan", 0),
    "gallery verify": ("gallery verify shop.midspan", 0),
    "gallery optimise": ("gallery optimise shop.midspan", 0),
    "gallery expire": ("gallery expire shop.midspan --field until", 0),
    "gallery index-payload": ("gallery index-payload shop.midspan brand", 2),
    "gallery quantise": ("gallery quantise shop.midspan int8", 0),
    "gallery export": ("gallery export shop.midspan shop.parquet", 0),
    "gallery backup": ("gallery backup shop.midspan shop.backup", 0),
    "gallery restore": ("gallery restore shop.backup restored.midspan", 0),
    "gallery adopt": (
        "gallery adopt adopted.midspan --from old.npy --ids ids.txt --space-name s",
        0,
    ),
    "gallery reconcile": ("gallery reconcile shop.midspan", 2),  # not adopted in place
    "gallery detach": ("gallery detach shop.midspan", 2),
    "gallery hand-over": ("gallery hand-over shop.midspan", 2),
    "gallery copy": ("gallery copy shop.midspan twin.midspan", 0),
    "upgrade plan": ("upgrade plan shop.midspan --to new.npz", 0),
    "upgrade start": ("upgrade start shop.midspan --to new.npz", 0),
    "upgrade status": ("upgrade status shop.midspan", 0),
    "upgrade run": ("upgrade run shop.midspan --embeddings new.npz --full-speed", 0),
    "upgrade failures": ("upgrade failures shop.midspan", 0),
    "upgrade audit": ("upgrade audit shop.midspan", 0),
    "upgrade traffic": ("upgrade traffic shop.midspan 50%", 0),
    "upgrade reorder": ("upgrade reorder shop.midspan newest", 0),
    "upgrade pause": ("upgrade pause shop.midspan", 0),
    "upgrade resume": ("upgrade resume shop.midspan", 0),
    "upgrade gate": (
        "upgrade gate shop.midspan --shadow-old old.npz --shadow-new new.npz "
        "--max-negative-flips 1 --min-retention 0",
        0,
    ),
    "upgrade finish": ("upgrade finish shop.midspan", 0),
    "upgrade forget": ("upgrade forget shop.midspan", 0),
    "upgrade rollback": ("upgrade rollback twin.midspan", 2),  # no upgrade is open there
    "serve": ("serve --gallery shop.midspan --encoder efficientnet-lite0 --port 0", NEEDS),
    "doctor": ("doctor", 0),
}


def all_verbs() -> set[str]:
    verbs = set()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        verbs |= {name} if inner is None else {f"{name} {one}" for one in inner}
    return verbs


def vectors(path: Path, space: Space, noise: float) -> Embeddings:
    labels = np.arange(80) % 16
    centres = np.random.default_rng(0).normal(size=(16, 8))
    rows = centres[labels] + noise * np.random.default_rng(1).normal(size=(80, 8))
    ids = np.array([f"c{n % 16:02d}/{n:02d}.png" for n in range(80)])
    made = Embeddings(ids, rows.astype(np.float32), space, {"labels": labels})
    made.save(path)
    return made


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of every verb, in one process that cannot import torch."""
    folder = tmp_path_factory.mktemp("core")
    old = vectors(folder / "old.npz", Space("old", 8, fingerprint="f-old"), 0.3)
    space = Space("new", 8, fingerprint="f-new", compatible_with=("f-old",))
    new = vectors(folder / "new.npz", space, 0.3)
    Ridge(alpha=1.0).fit(old, new).save(folder / "bridge")
    np.save(folder / "old.npy", old.vectors)
    (folder / "ids.txt").write_text("".join(f"{id}\n" for id in old.ids))
    for id in old.ids.tolist():
        (folder / "photos" / id).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(folder / "photos" / id)
    (folder / "run.toml").write_text('[data]\nname = "digits"\n')
    (folder / "encoder").mkdir()
    (folder / "lines").write_text("".join(f"{words}\n" for words, _ in VERBS.values()))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "lines"],
        cwd=folder,
        env=os.environ | {"MIDSPAN_CACHE": str(folder / "cache")},  # a cached graph needs no torch
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=240,
    )
    outputs = {}
    for name, part in zip(VERBS, done.stdout.split(">>> ")[1:], strict=True):
        text, _, code = part.rpartition("<<< ")
        outputs[name] = (int(code), text)
    return outputs


def test_without_torch_table_covers_every_verb() -> None:
    assert set(VERBS) == all_verbs()


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_verb_without_torch_works_or_names_the_extra(
    said: dict[str, tuple[int, str]], verb: str
) -> None:
    code, text = said[verb]
    expected = VERBS[verb][1]
    assert "Traceback" not in text, text
    if expected == NEEDS:
        assert code == 2, text
        assert NEEDS in text
    else:
        assert code == expected, text


def test_train_function_without_torch_names_the_extra() -> None:
    code = WITHOUT + (
        "import midspan as ms\n"
        "from midspan.training import RunConfig, list_runs\n"
        "try:\n    ms.train\n"
        "except ms.MidspanError as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingDependency training needs torch")
    assert NEEDS in done.stdout
