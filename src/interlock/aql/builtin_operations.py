"""The built-in operations: an upstream like any other to the pipeline, so that their calls are
authorized, held, journalled, timed and cancelled like any other call."""

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
"""Of a result that the node made itself: there is nothing in it that anybody must look for."""
RESULT: Final = b'{"content":[],"structuredContent":%b}'
"""The data of an operation, as a tool gives it: whoever wraps it finds it without reading text."""
EXPIRED: Final = "expired"
"""What the task of an operation is cancelled with whose time is over."""
_log = logging.getLogger("interlock.aql")


class BuiltinUpstream:
    """Answers calls of the built-in operations."""

    key = BUILTIN_KEY
    timeout: float | None = None
    capabilities: Mapping[str, Any] = {}

    def __init__(
        self,
        natives: Iterable[BuiltinOperation],
        hidden: Iterable[BuiltinOperation] = (),
        *,
        find: Callable[[str], Operation | None] = lambda _: None,
    ) -> None:
        """`hidden`: what the AQL stage calls by itself, and nobody by name. `find`: the operation
        of this name, for calls that did not come from the stage."""
        self.natives: dict[str, BuiltinOperation] = {one.name: one for one in natives}
        self.hidden: dict[str, Operation] = {}
        """Operations that are in no operation catalog, by name. Filled by `offering`."""
        self._hidden = {one.name: one for one in hidden}
        self._find = find

    @property
    def free(self) -> frozenset[str]:
        """What is judged like asking for a list."""
        every = (*self.natives.values(), *self._hidden.values())
        return frozenset(native.name for native in every if native.free)

    def offering(self) -> Offering:
        """What is posted to the catalog. Withhold all of it: its names are no tools."""
        every = {**self.natives, **self._hidden}
        server = ServerConfig(
            command="interlock",
            segment=BUILTIN_SEGMENT,
            effects={name: native.effect for name, native in every.items()},  # type: ignore[misc]
        )
        definitions = [_definition(one) for one in self.natives.values()]
        definitions += [_definition(one, open=True) for one in self._hidden.values()]
        offering = read_offering(BUILTIN_KEY, server, definitions)
        for tool in offering.tools:
            native = self._hidden.get(tool.upstream_name)
            if native is not None:
                self.hidden[native.name] = _unlisted(native, tool)
        return offering

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        route = call.route
        name = "" if route is None else route.upstream_name
        native = self.natives.get(name) or self._hidden.get(name)
        if native is None:
            raise InterlockError(UNKNOWN_TOOL, f"The node has no operation {name[:100]!r}.")
        asked = self._asked(call, native)
        call.is_dispatched = True
        answer = native.answer(asked)
        if isawaitable(answer):
            return _Running(call, back, answer)
        back.on_result(call, _outcome(call, answer), None)
        return ANSWERED

    def _asked(self, call: Call, native: BuiltinOperation) -> AqlRequest:
        """The request as the operation gets it. A call that a human let through comes without what
        the stage knew: it is made again from the arguments."""
        asked = call.operation_request
        if not isinstance(asked, AqlRequest):
            operation = self.hidden.get(native.name) or self._find(native.name)
            if operation is None:
                raise InterlockError(UNKNOWN_TOOL, f"The node has no operation {native.name!r}.")
            asked = call.operation_request = AqlRequest(operation, PLAIN_VIEW, None)
        asked.call = call
        if asked.params is None:
            given: dict[str, Any] = (
                call.decoded_arguments if isinstance(call.decoded_arguments, dict) else {}
            )
            defaults = {
                one.name: one.schema["default"]
                for one in native.parameters
                if "default" in one.schema and one.own not in given
            }
            names = {one.own: one.name for one in native.parameters}
            asked.params = {
                **defaults,
                **{names.get(key, key): value for key, value in given.items()},
            }
        return asked

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        """It says nothing of its own accord."""

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """It has no resources."""

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """It has no resources."""

    async def wait_until_ready(self, seconds: float) -> bool:
        return True


class _Running:
    """An operation that takes its time."""

    def __init__(self, call: Call, back: ResponseHandler, work: Awaitable[Any]) -> None:
        self._call = call
        self._back = back
        self._expired = False
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._over)

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    def abandon(self, reason: str) -> None:
        # The pipeline is done with the call: what it comes to is for nobody.
        self._task.remove_done_callback(self._over)
        self._task.add_done_callback(_forget)
        self._task.cancel(reason)

    def expire(self) -> None:
        """It may still say what it has done so far: that comes in the next turn of the loop."""
        if not self._expired:
            self._expired = True
            self._task.cancel(EXPIRED)

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self._call, self._back = call, back

    def _over(self, task: asyncio.Future[Any]) -> None:
        call = self._call
        outcome: Outcome | None = None
        error: InterlockError | None = None
        try:
            outcome = _outcome(call, task.result())
        except asyncio.CancelledError:
            error = InterlockError(
                DEADLINE_EXCEEDED, f"{call.name[:100]} did not end within its time."
            )
        except InterlockError as wrong:
            error = wrong
        except Exception as bug:
            error = internal_error(call, bug)
        self._back.on_result(call, outcome, error)


def _forget(task: asyncio.Future[Any]) -> None:
    """Nobody waits for it; that it failed is still worth a line."""
    if not task.cancelled() and task.exception() is not None:
        _log.debug("an operation that nobody waits for failed", exc_info=task.exception())


def _outcome(call: Call, answer: Any) -> Outcome:
    """What an operation gave, as the result of a tool. An `Outcome` is one already."""
    if isinstance(answer, Outcome):
        return answer
    data = answer
    if isinstance(answer, BuiltinResponse):
        data = answer.data
        asked = call.operation_request
        if answer.warnings and isinstance(asked, AqlRequest):
            asked.warnings = [*(asked.warnings or ()), *answer.warnings]
    written = data if isinstance(data, bytes) else encode_value(data)
    return Outcome(RESULT % written, Era.SESSION, GLANCE)


def _definition(native: BuiltinOperation, *, open: bool = False) -> bytes:
    schema: dict[str, Any] = {"type": "object"}
    if not open:
        schema["properties"] = {
            one.own: {
                **one.schema,
                **({"description": one.description} if one.description else {}),
            }
            for one in native.parameters
        }
        required = [one.own for one in native.parameters if one.required]
        if required:
            schema["required"] = required
        schema["additionalProperties"] = False
    return encode_value(
        {"name": native.name, "description": native.description, "inputSchema": schema}
    )


def _unlisted(native: BuiltinOperation, tool: Tool) -> Operation:
    nothing = Signature((), {}, {}, frozenset(), frozenset(), True, frozenset())
    return Operation(
        name=native.name,
        local=native.name,
        canonical=tool.canonical,
        server=BUILTIN_SEGMENT,
        category=native.category,
        danger=Danger.SAFE,
        tool=tool,
        sign=lambda _: nothing,
        description=native.description,
        native=native,
    )


def hidden(name: str, answer: Callable[[AqlRequest], Any], description: str) -> BuiltinOperation:
    """Something that the stage calls by itself. What it does is done by calls of its own, and
    those are judged: it is no more than asking."""
    return BuiltinOperation(
        name=name,
        category=Category.READ,
        effect="read_only",
        description=description,
        answer=answer,
        free=True,
    )
