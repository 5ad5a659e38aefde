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

Hear = Callable[["Call", str, "bytes | Raw"], None]
"""Takes a notification that belongs to a call: the call, the method and the raw params."""


class Credentials(msgspec.Struct, frozen=True, gc=False):
    """What a face saw of the other side. Whether it is enough is for the pipeline to say."""

    peer: str
    """`local`: the node's own user, by stdio or the Unix socket. `loopback`: the same user, by TCP.
    `other_user`: from this machine, but another user's, or nobody knows whose. `forwarded`: passed
    on by a proxy. Else the address."""
    bearer: str | None = None
    known_as: str = ""
    """Set where the node itself chose the other side, as with the parent that it registered with:
    the name of that caller."""
    certificate: tuple[str, ...] = ()
    """The names (SAN) in the client certificate that it showed, and that a CA of ours signed."""
    minted: str | None = None
    """The token that the node above made for this one call, where it sent one."""

    def __repr__(self) -> str:
        """Without what somebody could use who reads it in a log or a traceback."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Credentials({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [
            ("peer", self.peer),
            ("bearer", None if self.bearer is None else "…"),
            ("known_as", self.known_as),
            ("certificate", self.certificate),
            ("minted", None if self.minted is None else "…"),
        ]


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Somebody who is known here."""

    name: str
    calls: bool = True
    """Whether it may call, in topics and everywhere else."""
    registers: bool = True
    """Whether it may register a subserver."""
    joins: bool = False
    """Whether it may take part in topics, though it may not call elsewhere."""
    approves: bool = False
    """Whether it may look at the approvals of others. Only a proof confirms one."""
    kind: str = "local"
    """How it is known: `local`, `token`, `jwt`, `introspection`, `certificate` or `parent`."""
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    """The most it may do, as `level` or `level:glob`. None: there is no limit."""
    expires: float | None = None
    """Until when (wall clock) it is who it says. None: it is asked anew every time."""
    id: str = ""
    """What can be revoked: the id of its token, or its subject. Empty: nothing of it can."""
    above: str = ""
    """Of a call that a parent sent: who called there."""


Principal = tuple[str, str, str]
"""Who is behind a connection: name, kind, and for whom it speaks. Never a name from a request."""


class RevokedCallers(frozenset[str]):
    """The names of callers of whom something was revoked, and what of each."""

    tokens: frozenset[str] = frozenset()
    """Tokens by id that do not count any more."""
    wholly: frozenset[str] = frozenset()
    """Callers who have no token left that was known to count."""

    def ends(self, caller: Caller) -> bool:
        """Whether something that this caller began must end now: not, if it came with another
        token than the one that was revoked."""
        if caller.name not in self:
            return False
        return caller.name in self.wholly or not caller.id or caller.id in self.tokens


def principal(caller: Caller) -> Principal:
    """Return what identifies a caller across connections."""
    return (caller.name, caller.kind, caller.above)


class Client(msgspec.Struct, frozen=True, gc=False):
    """The program on the other side: which wire it speaks and what it declared."""

    era: Era
    revision: str
    name: str = ""
    capabilities: bytes = EMPTY_OBJECT
    answers: bool = False
    """Whether it keeps a session and answers what a server asks of it in between: sampling,
    elicitation or roots."""


class ClientRequest(msgspec.Struct, eq=False):
    """A question that an upstream puts to whoever called it: a sample, a form, the roots.

    It is answered exactly once; what comes first counts.
    """

    method: str
    params: bytes
    """A raw JSON object, empty when there are none."""
    on_answer: Callable[[ClientResponse], None]
    upstream: str = ""
    """Who asks."""
    open: bool = True
    on_withdrawn: Callable[[ClientRequest, str], None] | None = None
    """Set by whoever relays it: told when the upstream no longer wants to know, and why."""
    progress_token: bytes | None = None
    """Raw: the upstream wants to hear how the answer comes along."""
    on_progress: Callable[[bytes | Raw], None] | None = None
    """Takes the raw params of the client's progress on this question."""
    on_over: Callable[[ClientResponse | str], None] | None = None
    """Told once, before anybody else: the answer, or why there is none to come any more."""

    def reply(self, result: bytes | Raw) -> None:
        self._answer(ClientResponse(bytes(result)))

    def refuse(self, code: int, message: str, data: bytes | Raw | None = None) -> None:
        self._answer(ClientResponse(b"", code, message, data))

    def withdraw(self, reason: str) -> None:
        """The upstream no longer wants an answer."""
        if self.open:
            self.open = False
            if self.on_over is not None:
                self.on_over(reason)
            if self.on_withdrawn is not None:
                self.on_withdrawn(self, reason)

    def give_up(self, code: int, message: str) -> None:
        """Nobody will answer: both sides are told."""
        if self.open:
            self.refuse(code, message)
            if self.on_withdrawn is not None:
                self.on_withdrawn(self, message)

    def _answer(self, answer: ClientResponse) -> None:
        if self.open:
            self.open = False
            if self.on_over is not None:
                self.on_over(answer)
            self.on_answer(answer)


class ClientResponse(msgspec.Struct, frozen=True, gc=False):
    """What a question came to: a raw result, or an error with its code."""

    result: bytes
    """Empty: there is none, but an error."""
    code: int = 0
    message: str = ""
    data: bytes | Raw | None = None

    @property
    def refused(self) -> bool:
        return not self.result


