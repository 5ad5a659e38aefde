"""What the core asks of the outside, as small protocols. Only shapes here, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Raw

from interlock.core.call import Call, ClientRequest, ClientSession, Outcome
from interlock.core.catalog.snapshot import View
from interlock.errors import InterlockError
from interlock.protocol.mcpax import Hop

JournalEntry = tuple[int, str, str, str, str, str, str, str, int, str]
"""time_ns, caller, face, verb, name, upstream, effect, outcome, duration_us, detail"""


class Clock(Protocol):
    """Seconds on a clock that never goes back."""

    def __call__(self) -> float: ...


class Recorder(Protocol):
    """Where journal entries go. Called on the hot path: must not block."""

    def record(self, entry: JournalEntry) -> None: ...

    def record_durably(self, entry: JournalEntry, then: Callable[[bool], None]) -> None:
        """`then` is told once: True when not even a power cut can take the entry, False when it
        cannot be written now. It may be told before this returns."""


class UpstreamRequest(Protocol):
    """A request on its way to an upstream."""

    @property
    def is_open(self) -> bool:
        """Whether it is still to be answered."""
        ...

    def abandon(self, reason: str) -> None:
        """Nobody waits any more: tell the upstream, forget the answer."""

    def expire(self) -> None:
        """The deadline has passed: tell the upstream, fail whoever waits."""

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        """From now on somebody else waits for it."""


class ResponseHandler(Protocol):
    """The way back: what an upstream tells about the calls that it was given."""

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Told once, by the answer or by its absence."""

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """What the upstream says before it answers: progress, log messages."""

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        """What the upstream wants to know before it answers.

        `call` is the one it is about. None: it is about none in particular, but the upstream
        speaks to one client only, that of `session`.
        """


class Upstream(Protocol):
    """Something that serves tools, as the pipeline sees it."""

    @property
    def key(self) -> str: ...

    @property
    def timeout(self) -> float | None:
        """Its own limit for a call, when the config gives one."""
        ...

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        """Send the call, and set `call.dispatched` with the first byte that leaves. `back` is told
        what comes of it.

        Raises InterlockError when there is nobody to send it to.
        """
        ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it says it can do; for as long as its tools are listed."""
        ...

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        """Somebody wants to hear its log messages from this level on."""

    def session_key(self, call: Call) -> object | None:
        """Whose connection such a call would take. None: the one that everybody shares."""
        ...

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """Announce from now on when this resource changes, on the connection of such a call, or on
        the one that everybody shares.

        Raises InterlockError.
        """

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """Announce it no more."""

    async def wait_until_ready(self, seconds: float) -> bool:
        """Wait for it to come back; False, at once, when that is not to be expected in time."""
        ...


class CallHost(ResponseHandler, Protocol):
    """The pipeline, as its stages and the features that make calls see it."""

    def begin(self, call: Call) -> None:
        """Send a call on its way from the first stage on. Never raises."""

    async def run(self, call: Call) -> Outcome:
        """Send a call on its way and wait for what it comes to. Raises InterlockError."""
        ...

    def cancel(self, call: Call, reason: str) -> None:
        """Stop a call that is under way."""

    def send(self, call: Call, now: float) -> None:
        """Send a call that every stage has passed to its upstream."""

    def record_and_send(self, call: Call) -> None:
        """Send a call to its upstream once the journal has it on disk."""

    def finish(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        outcome_name: str = "ok",
    ) -> None:
        """End a call. `word`: what the journal says of it."""

    def is_pending(self, call: Call) -> bool:
        """Whether a call is under way, and its caller waits for it."""
        ...

    def pause_deadline(self, call: Call, seconds: float) -> None:
        """Stop the deadline of a call while its client is asked."""

    def resume_deadline(self, call: Call) -> None:
        """Let the deadline of a call run again."""

    def finish_task(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> Outcome | None:
        """End a call that goes on as a task."""
        ...

    def attach_request(self, call: Call, exchange: UpstreamRequest) -> None:
        """Have a call wait for a request that was sent for another one."""


class Decision(Protocol):
    """What was decided about a call that is not rejected."""

    @property
    def needs_approval(self) -> bool:
        """Whether the call waits for an operator."""
        ...


class Authorizer(Protocol):
    """Decides who may do what."""

    @property
    def view_of(self) -> Callable[[Call], View | None]:
        """Finds what the caller of a call sees of the tools. None: all of them."""
        ...

    def check_tool(self, call: Call) -> None:
        """Reject what no arguments could make right. Raises InterlockError."""

    def authorize(self, call: Call) -> Any:
        """Return the `Decision` about a call of a tool that was screened. Raises InterlockError."""

    def authorize_method(self, call: Call) -> None:
        """Decide about what is no call of a tool: it never waits. Raises InterlockError."""

    def explain(self, call: Call, decision: Any) -> Any:
        """Return the decision by which a call is held, with its full reason."""

    def charge_budget(self, call: Call) -> None:
        """A call that has `reserved` something is over."""


class Gate(Protocol):
    """Where calls wait for an operator."""

    host: Any
    """What goes on with those that are let through."""

    def request_approval(self, call: Call, decision: Any) -> None:
        """Answer the call with what it waits for; or let it go on, if an operator approved exactly
        it. Raises InterlockError."""

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """A call that was let through is over, or one whose result says that it failed."""

    def is_waiting_for_other_call(self, call: Call) -> bool:
        """Whether a call that is under way waits for the outcome of another."""
        ...


class RouteCheck(Protocol):
    """Checks the way of calls that a parent node sent."""

    def check(self, call: Call, hop: Hop) -> None:
        """Raises InterlockError for a call that came the wrong way."""

    def describe_position(self, call: Call) -> str:
        """Where in the tree a call is now."""
        ...


CallResult = tuple[Outcome | None, InterlockError | None]
"""How a call ended."""

OperationMatch = bool | None
"""What became of a call that the operations stage took. True: it is a call of a tool, knows its
route, and has arguments that fit the tool's schema. False: it goes on as any other. None: it is
answered, or will be."""


class OperationsStage(Protocol):
    """Makes calls of operations, for clients in a view. Only asked about a call in a view."""

    def resolve_operation(self, call: Call) -> OperationMatch:
        """Make an operation a call of its tool. Raises InterlockError."""
        ...

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> CallResult:
        """How a call ended, after so many seconds, in the words of the view. Never raises."""
        ...

    def check_encoding(self, body: bytes) -> tuple[bytes, InterlockError] | None:
        """The id of a call whose bytes are not the text they should be, and the error for it.
        None: every byte is text, or it is no call that could be answered."""
        ...
