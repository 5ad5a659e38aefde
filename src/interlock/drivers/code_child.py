"""The process that runs one driver.py: it loads the code and calls its hooks for the node.

The protocol is one JSON object per line, in both directions. The first line from the node is the
code. The response describes the code, or says why it cannot be used. Every later line calls a hook
or cancels a call. Plain functions run in threads, so that a slow one does not block the others.
`async` functions run on the event loop of this process.

The node trusts nothing here: see `code_process`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from interlock.errors import InterlockError
from interlock.manifests.document import ManifestError
from interlock.manifests.hook_types import HookArguments, HookResult

_HOOK_EXCEPTIONS: Final = (Exception, SystemExit)
_MAX_MESSAGE_CHARACTERS: Final = 4000
_ASYNC, _PLAIN = "async", "plain"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Output:
    """The response pipe, which was standard output. Output of driver.py goes to stderr instead."""

    def __init__(self) -> None:
        self._pipe = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self._lock = threading.Lock()

    def write(self, message: Mapping[str, Any]) -> None:
        line = memoryview(_encode(message) + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._pipe, line) :]


class _LoadedCode:
    """A loaded driver.py."""

    def __init__(self, definition: Any) -> None:
        self._definition = definition

    def describe(self) -> dict[str, Any]:
        definition = self._definition
        return {
            "values": definition.values,
            "hooks": sorted(definition.hooks),
            "execute": sorted(definition.execute),
            "transforms": sorted(definition.transforms),
        }

    def function(self, hook: str, name: str) -> Callable[..., Any]:
        if hook in ("execute", "transforms"):
            table: dict[str, Callable[..., Any]] = getattr(self._definition, hook)
            return table[name]
        function: Callable[..., Any] = getattr(self._definition, hook)
        return function

    def is_async(self, request: dict[str, Any]) -> bool:
        """Return whether a request calls an `async` function."""
        hook = request["hook"]
        return hook != "transforms" and inspect.iscoroutinefunction(
            self.function(hook, request.get("name", ""))
        )

    async def call(self, request: dict[str, Any]) -> Any:
        """Call the hook of a request and return its result."""
        hook = request["hook"]
        if hook == "transforms":
            return await asyncio.to_thread(self._transform, request["values"])
        function = self.function(hook, request.get("name", ""))
        arguments = () if hook == "refresh" else (HookArguments(**request["arguments"]),)
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        value = await asyncio.to_thread(function, *arguments)
        return await value if inspect.isawaitable(value) else value

    def _transform(self, values: list[list[Any]]) -> list[dict[str, Any]]:
        """Apply each transformer to its value, up to the first that fails."""
        results: list[dict[str, Any]] = []
        for name, value in values:
            try:
                results.append({"value": self.function("transforms", name)(value)})
            except _HOOK_EXCEPTIONS as error:
                results.append(_describe_exception(error))
                break
        return results


def load(code: bytes, file: str, name: str) -> _LoadedCode | None:
    """Load a driver.py. None: it defines no driver. Raises any exception of the code."""
    from interlock.manifests.definitions import DriverDefinition

    # Not by the import system: its cache depends on the coarse clock of the file system.
    module = ModuleType("_driver_" + re.sub(r"\W", "_", name))
    module.__file__ = file
    # Some libraries look up a class's module in sys.modules.
    sys.modules[module.__name__] = module
    exec(compile(code, file, "exec"), module.__dict__)
    definition = getattr(module, "driver", None)
    if not isinstance(definition, DriverDefinition):
        return None
    return _LoadedCode(definition)


def _load_for(first: dict[str, Any], output: _Output) -> _LoadedCode | None:
    file = first["file"]
    try:
        loaded = load(first["code"].encode(), file, first["name"])
        output.write({"undefined": True} if loaded is None else {"loaded": loaded.describe()})
    except ManifestError as error:
        output.write({"unusable": error.message[:_MAX_MESSAGE_CHARACTERS]})
    except _HOOK_EXCEPTIONS as error:
        output.write({"raised": type(error).__name__, "line": _line_of(error, file)})
    else:
        return loaded
    return None


def _line_of(error: BaseException, file: str) -> int:
    """Return the line of a driver's code at which an exception occurred."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    lines = [
        number for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == file
    ]  # fmt: skip
    return lines[-1] if lines else 0


def _describe_exception(error: BaseException) -> dict[str, Any]:
    """Describe an exception of a hook. For exceptions of third-party code only the name: the
    message may contain secrets."""
    if not isinstance(error, InterlockError):
        return {"raised": type(error).__name__}
    return {
        "error": {
            "failure": error.failure.name,
            "message": error.message[:_MAX_MESSAGE_CHARACTERS],
            "code": str((error.data or {}).get("code", "")),
            "retryable": error.retryable,
        }
    }


class _Server:
    """A server that handles requests of the node until the pipe closes."""

    def __init__(self, code: _LoadedCode, output: _Output, loop: asyncio.AbstractEventLoop) -> None:
        self._code = code
        self._output = output
        self._loop = loop
        self._running: dict[int, asyncio.Task[None]] = {}

    def read(self) -> None:
        """Read requests of the node. The process exits when the pipe closes, even if a hook is
        running."""
        for line in sys.stdin.buffer:
            self._loop.call_soon_threadsafe(self._on_request, _decode(line))
        os._exit(0)

    def _on_request(self, request: dict[str, Any]) -> None:
        if "cancel" in request:
            # A plain function cannot be cancelled. Its response is sent when it returns.
            task = self._running.get(request["cancel"])
            if task is not None and task.get_name() == _ASYNC:
                task.cancel()
            return
        kind = _ASYNC if self._code.is_async(request) else _PLAIN
        self._running[request["id"]] = self._loop.create_task(self._respond(request), name=kind)

    async def _respond(self, request: dict[str, Any]) -> None:
        id = request["id"]
        try:
            result = await self._code.call(request)
            if isinstance(result, HookResult):
                self._output.write({"id": id, "envelope": result})
            else:
                self._output.write({"id": id, "value": result})
        except asyncio.CancelledError:
            self._output.write({"id": id, "raised": "CancelledError"})
        except _HOOK_EXCEPTIONS as error:
            self._output.write({"id": id, **_describe_exception(error)})
        finally:
            del self._running[id]


def main() -> None:
    """Load the code that the node sends and serve its hooks."""
    output = _Output()
    line = sys.stdin.buffer.readline()
    code = _load_for(_decode(line), output) if line else None
    if code is None:
        os._exit(0)
    loop = asyncio.new_event_loop()
    server = _Server(code, output, loop)
    threading.Thread(target=server.read, daemon=True).start()
    loop.run_forever()
