"""One MCP conversation, in both eras: a line comes in, lines go out.

The session wire is spoken after `initialize`; the stateless wire by every request that names its
revision in `_meta`. Which one a request is on is decided request by request. This room touches the
event loop, for the tools that take their time, and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock import __version__, errors
from interlock.demo.toolbox import Answer, Tool, Toolbox, ToolTrouble
from interlock.errors import InterlockError, ProtocolError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.jsonrpc import BadMessage, Message
from interlock.protocol.lines import Oversize, encode_line
from interlock.protocol.mcp import Era

SERVER_INFO: Final = {
    "name": "interlock-demo",
    "title": "Interlock demo",
    "version": __version__,
}
INSTRUCTIONS: Final = (
    "A demo: the clock, dice, text statistics and a few notes kept in memory. "
    "notes_delete cannot be undone. count_slowly takes its time and reports progress."
)
_METHODS: Final = frozenset(
    {mcp.INITIALIZE, mcp.PING, mcp.DISCOVER, mcp.TOOLS_LIST, mcp.TOOLS_CALL}
)
# The list never changes while the process lives; stateless clients may keep it for a while.
_LIST_TTL_MS: Final = 60_000


class _Meta(msgspec.Struct):
    """The keys of a request's `_meta` that matter here."""

    revision: str | UnsetType = msgspec.field(default=UNSET, name=mcp.META_VERSION)
    client_capabilities: Raw | UnsetType = msgspec.field(
        default=UNSET, name=mcp.META_CLIENT_CAPABILITIES
    )
    progress_token: int | str | UnsetType = msgspec.field(
        default=UNSET, name=mcp.META_PROGRESS_TOKEN
    )


class _Params(msgspec.Struct):
    """What any request may carry; each method reads its own part."""

    meta: _Meta = msgspec.field(default_factory=_Meta, name="_meta")
    protocol_version: str | UnsetType = msgspec.field(default=UNSET, name="protocolVersion")
    name: str | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    cursor: str | None = None


class _Request(NamedTuple):
    id: Raw
    method: str
    params: _Params
    era: Era


