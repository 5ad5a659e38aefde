"""The tokens of a node: one bearer for each upstream that may want one, and what they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from interlock.core.upstreams.oauth.bearer import OAuthBearer

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.grants import TokenStore
    from interlock.core.upstreams.oauth.sign_in import Browser

LAST_RENEWALS: Final = 3.0
"""How long renewals under way may still take when the node stops."""


class BearerRegistry:
    """Makes bearers, and lets them end in order."""

    def __init__(
        self,
        store: TokenStore,
        *,
        browser: Browser | None = None,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """With a `browser` the node signs in by itself; without one it asks for a human."""
        self.store = store
        self.browser = browser
        self.now = now
        self.sleep = sleep
        self._bearers: WeakSet[OAuthBearer] = WeakSet()

    def bearer(self, key: str) -> OAuthBearer:
        """The tokens of one upstream."""
        bearer = OAuthBearer(key, self)
        self._bearers.add(bearer)
        return bearer

    async def close(self) -> None:
        """End what is under way."""
        await asyncio.gather(*(one.close(LAST_RENEWALS) for one in list(self._bearers)))
