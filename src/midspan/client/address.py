"""Where a service is, and what may be sent there."""

from __future__ import annotations

import ipaddress
from urllib.parse import quote, urlsplit

from midspan.errors import ConfigError, ItemError


def checked_url(url: str, *, with_token: bool, allow_http: bool) -> str:
    """Without a last slash; ConfigError if a token would go over an open wire."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"the url of the service cannot be read ({error})") from error
    if parts.username is not None or parts.password is not None:
        raise ConfigError("the url of a service holds no name or password; give token=…")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"expected url https://host or http://127.0.0.1:8080, got {url!r:.200}")
    if with_token and parts.scheme == "http" and not is_loopback(host) and not allow_http:
        raise ConfigError(
            f"{url} is not encrypted, so anyone on the way could read the token; use https://, or "
            "give allow_http=True if nobody else is on this network"
        )
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_token(token: str | None) -> str | None:
    if token is not None and (not token or not token.isascii() or not token.isprintable()):
        raise ConfigError("the token is empty or has characters that no token has")
    return token


def item_path(start: str, id: str) -> str:
    """The id as one segment; `.` and `..` alone would be taken for folders."""
    if not isinstance(id, str) or not id:
        raise ItemError(f"an item's id is a text of one or more characters, got {id!r:.80}")
    try:
        segment = quote(id, safe="")
    except UnicodeEncodeError as error:
        raise ItemError(f"the id {id!r:.80} is no text that can be sent as UTF-8") from error
    return f"{start}/{segment if id.strip('.') else segment.replace('.', '%2E')}"
