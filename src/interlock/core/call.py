"""The call and everything that belongs to it: caller, client, client requests, outcome, errors.

A server fills in what it read from its protocol, the stages of the pipeline add what they find
out, and the upstream reads it. A `Call` is all that servers, pipeline and upstreams share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.errors import UPSTREAM_ERROR, Failure, InterlockError
from interlock.protocol.aql_terms import OperationView
from interlock.protocol.fast_structs import plain_stores
from interlock.protocol.headers import HeaderParam
from interlock.protocol.mcp import Era, ResultSummary
from interlock.protocol.mcpax import Hop

if TYPE_CHECKING:
    from interlock.core.ports import UpstreamRequest

EMPTY_OBJECT: Final = b"{}"

LOCAL: Final = "local"
LOOPBACK: Final = "loopback"
OTHER_USER: Final = "other_user"
FORWARDED: Final = "forwarded"

NotificationHandler = Callable[["Call", str, "bytes | Raw"], None]
"""A callback for a notification about a call: the call, the method and the raw params."""


class Credentials(msgspec.Struct, frozen=True, gc=False):
    """The credentials and the address of the peer of a connection. The pipeline evaluates them."""

    peer: str
    """`local`: the user of the node, by stdio or the Unix socket. `loopback`: the same user, by
    TCP. `other_user`: a connection from this machine by another or an unknown user. `forwarded`:
    passed on by a proxy. Otherwise the address of the peer."""
    bearer: str | None = None
    assigned_name: str = ""
    """The name of the caller where the node chose the peer itself, such as the parent that it
    registered with."""
    certificate_names: tuple[str, ...] = ()
    """The names (SAN) in the client certificate, which a configured CA signed."""
    hop_token: str | None = None
    """The token that the parent node minted for this one call, if it sent one."""

    def __repr__(self) -> str:
        """Return a text without secrets: it may end up in a log or a traceback."""
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Credentials({fields})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            ("peer", self.peer),
            ("bearer", None if self.bearer is None else "…"),
            ("assigned_name", self.assigned_name),
            ("certificate_names", self.certificate_names),
            ("hop_token", None if self.hop_token is None else "…"),
        ]


_STORED_CALLER_NAMES: Final = {
    "can_call": "calls",
    "can_register": "registers",
    "can_join": "joins",
    "can_view_approvals": "approves",
    "expires_at": "expires",
    "parent_caller": "above",
}
"""Attributes of callers whose name differs in stored approvals and blocks."""


class Caller(msgspec.Struct, frozen=True, gc=False, rename=_STORED_CALLER_NAMES):
    """An authenticated caller and its rights."""

    name: str
    can_call: bool = True
    """True if it may make calls, in topics and everywhere else."""
    can_register: bool = True
    """True if it may register a subserver."""
    can_join: bool = False
    """True if it may take part in topics, even if it may not call elsewhere."""
    can_view_approvals: bool = False
    """True if it may read the approvals of other callers. Approving needs a proof in any case."""
    kind: str = "local"
    """The kind of its authentication: `local`, `token`, `jwt`, `introspection`, `certificate`,
    `parent`."""
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    """Upper limit of its rights, as `level` or `level:glob`. None: no limit."""
    expires_at: float | None = None
    """The end of its authentication (wall clock). None: it is checked for every request."""
    id: str = ""
    """The id that can be revoked: of its token, or its subject. Empty: nothing can be revoked."""
    parent_caller: str = ""
    """The caller at the parent node, for a call that a parent sent."""


Principal = tuple[str, str, str]
"""The identity behind a connection: name, kind, and the caller at the parent. Never taken from the
content of a request."""


class RevokedCallers(frozenset[str]):
    """The names of callers with revoked tokens, and which tokens those are."""

    token_ids: frozenset[str] = frozenset()
    """The ids of the revoked tokens."""
    without_tokens: frozenset[str] = frozenset()
    """The callers that have no valid token left."""

    def affects(self, caller: Caller) -> bool:
        """Return whether sessions and calls of this caller must end. They go on if the caller used
        a token that was not revoked."""
        if caller.name not in self:
            return False
        return caller.name in self.without_tokens or not caller.id or caller.id in self.token_ids


def principal(caller: Caller) -> Principal:
    """Return the identity of a caller across connections."""
    return (caller.name, caller.kind, caller.parent_caller)


class Client(msgspec.Struct, frozen=True, gc=False):
    """The client program: its protocol generation and the capabilities that it declared."""

    era: Era
    revision: str
    name: str = ""
    capabilities: bytes = EMPTY_OBJECT
    accepts_requests: bool = False
    """True if it keeps a session and can respond to client requests: sampling, elicitation or
    roots."""


class ClientRequest(msgspec.Struct, eq=False):
    """A request of an upstream to the client that called it: sampling, elicitation or roots.

    It ends exactly once. The first response, withdrawal or failure counts.
    """

    method: str
    params: bytes
    """A raw JSON object, empty when there are none."""
    on_response: Callable[[ClientResponse], None]
    upstream: str = ""
    """The key of the upstream."""
    is_open: bool = True
    on_withdraw: Callable[[ClientRequest, str], None] | None = None
    """Set by the component that relays the request: called with the reason when the upstream
    withdraws it."""
    progress_token: bytes | None = None
    """Raw. Set if the upstream wants progress notifications about the response."""
    on_progress: Callable[[bytes | Raw], None] | None = None
    """Called with the raw params of a progress notification of the client."""
    on_end: Callable[[ClientResponse | str], None] | None = None
    """Called once, before every other callback: the response, or the reason why there is none."""

    def respond(self, result: bytes | Raw) -> None:
        self._respond(ClientResponse(bytes(result)))

    def reject(self, code: int, message: str, data: bytes | Raw | None = None) -> None:
        self._respond(ClientResponse(b"", code, message, data))

    def withdraw(self, reason: str) -> None:
        """End the request because the upstream does not want a response any more."""
        if self.is_open:
            self.is_open = False
            if self.on_end is not None:
                self.on_end(reason)
            if self.on_withdraw is not None:
                self.on_withdraw(self, reason)

    def fail(self, code: int, message: str) -> None:
        """End the request because no response will come. Notifies the upstream and the relay."""
        if self.is_open:
            self.reject(code, message)
            if self.on_withdraw is not None:
                self.on_withdraw(self, message)

    def _respond(self, response: ClientResponse) -> None:
        if self.is_open:
            self.is_open = False
            if self.on_end is not None:
                self.on_end(response)
            self.on_response(response)


class ClientResponse(msgspec.Struct, frozen=True, gc=False):
    """The response to a client request: a raw result, or an error with its code."""

    result: bytes
    """Empty for an error."""
    code: int = 0
    message: str = ""
    data: bytes | Raw | None = None

    @property
    def is_error(self) -> bool:
        return not self.result


class ClientSession(Protocol):
    """A client that stays connected between its requests (protocol generation `session`)."""

    client: Client
    owner: str
    """The name of the caller that it belongs to."""
    is_alive: bool
    log_level: str | None
    """The lowest level of log messages that the client wants. None: it never set a level."""
    on_close: list[Callable[[], None]]
    """Callbacks that run once, when the session ends."""
    on_roots_changed: list[Callable[[], None]]
    """Callbacks that run whenever the client reports changed roots."""

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that belongs to no request of the client."""

    def close_stream(self, call: Call) -> None:
        """End the stream of a running call, if its client can resume the stream later."""

    def send_resource_update(self, uri: str) -> None:
        """Notify the client that a resource to which it subscribed has changed."""

    def send_request(self, request: ClientRequest, call: Call | None) -> bool:
        """Send a request to the client, on the stream of the call where there is one.

        Return False, with the request unchanged, if the client cannot be reached now.
        """
        ...


