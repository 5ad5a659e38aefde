"""The interfaces of the core, as small protocols without behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Raw

from interlock.core.call import Call, ClientRequest, ClientSession, Outcome
from interlock.core.catalog.snapshot import View
from interlock.errors import InterlockError
from interlock.protocol.mcpax import Hop

JournalEntry = tuple[int, str, str, str, str, str, str, str, int, str]
"""time_ns, caller, server, method, name, upstream, effect, outcome name, duration_us, detail"""


class Clock(Protocol):
    """A monotonic clock in seconds."""

    def __call__(self) -> float: ...


class Recorder(Protocol):
    """Writes journal entries. Called on the hot path: it must not block."""

    def record(self, entry: JournalEntry) -> None: ...

    def record_durably(self, entry: JournalEntry, on_written: Callable[[bool], None]) -> None:
        """Write an entry so that it survives a power failure.

        Args:
            on_written: called once, possibly before this returns: with True when the entry is
                durable, with False when it cannot be written now.
        """


class UpstreamRequest(Protocol):
    """A request to an upstream."""

    @property
    def is_open(self) -> bool:
        """True until the request has a response or is abandoned."""
        ...

    def abandon(self, reason: str) -> None:
        """Cancel the request at the upstream and ignore its response."""

    def expire(self) -> None:
        """Cancel the request at the upstream and fail the call, as the deadline has passed."""

    def reassign(self, call: Call, handler: ResponseHandler) -> None:
        """Deliver the response to another call and handler."""


class ResponseHandler(Protocol):
    """Receives what an upstream sends about its calls."""

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Called once, with the outcome or with the error."""

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Called for a notification about a running call: progress, log messages."""

    def on_request(
        self, request: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        """Called for a client request of the upstream.

        Args:
            call: the call that the request is about. None: it is about no particular call.
            session: the only client of the upstream connection, if `call` is None.
        """


class Upstream(Protocol):
    """A server behind the node, as the pipeline uses it."""

    @property
    def key(self) -> str: ...

    @property
    def timeout(self) -> float | None:
        """The time limit of its calls, if the config sets one."""
        ...

    def start(self, call: Call, handler: ResponseHandler) -> UpstreamRequest:
        """Send the call, and set `call.is_dispatched` with the first byte that leaves.

        Args:
            handler: gets the result, notifications and client requests.

        Raises:
            InterlockError: there is no connection to send the call to.
        """
        ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """The capabilities that it declared, while its tools are listed."""
        ...

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        """Request its log messages of this level and above, for a session or for all."""

    def session_key(self, call: Call) -> object | None:
        """Return the key of the connection that such a call uses. None: the shared connection."""
        ...

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """Subscribe to changes of a resource, on the connection of such a call, or on the shared
        connection.

        Raises:
            InterlockError: the upstream cannot be reached, or rejects the subscription.
        """

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """End a subscription to changes of a resource."""

    async def wait_until_ready(self, seconds: float) -> bool:
        """Wait until it is connected again. Return False, at once if that is not expected in
        time."""
        ...


class CallHost(ResponseHandler, Protocol):
    """The pipeline, as its stages and the features that make calls use it."""

    def begin(self, call: Call) -> None:
        """Start a call at the first stage. Never raises."""

    async def run(self, call: Call) -> Outcome:
        """Make a call and wait for its outcome. Raises InterlockError."""
        ...

    def cancel(self, call: Call, reason: str) -> None:
        """Cancel a running call."""

    def send(self, call: Call, now: float) -> None:
        """Send a call to its upstream, after all stages have passed."""

    def record_and_send(self, call: Call) -> None:
        """Send a call to its upstream after the journal has written it to disk."""

    def finish(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        outcome_name: str = "ok",
    ) -> None:
        """End a call.

        Args:
            outcome_name: how the call ended, as the journal records it.
        """

    def is_pending(self, call: Call) -> bool:
        """Return whether a call is running and its caller waits for it."""
        ...

    def pause_deadline(self, call: Call, seconds: float) -> None:
        """Extend the deadline of a call while a client request is open."""

    def resume_deadline(self, call: Call) -> None:
        """Set the normal deadline of a call again."""

    def finish_task(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None
    ) -> Outcome | None:
        """End a call that continued as a task."""
        ...

    def attach_request(self, call: Call, request: UpstreamRequest) -> None:
        """Make a call wait for a request that was sent for another call."""


class Decision(Protocol):
    """The decision about a call that is not rejected."""

    @property
    def needs_approval(self) -> bool:
        """True if an operator must approve the call."""
        ...


class Authorizer(Protocol):
    """Decides what callers may do."""

    @property
    def view_of(self) -> Callable[[Call], View | None]:
        """A function that returns the tools which the caller of a call can see. None: all."""
        ...

    def check_tool(self, call: Call) -> None:
        """Reject a call that would be denied with any arguments. Raises InterlockError."""

    def authorize(self, call: Call) -> Any:
        """Return the `Decision` about a tool call that passed `check_tool`. Raises
        InterlockError."""

    def authorize_method(self, call: Call) -> None:
        """Authorize a request that is not a tool call. Such requests need no approval. Raises
        InterlockError."""

    def explain(self, call: Call, decision: Any) -> Any:
        """Return the decision that makes a call need approval, with its full reason."""

    def charge_budget(self, call: Call) -> None:
        """Charge or release the `reservations` of a call that ended."""


class Gate(Protocol):
    """The approval gate: keeps calls pending until an operator decides."""

    host: Any
    """The pipeline, which continues approved calls."""

    def request_approval(self, call: Call, decision: Any) -> None:
        """Respond that the call is pending, or continue it if an operator approved exactly this
        call. Raises InterlockError."""

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Called at the end of an approved call, and of a call with a failed result."""

    def is_waiting_for_other_call(self, call: Call) -> bool:
        """Return whether a running call waits for the outcome of another call."""
        ...


class RouteCheck(Protocol):
    """Checks the route of calls that a parent node sent (MCP-AX)."""

    def check(self, call: Call, hop: Hop) -> None:
        """Reject a call with a wrong route. Raises InterlockError."""

    def describe_position(self, call: Call) -> str:
        """Return the position of a call in the tree."""
        ...


CallResult = tuple[Outcome | None, InterlockError | None]
"""The end of a call: its outcome or its error."""

OperationMatch = bool | None
"""The result of `OperationsStage.resolve_operation`. True: the call is now a tool call with a
route, and its arguments match the schema. False: it continues like any other call. None: the stage
responds to it."""


class OperationsStage(Protocol):
    """Translates operations to tool calls, for clients in a view. Used for calls in a view only."""

    def resolve_operation(self, call: Call) -> OperationMatch:
        """Translate a request for an operation to a call of its tool. Raises InterlockError."""
        ...

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> CallResult:
        """Return the end of a call, in the format of the view. Never raises.

        Args:
            duration: of the call, in seconds.
        """
        ...

    def check_encoding(self, body: bytes) -> tuple[bytes, InterlockError] | None:
        """Return the id of a call with invalid UTF-8, and the error for it. None: the encoding is
        valid, or no response is possible."""
        ...
