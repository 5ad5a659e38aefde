"""Functions as tools: the schema comes from the signature, results and errors are those of MCP."""

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

# -- Threads for tools that are plain functions. They never delay the end of a program.
#
# A program waits for the threads of asyncio's executor when it ends, without a limit. It does not
# wait for these threads: a running function ends with the process.

MAX_THREADS: Final = 32
"""Maximum number of functions that run at the same time. The others wait."""

Work = Callable[[], None]


class ThreadPool:
    """A pool that starts threads on demand and keeps them."""

    def __init__(self, max_threads: int = MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread_count = 0
        self._pending = 0
        """Number of functions that run or wait for a thread."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread and in the context of the caller. Return its result or raise
        its exception. Cancelling the caller does not stop the function."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(function)
            except BaseException as exception:
                error = exception
            try:
                loop.call_soon_threadsafe(_set_outcome, outcome, (result, error))
            except RuntimeError:
                # The loop is closed: nothing waits for the result.
                return

        self._start(work)
        result, error = await outcome
        if error is None:
            return result
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            # Raised unchanged, it would look like a cancellation of the caller.
            raise RuntimeError("an operation of the function was cancelled") from error
        raise error

    def _start(self, work: Work) -> None:
        with self._lock:
            self._pending += 1
            if self._thread_count < min(self._pending, self._max_threads):
                self._thread_count += 1
                name = f"tool-{self._thread_count}"
                threading.Thread(target=self._run_queue, name=name, daemon=True).start()
        self._queue.put(work)

    def _run_queue(self) -> None:
        while True:
            work = self._queue.get()
            work()
            with self._lock:
                self._pending -= 1
            # Release the objects of the call before waiting for the next one.
            del work


def _set_outcome(
    future: asyncio.Future[tuple[Any, BaseException | None]],
    outcome: tuple[Any, BaseException | None],
) -> None:
    if not future.done():
        future.set_result(outcome)


threads: Final = ThreadPool()
"""The thread pool of this process."""


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_log = logging.getLogger("interlock.subserver")


class Progress:
    """Reports the progress of a tool. A function gets it by a parameter of this type."""

    def __init__(self, report: Report, loop: asyncio.AbstractEventLoop) -> None:
        self._report = report
        self._loop = loop

    def __call__(self, done: float, total: float, message: str = "") -> None:
        """Report progress, from any thread."""
        self._loop.call_soon_threadsafe(self._report, done, total, message)


class FunctionTool:
    """A function as a tool. Raises TypeError or ValueError for an unsuitable function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        title: str | None,
        description: str | None,
        capability: dict[str, Any],
    ) -> None:
        declared = {key: value for key, value in capability.items() if value is not None}
        _, problems = read_capability(encode_value(declared))
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
        if declared:
            self._listed["_meta"] = {CAPABILITY: declared}

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
                result = await self._function(**values)
            else:
                result = await threads.run(partial(self._function, **values))
            return _to_tool_result(result)
        except ToolError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # A tool must not end the program, so SystemExit and KeyboardInterrupt are caught too.
            _log.exception("tool %s: failed", self.name)
            raise ToolError(f"{self.name} failed: {type(error).__name__}: {error}") from error


def _arguments(function: Callable[..., Any], name: str) -> tuple[type[Struct], str | None]:
    """Return the struct of a function's arguments, and the name of its progress parameter."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    progress = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in _VARIABLE or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TypeError(
                f"{name}: {parameter} must be a keyword parameter. "
                "Tools receive their arguments by name."
            )
        annotation = hints.get(parameter.name, Any)
        if Progress in (annotation, *typing.get_args(annotation)):
            progress = parameter.name
        elif parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, _default(parameter.default)))
    shape = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return shape, progress


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=value.copy)
    return value


def _to_tool_result(value: Any) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return ToolResult("Done.")
    if isinstance(value, str):
        return ToolResult(value)
    text = encode_value(value).decode()
    return ToolResult(text, value if isinstance(value, Struct | dict) else None)
