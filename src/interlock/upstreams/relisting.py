"""What an upstream listed last, and reading it again: when it announces a change, when somebody
may have missed one, and when a list has been believed for long enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from interlock.errors import InterlockError
from interlock.upstreams.connect import Connects
from interlock.upstreams.listing import KINDS, RawOffer, list_offer
from interlock.upstreams.pauses import RETRY_AT_MOST, RETRY_FIRST
from interlock.upstreams.peer import Peer

LIST_TIMEOUT: Final = 30.0

_log = logging.getLogger("interlock.upstreams")


class Handle(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Handle]


class Relisting:
    """The lists of one upstream, whichever connection they were read on."""

    def __init__(
        self,
        key: str,
        connector: Connects,
        *,
        on_read: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]],
        call_later: CallLater | None = None,
    ) -> None:
        """`on_read`: told when a list was read again."""
        self.offer = RawOffer()
        """What it listed last, as it came."""
        self.announced: frozenset[str] = KINDS
        """Which of its lists were new then."""
        self.count = 0
        """How often anything of it was read."""
        self._key = key
        self._connector = connector
        self._on_read = on_read
        self._sleep = sleep
        self._call_later = call_later
        self._wanted = asyncio.Event()
        self._stale: set[str] = set()
        self._timer: Handle | None = None

    def soon(self, kind: str | None = None) -> None:
        """Read this list again, or all of them. Called as often as anybody likes."""
        self._stale |= KINDS if kind is None else {kind}
        self._wanted.set()

    def forget_news(self) -> None:
        """Everything is about to be read: only what is announced from now on counts."""
        self._wanted.clear()
        self._stale.clear()

    async def read(self, peer: Peer) -> RawOffer:
        """All that it lists, for the first time on a connection. Raises InterlockError."""
        offer = await list_offer(peer, timeout=LIST_TIMEOUT, kinds=self._connector.kinds)
        self._connector.vet(offer)
        return offer

    def take(self, offer: RawOffer, announced: frozenset[str] = KINDS) -> None:
        """This is what it lists now."""
        self.count += 1
        self.offer = offer
        self.announced = announced

    async def keep(self, peer: Peer) -> None:
        """Read again whatever is out of date, for as long as this runs."""
        wait = RETRY_FIRST
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            stale, self._stale = frozenset(self._stale or KINDS) & self._connector.kinds, set()
            try:
                offer = await list_offer(peer, timeout=LIST_TIMEOUT, kinds=stale, before=self.offer)
                self._connector.vet(offer)
            except InterlockError as error:
                _log.warning("%s: its new list could not be read: %s", self._key, error.message)
                # What is shown is out of date for as long as this fails.
                self._stale |= stale
                self._wanted.set()
                wait = min(wait * 2, RETRY_AT_MOST)
            else:
                self.take(offer, stale)
                self._on_read()
                self.in_time()
                wait = RETRY_FIRST
            # An upstream that announces a change whenever it is asked must not keep us busy.
            await self._sleep(wait)

    def in_time(self) -> None:
        """A list is believed for so long only."""
        self.not_in_time()
        ttl = self._connector.list_ttl
        if ttl is not None:
            later = self._call_later or asyncio.get_running_loop().call_later
            self._timer = later(ttl, self.soon)

    def not_in_time(self) -> None:
        """Nobody could read it: its connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
