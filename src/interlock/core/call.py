"""The one thing that flows: a call, who makes it, how long it may take, and what comes back.

A face fills in what it read from its wire; the pipeline's stages fill in what they find out; the
upstream reads it. Nothing else travels between the rooms.
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
from interlock.protocol.mcp import Era, ResultGlance
from interlock.protocol.mcpax import Hop

if TYPE_CHECKING:
    from interlock.core.ports import UpstreamRequest

EMPTY_OBJECT: Final = b"{}"

LOCAL: Final = "local"
LOOPBACK: Final = "loopback"
OTHER_USER: Final = "other_user"
FORWARDED: Final = "forwarded"

NotificationHandler = Callable[["Call", str, "bytes | Raw"], None]
"""Takes a notification that belongs to a call: the call, the method and the raw params."""


class Credentials(msgspec.Struct, frozen=True, gc=False):
    """What a face saw of the other side. Whether it is enough is for the pipeline to say."""

    peer: str
    """`local`: the node's own user, by stdio or the Unix socket. `loopback`: the same user, by TCP.
    `other_user`: from this machine, but another user's, or nobody knows whose. `forwarded`: passed
    on by a proxy. Else the address."""
    bearer: str | None = None
    assigned_name: str = ""
    """Set where the node itself chose the other side, as with the parent that it registered with:
    the name of that caller."""
    certificate_names: tuple[str, ...] = ()
    """The names (SAN) in the client certificate that it showed, and that a CA of ours signed."""
    hop_token: str | None = None
    """The token that the node above made for this one call, where it sent one."""

    def __repr__(self) -> str:
        """Without what somebody could use who reads it in a log or a traceback."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Credentials({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            ("peer", self.peer),
            ("bearer", None if self.bearer is None else "…"),
            ("assigned_name", self.assigned_name),
            ("certificate_names", self.certificate_names),
            ("hop_token", None if self.hop_token is None else "…"),
        ]


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Somebody who is known here."""

    name: str
    can_call: bool = True
    """Whether it may call, in topics and everywhere else."""
    can_register: bool = True
    """Whether it may register a subserver."""
    can_join: bool = False
    """Whether it may take part in topics, though it may not call elsewhere."""
    can_view_approvals: bool = False
    """Whether it may look at the approvals of others. Only a proof confirms one."""
    kind: str = "local"
    """How it is known: `local`, `token`, `jwt`, `introspection`, `certificate` or `parent`."""
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    """The most it may do, as `level` or `level:glob`. None: there is no limit."""
    expires_at: float | None = None
    """Until when (wall clock) it is who it says. None: it is asked anew every time."""
    id: str = ""
    """What can be revoked: the id of its token, or its subject. Empty: nothing of it can."""
    parent_caller: str = ""
    """Of a call that a parent sent: who called there."""


Principal = tuple[str, str, str]
"""Who is behind a connection: name, kind, and for whom it speaks. Never a name from a request."""


class RevokedCallers(frozenset[str]):
    """The names of callers of whom something was revoked, and what of each."""

    token_ids: frozenset[str] = frozenset()
    """Tokens by id that do not count any more."""
    without_tokens: frozenset[str] = frozenset()
    """Callers who have no token left that was known to count."""

    def affects(self, caller: Caller) -> bool:
        """Whether something that this caller began must end now: not, if it came with another
        token than the one that was revoked."""
        if caller.name not in self:
            return False
        return caller.name in self.without_tokens or not caller.id or caller.id in self.token_ids


def principal(caller: Caller) -> Principal:
    """Return what identifies a caller across connections."""
    return (caller.name, caller.kind, caller.parent_caller)


class Client(msgspec.Struct, frozen=True, gc=False):
    """The program on the other side: which wire it speaks and what it declared."""

    era: Era
    revision: str
    name: str = ""
    capabilities: bytes = EMPTY_OBJECT
    accepts_requests: bool = False
    """Whether it keeps a session and answers what a server asks of it in between: sampling,
    elicitation or roots."""


class ClientRequest(msgspec.Struct, eq=False):
    """A question that an upstream puts to whoever called it: a sample, a form, the roots.

    It is answered exactly once; what comes first counts.
    """

    method: str
    params: bytes
    """A raw JSON object, empty when there are none."""
    on_response: Callable[[ClientResponse], None]
    upstream: str = ""
    """Who asks."""
    is_open: bool = True
    on_withdraw: Callable[[ClientRequest, str], None] | None = None
    """Set by whoever relays it: told when the upstream no longer wants to know, and why."""
    progress_token: bytes | None = None
    """Raw: the upstream wants to hear how the answer comes along."""
    on_progress: Callable[[bytes | Raw], None] | None = None
    """Takes the raw params of the client's progress on this question."""
    on_end: Callable[[ClientResponse | str], None] | None = None
    """Told once, before anybody else: the answer, or why there is none to come any more."""

    def respond(self, result: bytes | Raw) -> None:
        self._respond(ClientResponse(bytes(result)))

    def reject(self, code: int, message: str, data: bytes | Raw | None = None) -> None:
        self._respond(ClientResponse(b"", code, message, data))

    def withdraw(self, reason: str) -> None:
        """The upstream no longer wants an answer."""
        if self.is_open:
            self.is_open = False
            if self.on_end is not None:
                self.on_end(reason)
            if self.on_withdraw is not None:
                self.on_withdraw(self, reason)

    def fail(self, code: int, message: str) -> None:
        """Nobody will answer: both sides are told."""
        if self.is_open:
            self.reject(code, message)
            if self.on_withdraw is not None:
                self.on_withdraw(self, message)

    def _respond(self, answer: ClientResponse) -> None:
        if self.is_open:
            self.is_open = False
            if self.on_end is not None:
                self.on_end(answer)
            self.on_response(answer)


