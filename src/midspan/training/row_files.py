"""Class rows on disk, beside a checkpoint: each process writes its part and reads any part.

The checkpoint names the files that belong to it, so a stop between two of them leaves the last
whole checkpoint whole. Any number of processes can go on from the parts of any other.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch import distributed as dist

from midspan.errors import FormatError
from midspan.losses import RecognitionLoss
from midspan.losses.partial_fc import PartialFC
from midspan.losses.sharded import world
from midspan.training.rows import RowOptimiser


def rows_folder(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".rows")


def save_rows(checkpoint: Path, rows: RowOptimiser, *, epoch: int, step: int) -> str:
    """The own part, synced. Returns the name under which `load_rows` finds the parts of all."""
    held, (_, processes) = rows.loss.held, world()
    name = f"{epoch}-{step}-of-{processes}"
    folder = rows_folder(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.{held.first}.safetensors"
    part = file.with_suffix(".part")
    save_file(
        {key: value.detach().cpu().contiguous() for key, value in rows.tensors.items()},
        part,
        metadata={key: str(getattr(held, key)) for key in ("first", "last", "total")},
    )
    with part.open("rb") as opened:
        os.fsync(opened.fileno())
    part.replace(file)
    return name


def load_rows(checkpoint: Path, rows: RowOptimiser, *, name: str) -> None:
    """The own part, from the parts of as many processes as there were."""
    held, loaded = rows.loss.held, 0
    folder = rows_folder(checkpoint)
    try:
        for file in folder.glob(f"{name}.*.safetensors"):
            with safe_open(file, framework="pt") as opened:
                facts = opened.metadata() or {}
                first, last = int(facts["first"]), int(facts["last"])
                if int(facts["total"]) != held.total or set(opened.keys()) != set(rows.tensors):
                    raise FormatError(f"{file}: holds the rows of another classifier")
                start, stop = max(first, held.first), min(last, held.last)
                if start >= stop:
                    continue
                loaded += stop - start
                for key, target in rows.tensors.items():
                    piece = opened.get_slice(key)[start - first : stop - first]
                    target[start - held.first : stop - held.first] = piece.to(target.device)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise FormatError(
            f"{folder}: not readable ({error}); start again with `restart`"
        ) from error
    if loaded != held.last - held.first:
        raise FormatError(
            f"{folder}: of the classes {held.first} to {held.last} only {loaded} are there; bring "
            "back all files of the checkpoint, or start again with `restart`"
        )


def drop_rows(checkpoint: Path, *, keep: str = "") -> None:
    """Files that no checkpoint needs any more; all of them, if none is named."""
    folder = rows_folder(checkpoint)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for file in folder.iterdir():
        if not file.name.startswith(f"{keep}."):
            file.unlink(missing_ok=True)


def whole_classifier(loss: RecognitionLoss, *, group: dist.ProcessGroup | None) -> RecognitionLoss:
    """In the first process the loss with all its class rows; to be called by all of them."""
    if not isinstance(loss, PartialFC):
        return loss
    held = loss.held
    loss.base.rows = _collected(held.rows, total=held.total, group=group)
    if held.bias is not None:
        loss.base.bias = _collected(held.bias, total=held.total, group=group)
    return loss.base


def _collected(own: Tensor, *, total: int, group: dist.ProcessGroup | None) -> nn.Parameter | None:
    rank, processes = world()
    part = own.detach().cpu().contiguous()
    if rank > 0:
        dist.send(part, dst=0, group=group)
        return None
    whole = torch.empty(total, *part.shape[1:], dtype=part.dtype)
    whole[: len(part)] = part
    for other in range(1, processes):
        dist.recv(
            whole[total * other // processes : total * (other + 1) // processes], other, group
        )
    return nn.Parameter(whole, requires_grad=False)
