"""The connection of a participant: dialled, checked for a welcome, and dialled again when lost.

The token is only in the Authorization header: never in the URL, a log or an error.
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

# -- The state of the membership: awaited, logged, and raised as an error.

_log = logging.getLogger("interlock.topics")


class MembershipState(ConnectionState):
    """The state of the membership. Logs every change without tokens, and wakes its waiters."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._told = ""
        self.welcomes = 0
        """The number of welcomes: connects and reconnects."""

    def welcomed(self, as_whom: str, label: str) -> None:
        """Record that a gateway has admitted the participant."""
        again = " again" if self.welcomes else ""
        self.welcomes += 1
        # If the loss was logged as a warning, the return is too, so that it is not filtered out.
        level = logging.WARNING if self._told else logging.INFO
        self._told = ""
        _log.log(level, "topic %s: joined%s as %.128s at %s", self._topic, again, as_whom, label)
        self.set_ready()

    def lost(self, why: str) -> None:
        """Record that the connection is lost and will be retried."""
        still = "still " if self._told else ""
        reason = why.rstrip(".")
        if reason != self._told:
            _log.warning("topic %s: %snot connected: %s. Retrying.", self._topic, still, reason)
        self._told = reason

    def over(self, error: InterlockError) -> None:
        """Record that the participant was rejected permanently."""
        self.end(error)

    async def until_welcomed(self) -> None:
        """Wait for the welcome. Raises InterlockError if the participant was rejected
        permanently."""
        await self.wait_until_ready()


MIN_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 30.0
WELCOME_TIMEOUT_SECONDS: Final = 10.0
"""Seconds in which a gateway must send the welcome after it has accepted the connection."""

_PERMANENT_STATUSES: Final[dict[int, tuple[Failure, str]]] = {
    400: (INVALID_REQUEST, "Check the name of the topic and the routing."),
    401: (UNAUTHENTICATED, "Use a token that is valid for this gateway."),
    403: (FORBIDDEN, "Ask the operator of the gateway to add you to this topic."),
    404: (CONFIG, "Check the path of the URL: the default of a node is /ws."),
}
"""HTTP status codes that are permanent: a retry cannot succeed."""
_PERMANENT_CLOSE_CODES: Final[dict[int, tuple[Failure, str]]] = {
    FORBIDDEN_CODE: (FORBIDDEN, "The participant is no longer allowed in this topic."),
    REPLACED_CODE: (
        NAMESPACE_CONFLICT,
        "The same participant joined with another connection. Give each program its own token.",
    ),
}
_PROTOCOL_ERROR: Final = 1002


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


def make_join_url(url: str, topic: str, routing: str) -> str:
    """Return the URL to dial. Raises ValueError for an invalid URL, or one that would reveal a
    token."""
    try:
        check_gateway_url(url, token="give `token`")
    except BadValue as bad:
        raise ValueError(f"The URL of the gateway: {bad.message}; {bad.hint}.") from None
    query = urlencode({"topic": topic, "routing": routing})
    return f"{url}?{query}"


class TopicConnection:
    """The connection of one participant, with reconnects."""

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
        patience: float = WELCOME_TIMEOUT_SECONDS,
    ) -> None:
        """
        Args:
            jitter: returns 0 to 1.
            on_lost: called whenever the connection ends.
        """
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
        """True if the participant is in the topic now."""
        return self._channel is not None and self._channel.is_open and self._welcome.is_set()

    def welcome(self) -> None:
        """Record that the welcome message has arrived."""
        self._welcome.set()

    def send(self, text: bytes) -> None:
        if self._channel is not None:
            self._channel.send(text)

    async def keep(self) -> None:
        """Stay connected until the participant is rejected permanently, or the task is
        cancelled."""
        backoff = Backoff(MIN_RETRY_SECONDS, MAX_RETRY_SECONDS, jitter=self._jitter)
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
        """Wait until the connection ends. Returns the reason, and an error if that is permanent."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._welcome.clear()
        self._channel = channel
        channel.on_close = lambda why: None if ended.done() else ended.set_result(why)
        try:
            channel.on_message = self._on_text
            why = await self._until_ended(channel, ended)
        finally:
            self._channel = None
            self._on_lost("the connection to the gateway was lost")
            channel.close()
            await channel.wait_closed()
        told = self._without_token(channel.close_reason)
        found = _PERMANENT_CLOSE_CODES.get(channel.close_code)
        if found is None:
            return self._without_token(f"{channel.label}: {why}"), None
        failure, advice = found
        # The reason of the gateway makes our advice unnecessary.
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
            channel.close(_PROTOCOL_ERROR, "No welcome message arrived.")
            return f"it did not send {WELCOME} within {self._patience:g} s"
        return await ended

    def _at_the_door(self, error: InterlockError) -> InterlockError | None:
        """Return the error for a rejected connection if it is permanent, else None."""
        status = (error.data or {}).get("status")
        found = _PERMANENT_STATUSES.get(status) if isinstance(status, int) else None
        if found is None:
            return error if error.failure is CONFIG else None
        failure, advice = found
        sentence = self._without_token(error.message)
        if status != 403 or "topics.rooms" not in sentence:
            # The error of an Interlock node already has this advice.
            sentence = f"{sentence} {advice}"
        return InterlockError(failure, sentence, {"status": status})

    def _without_token(self, text: str) -> str:
        """Remove the token from a text of the gateway, which may contain anything."""
        return text.replace(self._token, "…") if self._token else text
