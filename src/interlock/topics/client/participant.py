"""The public class `Participant`. See the docstring of the package."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from ssl import SSLContext
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, overload
from uuid import uuid4

import msgspec
from msgspec import Raw

from interlock.channels.tls import client_context
from interlock.channels.websocket import dial as dial_websocket
from interlock.errors import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_REQUEST,
    UNKNOWN_PARTICIPANT,
    InterlockError,
)
from interlock.primitives.timestamps import format_utc_ms
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.kinds import CHAT, proposal_kind, request_kind
from interlock.protocol.mcpx_terms import TOPIC_PATTERN
from interlock.topics.client.connection import (
    WELCOME_TIMEOUT_SECONDS,
    Dialer,
    MembershipState,
    TopicConnection,
    make_join_url,
)
from interlock.topics.client.errors import SendError
from interlock.topics.client.events import Callback, Event, Events
from interlock.topics.client.membership import Membership
from interlock.topics.client.pending_requests import TopicRequest
from interlock.topics.client.proposals import Proposal, ProposalTracker
from interlock.topics.client.tools import RequestServer, ToolServer
from interlock.topics.wire.payloads import PayloadError, read_context, write_proposal_payload
from interlock.topics.wire.proposals import LIFETIME_SECONDS, TrackedProposal

Routing = Literal["all", "directed"]
Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULT_TIMEOUT_SECONDS: Final = 30.0
"""The default timeout of a request in seconds."""


class ParticipantStatus(msgspec.Struct, frozen=True):
    """The state of a participant, for monitoring."""

    topic: str
    id: str
    inside: bool
    welcomes: int
    """The number of connects and reconnects."""
    dropped: int
    lost: int
    reputation: Mapping[str, int]
    waiting: int
    """Its own pending requests."""
    under_way: int
    """Requests of others that it is handling."""


class Participant:
    """A participant of a topic: chats, requests, responses, proposals and fulfilments."""

    def __init__(
        self,
        url: str,
        *,
        topic: str,
        token: str | None = None,
        routing: Routing = "all",
        serving: RequestServer | None = None,
        name: str = "participant",
        version: str = "0",
        instructions: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        lifetime: float = LIFETIME_SECONDS,
        patience: float = WELCOME_TIMEOUT_SECONDS,
        dial: Dialer = dial_websocket,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            url: the gateway, such as wss://node.example.com/ws.
            token: is sent in the Authorization header.
            serving: handles requests, instead of functions registered with `tool`.
            lifetime: seconds until a pending proposal expires.
            patience: seconds in which the gateway must send a welcome.
            dial: for tests, as are `sleep`, `jitter` and `clock`.
        """
        if not re.fullmatch(TOPIC_PATTERN, topic):
            raise ValueError(f"Invalid topic {topic!r}: use 1 to 128 of A-Z, a-z, 0-9, . _ -")
        if routing not in ("all", "directed"):
            raise ValueError(f'Invalid routing {routing!r}: use "all" or "directed".')
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise ValueError("Invalid token: it is empty or has invalid characters.")
        self.topic = topic
        self._url = make_join_url(url, topic, routing)
        self._token = token
        self._tls = (ca, certificate, key)
        self._patience = patience
        self._dial = dial
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock
        self._tools = ToolServer(name, version, instructions) if serving is None else None
        self._connection: TopicConnection | None = None
        self._standing: MembershipState | None = None
        self._place = Membership(
            serving=serving or self._tools or ToolServer(name, version),
            send=self._send,
            on_welcome=self._welcomed,
            fulfilling=ProposalTracker(
                clock=clock, stamp=format_utc_ms, sees_all=routing == "all", seconds=lifetime
            ),
            new_id=lambda: str(uuid4()),
            now=lambda: format_utc_ms(self._clock()),
        )

    def __repr__(self) -> str:
        return f"Participant({self._place.id or 'nobody yet'!r}, topic={self.topic!r})"

    # -- registration

    @overload
    def tool(self, function: Function, /) -> Function: ...
    @overload
    def tool(
        self, *, name: str | None = None, title: str | None = None, description: str | None = None,
        mutable: bool | None = None, reversible: bool | None = None, idempotent: bool | None = None,
    ) -> Callable[[Function], Function]: ...  # fmt: skip
    def tool(self, *function: Any, **said: Any) -> Any:
        """Register a function as a tool: `@tool` or `@tool(mutable=True)`.

        Its schema is made from its signature, and invalid arguments never reach it.
        """
        return self._own_tools().tool(*function, **said)

    def resource(
        self, uri: str, *, name: str | None = None, description: str | None = None,
        mime_type: str = "text/plain",
    ) -> Callable[[Function], Function]:  # fmt: skip
        """Register a function without arguments as a resource."""

        def offer(function: Function) -> Function:
            said = description or (function.__doc__ or "").strip()
            self._own_tools().add_resource(
                function, uri, name or function.__name__, said, mime_type
            )
            return function

        return offer

    @overload
    def prompt(self, function: Function, /) -> Function: ...
    @overload
    def prompt(
        self, *, name: str | None = None, description: str | None = None
    ) -> Callable[[Function], Function]: ...
    def prompt(self, *function: Any, **said: Any) -> Any:
        """Register a function that returns a text as a prompt: `@prompt` or
        `@prompt(name="greeting")`."""
        return self._own_tools().prompt(*function, **said)

    def _own_tools(self) -> ToolServer:
        if self._tools is None:
            raise RuntimeError("This participant has `serving`, so functions cannot be registered.")
        return self._tools

    # -- membership

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Participant]:
        """Join the topic during the block.

        Waits for a gateway that cannot be reached, and reconnects when the connection is lost.
        Raises InterlockError if the gateway rejects the participant permanently, before or during
        the block.
        """
        if self._connection is not None:
            raise RuntimeError("This participant is already connected.")
        standing = self._standing = MembershipState(self.topic)
        connection = self._connection = TopicConnection(
            self._url,
            token=self._token,
            ssl=self._context,
            standing=standing,
            on_text=self._place.take,
            on_lost=self._place.lost,
            dial=self._dial,
            sleep=self._sleep,
            jitter=self._jitter,
            patience=self._patience,
        )
        keeping = asyncio.get_running_loop().create_task(connection.keep())
        keeping.add_done_callback(lambda task: _end_failed_membership(task, standing))
        try:
            await standing.until_welcomed()
            async with standing.cancel_on_end():
                yield self
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            self._place.listeners.end()
            self._connection = None

    @property
    def id(self) -> str:
        """The id that the gateway assigned. Empty before the first welcome."""
        return self._place.id

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities from the last welcome."""
        return self._place.capabilities

    @property
    def participants(self) -> Mapping[str, tuple[str, ...]]:
        """The other participants and their capabilities."""
        return MappingProxyType(self._place.participants)

    def can(self, kind: str) -> bool:
        """Return whether it may send this kind."""
        return self._place.can(kind)

    @property
    def reputation(self) -> Mapping[str, int]:
        """The number of dropped messages, by sender: kind and payload differ, the id was used
        before, or a response matches no request."""
        return self._place.reputation

    @property
    def tracked(self) -> Mapping[str, TrackedProposal]:
        """The proposals that were seen, by id, with their states."""
        return MappingProxyType(dict(self._place.fulfilling.tracked))

    @property
    def lost(self) -> int:
        """The number of messages lost because they were read too slowly, at the gateway and in
        `events`."""
        return self._place.lost_messages + self._place.listeners.lost

    @property
    def status(self) -> ParticipantStatus:
        place = self._place
        return ParticipantStatus(
            topic=self.topic,
            id=place.id,
            inside=place.inside,
            welcomes=0 if self._standing is None else self._standing.welcomes,
            dropped=place.dropped,
            lost=self.lost,
            reputation=place.reputation,
            waiting=len(place.pending),
            under_way=len(place.answering),
        )

    def find_thread(self, id: str) -> tuple[str, ...]:
        """Return the ids of the thread of a message: proposal, fulfilment, response."""
        return self._place.threads.find_thread(id)

    # -- messages

    async def send(
        self, kind: str, payload: Any, to: Sequence[str] = (), correlation_id: str | None = None
    ) -> str:
        """Send a message of any kind and return the id of its envelope.

        Raises SendError if the welcome does not allow it or receivers would reject it. Nothing is
        sent then.
        """
        return self._place.say(kind, _encode_json(payload), _as_tuple(to), correlation_id)

    async def chat(
        self,
        text: str,
        to: Sequence[str] = (),
        *,
        markdown: bool = False,
        correlation_id: str | None = None,
    ) -> str:
        """Send a chat message to everybody or to some. Everybody can read it."""
        payload = _encode_json({"text": text, "format": "markdown" if markdown else "plain"})
        return self._place.say(CHAT, payload, _as_tuple(to), correlation_id)

    def on(self, what: str | type, callback: Callback) -> None:
        """Call a function for messages. It may be async.

        Args:
            what: a pattern of kinds (`mcp/proposal:*`, `system/presence`) or a content type
                (`Chat`, `Proposal`).
        """
        self._place.listeners.on(what, callback)

    def events(self) -> Events:
        """Return a stream of all messages from now on: `async for event in
        participant.events()`."""
        return self._place.listeners.stream()

    # -- requests

    async def request(
        self,
        to: str | Sequence[str],
        method: str,
        params: Any = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Any:
        """Send a request to a participant and return the result.

        Raises InterlockError for an error response, a timeout or a lost connection. `sent` in its
        data tells whether the request may have been executed.
        """
        return await self._answer(self._ask(_as_tuple(to), method, _encode_json(params)), timeout)

    async def ask_all(
        self, method: str, params: Any = None, timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> dict[str, Any]:
        """Send a request to everybody and return the responses that arrive in time, by participant.

        Participants that do not have the requested object do not respond. An error response is
        returned as an InterlockError.
        """
        asked = self._place.ask((), method, _encode_json(params), all=True)
        try:
            async with asyncio.timeout(timeout):
                await asked.done
        except TimeoutError:
            pass
        finally:
            self._place.pending.forget(asked)
        if asked.error is not None:
            raise asked.error
        return dict(asked.answers)

    async def call(
        self,
        to: str | Sequence[str],
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Call a tool of a participant and return its result.

        A participant that may not call proposes the call and returns the result of the fulfilment.
        This takes until another participant decides.
        """
        params = {"name": tool, "arguments": arguments or {}}
        if self.can(request_kind(mcp.TOOLS_CALL, tool)):
            seconds = DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
            return await self.request(to, mcp.TOOLS_CALL, params, seconds)
        proposal = await self.propose(to, mcp.TOOLS_CALL, params)
        return await proposal.outcome(timeout)

    # -- proposals

    async def propose(self, to: str | Sequence[str], method: str, params: Any = None) -> Proposal:
        """Propose that another participant sends this request to `to`. Raises SendError."""
        raw = _encode_json(params)
        try:
            kind = proposal_kind(method, read_context(method, raw))
        except PayloadError as lie:
            raise SendError(lie.message, INVALID_REQUEST) from None
        self._check_there(_as_tuple(to))
        return self._place.propose(kind, write_proposal_payload(method, raw), _as_tuple(to))

    async def fulfil(
        self,
        proposal: Proposal | TrackedProposal | Event | str,
        override: Any = None,
        *,
        to: str | Sequence[str] | None = None,
        force: bool = False,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Any:
        """Make a proposed call and return its result.

        The call and its recipients are as proposed, unless changed explicitly. Raises SendError for
        one's own proposal, for one that is not pending (unless `force`), for one that has changed
        since (only detected if the proposal itself is passed, not its id), and if the request is
        not allowed.

        Args:
            override: other params.
            to: other recipients.
        """
        place, shown = self._place, _get_proposal(proposal)
        tracked = place.fulfilling.to_fulfil(
            _get_proposal_id(proposal), place.id, force=force, shown=shown
        )
        params = bytes(tracked.params) if override is None else _encode_json(override)
        targets = tracked.to if to is None else _as_tuple(to)
        asked = self._ask(targets, tracked.method, params, tracked.proposalId)
        return await self._answer(asked, timeout)

    def reject(self, proposal: Proposal | TrackedProposal | Event | str, reason: str = "") -> bool:
        """Reject a proposal locally. Returns False if it was not pending.

        Other participants are not told: send a chat for that.
        """
        return self._place.fulfilling.reject(_get_proposal_id(proposal), reason)

    # -- internals

    def _ask(
        self, to: Sequence[str], method: str, params: bytes, correlation_id: str | None = None
    ) -> TopicRequest:
        self._check_there(to)
        return self._place.ask(to, method, params, correlation_id=correlation_id)

    async def _answer(self, asked: TopicRequest, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                await asked.done
        except TimeoutError:
            self._place.give_up(asked)
            raise InterlockError(
                DEADLINE_EXCEEDED, f"No response within {timeout:g} s.", {"sent": True}
            ) from None
        except asyncio.CancelledError:
            self._place.give_up(asked)
            raise
        finally:
            self._place.pending.forget(asked)
        if asked.error is not None:
            raise asked.error
        (outcome,) = asked.answers.values()
        if isinstance(outcome, InterlockError):
            raise outcome
        return outcome

    def _check_there(self, to: Sequence[str]) -> None:
        place = self._place
        if not place.inside:
            return  # sending reports this error
        for one in to:
            if one != place.id and one not in place.participants:
                there = ", ".join(sorted(place.participants)[:20]) or "none"
                raise InterlockError(
                    UNKNOWN_PARTICIPANT,
                    f"{one[:128]!r} is not in the topic {self.topic}. Participants: {there}.",
                    {"sent": False},
                )

    def _send(self, text: bytes) -> None:
        if self._connection is not None:
            self._connection.send(text)

    def _welcomed(self) -> None:
        connection, standing = self._connection, self._standing
        if connection is not None and standing is not None and not connection.welcomed:
            connection.welcome()
            standing.welcomed(self._place.id, connection.label)

    def _context(self) -> SSLContext | None:
        # Read for every connection: certificates are renewed while a program runs.
        return client_context(*self._tls) if self._url.startswith("wss:") else None


def _end_failed_membership(task: asyncio.Task[None], standing: MembershipState) -> None:
    """End the membership after an internal error of the library, so that no caller waits without a
    limit."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        standing.over(InterlockError(INTERNAL, f"The connection failed: {error!r}"))


def _encode_json(value: Any) -> bytes:
    """Encode a value as JSON. Bytes must be JSON already."""
    if isinstance(value, bytes | Raw):
        return bytes(value)
    try:
        return encode_value({} if value is None else value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SendError(f"The value cannot be encoded as JSON: {error}.", INVALID_REQUEST) from None


def _as_tuple(to: str | Sequence[str]) -> tuple[str, ...]:
    return ((to,) if to else ()) if isinstance(to, str) else tuple(to)


def _get_proposal(
    proposal: Proposal | TrackedProposal | Event | str,
) -> Proposal | TrackedProposal | None:
    """Return the proposal that the caller decided about, or None if only its id is known."""
    found = proposal.content if isinstance(proposal, Event) else proposal
    return found if isinstance(found, Proposal | TrackedProposal) else None


def _get_proposal_id(proposal: Proposal | TrackedProposal | Event | str) -> str:
    if isinstance(proposal, str):
        return proposal
    return proposal.proposalId if isinstance(proposal, TrackedProposal) else proposal.id