class ClientSession(Protocol):
    """A client that stays connected between its requests, as those of the session wire do."""

    client: Client
    owner: str
    """The name of the caller it belongs to."""
    alive: bool
    log_level: str | None
    """From which level on it wants to hear log messages. None: it never said."""
    closed: list[Callable[[], None]]
    """Run once, when the session ends."""
    on_roots_changed: list[Callable[[], None]]
    """Run whenever the client says that its roots are others now."""

    def tell(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that belongs to none of its requests."""

    def hang_up(self, call: Call) -> None:
        """End the connection of a call that goes on, if its client knows to come back for it."""

    def updated(self, uri: str) -> None:
        """Tell it that a resource which it follows is not what it was."""

    def ask(self, ask: ClientRequest, call: Call | None) -> bool:
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
    limit: float | None
    """How long a call of it may take, by what it says of itself. 0: as long as it takes. None: it
    says nothing."""
    way: bytes
    """Members of `_meta` that lead a call on through the nodes below, as they stand behind others:
    `,"x-mcpax-route":[…],"x-mcpax-cursor":1`. Empty: there is no node below."""


class ProposedCall(msgspec.Struct, frozen=True, gc=False):
    """A proposal in a topic that somebody addressed to the node."""

    topic: str
    id: str
    """The id of its envelope."""
    by: str
    """The participant that proposed it."""


class OperationRequest(Protocol):
    """A request for an operation that a call was made of: see `interlock.aql.request`."""

    confirmation: str
    """The token by which its caller confirms it. Empty: none was sent."""


@plain_stores
class Call(msgspec.Struct, eq=False):
    """One request on its way through the pipeline."""

    verb: str
    """The MCP method: `tools/call`, `tools/list`, …"""
    face: str
    credentials: Credentials
    client: Client
    name: str = ""
    """The tool or prompt as the client named it, or the URI of a resource."""
    owner: str = ""
    """Whose session it came on, when it came on one: nobody else may use that session."""
    cursor: str | None = None
    """Where a listing goes on."""
    arguments: bytes | Raw = EMPTY_OBJECT
    meta: dict[str, Raw] | None = None
    """The caller's `_meta`, reserved keys included."""
    extra: dict[str, Raw] | None = None
    """Members of `params` that the node does not read but passes on."""
    header_params: list[tuple[bytes, bytes]] | None = None
    """`Mcp-Param-*` headers as they came, when the wire has them."""
    on_notification: Hear | None = None
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
    started: float = 0.0
    caller: Caller | None = None
    route: Route | None = None
    upstream: str = ""
    effect: str = ""
    decoded: Any = None
    """The arguments as Python objects, once a stage needed them."""
    timeout: float = 0.0
    """How long the call may go without a sign of life; progress starts it again."""
    deadline: float = 0.0
    """Absolute, on the loop's clock."""
    hard_deadline: float = 0.0
    """However much progress is reported, the call ends here."""
    own_limit: bool = False
    """Whether the caller itself asked for a shorter deadline than the node's."""
    repeatable: bool = False
    """Whether it may be sent again after it may have been executed."""
    sent_again: bool = False
    dispatched: bool = False
    """Whether a request for it has left the node, so that it may have been executed. Set where the
    request is handed to its transport; only a transport that knows that nothing was executed takes
    it back. A call that waits for the outcome of another is not dispatched."""
    rounds: int = 0
    """How often its server has asked for input instead of answering."""
    exchange: UpstreamRequest | None = None
    """The request that is under way for it."""
    approval: str = ""
    """The id of the approval that it is made for: a human let exactly this call through."""
    digest: str = ""
    """Of an approved call: what the approval is about, once the gate has held the call to it."""
    reserved: Sequence[object] | None = None
    """What it has taken from budgets, until it is settled or given back."""
    asked: OperationRequest | None = None
    """What the AQL stage keeps of the request until it is answered. No wire can set it."""
    proposal: ProposedCall | None = None
    """The proposal that it was made for: it waits for a human, unless a rule that a human accepted
    covers it. No wire can set it."""

    def __repr__(self) -> str:
        """Without what the caller sent: there may be a secret anywhere in it."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Call({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = ("verb", "face", "name", "credentials", "caller", "upstream", "approval")
        return [(name, getattr(self, name)) for name in shown]


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What came back: the raw result, in which era's words it is, and what it says of itself."""

    result: bytes
    era: Era
    glance: ResultGlance | None = None
    """None: the node made the result, and knows what is in it."""


Done = Callable[["Call", "Outcome | None", InterlockError | None], None]
"""Takes a call that is over, with its outcome or its error."""


class UpstreamAnsweredError(InterlockError):
    """The upstream itself answered with a JSON-RPC error: code, message and data are passed on."""

    def __init__(self, code: int, message: str, data: bytes | Raw | None) -> None:
        super().__init__(UPSTREAM_ERROR, message)
        self.code = code
        self.raw_data = data


class HiddenError(InterlockError):
    """A call of a tool that its caller does not see. The caller is told that there is none, the
    journal has the reason."""

    def __init__(self, unknown: InterlockError, reason: InterlockError) -> None:
        super().__init__(unknown.failure, unknown.message, unknown.data)
        self.reason = reason


class RelayedError(InterlockError):
    """A node below said what went wrong there, in the words of our own table.

    That node itself is well: nothing is held against it.
    """


class UpstreamGoneError(InterlockError):
    """The upstream went away. `sent` tells whether this request may have been executed: that
    decides whether it may be sent again. Whether any request of a call left: `Call.dispatched`."""

    def __init__(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        super().__init__(failure, message)
        self.sent = sent
        self.status = status
        """What HTTP said, where HTTP was spoken."""
        self.location = location