class Route(Protocol):
    """The target of a tool name: one tool of one upstream, as the catalog resolved it."""

    canonical: str
    upstream: str
    upstream_name: str
    upstream_name_json: bytes
    header_params: tuple[HeaderParam, ...]
    declared_timeout: float | None
    """The time limit of a call in seconds, as the tool declares it. 0: no limit. None: nothing
    declared."""
    route_members: bytes
    """Members of `_meta` that route a call through the child nodes, written to follow other
    members: `,"x-mcpax-route":[…],"x-mcpax-cursor":1`. Empty if the tool is not below a node."""


class ProposedCall(msgspec.Struct, frozen=True, gc=False):
    """A proposal in a topic that was addressed to the node."""

    topic: str
    id: str
    """The id of its envelope."""
    participant: str
    """The participant that proposed it."""


class OperationRequest(Protocol):
    """The request for an operation from which a call was made: see `interlock.aql.request`."""

    confirmation: str
    """The confirmation token that its caller sent. Empty: none."""


@plain_stores
class Call(msgspec.Struct, eq=False):
    """One request of a client in the pipeline."""

    method: str
    """The MCP method: `tools/call`, `tools/list`, …"""
    server: str
    """The server that received it: `http`, `stream`, `ax`, `topic`, …"""
    credentials: Credentials
    client: Client
    name: str = ""
    """The tool or prompt as the client named it, or the URI of a resource."""
    session_owner: str = ""
    """The caller that owns the session of the call. Other callers may not use that session."""
    cursor: str | None = None
    """The cursor of a list request."""
    arguments: bytes | Raw = EMPTY_OBJECT
    meta: dict[str, Raw] | None = None
    """The `_meta` of the caller, including reserved keys."""
    extra_params: dict[str, Raw] | None = None
    """Members of `params` that the node passes on without reading them."""
    header_params: list[tuple[bytes, bytes]] | None = None
    """The `Mcp-Param-*` headers as received, where the protocol has headers."""
    on_notification: NotificationHandler | None = None
    """Called with progress notifications and log messages of this call. None: not wanted."""

    on_done: DoneCallback | None = None
    """Called once, when the call ends: with the outcome or the error."""
    session: ClientSession | None = None
    """The session that it belongs to, for a client that has one."""
    hop: Hop | None = None
    """Its position on the route through the tree, if a parent sent it."""
    context: object = None
    """Private data of the server that made the call."""
    view: OperationView | None = None
    """The AQL view in which it was made. None: the plain view."""

    # Set by the stages, in their order.
    started_at: float = 0.0
    caller: Caller | None = None
    route: Route | None = None
    upstream: str = ""
    effect: str = ""
    decoded_arguments: Any = None
    """The arguments as Python objects, after a stage needed them."""
    timeout: float = 0.0
    """Seconds until the call expires without progress. Progress restarts the timeout."""
    deadline: float = 0.0
    """Absolute time on the clock of the event loop."""
    hard_deadline: float = 0.0
    """The call ends at this time, even if progress is reported."""
    has_caller_timeout: bool = False
    """True if the caller requested a shorter deadline than that of the node."""
    is_retryable: bool = False
    """True if it may be sent again although it may have been executed."""
    is_retry: bool = False
    is_dispatched: bool = False
    """True if a request for it has left the node, so that it may have been executed. Set where the
    request is handed to its transport. Only a transport that knows that nothing was executed resets
    it. A call that waits for the outcome of another call is not dispatched."""
    input_rounds: int = 0
    """The number of input rounds: results of its server that requested input."""
    upstream_request: UpstreamRequest | None = None
    """The request to the upstream that is in progress for it."""
    approval_id: str = ""
    """The id of the approval of exactly this call. Empty: it was not approved."""
    approval_digest: str = ""
    """The digest of an approved call, set after the gate checked that the call matches it."""
    reservations: Sequence[object] | None = None
    """Its reservation of budgets, until that is charged or released."""
    operation_request: OperationRequest | None = None
    """Data of the AQL stage until the response is written. No protocol can set it."""
    proposal: ProposedCall | None = None
    """The proposal that it was made from. Such a call needs an approval, unless an accepted rule
    covers it. No protocol can set it."""

    def __repr__(self) -> str:
        """Return a text without the content of the request, which may contain secrets."""
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Call({fields})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        names = ("method", "server", "name", "credentials", "caller", "upstream", "approval_id")
        return [(name, getattr(self, name)) for name in names]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The result of a call: raw JSON, its protocol generation, and a summary of its members."""

    result: bytes
    era: Era
    summary: ResultSummary | None = None
    """None for a result that the node wrote itself."""


DoneCallback = Callable[["Call", "Outcome | None", InterlockError | None], None]
"""A callback for the end of a call, with its outcome or its error."""


class UpstreamResponseError(InterlockError):
    """A JSON-RPC error response of the upstream. Code, message and data are passed on."""

    def __init__(self, code: int, message: str, data: bytes | Raw | None) -> None:
        super().__init__(UPSTREAM_ERROR, message)
        self.code = code
        self.raw_data = data


class HiddenToolError(InterlockError):
    """A call of a tool that is hidden from its caller. The caller gets an error for an unknown
    tool, the journal records the reason."""

    def __init__(self, public_error: InterlockError, reason: InterlockError) -> None:
        super().__init__(public_error.failure, public_error.message, public_error.data)
        self.reason = reason


class RelayedError(InterlockError):
    """An error that a child node reported, with a code of our own table.

    The child node itself works: the circuit breaker does not count this error.
    """


class StartError(InterlockError):
    """An upstream could not be started."""

    def __init__(
        self,
        failure: Failure,
        message: str,
        data: dict[str, Any] | None = None,
        *,
        is_timeout: bool = False,
        has_advice: bool = False,
        has_stray_line: bool = False,
    ) -> None:
        """Create the error.

        Args:
            is_timeout: True if the upstream was not ready within its `start_timeout`.
            has_advice: True if the message says what to do.
            has_stray_line: True if the message contains a line that is not MCP.
        """
        super().__init__(failure, message, data)
        self.is_timeout = is_timeout
        self.has_advice = has_advice
        self.has_stray_line = has_stray_line


class UpstreamLostError(InterlockError):
    """The connection to the upstream was lost.

    `was_sent` says whether this request may have been executed, which decides if it may be sent
    again. `Call.is_dispatched` says whether any request of a call left the node.
    """

    def __init__(
        self, failure: Failure, message: str, *, was_sent: bool, status: int = 0, location: str = ""
    ) -> None:
        super().__init__(failure, message)
        self.was_sent = was_sent
        self.status = status
        """The HTTP status, if the upstream uses HTTP."""
        self.location = location
