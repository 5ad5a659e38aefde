"""The tokens of a node: one bearer for each upstream that may want one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakSet

from interlock.upstreams.oauth.bearer import OAuthBearer
from interlock.upstreams.oauth.fetch import Fetch, fetch
from interlock.upstreams.oauth.sign_in import Browser
from interlock.upstreams.oauth.wallet import TokenStore

LAST_RENEWALS: Final = 3.0
"""How long renewals under way may still take when the node stops."""


class Keyring:
    """Makes bearers, and lets them end in order."""

    def __init__(
        self,
        store: TokenStore,
        *,
        browser: Browser | None = None,
        fetch: Fetch = fetch,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """With a `browser` the node signs in by itself; without one it asks for a human."""
        self._store = store
        self._browser = browser
        self._fetch = fetch
        self._now = now
        self._sleep = sleep
        self._bearers: WeakSet[OAuthBearer] = WeakSet()

    def bearer(self, key: str) -> OAuthBearer:
        """The tokens of one upstream."""
        bearer = OAuthBearer(
            key,
            self._store,
            fetch=self._fetch,
            browser=self._browser,
            now=self._now,
            sleep=self._sleep,
        )
        self._bearers.add(bearer)
        return bearer

    async def close(self) -> None:
        """End what is under way."""
        await asyncio.gather(*(one.close(LAST_RENEWALS) for one in list(self._bearers)))
