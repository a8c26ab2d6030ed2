"""The first check of every method that compares new and old vectors as they are."""

from __future__ import annotations

from midspan.errors import ConfigError
from midspan.methods.old import OldArtifacts


def same_dim(old: OldArtifacts | None, *, dim: int, method: str) -> OldArtifacts:
    """The old artifacts, which must exist and have the dim of the new encoder."""
    if old is None:
        raise ConfigError(f"{method} needs the old encoder: name its run or its vectors in [old]")
    if old.space.dim != dim:
        raise ConfigError(
            f"{method} compares vectors as they are, so the new dim must be the old one: old space "
            f"{old.space}, new dim {dim}; set [encoder] dim = {old.space.dim}"
        )
    return old