class Conversation:
    """Serves one client. `send` is called with whole lines."""

    def __init__(self, send: Callable[[bytes], None], toolbox: Toolbox) -> None:
        self._send = send
        self._toolbox = toolbox
        self._revision: str | None = None
        # By the id as a value, because a cancellation may spell it differently than the request.
        self._running: dict[int | str, asyncio.Task[bytes | None]] = {}
        # Held here because the event loop itself does not keep tasks alive.
        self._batches: set[asyncio.Task[None]] = set()

    def receive(self, line: bytes | Oversize) -> None:
        """Take one line from the client."""
        if isinstance(line, Oversize):
            self._send_error(jsonrpc.NULL, line.error())
            return
        try:
            message = jsonrpc.decode_message(line)
        except ProtocolError as error:
            self._send_error(error.id if isinstance(error, BadMessage) else jsonrpc.NULL, error)
            return
        if isinstance(message, list):
            self._receive_batch(message)
            return
        answer = self._answer(message)
        if isinstance(answer, bytes):
            self._send(encode_line(answer))
        elif answer is not None:
            answer.add_done_callback(self._send_late)

    def _receive_batch(self, batch: list[Message | BadMessage]) -> None:
        if self._revision not in mcp.BATCH_REVISIONS:
            error = ProtocolError(
                "Batches are not part of this revision: send one message to a line.",
                errors.INVALID_REQUEST,
            )
            self._send_error(jsonrpc.NULL, error)
            return
        answers = [
            _error(item.id, item) if isinstance(item, BadMessage) else self._answer(item)
            for item in batch
        ]
        task = asyncio.get_running_loop().create_task(self._send_batch(answers))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _send_batch(self, answers: list[bytes | asyncio.Task[bytes | None] | None]) -> None:
        tasks = [answer for answer in answers if isinstance(answer, asyncio.Task)]
        late = await asyncio.gather(*tasks, return_exceptions=True)
        ready: list[Any] = [answer for answer in answers if isinstance(answer, bytes)]
        whole = [answer for answer in [*ready, *late] if isinstance(answer, bytes)]
        if whole:
            self._send(encode_line(b"[" + b",".join(whole) + b"]"))

    def _send_late(self, task: asyncio.Task[bytes | None]) -> None:
        # A cancelled call is not answered: its caller has said that nobody waits.
        if not task.cancelled() and (answer := task.result()) is not None:
            self._send(encode_line(answer))

    def _send_error(self, id: bytes, error: InterlockError) -> None:
        self._send(encode_line(_error(id, error)))

    def _answer(self, message: Message) -> bytes | asyncio.Task[bytes | None] | None:
        """The answer, or the task that will have it, or None when there is nothing to answer."""
        if message.is_notification:
            self._notice(message)
            return None
        if not message.is_request:
            return None  # an answer, though this server never asks anything
        assert isinstance(message.id, Raw)
        era = Era.SESSION
        try:
            if message.method not in _METHODS:
                raise _unknown_method(str(message.method))
            params = _read_params(message)
            if params.meta.revision is not UNSET:
                era = Era.STATELESS
            request = _Request(message.id, str(message.method), params, era)
            return self._serve(request)
        except InterlockError as error:
            return _error(bytes(message.id), error, era)
        except Exception:
            return _our_fault(bytes(message.id))

    def _serve(self, request: _Request) -> bytes | asyncio.Task[bytes | None]:
        method = request.method
        if request.era is Era.STATELESS:
            _check_stateless(request.params.meta)
            if method in mcp.REMOVED_FROM_STATELESS:
                raise _unknown_method(method)
        elif method == mcp.INITIALIZE:
            return self._initialize(request)
        elif method == mcp.PING:
            return _result(request, {})
        elif method == mcp.DISCOVER:
            raise InterlockError(
                errors.INVALID_PARAMS, f"{mcp.DISCOVER} needs `_meta` with {mcp.META_VERSION}."
            )
        elif self._revision is None:
            raise InterlockError(
                errors.INVALID_REQUEST,
                f"Send {mcp.INITIALIZE} first, or name a revision in `_meta` ({mcp.META_VERSION}).",
            )
        if method == mcp.TOOLS_CALL:
            return self._call(request)
        if method == mcp.TOOLS_LIST:
            return self._list(request)
        return _discover(request)

    def _initialize(self, request: _Request) -> bytes:
        requested = request.params.protocol_version
        if requested is UNSET:
            raise InterlockError(errors.INVALID_PARAMS, "initialize needs `protocolVersion`.")
        self._revision = mcp.negotiate(requested)
        return _result(
            request,
            {
                "protocolVersion": self._revision,
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": SERVER_INFO,
                "instructions": INSTRUCTIONS,
            },
        )

    def _list(self, request: _Request) -> bytes:
        if request.params.cursor is not None:
            raise InterlockError(
                errors.INVALID_CURSOR, "The cursor is unknown: this list has one page only."
            )
        tools = [tool.listed() for tool in self._toolbox.tools.values()]
        return _result(request, {"tools": tools}, cacheable=True)

    def _call(self, request: _Request) -> bytes | asyncio.Task[bytes | None]:
        name = request.params.name
        if name is UNSET:
            raise InterlockError(errors.INVALID_PARAMS, "tools/call needs the `name` of a tool.")
        tool = self._toolbox.tools.get(name)
        if tool is None:
            raise InterlockError(
                errors.UNKNOWN_TOOL,
                f"There is no tool {name!r}. There are: {', '.join(self._toolbox.tools)}.",
            )
        raw = request.params.arguments
        if raw is UNSET or bytes(raw) == b"null":
            raw = Raw(b"{}")
        try:
            arguments = tool.read_arguments(raw)
            if tool.run is not None:
                return _tool_result(request, tool.run(arguments))
        except ToolTrouble as trouble:
            return _tool_trouble(request, trouble)
        return self._start(request, tool, arguments)

    def _start(self, request: _Request, tool: Tool, arguments: Any) -> asyncio.Task[bytes | None]:
        key = jsonrpc.decode_value(request.id)
        if key in self._running:
            raise InterlockError(
                errors.INVALID_REQUEST, "A request with this id is still being worked on."
            )
        assert tool.slow is not None
        work = _slow_result(request, tool.slow(arguments, self._reporter(request)))
        task = asyncio.get_running_loop().create_task(work)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key))
        return task

    def _reporter(self, request: _Request) -> Callable[[int, int, str], None]:
        token = request.params.meta.progress_token

        def report(done: int, total: int, text: str) -> None:
            if token is UNSET:
                return
            params = {"progressToken": token, "progress": done, "total": total, "message": text}
            self._send(
                encode_line(jsonrpc.notification(mcp.PROGRESS, jsonrpc.encode_value(params)))
            )

        return report

    def _notice(self, message: Message) -> None:
        if message.method != mcp.CANCELLED or message.params is UNSET:
            return
        try:
            cancelled = msgspec.json.decode(message.params, type=mcp.CancelledParams)
            if cancelled.request_id is UNSET:
                return
            key = jsonrpc.decode_value(cancelled.request_id)
        except (msgspec.DecodeError, ProtocolError):
            return  # nobody can be told: a notification has no answer
        task = self._running.get(key) if isinstance(key, int | str) else None
        if task is not None:
            task.cancel()