class ClientResponse(msgspec.Struct, frozen=True, gc=False):
    """What a question came to: a raw result, or an error with its code."""

    result: bytes
    """Empty: there is none, but an error."""
    code: int = 0
    message: str = ""
    data: bytes | Raw | None = None

    @property
    def is_error(self) -> bool:
        return not self.result


class ClientSession(Protocol):
    """A client that stays connected between its requests, as those of the session wire do."""

    client: Client
    owner: str
    """The name of the caller it belongs to."""
    is_alive: bool
    log_level: str | None
    """From which level on it wants to hear log messages. None: it never said."""
    on_close: list[Callable[[], None]]
    """Run once, when the session ends."""
    on_roots_changed: list[Callable[[], None]]
    """Run whenever the client says that its roots are others now."""

    def send_notification(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that belongs to none of its requests."""

    def close_stream(self, call: Call) -> None:
        """End the connection of a call that goes on, if its client knows to come back for it."""

    def send_resource_update(self, uri: str) -> None:
        """Tell it that a resource which it follows is not what it was."""

    def send_request(self, ask: ClientRequest, call: Call | None) -> bool:
        """Put a question: on the stream of the call's own request where there is one.

        False: there is no way to the client now, and the question is as it was.
        """
        ...


class Route(Protocol):
    """Where a name leads: one tool of one upstream, as the catalog resolved it."""

    canonical: str
    upstream: str
    upstream_name: str
    upstream_name_json: bytes
    header_params: tuple[HeaderParam, ...]
    declared_timeout: float | None
    """How long a call of it may take, by what it says of itself. 0: as long as it takes. None: it
    says nothing."""
    route_members: bytes
    """Members of `_meta` that lead a call on through the nodes below, as they stand behind others:
    `,"x-mcpax-route":[…],"x-mcpax-cursor":1`. Empty: there is no node below."""


class ProposedCall(msgspec.Struct, frozen=True, gc=False):
    """A proposal in a topic that somebody addressed to the node."""

    topic: str
    id: str
    """The id of its envelope."""
    participant: str
    """The participant that proposed it."""


class OperationRequest(Protocol):
    """A request for an operation that a call was made of: see `interlock.aql.request`."""

    confirmation: str
    """The token by which its caller confirms it. Empty: none was sent."""


@plain_stores
class Call(msgspec.Struct, eq=False):
    """One request on its way through the pipeline."""

    method: str
    """The MCP method: `tools/call`, `tools/list`, …"""
    server: str
    credentials: Credentials
    client: Client
    name: str = ""
    """The tool or prompt as the client named it, or the URI of a resource."""
    session_owner: str = ""
    """Whose session it came on, when it came on one: nobody else may use that session."""
    cursor: str | None = None
    """Where a listing goes on."""
    arguments: bytes | Raw = EMPTY_OBJECT
    meta: dict[str, Raw] | None = None
    """The caller's `_meta`, reserved keys included."""
    extra_params: dict[str, Raw] | None = None
    """Members of `params` that the node does not read but passes on."""
    header_params: list[tuple[bytes, bytes]] | None = None
    """`Mcp-Param-*` headers as they came, when the wire has them."""
    on_notification: NotificationHandler | None = None
    """Where progress and log messages of this call go. None: nobody listens."""

    on_done: Done | None = None
    """Told once, when the call is over: the outcome, or the error."""
    session: ClientSession | None = None
    """The session it came on, for a client that has one."""
    hop: Hop | None = None
    """Where it is on its way down the tree, when a parent sent it."""
    context: object = None
    """What the server that made the call keeps with it. Nobody else reads it."""
    view: OperationView | None = None
    """The AQL view that it was made in. None: the plain one."""

    # Filled in by the stages, in their order.
    started_at: float = 0.0
    caller: Caller | None = None
    route: Route | None = None
    upstream: str = ""
    effect: str = ""
    decoded_arguments: Any = None
    """The arguments as Python objects, once a stage needed them."""
    timeout: float = 0.0
    """How long the call may go without a sign of life; progress starts it again."""
    deadline: float = 0.0
    """Absolute, on the loop's clock."""
    hard_deadline: float = 0.0
    """However much progress is reported, the call ends here."""
    has_caller_timeout: bool = False
    """Whether the caller itself asked for a shorter deadline than the node's."""
    is_retryable: bool = False
    """Whether it may be sent again after it may have been executed."""
    is_retry: bool = False
    is_dispatched: bool = False
    """Whether a request for it has left the node, so that it may have been executed. Set where the
    request is handed to its transport; only a transport that knows that nothing was executed takes
    it back. A call that waits for the outcome of another is not dispatched."""
    input_rounds: int = 0
    """How often its server has asked for input instead of answering."""
    upstream_request: UpstreamRequest | None = None
    """The request that is under way for it."""
    approval_id: str = ""
    """The id of the approval that it is made for: a human let exactly this call through."""
    approval_digest: str = ""
    """Of an approved call: what the approval is about, once the gate has held the call to it."""
    reservations: Sequence[object] | None = None
    """What it has taken from budgets, until it is settled or given back."""
    operation_request: OperationRequest | None = None
    """What the AQL stage keeps of the request until it is answered. No wire can set it."""
    proposal: ProposedCall | None = None
    """The proposal that it was made for: it waits for a human, unless a rule that a human accepted
    covers it. No wire can set it."""

    def __repr__(self) -> str:
        """Without what the caller sent: there may be a secret anywhere in it."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Call({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ("method", "server", "name", "credentials", "caller", "upstream", "approval_id")
        return [(name, getattr(self, name)) for name in shown]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What came back: the raw result, in which era's words it is, and what it says of itself."""

    result: bytes
    era: Era
    glance: ResultGlance | None = None
    """None: the node made the result, and knows what is in it."""


Done = Callable[["Call", "Outcome | None", InterlockError | None], None]
"""Takes a call that is over, with its outcome or its error."""


class UpstreamResponseError(InterlockError):
    """The upstream itself answered with a JSON-RPC error: code, message and data are passed on."""

    def __init__(self, code: int, message: str, data: bytes | Raw | None) -> None:
        super().__init__(UPSTREAM_ERROR, message)
        self.code = code
        self.raw_data = data


class HiddenToolError(InterlockError):
    """A call of a tool that its caller does not see. The caller is told that there is none, the
    journal has the reason."""

    def __init__(self, unknown: InterlockError, reason: InterlockError) -> None:
        super().__init__(unknown.failure, unknown.message, unknown.data)
        self.reason = reason


class RelayedError(InterlockError):
    """A node below said what went wrong there, in the words of our own table.

    That node itself is well: nothing is held against it.
    """


class UpstreamLostError(InterlockError):
    """The upstream went away. `sent` tells whether this request may have been executed: that
    decides whether it may be sent again. Whether any request of a call left: `Call.dispatched`."""

    def __init__(
        self, failure: Failure, message: str, *, was_sent: bool, status: int = 0, location: str = ""
    ) -> None:
        super().__init__(failure, message)
        self.was_sent = was_sent
        self.status = status
        """What HTTP said, where HTTP was spoken."""
        self.location = location
