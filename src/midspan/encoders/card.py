"""The README.md of an encoder folder: a model card for people and for the hub."""

from __future__ import annotations

from midspan.encoders.encoder import Encoder
from midspan.spaces import Space


def model_card(encoder: Encoder, space: Space) -> str:
    takes = "precomputed vectors"
    if encoder.takes_images:
        p = encoder.preprocessing
        takes = (
            f"{p.height} x {p.width} px, {p.channels} channel{'s' if p.channels > 1 else ''}, "
            f"fit by {p.fit}, mean {_numbers(p.mean)}, std {_numbers(p.std)}"
        )
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    evidence = {one.old: f" ({one})" for one in encoder.evidence}
    older = ", ".join(f"`{old}`{evidence.get(old, '')}" for old in encoder.compatible_with)
    older = older or "none on record"
    if encoder.compatible_dims is not None:
        older += f" by the first {encoder.compatible_dims} dims"
    length = "L2-normalised" if encoder.normalise else "not normalised"
    backbone = encoder.backbone.config()
    kind = backbone.get("model", backbone.get("config", {}).get("model_type", ""))
    return f"""---
library_name: midspan
pipeline_tag: image-feature-extraction
tags:
- midspan
- image-retrieval
---

# {encoder.name}

An encoder for visual search, saved by [midspan](https://pypi.org/project/midspan/).

| | |
|---|---|
| backbone | {backbone["name"]}{f" ({kind})" if kind else ""} |
| head | {encoder.head.name} |
| parameters | {parameters:,} |
| input | {takes} |
| output | {space.dim}-d, {length}, compared by {space.metric} |
| fingerprint | `{space.fingerprint}` |
| compatible with | {older} |

```python
import midspan as ms

encoder = ms.load_encoder("path/to/this/folder")
embeddings = encoder.embed(ms.data.folder("photos/"))
```

Vectors of two encoders may be compared only if they share a fingerprint, or if one names the
other under "compatible with".
"""


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
