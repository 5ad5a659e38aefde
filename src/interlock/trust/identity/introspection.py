"""Asks a server about an opaque token (RFC 7662), with this node's own credentials."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from interlock.core.upstreams.oauth.errors import Trouble
from interlock.core.upstreams.oauth.fetch import Fetch, fetch
from interlock.core.upstreams.oauth.urls import is_secure
from interlock.errors import CONFIG, InterlockError

WITHIN: Final = 10.0
_FORM: Final = "application/x-www-form-urlencoded"

_log = logging.getLogger("interlock.node")


class Introspection:
    """One introspection endpoint."""

    def __init__(self, url: str, client_id: str, client_secret: str, *, ask: Fetch = fetch) -> None:
        """Raises InterlockError for an address to which no secret may go."""
        if not is_secure(url):
            raise InterlockError(
                CONFIG, "A `url` of `identity.introspection` is not https: tokens are sent there."
            )
        # In this header both are written as in a form (RFC 6749, 2.3.1).
        pair = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        self._authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        self._url = url
        self._fetch = ask
        self.problem: str | None = None

    def __repr__(self) -> str:
        return f"Introspection({self._url})"

    async def __call__(self, token: str) -> dict[str, Any] | None:
        """What the server says of the token; None when it could not be asked. Never raises."""
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        headers = {"Content-Type": _FORM, "Authorization": self._authorization}
        try:
            async with asyncio.timeout(WITHIN):
                answer = await self._fetch("POST", self._url, headers, form)
            if answer.status != 200:
                raise ValueError(f"HTTP {answer.status}")
            said = msgspec.json.decode(answer.body, type=dict[str, Any])
        except (Trouble, TimeoutError, ValueError, RecursionError, UnicodeDecodeError) as error:
            why = error.why if isinstance(error, Trouble) else str(error) or "it took too long"
            if self.problem is None:
                _log.warning("%s cannot be asked about tokens: %s", self._url, why)
            self.problem = why
            return None
        if self.problem is not None:
            _log.info("%s can be asked about tokens again", self._url)
        self.problem = None
        return said
