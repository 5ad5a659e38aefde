"""What a subserver brings to its parent, looked at before anybody is dialled.

Whoever gave a bad value is told which one it was, where it came from and what to do; its text is
never shown. Reads the files that the settings name, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from interlock.channels.tls import client_context
from interlock.config import ConfigError, ParentConfig
from interlock.errors import InterlockError
from interlock.faces.ax.proof import check_key
from interlock.protocol import ax

SHORTEST_HEARTBEAT: Final = 0.01
_TOKEN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def check_presented(parent: ParentConfig, origins: Mapping[str, str]) -> None:
    """`parent` has no references any more; `origins` says by field what people call it, such as
    `--authority`. Raises ConfigError."""

    def origin(field: str) -> str:
        return origins.get(field, field)

    if parent.token is not None:
        _check_token(parent.token, origin("token"))
    if parent.authority is not None and not ax.is_authority(parent.authority):
        raise ConfigError.of(
            f"{origin('authority')}: {parent.authority!r} is not an authority",
            "write a DNS name behind dns:, such as dns:edge01.example.com",
        )
    if parent.authority_key is not None:
        if parent.authority is None:
            _wants(origin("authority_key"), origin("authority"))
        try:
            check_key(parent.authority_key)
        except InterlockError as error:
            raise ConfigError.of(f"{origin('authority_key')}: {error.message}") from None
    if parent.certificate is None and parent.key is not None:
        _wants(origin("key"), origin("certificate"))
    beat = parent.heartbeat
    if beat and not SHORTEST_HEARTBEAT <= beat <= ax.MOST_INTERVAL_MS / 1000:
        raise ConfigError.of(
            f"{origin('heartbeat')}: nobody beats every {beat:g} s",
            "choose 0, for none, or from 10 ms to 24 h",
        )
    if any(url.lower().startswith("wss:") for url in (parent.url, *parent.backup)):
        try:
            client_context(parent.ca, parent.certificate, parent.key)
        except InterlockError as error:
            raise ConfigError.of(error.message) from None


def _wants(one: str, other: str) -> None:
    raise ConfigError.of(f"{one} is nothing without {other}", f"give {other} too")


def _check_token(token: str, origin: str) -> None:
    if _TOKEN.fullmatch(token):
        return
    if not token.strip():
        raise ConfigError.of(f"{origin} is empty", "put the token there that the node knows")
    if _TOKEN.fullmatch(token.strip()):
        what = "a line end" if token.rstrip("\r\n") != token else "a space"
        raise ConfigError.of(
            f"{origin} has {what} around the token", f"take it without {what}: strip it"
        )
    raise ConfigError.of(
        f"{origin} holds characters that no token has",
        "a token is made of plain letters, digits and signs, on one line",
    )