def _read_params(message: Message) -> _Params:
    if message.params is UNSET:
        return _Params()
    try:
        return msgspec.json.decode(message.params, type=_Params)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InterlockError(errors.INVALID_PARAMS, f"The params do not fit: {error}.") from None


def _check_stateless(meta: _Meta) -> None:
    if meta.revision not in mcp.STATELESS_REVISIONS:
        raise mcp.unsupported_version(str(meta.revision))
    if meta.client_capabilities is UNSET or bytes(meta.client_capabilities)[:1] != b"{":
        raise InterlockError(
            errors.INVALID_PARAMS, f"`_meta` needs an object {mcp.META_CLIENT_CAPABILITIES}."
        )


def _result(request: _Request, result: dict[str, Any], *, cacheable: bool = False) -> bytes:
    if request.era is Era.STATELESS:
        result["resultType"] = mcp.COMPLETE
        result["_meta"] = {mcp.META_SERVER_INFO: SERVER_INFO}
        if cacheable:
            result["ttlMs"] = _LIST_TTL_MS
            result["cacheScope"] = "public"
    return jsonrpc.result_response(request.id, jsonrpc.encode_value(result))


def _discover(request: _Request) -> bytes:
    described = {
        "supportedVersions": list(mcp.STATELESS_REVISIONS),
        "capabilities": {"tools": {}},
        "instructions": INSTRUCTIONS,
    }
    return _result(request, described, cacheable=True)


def _tool_result(request: _Request, answer: Answer) -> bytes:
    result: dict[str, Any] = {"content": [{"type": "text", "text": answer.text}]}
    if answer.data is not None:
        result["structuredContent"] = answer.data
    return _result(request, result)


def _tool_trouble(request: _Request, trouble: ToolTrouble) -> bytes:
    content = [{"type": "text", "text": str(trouble)}]
    return _result(request, {"content": content, "isError": True})


async def _slow_result(request: _Request, work: Awaitable[Answer]) -> bytes:
    try:
        return _tool_result(request, await work)
    except ToolTrouble as trouble:
        return _tool_trouble(request, trouble)
    except Exception:
        return _our_fault(bytes(request.id))


def _our_fault(id: bytes) -> bytes:
    traceback.print_exc(file=sys.stderr)
    return jsonrpc.error_response(
        id, errors.INTERNAL.code, "The demo server failed. Its stderr says where."
    )


def _unknown_method(method: str) -> InterlockError:
    return InterlockError(errors.METHOD_NOT_FOUND, f"There is no method {method!r}.")


def _error(id: bytes, error: InterlockError, era: Era = Era.SESSION) -> bytes:
    failure = error.failure
    code = failure.stateless_code if era is Era.STATELESS else failure.code
    return jsonrpc.error_response(id, code, error.message, error.data)
