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
from interlock.core.config.problems import InvalidValueError
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
        self._logged_reason = ""
        self.welcomes = 0
        """The number of welcomes: connects and reconnects."""

    def on_welcome(self, participant_id: str, label: str) -> None:
        """Record that a gateway has admitted the participant."""
        again = " again" if self.welcomes else ""
        self.welcomes += 1
        # If the loss was logged as a warning, the return is too, so that it is not filtered out.
        level = logging.WARNING if self._logged_reason else logging.INFO
        self._logged_reason = ""
        _log.log(
            level, "topic %s: joined%s as %.128s at %s", self._topic, again, participant_id, label
        )
        self.set_ready()

    def on_disconnect(self, cause: str) -> None:
        """Record that the connection is lost and will be retried."""
        prefix = "still " if self._logged_reason else ""
        reason = cause.rstrip(".")
        if reason != self._logged_reason:
            _log.warning("topic %s: %snot connected: %s. Retrying.", self._topic, prefix, reason)
        self._logged_reason = reason

    def on_reject(self, error: InterlockError) -> None:
        """Record that the participant was rejected permanently."""
        self.end(error)

    async def wait_for_welcome(self) -> None:
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
    except InvalidValueError as bad:
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
        state: MembershipState,
        on_text: Callable[[bytes], None],
        on_lost: Callable[[str], None],
        dial: Dialer,
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
        welcome_timeout: float = WELCOME_TIMEOUT_SECONDS,
    ) -> None:
        """
        Args:
            jitter: returns 0 to 1.
            on_lost: called whenever the connection ends.
        """
        self._url = url
        self._token = token
        self._ssl = ssl
        self._state = state
        self._on_text = on_text
        self._on_lost = on_lost
        self._dial = dial
        self._sleep = sleep
        self._jitter = jitter
        self._welcome_timeout = welcome_timeout
        self._channel: Channel | None = None
        self._welcome: asyncio.Event = asyncio.Event()

    @property
    def label(self) -> str:
        return "" if self._channel is None else self._channel.label

    @property
    def is_welcomed(self) -> bool:
        """True if the participant is in the topic now."""
        return self._channel is not None and self._channel.is_open and self._welcome.is_set()

    def on_welcome(self) -> None:
        """Record that the welcome message has arrived."""
        self._welcome.set()

    def send(self, text: bytes) -> None:
        if self._channel is not None:
            self._channel.send(text)

    async def run(self) -> None:
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
                cause, permanent_error = (
                    self._mask_token(error.message),
                    self._find_permanent_error(error),
                )
            else:
                cause, permanent_error = await self._wait_until_lost(channel)
                if self._welcome.is_set():
                    backoff.reset()
            if permanent_error is not None:
                self._state.on_reject(permanent_error)
                return
            self._state.on_disconnect(cause)
            await self._sleep(backoff.next_delay())

    async def _wait_until_lost(self, channel: Channel) -> tuple[str, InterlockError | None]:
        """Wait until the connection ends. Returns the reason, and an error if that is permanent."""
        close_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._welcome.clear()
        self._channel = channel
        channel.on_close = lambda cause: (
            None if close_reason.done() else close_reason.set_result(cause)
        )
        try:
            channel.on_message = self._on_text
            cause = await self._wait_for_end(channel, close_reason)
        finally:
            self._channel = None
            self._on_lost("the connection to the gateway was lost")
            channel.close()
            await channel.wait_closed()
        gateway_reason = self._mask_token(channel.close_reason)
        entry = _PERMANENT_CLOSE_CODES.get(channel.close_code)
        if entry is None:
            return self._mask_token(f"{channel.label}: {cause}"), None
        failure, advice = entry
        # The reason of the gateway makes our advice unnecessary.
        reason = f": {gateway_reason.rstrip('.')}." if gateway_reason else f". {advice}"
        message = f"{channel.label} closed the connection{reason}"
        return cause, InterlockError(failure, message, {"close": channel.close_code})

    async def _wait_for_end(self, channel: Channel, ended: asyncio.Future[str]) -> str:
        welcome = asyncio.ensure_future(self._welcome.wait())
        try:
            futures: set[asyncio.Future[Any]] = {welcome, ended}
            await asyncio.wait(
                futures, timeout=self._welcome_timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            welcome.cancel()
        if not ended.done() and not self._welcome.is_set():
            channel.close(_PROTOCOL_ERROR, "No welcome message arrived.")
            return f"it did not send {WELCOME} within {self._welcome_timeout:g} s"
        return await ended

    def _find_permanent_error(self, error: InterlockError) -> InterlockError | None:
        """Return the error for a rejected connection if it is permanent, else None."""
        status = (error.data or {}).get("status")
        entry = _PERMANENT_STATUSES.get(status) if isinstance(status, int) else None
        if entry is None:
            return error if error.failure is CONFIG else None
        failure, advice = entry
        message = self._mask_token(error.message)
        if status != 403 or "topics.rooms" not in message:
            # The error of an Interlock node already has this advice.
            message = f"{message} {advice}"
        return InterlockError(failure, message, {"status": status})

    def _mask_token(self, text: str) -> str:
        """Remove the token from a text of the gateway, which may contain anything."""
        return text.replace(self._token, "…") if self._token else text
