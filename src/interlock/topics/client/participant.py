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
    connected: bool
    welcomes: int
    """The number of connects and reconnects."""
    dropped_messages: int
    lost_messages: int
    reputation: Mapping[str, int]
    pending_requests: int
    """Its own pending requests."""
    active_requests: int
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
        server: RequestServer | None = None,
        name: str = "participant",
        version: str = "0",
        instructions: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        lifetime: float = LIFETIME_SECONDS,
        welcome_timeout: float = WELCOME_TIMEOUT_SECONDS,
        dial: Dialer = dial_websocket,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            url: the gateway, such as wss://node.example.com/ws.
            token: is sent in the Authorization header.
            server: handles requests, instead of functions registered with `tool`.
            lifetime: seconds until a pending proposal expires.
            welcome_timeout: seconds in which the gateway must send a welcome.
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
        self._welcome_timeout = welcome_timeout
        self._dial = dial
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock
        self._tools = ToolServer(name, version, instructions) if server is None else None
        self._connection: TopicConnection | None = None
        self._state: MembershipState | None = None
        self._membership = Membership(
            server=server or self._tools or ToolServer(name, version),
            send=self._send,
            on_welcome=self._on_welcome,
            proposals=ProposalTracker(
                clock=clock, stamp=format_utc_ms, receives_all=routing == "all", seconds=lifetime
            ),
            new_id=lambda: str(uuid4()),
            now=lambda: format_utc_ms(self._clock()),
        )

    def __repr__(self) -> str:
        return f"Participant({self._membership.id or 'not joined'!r}, topic={self.topic!r})"

    # -- registration

    @overload
    def tool(self, function: Function, /) -> Function: ...
    @overload
    def tool(
        self, *, name: str | None = None, title: str | None = None, description: str | None = None,
        mutable: bool | None = None, reversible: bool | None = None, idempotent: bool | None = None,
    ) -> Callable[[Function], Function]: ...  # fmt: skip
    def tool(self, *function: Any, **options: Any) -> Any:
        """Register a function as a tool: `@tool` or `@tool(mutable=True)`.

        Its schema is made from its signature, and invalid arguments never reach it.
        """
        return self._get_tool_server().tool(*function, **options)

    def resource(
        self, uri: str, *, name: str | None = None, description: str | None = None,
        mime_type: str = "text/plain",
    ) -> Callable[[Function], Function]:  # fmt: skip
        """Register a function without arguments as a resource."""

        def offer(function: Function) -> Function:
            text = description or (function.__doc__ or "").strip()
            self._get_tool_server().add_resource(
                function, uri, name or function.__name__, text, mime_type
            )
            return function

        return offer

    @overload
    def prompt(self, function: Function, /) -> Function: ...
    @overload
    def prompt(
        self, *, name: str | None = None, description: str | None = None
    ) -> Callable[[Function], Function]: ...
    def prompt(self, *function: Any, **options: Any) -> Any:
        """Register a function that returns a text as a prompt: `@prompt` or
        `@prompt(name="greeting")`."""
        return self._get_tool_server().prompt(*function, **options)

    def _get_tool_server(self) -> ToolServer:
        if self._tools is None:
            raise RuntimeError("This participant has `server`, so functions cannot be registered.")
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
        state = self._state = MembershipState(self.topic)
        connection = self._connection = TopicConnection(
            self._url,
            token=self._token,
            ssl=self._make_ssl_context,
            state=state,
            on_text=self._membership.receive,
            on_lost=self._membership.on_disconnect,
            dial=self._dial,
            sleep=self._sleep,
            jitter=self._jitter,
            welcome_timeout=self._welcome_timeout,
        )
        connection_task = asyncio.get_running_loop().create_task(connection.run())
        connection_task.add_done_callback(lambda task: _end_failed_membership(task, state))
        try:
            await state.wait_for_welcome()
            async with state.cancel_on_end():
                yield self
        finally:
            connection_task.cancel()
            await asyncio.wait([connection_task])
            self._membership.listeners.end()
            self._connection = None

    @property
    def id(self) -> str:
        """The id that the gateway assigned. Empty before the first welcome."""
        return self._membership.id

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities from the last welcome."""
        return self._membership.capabilities

    @property
    def participants(self) -> Mapping[str, tuple[str, ...]]:
        """The other participants and their capabilities."""
        return MappingProxyType(self._membership.participants)

    def can_send(self, kind: str) -> bool:
        """Return whether it may send this kind."""
        return self._membership.can_send(kind)

    @property
    def reputation(self) -> Mapping[str, int]:
        """The number of dropped messages, by sender: kind and payload differ, the id was used
        before, or a response matches no request."""
        return self._membership.reputation

    @property
    def proposals(self) -> Mapping[str, TrackedProposal]:
        """The proposals that were seen, by id, with their states."""
        return MappingProxyType(dict(self._membership.proposals.proposals))

    @property
    def lost_messages(self) -> int:
        """The number of messages lost because they were read too slowly, at the gateway and in
        `events`."""
        return self._membership.lost_messages + self._membership.listeners.lost_events

    @property
    def status(self) -> ParticipantStatus:
        membership = self._membership
        return ParticipantStatus(
            topic=self.topic,
            id=membership.id,
            connected=membership.is_connected,
            welcomes=0 if self._state is None else self._state.welcomes,
            dropped_messages=membership.dropped_messages,
            lost_messages=self.lost_messages,
            reputation=membership.reputation,
            pending_requests=len(membership.pending),
            active_requests=len(membership.responder),
        )

    def find_thread(self, id: str) -> tuple[str, ...]:
        """Return the ids of the thread of a message: proposal, fulfilment, response."""
        return self._membership.threads.find_thread(id)

    # -- messages

    async def send(
        self, kind: str, payload: Any, to: Sequence[str] = (), correlation_id: str | None = None
    ) -> str:
        """Send a message of any kind and return the id of its envelope.

        Raises SendError if the welcome does not allow it or receivers would reject it. Nothing is
        sent then.
        """
        return self._membership.send(kind, _encode_json(payload), _as_tuple(to), correlation_id)

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
        return self._membership.send(CHAT, payload, _as_tuple(to), correlation_id)

    def on(self, selector: str | type, callback: Callback) -> None:
        """Call a function for messages. It may be async.

        Args:
            selector: a pattern of kinds (`mcp/proposal:*`, `system/presence`) or a content type
                (`Chat`, `Proposal`).
        """
        self._membership.listeners.add(selector, callback)

    def events(self) -> Events:
        """Return a stream of all messages from now on: `async for event in
        participant.events()`."""
        return self._membership.listeners.open_stream()

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
        return await self._wait_for_result(
            self._send_request(_as_tuple(to), method, _encode_json(params)), timeout
        )

    async def request_all(
        self, method: str, params: Any = None, timeout: float = DEFAULT_TIMEOUT_SECONDS
    ) -> dict[str, Any]:
        """Send a request to everybody and return the responses that arrive in time, by participant.

        Participants that do not have the requested object do not respond. An error response is
        returned as an InterlockError.
        """
        request = self._membership.send_request((), method, _encode_json(params), wait_for_all=True)
        try:
            async with asyncio.timeout(timeout):
                await request.done
        except TimeoutError:
            pass
        finally:
            self._membership.pending.remove(request)
        if request.error is not None:
            raise request.error
        return dict(request.responses)

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
        if self.can_send(request_kind(mcp.TOOLS_CALL, tool)):
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
        except PayloadError as error:
            raise SendError(error.message, INVALID_REQUEST) from None
        self._check_present(_as_tuple(to))
        return self._membership.propose(kind, write_proposal_payload(method, raw), _as_tuple(to))

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
        membership, reviewed = self._membership, _get_proposal(proposal)
        tracked_proposal = membership.proposals.get_fulfillable(
            _get_proposal_id(proposal), membership.id, force=force, reviewed=reviewed
        )
        params = bytes(tracked_proposal.params) if override is None else _encode_json(override)
        targets = tracked_proposal.to if to is None else _as_tuple(to)
        request = self._send_request(
            targets, tracked_proposal.method, params, tracked_proposal.proposalId
        )
        return await self._wait_for_result(request, timeout)

    def reject(self, proposal: Proposal | TrackedProposal | Event | str, reason: str = "") -> bool:
        """Reject a proposal locally. Returns False if it was not pending.

        Other participants are not told: send a chat for that.
        """
        return self._membership.proposals.reject(_get_proposal_id(proposal), reason)

    # -- internals

    def _send_request(
        self, to: Sequence[str], method: str, params: bytes, correlation_id: str | None = None
    ) -> TopicRequest:
        self._check_present(to)
        return self._membership.send_request(to, method, params, correlation_id=correlation_id)

    async def _wait_for_result(self, request: TopicRequest, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                await request.done
        except TimeoutError:
            self._membership.cancel_request(request)
            raise InterlockError(
                DEADLINE_EXCEEDED, f"No response within {timeout:g} s.", {"sent": True}
            ) from None
        except asyncio.CancelledError:
            self._membership.cancel_request(request)
            raise
        finally:
            self._membership.pending.remove(request)
        if request.error is not None:
            raise request.error
        (outcome,) = request.responses.values()
        if isinstance(outcome, InterlockError):
            raise outcome
        return outcome

    def _check_present(self, to: Sequence[str]) -> None:
        membership = self._membership
        if not membership.is_connected:
            return  # sending reports this error
        for participant in to:
            if participant != membership.id and participant not in membership.participants:
                present = ", ".join(sorted(membership.participants)[:20]) or "none"
                raise InterlockError(
                    UNKNOWN_PARTICIPANT,
                    f"{participant[:128]!r} is not in the topic {self.topic}. Participants: "
                    f"{present}.",
                    {"sent": False},
                )

    def _send(self, text: bytes) -> None:
        if self._connection is not None:
            self._connection.send(text)

    def _on_welcome(self) -> None:
        connection, state = self._connection, self._state
        if connection is not None and state is not None and not connection.is_welcomed:
            connection.on_welcome()
            state.on_welcome(self._membership.id, connection.label)

    def _make_ssl_context(self) -> SSLContext | None:
        # Read for every connection: certificates are renewed while a program runs.
        return client_context(*self._tls) if self._url.startswith("wss:") else None


def _end_failed_membership(task: asyncio.Task[None], state: MembershipState) -> None:
    """End the membership after an internal error of the library, so that no caller waits without a
    limit."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        state.on_reject(InterlockError(INTERNAL, f"The connection failed: {error!r}"))


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
    value = proposal.content if isinstance(proposal, Event) else proposal
    return value if isinstance(value, Proposal | TrackedProposal) else None


def _get_proposal_id(proposal: Proposal | TrackedProposal | Event | str) -> str:
    if isinstance(proposal, str):
        return proposal
    return proposal.proposalId if isinstance(proposal, TrackedProposal) else proposal.id
