"""`midspan upgrade plan`: what an upgrade of this gallery would do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from midspan.cli.output import JSON_OPTION, print_json
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.cli.upgrade_options import BRIDGE, ENCODER, LOCATION, MODE, ORDER, SAMPLE, TO, Mode
from midspan.cli.upgrade_sources import (
    check_request,
    check_uris,
    encoder_named,
    opened,
    target_from,
)
from midspan.cli.upgrade_tables import print_plan


def plan(
    location: Annotated[str, LOCATION],
    to: Annotated[Path | None, TO] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    mode: Annotated[Mode, MODE] = "direct",
    bridge: Annotated[Path | None, BRIDGE] = None,
    order: Annotated[str | None, ORDER] = None,
    sample: Annotated[int, SAMPLE] = 300,
    space: Annotated[list[str] | None, SPACE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """What an upgrade would do, how long it takes and what the gate says. Nothing is changed."""
    with opened(location) as upgrade:
        check_request(upgrade.gallery, mode=mode, bridge=bridge, order=order)
        if encoder is not None and to is None:
            check_uris(upgrade.gallery)
        embed = None if encoder is None else encoder_named(encoder)[1]
        made = upgrade.plan(
            upgrade.gallery,
            to=target_from(to, encoder, SpaceNames.of(space, "to")),
            mode=mode,
            bridge=bridge,
            order=order,
            embed=embed,
            sample_size=sample,
        )
    if as_json:
        print_json(made.to_dict())
    else:
        print_plan(made)
