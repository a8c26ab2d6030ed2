"""The device of a name, or an error that says why there is none."""

from __future__ import annotations

import torch

from midspan.errors import ConfigError


def device_named(name: str | None) -> torch.device:
    """None: CUDA if there is a device, else the CPU.

    Raises:
        ConfigError: No such kind of device, or none of it on this machine.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device {name!r}: expected 'cpu', 'cuda', 'cuda:N' or 'mps'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {name!r}: torch {torch.__version__} finds no CUDA device here; use 'cpu', or "
            "install a build of torch for CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices, numbered "
            "from 0"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device {name!r}: torch finds no such device here; use 'cpu'")
    return device
