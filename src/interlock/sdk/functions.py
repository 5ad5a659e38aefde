"""A function as a tool: its schema from its signature, its results and errors as MCP has them."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import typing
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from interlock.protocol.capabilities import read_capability
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcpax import CAPABILITY
from interlock.sdk.tool import Report, ToolError, ToolResult, build_schema, read_arguments

# -- Threads for tools that are plain functions. They never keep a program from ending.
#
# The threads of asyncio's own executor are waited for when a program ends, for as long as it
# takes. These are not: whoever is told to stop stops, and what still runs ends with the process.

MAX_THREADS: Final = 32
"""So many functions run at the same time; the others wait for their turn."""

Work = Callable[[], None]


class ThreadPool:
    """Makes threads as they are needed, and keeps them for the next ones."""

    def __init__(self, most: int = MAX_THREADS) -> None:
        self._most = most
        self._waiting: SimpleQueue[Work] = SimpleQueue()
        self._guard = threading.Lock()
        self._made = 0
        self._under_way = 0
        """Functions that run, or wait for a thread."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """What the function gives back, or raises, whatever that is; called in the context of
        whoever asks. Who no longer waits for it does not stop it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def work() -> None:
            found, raised = None, None
            try:
                found = context.run(function)
            except BaseException as error:
                raised = error
            try:
                loop.call_soon_threadsafe(_tell, answer, (found, raised))
            except RuntimeError:
                # The loop is closed: nobody is there any more to be told.
                return

        self._take(work)
        found, raised = await answer
        if raised is None:
            return found
        if isinstance(raised, asyncio.CancelledError | GeneratorExit):
            # As it stands it would look as though nobody waited for the answer any more.
            raise RuntimeError("what it waited for was cancelled") from raised
        raise raised

    def _take(self, work: Work) -> None:
        with self._guard:
            self._under_way += 1
            if self._made < min(self._under_way, self._most):
                self._made += 1
                name = f"tool-{self._made}"
                threading.Thread(target=self._work_on, name=name, daemon=True).start()
        self._waiting.put(work)

    def _work_on(self) -> None:
        while True:
            work = self._waiting.get()
            work()
            with self._guard:
                self._under_way -= 1
            # Nothing of a call is kept until the next one.
            del work


def _tell(
    answer: asyncio.Future[tuple[Any, BaseException | None]],
    outcome: tuple[Any, BaseException | None],
) -> None:
    if not answer.done():
        answer.set_result(outcome)


threads: Final = ThreadPool()
"""Those of this process."""


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_log = logging.getLogger("interlock.subserver")


class Progress:
    """Tells the caller how far a tool has come. Ask for it with a parameter of this type."""

    def __init__(self, report: Report, loop: asyncio.AbstractEventLoop) -> None:
        self._report = report
        self._loop = loop

    def __call__(self, done: float, total: float, message: str = "") -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._report, done, total, message)


class FunctionTool:
    """One function. Raises TypeError or ValueError for one that cannot be a tool."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        title: str | None,
        description: str | None,
        capability: dict[str, Any],
    ) -> None:
        said = {key: value for key, value in capability.items() if value is not None}
        _, problems = read_capability(encode_value(said))
        if problems:
            raise ValueError(f"{name}: {problems[0]}")
        self.name = name
        self._function = function
        self._shape, self._progress = _arguments(function, name)
        self._listed: dict[str, Any] = {
            "name": name,
            "description": description or inspect.getdoc(function) or "",
            "inputSchema": build_schema(self._shape),
        }
        if title is not None:
            self._listed["title"] = title
        returned = typing.get_type_hints(function).get("return")
        if isinstance(returned, type) and issubclass(returned, Struct):
            self._listed["outputSchema"] = build_schema(returned)
        if said:
            self._listed["_meta"] = {CAPABILITY: said}

    def listed(self) -> dict[str, Any]:
        return self._listed

    def start(self, arguments: Raw, report: Report) -> Any:
        read = read_arguments(self.name, self._shape, arguments)
        values = {name: getattr(read, name) for name in read.__struct_fields__}
        if self._progress is not None:
            values[self._progress] = Progress(report, asyncio.get_running_loop())
        return self._run(values)

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        try:
            if inspect.iscoroutinefunction(self._function):
                found = await self._function(**values)
            else:
                found = await threads.run(partial(self._function, **values))
            return _answer(found)
        except ToolError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Also one that means to end the program: that is for whoever runs it to decide.
            _log.exception("%s failed", self.name)
            raise ToolError(f"{self.name} failed: {type(error).__name__}: {error}") from error


def _arguments(function: Callable[..., Any], name: str) -> tuple[type[Struct], str | None]:
    """The shape of a function's arguments, and the parameter that wants to tell progress."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    progress = None
    for one in inspect.signature(function).parameters.values():
        if one.kind in _VARIABLE or one.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(f"{name}: {one} cannot be an argument of a tool: it has no name.")
        declared = hints.get(one.name, Any)
        if Progress in (declared, *typing.get_args(declared)):
            progress = one.name
        elif one.default is inspect.Parameter.empty:
            fields.append((one.name, declared))
        else:
            fields.append((one.name, declared, _default(one.default)))
    shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return shape, progress


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=value.copy)
    return value


def _answer(found: Any) -> ToolResult:
    if isinstance(found, ToolResult):
        return found
    if found is None:
        return ToolResult("Done.")
    if isinstance(found, str):
        return ToolResult(found)
    text = encode_value(found).decode()
    return ToolResult(text, found if isinstance(found, Struct | dict) else None)
