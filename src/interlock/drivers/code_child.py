"""The process in which one driver.py runs: loads it, and calls its hooks for the node.

One JSON object to a line, in both directions. The first line from the node is the code; the answer
says what it brings, or why it cannot be used. Every later line is one call of a hook, or the
cancellation of one. Plain functions run in threads, so that a slow one does not hold up the others;
`async` ones run on this process's event loop.

Nothing here is trusted by the node: see `code_process`.
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

_ANYTHING: Final = (Exception, SystemExit)
_MOST_WORDS: Final = 4000
_ASYNC, _PLAIN = "async", "plain"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Output:
    """Where answers go: the pipe that was standard output. What driver.py prints goes to stderr."""

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


class _Code:
    """A driver.py that was loaded."""

    def __init__(self, definition: Any) -> None:
        self._definition = definition

    def described(self) -> dict[str, Any]:
        found = self._definition
        return {
            "values": found.values,
            "hooks": sorted(found.hooks),
            "execute": sorted(found.execute),
            "transforms": sorted(found.transforms),
        }

    def function(self, hook: str, name: str) -> Callable[..., Any]:
        if hook in ("execute", "transforms"):
            table: dict[str, Callable[..., Any]] = getattr(self._definition, hook)
            return table[name]
        found: Callable[..., Any] = getattr(self._definition, hook)
        return found

    def is_async(self, asked: dict[str, Any]) -> bool:
        """Whether a message of the node calls an `async` function."""
        hook = asked["hook"]
        return hook != "transforms" and inspect.iscoroutinefunction(
            self.function(hook, asked.get("name", ""))
        )

    async def call(self, asked: dict[str, Any]) -> Any:
        """What a hook returns for one message of the node."""
        hook = asked["hook"]
        if hook == "transforms":
            return await asyncio.to_thread(self._transform, asked["values"])
        function = self.function(hook, asked.get("name", ""))
        given = () if hook == "refresh" else (HookArguments(**asked["arguments"]),)
        if inspect.iscoroutinefunction(function):
            return await function(*given)
        made = await asyncio.to_thread(function, *given)
        return await made if inspect.isawaitable(made) else made

    def _transform(self, values: list[list[Any]]) -> list[dict[str, Any]]:
        """What each transformer makes of its value, up to the first that fails."""
        found: list[dict[str, Any]] = []
        for name, value in values:
            try:
                found.append({"value": self.function("transforms", name)(value)})
            except _ANYTHING as bug:
                found.append(_told(bug))
                break
        return found


def load(code: bytes, file: str, name: str) -> _Code | None:
    """Run a driver.py. None: it defines no driver. Raises whatever it raises."""
    from interlock.manifests.definitions import DriverDefinition

    # Not by the import system: what that keeps of a file is as old as its clock is coarse.
    module = ModuleType("_driver_" + re.sub(r"\W", "_", name))
    module.__file__ = file
    # Some libraries look up names in the module in which a class was made.
    sys.modules[module.__name__] = module
    exec(compile(code, file, "exec"), module.__dict__)
    definition = getattr(module, "driver", None)
    if not isinstance(definition, DriverDefinition):
        return None
    return _Code(definition)


def _load_for(first: dict[str, Any], output: _Output) -> _Code | None:
    file = first["file"]
    try:
        loaded = load(first["code"].encode(), file, first["name"])
        output.write({"undefined": True} if loaded is None else {"loaded": loaded.described()})
    except ManifestError as error:
        output.write({"unusable": error.message[:_MOST_WORDS]})
    except _ANYTHING as bug:
        output.write({"raised": type(bug).__name__, "line": _line_of(bug, file)})
    else:
        return loaded
    return None


def _line_of(bug: BaseException, file: str) -> int:
    """Where in a driver's code something happened; no word of what it said."""
    if isinstance(bug, SyntaxError):
        return bug.lineno or 0
    lines = [
        number for frame, number in traceback.walk_tb(bug.__traceback__)
        if frame.f_code.co_filename == file
    ]  # fmt: skip
    return lines[-1] if lines else 0


def _told(bug: BaseException) -> dict[str, Any]:
    """What a hook raised. Of a stranger's exception only its name: its words may hold secrets."""
    if not isinstance(bug, InterlockError):
        return {"raised": type(bug).__name__}
    return {
        "error": {
            "failure": bug.failure.name,
            "message": bug.message[:_MOST_WORDS],
            "code": str((bug.data or {}).get("code", "")),
            "retryable": bug.retryable,
        }
    }


class _Server:
    """Answers the node until its pipe ends."""

    def __init__(self, code: _Code, output: _Output, loop: asyncio.AbstractEventLoop) -> None:
        self._code = code
        self._output = output
        self._loop = loop
        self._running: dict[int, asyncio.Task[None]] = {}

    def read(self) -> None:
        """Take messages of the node. The process ends with its pipe, whatever a hook is doing."""
        for line in sys.stdin.buffer:
            self._loop.call_soon_threadsafe(self._take, _decode(line))
        os._exit(0)

    def _take(self, asked: dict[str, Any]) -> None:
        if "cancel" in asked:
            # A plain function cannot be ended: it is answered when it returns, and not before.
            task = self._running.get(asked["cancel"])
            if task is not None and task.get_name() == _ASYNC:
                task.cancel()
            return
        kind = _ASYNC if self._code.is_async(asked) else _PLAIN
        self._running[asked["id"]] = self._loop.create_task(self._answer(asked), name=kind)

    async def _answer(self, asked: dict[str, Any]) -> None:
        id = asked["id"]
        try:
            made = await self._code.call(asked)
            if isinstance(made, HookResult):
                self._output.write({"id": id, "envelope": made})
            else:
                self._output.write({"id": id, "value": made})
        except asyncio.CancelledError:
            self._output.write({"id": id, "raised": "CancelledError"})
        except _ANYTHING as bug:
            self._output.write({"id": id, **_told(bug)})
        finally:
            del self._running[id]


def main() -> None:
    """Load the code that the node sends, and serve its hooks."""
    output = _Output()
    first = sys.stdin.buffer.readline()
    code = _load_for(_decode(first), output) if first else None
    if code is None:
        os._exit(0)
    loop = asyncio.new_event_loop()
    server = _Server(code, output, loop)
    threading.Thread(target=server.read, daemon=True).start()
    loop.run_forever()
