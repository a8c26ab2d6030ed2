"""Who may do what: read and admin tokens, and nobody at all beyond loopback without them.

The token file is TOML, readable by its owner only:

    read = "…"                 # or a table of names, which the audit log then shows
    [admin]
    alice = "…"
    [tenants]                  # each reads and searches its own items alone
    acme = "…"
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from midspan.config import read_toml
from midspan.errors import ConfigError
from midspan.gallery.tenants import NAME as TENANT
from midspan.service.errors import Forbidden, Unauthorized

Role = Literal["open", "read", "admin"]  # what a route asks for
ENVIRONMENT = {"read": "MIDSPAN_READ_TOKEN", "admin": "MIDSPAN_ADMIN_TOKEN"}
SHORTEST = 16  # characters of a token


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    admin: bool
    tenant: str | None = None  # sees the items of this tenant, and nothing else


@dataclass(frozen=True, slots=True, repr=False)
class _Token:
    digest: bytes  # the token itself is not kept
    caller: Caller


class Tokens:
    """Empty: everything is open, which only a loopback address allows."""

    def __init__(self, tokens: Mapping[str, Mapping[str, str]]) -> None:
        """{"read": {name: token}, "admin": {name: token}, "tenants": {tenant: token}}"""
        self._tokens = [
            _Token(_digest(_long_enough(token, name)), _caller(role, name))
            for role, named in tokens.items()
            for name, token in named.items()
        ]
        if len({token.digest for token in self._tokens}) < len(self._tokens):
            raise ConfigError("two of the tokens are the same; give each role and name its own")

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def caller(self, authorization: str | None) -> Caller:
        """By the header `Authorization: Bearer TOKEN`; every token is compared, in equal time."""
        if authorization is None:
            raise Unauthorized("this service requires a token: Authorization: Bearer …")
        scheme, _, given = authorization.partition(" ")
        digest = _digest(given.strip())
        caller: Caller | None = None
        for token in self._tokens:
            if hmac.compare_digest(digest, token.digest):
                caller = token.caller
        if scheme.lower() != "bearer" or caller is None:
            raise Unauthorized("the token is not one of this service's")
        return caller

    def admit(self, role: Role, authorization: str | None) -> Caller:
        """The caller, if the role is theirs; without tokens everyone is."""
        if not self._tokens:
            return Caller("anyone on this machine", admin=True)
        if role == "open":
            return Caller("anyone", admin=False)
        caller = self.caller(authorization)
        if role == "admin" and not caller.admin:
            raise Forbidden("this wants the admin token; yours may read")
        return caller


def load_tokens(file: Path | None, environment: Mapping[str, str] | None = None) -> Tokens:
    """From the file and the environment together."""
    environment = os.environ if environment is None else environment
    tokens: dict[str, dict[str, str]] = {"read": {}, "admin": {}, "tenants": {}}
    if file is not None:
        _check_private(file)
        for role, value in read_toml(file).items():
            if role not in tokens:
                raise ConfigError(f"{file}: expected read, admin or tenants, got {role!r}")
            named = {role: value} if isinstance(value, str) else value
            if not isinstance(named, dict) or not all(isinstance(t, str) for t in named.values()):
                raise ConfigError(f"{file}: {role} requires a token, or a table of name = token")
            tokens[role] |= named
        if not any(tokens.values()):
            raise ConfigError(f"{file}: expected tokens for read and admin, got none")
    for role, variable in ENVIRONMENT.items():
        if given := environment.get(variable):
            tokens[role][f"{role} (environment)"] = given
    return Tokens(tokens)


def check_exposure(*, host: str, loopback: bool, tokens: Tokens) -> None:
    """Beyond this machine nobody is served without a token."""
    if loopback or tokens:
        return
    raise ConfigError(
        f"host {host} can be reached from other machines, and there are no tokens: whoever finds "
        "it could change the gallery. Give `tokens`, a file (read = …, admin = …) or "
        f"{' and '.join(ENVIRONMENT.values())}, or stay on 127.0.0.1"
    )


def _caller(role: str, name: str) -> Caller:
    if role != "tenants":
        return Caller(name, admin=role == "admin")
    if not TENANT.fullmatch(name):
        raise ConfigError(
            f"tenant {name!r:.80}; expected 1 to 64 letters, digits, dots, - and _, each as "
            "[tenants] name = token"
        )
    return Caller(f"tenant {name}", admin=False, tenant=name)


def _check_private(file: Path) -> None:
    try:
        info = file.stat()
    except OSError as error:
        raise ConfigError(f"{file}: the token file cannot be read ({error.strerror})") from error
    mode = info.st_mode
    if _mounted_for_us(info):
        mode &= ~0o040
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise ConfigError(f"{file}: others may read the tokens; run: chmod 600 {file}")


def _mounted_for_us(info: os.stat_result) -> bool:
    """A secret of Kubernetes with fsGroup belongs to root, and our group reads it."""
    ours = {os.getgid(), *os.getgroups()}
    return info.st_uid == 0 and os.getuid() != 0 and info.st_gid in ours


def _long_enough(token: str, name: str) -> str:
    if len(token) < SHORTEST or not token.isascii() or any(c.isspace() for c in token):
        raise ConfigError(
            f"the token of {name!r} wants {SHORTEST} or more ASCII characters without spaces; "
            'make one with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
