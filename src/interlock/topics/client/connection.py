"""The connection of a participant: dialled, watched until a welcome comes, and dialled again.

The token is in the Authorization header and nowhere else: not in the URL, a log or an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Any, Final, Protocol
from urllib.parse import urlencode

from interlock.channels.channel import Channel
from interlock.core.config.problems import BadValue
from interlock.core.config.quantities import check_gateway_url
from interlock.errors import (
    CONFIG,
    FORBIDDEN,
    INVALID_REQUEST,
    NAMESPACE_CONFLICT,
    UNAUTHENTICATED,
    Failure,
    InterlockError,
)
from interlock.primitives.backoff import Backoff
from interlock.protocol.mcpx_terms import (
    FORBIDDEN_CODE,
    MAX_GATEWAY_ENVELOPE_BYTES,
    REPLACED_CODE,
    WELCOME,
)
from interlock.sdk.connection_state import ConnectionState

# -- How a participant stands with its gateway, for its author: waited for, logged, and raised.

_log = logging.getLogger("interlock.topics")


class MembershipState(ConnectionState):
    """The state of the membership: logs every change without tokens, and tells who awaits it."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._told = ""
        self.welcomes = 0
        """How often it was let in."""

    def welcomed(self, as_whom: str, label: str) -> None:
        """A gateway has let it in."""
        again = " again" if self.welcomes else ""
        self.welcomes += 1
        # Who was told that it is outside, however little is logged, is told that it is back.
        level = logging.WARNING if self._told else logging.INFO
        self._told = ""
        _log.log(level, "in the topic %s%s as %.128s, at %s", self._topic, again, as_whom, label)
        self.set_ready()

    def lost(self, why: str) -> None:
        """It is outside, and tries again."""
        still = "still " if self._told else ""
        reason = why.rstrip(".")
        if reason != self._told:
            _log.warning("%snot in the topic %s: %s. Trying again.", still, self._topic, reason)
        self._told = reason

    def over(self, error: InterlockError) -> None:
        """It is refused for good."""
        self.end(error)

    async def until_welcomed(self) -> None:
        """Raises InterlockError when that will not be."""
        await self.wait_until_ready()


FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 30.0
PATIENCE: Final = 10.0
"""Seconds until a gateway that let somebody in must have welcomed them."""

_REFUSED: Final[dict[int, tuple[Failure, str]]] = {
    400: (INVALID_REQUEST, "Look at the name of the topic and the routing."),
    401: (UNAUTHENTICATED, "Give it a token that the gateway knows."),
    403: (FORBIDDEN, "Ask whoever runs the gateway for a seat in this topic."),
    404: (CONFIG, "Look at the path of the URL: a node has its topics at /ws."),
}
"""The answers after which it makes no sense to ask again."""
_CLOSED: Final[dict[int, tuple[Failure, str]]] = {
    FORBIDDEN_CODE: (FORBIDDEN, "It may not be in this topic any longer."),
    REPLACED_CODE: (
        NAMESPACE_CONFLICT,
        "The same participant came in by another connection. Give each program a token of its own.",
    ),
}
_UNTIDY: Final = 1002


class Dialer(Protocol):
    """Opens a channel. Raises InterlockError."""

    async def __call__(
        self,
        url: str,
        *,
        bearer: str | None = None,
        ssl: SSLContext | None = None,
        max_message: int = MAX_GATEWAY_ENVELOPE_BYTES,
    ) -> Channel: ...


def address(url: str, topic: str, routing: str) -> str:
    """Where to dial. Raises ValueError for what is no gateway's address, or would show a token."""
    try:
        check_gateway_url(url, token="give `token`")
    except BadValue as bad:
        raise ValueError(f"The URL of the gateway: {bad.message}; {bad.hint}.") from None
    query = urlencode({"topic": topic, "routing": routing})
    return f"{url}?{query}"


class TopicConnection:
    """One place in a topic, for as long as it is wanted."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        ssl: Callable[[], SSLContext | None],
        standing: MembershipState,
        on_text: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        dial: Dialer,
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
        patience: float = PATIENCE,
    ) -> None:
        """`jitter` gives 0 to 1. `on_lost` is told each time that the connection ends."""
        self._url = url
        self._token = token
        self._ssl = ssl
        self._standing = standing
        self._on_text = on_text
        self._on_lost = on_lost
        self._dial = dial
        self._sleep = sleep
        self._jitter = jitter
        self._patience = patience
        self._channel: Channel | None = None
        self._welcome: asyncio.Event = asyncio.Event()

    @property
    def label(self) -> str:
        return "" if self._channel is None else self._channel.label

    @property
    def welcomed(self) -> bool:
        """Whether it is in the topic now."""
        return self._channel is not None and self._channel.is_open and self._welcome.is_set()

    def welcome(self) -> None:
        """A welcome came."""
        self._welcome.set()

    def send(self, text: bytes) -> None:
        if self._channel is not None:
            self._channel.send(text)

    async def keep(self) -> None:
        """Until it is refused for good, or nobody wants it any more."""
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, jitter=self._jitter)
        while True:
            try:
                channel = await self._dial(
                    self._url,
                    bearer=self._token,
                    ssl=self._ssl(),
                    max_message=MAX_GATEWAY_ENVELOPE_BYTES,
                )
            except InterlockError as error:
                why, final = self._without_token(error.message), self._at_the_door(error)
            else:
                why, final = await self._stay(channel)
                if self._welcome.is_set():
                    backoff.reset()
            if final is not None:
                self._standing.over(final)
                return
            self._standing.lost(why)
            await self._sleep(backoff.next_delay())

    async def _stay(self, channel: Channel) -> tuple[str, InterlockError | None]:
        """Until it ends: why, and whether that is for good."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._welcome.clear()
        self._channel = channel
        channel.on_close = lambda why: None if ended.done() else ended.set_result(why)
        try:
            channel.on_message = self._on_text
            why = await self._until_ended(channel, ended)
        finally:
            self._channel = None
            self._on_lost("the connection to the gateway ended")
            channel.close()
            await channel.wait_closed()
        told = self._without_token(channel.close_reason)
        found = _CLOSED.get(channel.close_code)
        if found is None:
            return self._without_token(f"{channel.label}: {why}"), None
        failure, advice = found
        # A gateway that says why has said what the advice would.
        reason = f": {told.rstrip('.')}." if told else f". {advice}"
        sentence = f"{channel.label} closed the connection{reason}"
        return why, InterlockError(failure, sentence, {"close": channel.close_code})

    async def _until_ended(self, channel: Channel, ended: asyncio.Future[str]) -> str:
        welcome = asyncio.ensure_future(self._welcome.wait())
        try:
            either: set[asyncio.Future[Any]] = {welcome, ended}
            await asyncio.wait(either, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            welcome.cancel()
        if not ended.done() and not self._welcome.is_set():
            channel.close(_UNTIDY, "There was no welcome.")
            return f"it did not say {WELCOME} within {self._patience:g} s"
        return await ended

    def _at_the_door(self, error: InterlockError) -> InterlockError | None:
        """What a refusal means, where it is for good."""
        status = (error.data or {}).get("status")
        found = _REFUSED.get(status) if isinstance(status, int) else None
        if found is None:
            return error if error.failure is CONFIG else None
        failure, advice = found
        sentence = self._without_token(error.message)
        if status != 403 or " seat" not in sentence:
            # Some gateways say themselves whom to ask.
            sentence = f"{sentence} {advice}"
        return InterlockError(failure, sentence, {"status": status})

    def _without_token(self, text: str) -> str:
        """A gateway may say anything, the token too."""
        return text.replace(self._token, "…") if self._token else text
