"""The upstream of the built-in operations.

For the pipeline it is an upstream like any other, so that calls of built-in operations are
authorized, held for approval, journalled, timed and cancelled like other calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final

from interlock.aql.operations import BuiltinOperation, Operation, Signature
from interlock.aql.request import AqlRequest, BuiltinResponse
from interlock.core.call import Call, ClientSession, Outcome
from interlock.core.catalog.offering import Offering, Tool, read_offering
from interlock.core.config import ServerConfig
from interlock.core.deferred_request import ANSWERED
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import DEADLINE_EXCEEDED, UNKNOWN_TOOL, InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY, BUILTIN_SEGMENT, PLAIN_VIEW, Category, Danger
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import Era, ResultSummary

GLANCE: Final = ResultSummary()
"""The glance at a result of the node itself: nothing in it needs attention."""
RESULT: Final = b'{"content":[],"structuredContent":%b}'
"""The data of an operation as a tool result, with the data as structured content."""
EXPIRED: Final = "expired"
"""The argument with which the task of an operation is cancelled at its deadline."""
_log = logging.getLogger("interlock.aql")


class BuiltinUpstream:
    """Answers calls of the built-in operations."""

    key = BUILTIN_KEY
    timeout: float | None = None
    capabilities: Mapping[str, Any] = {}

    def __init__(
        self,
        builtin_operations: Iterable[BuiltinOperation],
        hidden: Iterable[BuiltinOperation] = (),
        *,
        find: Callable[[str], Operation | None] = lambda _: None,
    ) -> None:
        """
        Args:
            hidden: operations that only the AQL stage calls, not by name.
            find: finds an operation by name, for calls that did not come from the stage.
        """
        self.builtin_operations: dict[str, BuiltinOperation] = {
            builtin.name: builtin for builtin in builtin_operations
        }
        self.hidden: dict[str, Operation] = {}
        """Hidden operations by name. Filled by `offering`."""
        self._hidden = {builtin.name: builtin for builtin in hidden}
        self._find = find

    @property
    def free(self) -> frozenset[str]:
        """The operations that need no more rights than a list."""
        operations = (*self.builtin_operations.values(), *self._hidden.values())
        return frozenset(builtin.name for builtin in operations if builtin.free)

    def offering(self) -> Offering:
        """Return the offering for the catalog. All its tools must be withheld from tool lists."""
        operations = {**self.builtin_operations, **self._hidden}
        server = ServerConfig(
            command="interlock",
            segment=BUILTIN_SEGMENT,
            effects={name: builtin.effect for name, builtin in operations.items()},  # type: ignore[misc]
        )
        definitions = [_definition(builtin) for builtin in self.builtin_operations.values()]
        definitions += [_definition(builtin, open=True) for builtin in self._hidden.values()]
        offering = read_offering(BUILTIN_KEY, server, definitions)
        for tool in offering.tools:
            builtin = self._hidden.get(tool.upstream_name)
            if builtin is not None:
                self.hidden[builtin.name] = _hidden_operation(builtin, tool)
        return offering

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        route = call.route
        name = "" if route is None else route.upstream_name
        builtin = self.builtin_operations.get(name) or self._hidden.get(name)
        if builtin is None:
            raise InterlockError(UNKNOWN_TOOL, f"The node has no operation {name[:100]!r}.")
        request = self._request_of(call, builtin)
        call.is_dispatched = True
        result = builtin.answer(request)
        if isawaitable(result):
            return _RunningOperation(call, back, result)
        back.on_result(call, _outcome(call, result), None)
        return ANSWERED

    def _request_of(self, call: Call, builtin: BuiltinOperation) -> AqlRequest:
        """Return the request for the operation.

        An approved call has no request of the stage, so the request is rebuilt from the arguments.
        """
        request = call.operation_request
        if not isinstance(request, AqlRequest):
            operation = self.hidden.get(builtin.name) or self._find(builtin.name)
            if operation is None:
                raise InterlockError(UNKNOWN_TOOL, f"The node has no operation {builtin.name!r}.")
            request = call.operation_request = AqlRequest(operation, PLAIN_VIEW, None)
        request.call = call
        if request.params is None:
            arguments: dict[str, Any] = (
                call.decoded_arguments if isinstance(call.decoded_arguments, dict) else {}
            )
            defaults = {
                parameter.name: parameter.schema["default"]
                for parameter in builtin.parameters
                if "default" in parameter.schema and parameter.upstream_name not in arguments
            }
            names = {parameter.upstream_name: parameter.name for parameter in builtin.parameters}
            request.params = {
                **defaults,
                **{names.get(key, key): value for key, value in arguments.items()},
            }
        return request

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        """Do nothing: the node sends no log messages here."""

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """Do nothing: there are no resources."""

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """Do nothing: there are no resources."""

    async def wait_until_ready(self, seconds: float) -> bool:
        return True


class _RunningOperation:
    """A running asynchronous operation."""

    def __init__(self, call: Call, back: ResponseHandler, work: Awaitable[Any]) -> None:
        self._call = call
        self._back = back
        self._expired = False
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._on_task_done)

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    def abandon(self, reason: str) -> None:
        # The pipeline no longer waits for the result.
        self._task.remove_done_callback(self._on_task_done)
        self._task.add_done_callback(_log_failure)
        self._task.cancel(reason)

    def expire(self) -> None:
        """Cancel the operation. It may still return partial results in the next turn of the event
        loop.
        """
        if not self._expired:
            self._expired = True
            self._task.cancel(EXPIRED)

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self._call, self._back = call, back

    def _on_task_done(self, task: asyncio.Future[Any]) -> None:
        call = self._call
        outcome: Outcome | None = None
        error: InterlockError | None = None
        try:
            outcome = _outcome(call, task.result())
        except asyncio.CancelledError:
            error = InterlockError(
                DEADLINE_EXCEEDED, f"{call.name[:100]} did not finish before its deadline."
            )
        except InterlockError as failure:
            error = failure
        except Exception as bug:
            error = internal_error(call, bug)
        self._back.on_result(call, outcome, error)


def _log_failure(task: asyncio.Future[Any]) -> None:
    """Log the failure of an operation that has no receiver."""
    if not task.cancelled() and task.exception() is not None:
        _log.debug("aql: an abandoned operation failed", exc_info=task.exception())


def _outcome(call: Call, result: Any) -> Outcome:
    """Convert the result of an operation to the outcome of a tool call."""
    if isinstance(result, Outcome):
        return result
    data = result
    if isinstance(result, BuiltinResponse):
        data = result.data
        request = call.operation_request
        if result.warnings and isinstance(request, AqlRequest):
            request.warnings = [*(request.warnings or ()), *result.warnings]
    written = data if isinstance(data, bytes) else encode_value(data)
    return Outcome(RESULT % written, Era.SESSION, GLANCE)


def _definition(builtin: BuiltinOperation, *, open: bool = False) -> bytes:
    schema: dict[str, Any] = {"type": "object"}
    if not open:
        schema["properties"] = {
            parameter.upstream_name: {
                **parameter.schema,
                **({"description": parameter.description} if parameter.description else {}),
            }
            for parameter in builtin.parameters
        }
        required = [
            parameter.upstream_name for parameter in builtin.parameters if parameter.required
        ]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
    return encode_value(
        {"name": builtin.name, "description": builtin.description, "inputSchema": schema}
    )


def _hidden_operation(builtin: BuiltinOperation, tool: Tool) -> Operation:
    signature = Signature((), {}, {}, frozenset(), frozenset(), True, frozenset())
    return Operation(
        name=builtin.name,
        local_name=builtin.name,
        canonical=tool.canonical,
        server=BUILTIN_SEGMENT,
        category=builtin.category,
        danger=Danger.SAFE,
        tool=tool,
        build_signature=lambda _: signature,
        description=builtin.description,
        builtin=builtin,
    )


def hidden_operation(
    name: str, answer: Callable[[AqlRequest], Any], description: str
) -> BuiltinOperation:
    """Return an operation that only the stage calls.

    Its effects are caused by child calls that are authorized themselves, so it needs no rights.
    """
    return BuiltinOperation(
        name=name,
        category=Category.READ,
        effect="read_only",
        description=description,
        answer=answer,
        free=True,
    )
