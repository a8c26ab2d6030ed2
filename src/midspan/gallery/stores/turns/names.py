"""Names of galleries on a server, and locations without their secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from midspan.errors import GalleryError

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")  # two underscores begin what we add
NAME_CHARACTERS = 40


def check_name(name: str, *, wanted: str, shown: str) -> str:
    if not NAME.fullmatch(name) or len(name) > NAME_CHARACTERS:
        raise GalleryError(
            f"{shown}: wanted {wanted} with a name of up to {NAME_CHARACTERS} small letters, "
            "digits and single underscores"
        )
    return name


def hide_token(location: str) -> str:
    parts = urlsplit(location)
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}").geturl()
