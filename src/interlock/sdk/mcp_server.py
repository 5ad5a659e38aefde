"""An MCP server for one client, for both protocol generations.

The session protocol is used after `initialize`, the stateless protocol for every request with a
revision in `_meta`. This is decided for each request. This module uses the event loop for slow
tools, and no other I/O.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock import errors
from interlock.errors import InterlockError, ProtocolError
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.jsonrpc import BadMessage, Message
from interlock.protocol.mcp import Era
from interlock.protocol.mcpax import REQUEST
from interlock.sdk.tool import Report, ServedTool, ToolError, ToolResult

_METHODS: Final = frozenset(
    {mcp.INITIALIZE, mcp.PING, mcp.DISCOVER, mcp.TOOLS_LIST, mcp.TOOLS_CALL, mcp.SET_LEVEL}
)
# The list never changes during the process, so stateless clients may cache it.
_LIST_TTL_MS: Final = 60_000


class _Meta(msgspec.Struct):
    """The keys of a request's `_meta` that this server uses."""

    revision: str | UnsetType = msgspec.field(default=UNSET, name=mcp.META_VERSION)
    client_capabilities: Raw | UnsetType = msgspec.field(
        default=UNSET, name=mcp.META_CLIENT_CAPABILITIES
    )
    progress_token: int | str | UnsetType = msgspec.field(
        default=UNSET, name=mcp.META_PROGRESS_TOKEN
    )


class _Params(msgspec.Struct):
    """The params of all methods. Each method reads its part."""

    meta: _Meta = msgspec.field(default_factory=_Meta, name="_meta")
    protocol_version: str | UnsetType = msgspec.field(default=UNSET, name="protocolVersion")
    name: str | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    cursor: str | None = None
    level: str | UnsetType = UNSET


class ServerRequest(NamedTuple):
    """A decoded request."""

    id: Raw
    method: str
    params: _Params
    era: Era
    raw: Raw | UnsetType = UNSET
    """The params as received."""


class ServerDescription(msgspec.Struct, frozen=True):
    """The description of a server for its clients."""

    server_info: dict[str, Any]
    instructions: str | None = None
    logs: bool = False
    """True if it sends log messages."""


class Conversation:
    """Serves one client. `send` is called with complete messages."""

    ax = False
    """True if the client is a node with which it registered: errors and progress have the MCP-AX
    format."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        tools: Mapping[str, ServedTool],
        description: ServerDescription,
    ) -> None:
        self._send = send
        self._tools = tools
        self._description = description
        self.level: str | None = None
        """The lowest level of log messages that a session client wants. None: it set no level."""
        self._revision: str | None = None
        # By the decoded id, because a cancellation may encode the id differently.
        self._running: dict[int | str, asyncio.Task[bytes | None]] = {}
        # The event loop itself does not keep a reference to tasks.
        self._batches: set[asyncio.Task[None]] = set()

    def receive(self, data: bytes) -> None:
        """Handle data of the client: a message, or a batch of messages."""
        try:
            message = jsonrpc.decode_message(data)
        except ProtocolError as error:
            self.reject(error.id if isinstance(error, BadMessage) else jsonrpc.NULL, error)
            return
        if isinstance(message, list):
            self._receive_batch(message)
        else:
            self.serve(message)

    def reject(self, id: bytes, error: InterlockError) -> None:
        """Send an error response."""
        self._send(self._error(id, error))

    def close(self) -> None:
        """Cancel all running calls, after the client has disconnected."""
        for task in [*self._running.values(), *self._batches]:
            task.cancel()

    def serve(self, message: Message) -> None:
        """Handle a decoded message."""
        response = self._respond(message)
        if isinstance(response, bytes):
            self._send(response)
        elif response is not None:
            response.add_done_callback(self._send_late)

    def _receive_batch(self, batch: list[Message | BadMessage]) -> None:
        if self._revision not in mcp.BATCH_REVISIONS:
            error = ProtocolError(
                "This revision has no batches. Send one message per line.",
                errors.INVALID_REQUEST,
            )
            self.reject(jsonrpc.NULL, error)
            return
        responses = [
            self._error(item.id, item) if isinstance(item, BadMessage) else self._respond(item)
            for item in batch
        ]
        task = asyncio.get_running_loop().create_task(self._send_batch(responses))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _send_batch(self, responses: list[bytes | asyncio.Task[bytes | None] | None]) -> None:
        tasks = [response for response in responses if isinstance(response, asyncio.Task)]
        late_responses: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        payloads = [
            response for response in [*responses, *late_responses] if isinstance(response, bytes)
        ]
        if payloads:
            self._send(b"[" + b",".join(payloads) + b"]")

    def _send_late(self, task: asyncio.Task[bytes | None]) -> None:
        # A cancelled call gets no response.
        if not task.cancelled() and (response := task.result()) is not None:
            self._send(response)

    def _respond(self, message: Message) -> bytes | asyncio.Task[bytes | None] | None:
        """Return the response, or the task that returns it. None: the message needs none."""
        if message.is_notification:
            self._handle_notification(message)
            return None
        if not message.is_request:
            return None  # A response, although this server sends no requests.
        assert isinstance(message.id, Raw)
        era = Era.SESSION
        try:
            if message.method not in _METHODS:
                raise _unknown_method(str(message.method))
            params = _read_params(message)
            if params.meta.revision is not UNSET:
                era = Era.STATELESS
            request = ServerRequest(message.id, str(message.method), params, era, message.params)
            self._check(request)
            return self._serve(request)
        except InterlockError as error:
            return self._error(bytes(message.id), error, era)
        except Exception:
            return _internal_error(bytes(message.id))

    def _check(self, request: ServerRequest) -> None:
        """Check that the request is allowed. Raises InterlockError."""

    def _serve(self, request: ServerRequest) -> bytes | asyncio.Task[bytes | None]:
        method = request.method
        if request.era is Era.STATELESS:
            _check_stateless(request.params.meta)
            if method in mcp.REMOVED_FROM_STATELESS:
                raise _unknown_method(method)
        elif method == mcp.INITIALIZE:
            return self._initialize(request)
        elif method == mcp.PING:
            return self._result(request, {})
        elif method == mcp.DISCOVER:
            raise InterlockError(
                errors.INVALID_PARAMS, f"{mcp.DISCOVER} needs `_meta` with {mcp.META_VERSION}."
            )
        elif self._revision is None:
            raise InterlockError(
                errors.INVALID_REQUEST,
                f"Send {mcp.INITIALIZE} first, or name a revision in `_meta` ({mcp.META_VERSION}).",
            )
        if method == mcp.SET_LEVEL:
            return self._set_level(request)
        if method == mcp.TOOLS_CALL:
            return self._call(request)
        if method == mcp.TOOLS_LIST:
            return self._list(request)
        return self._discover(request)

    def _set_level(self, request: ServerRequest) -> bytes:
        level = request.params.level
        if not self._description.logs:
            raise _unknown_method(request.method)
        if level not in mcp.LOG_LEVELS:
            raise InterlockError(
                errors.INVALID_PARAMS, f"`level` must be one of {', '.join(mcp.LOG_LEVELS)}."
            )
        self.level = level
        return self._result(request, {})

    @property
    def _capabilities(self) -> dict[str, Any]:
        return {
            "tools": {"listChanged": False},
            **({"logging": {}} if self._description.logs else {}),
        }

    def _discover(self, request: ServerRequest) -> bytes:
        described: dict[str, Any] = {
            "supportedVersions": list(mcp.STATELESS_REVISIONS),
            "capabilities": {**self._capabilities, "tools": {}},
        }
        if self._description.instructions:
            described["instructions"] = self._description.instructions
        return self._result(request, described, cacheable=True)

    def _initialize(self, request: ServerRequest) -> bytes:
        requested = request.params.protocol_version
        if requested is UNSET:
            raise InterlockError(errors.INVALID_PARAMS, "initialize needs `protocolVersion`.")
        self._revision = mcp.negotiate_revision(requested)
        result: dict[str, Any] = {
            "protocolVersion": self._revision,
            "capabilities": self._capabilities,
            "serverInfo": self._description.server_info,
        }
        if self._description.instructions:
            result["instructions"] = self._description.instructions
        return self._result(request, result)

    def _list(self, request: ServerRequest) -> bytes:
        if request.params.cursor is not None:
            raise InterlockError(
                errors.INVALID_CURSOR, "Unknown cursor: this list has one page only."
            )
        tools = [tool.listed() for tool in self._tools.values()]
        return self._result(request, {"tools": tools}, cacheable=True)

    def _call(self, request: ServerRequest) -> bytes | asyncio.Task[bytes | None]:
        name = request.params.name
        if name is UNSET:
            raise InterlockError(errors.INVALID_PARAMS, "tools/call needs the `name` of a tool.")
        tool = self._tools.get(name)
        if tool is None:
            raise InterlockError(
                errors.UNKNOWN_TOOL,
                f"Unknown tool {name!r}. Tools: {', '.join(self._tools)}.",
            )
        raw = request.params.arguments
        if raw is UNSET or bytes(raw) == b"null":
            raw = Raw(b"{}")
        key = jsonrpc.decode_value(request.id)
        if key in self._running:
            raise InterlockError(errors.INVALID_REQUEST, "A request with this id is still running.")
        try:
            started = tool.start(raw, self._reporter(request))
        except ToolError as error:
            return self._tool_error(request, error)
        if isinstance(started, ToolResult):
            return self._tool_result(request, started)
        work = self._slow_result(request, started)
        task: asyncio.Task[bytes | None] = asyncio.get_running_loop().create_task(work)
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key))
        return task

    def _reporter(self, request: ServerRequest) -> Report:
        token = request.params.meta.progress_token

        def report(done: float, total: float, text: str) -> None:
            if token is UNSET:
                return
            params: dict[str, Any] = {
                "progressToken": token,
                "progress": done,
                "total": total,
                "message": text,
            }
            if self.ax:
                params["_meta"] = {REQUEST: request.id}
            self._send(jsonrpc.notification(mcp.PROGRESS, jsonrpc.encode_value(params)))

        return report

    def _handle_notification(self, message: Message) -> None:
        if message.method != mcp.CANCELLED or message.params is UNSET:
            return
        try:
            cancelled = msgspec.json.decode(message.params, type=mcp.CancelledParams)
            if cancelled.request_id is UNSET:
                return
            key = jsonrpc.decode_value(cancelled.request_id)
        except (msgspec.DecodeError, ProtocolError):
            return  # A notification has no response, so the error cannot be reported.
        task = self._running.get(key) if isinstance(key, int | str) else None
        if task is not None:
            task.cancel()

    # -- responses

    def _result(
        self, request: ServerRequest, result: dict[str, Any], *, cacheable: bool = False
    ) -> bytes:
        if request.era is Era.STATELESS:
            result["resultType"] = mcp.COMPLETE
            result["_meta"] = {mcp.META_SERVER_INFO: self._description.server_info}
            if cacheable:
                result["ttlMs"] = _LIST_TTL_MS
                result["cacheScope"] = "public"
        return jsonrpc.result_response(request.id, jsonrpc.encode_value(result))

    def _tool_result(self, request: ServerRequest, tool_result: ToolResult) -> bytes:
        result: dict[str, Any] = {"content": [{"type": "text", "text": tool_result.text}]}
        if tool_result.data is not None:
            result["structuredContent"] = tool_result.data
        return self._result(request, result)

    def _tool_error(self, request: ServerRequest, error: ToolError) -> bytes:
        content = [{"type": "text", "text": str(error)}]
        return self._result(request, {"content": content, "isError": True})

    async def _slow_result(self, request: ServerRequest, work: Awaitable[ToolResult]) -> bytes:
        try:
            return self._tool_result(request, await work)
        except ToolError as error:
            return self._tool_error(request, error)
        except Exception:
            return _internal_error(bytes(request.id))

    def _error(self, id: bytes, error: InterlockError, era: Era = Era.SESSION) -> bytes:
        failure = error.failure
        if self.ax and failure.ax_name:
            data = {**(error.data or {}), "detail": error.message}
            return jsonrpc.error_response(id, failure.ax_code, failure.ax_name, data)
        code = failure.stateless_code if era is Era.STATELESS else failure.code
        return jsonrpc.error_response(
            id, failure.ax_code if self.ax else code, error.message, error.data
        )


def _read_params(message: Message) -> _Params:
    if message.params is UNSET:
        return _Params()
    try:
        return msgspec.json.decode(message.params, type=_Params)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InterlockError(errors.INVALID_PARAMS, f"Invalid params: {error}.") from None


def _check_stateless(meta: _Meta) -> None:
    if meta.revision not in mcp.STATELESS_REVISIONS:
        raise mcp.unsupported_version(str(meta.revision))
    if meta.client_capabilities is UNSET or bytes(meta.client_capabilities)[:1] != b"{":
        raise InterlockError(
            errors.INVALID_PARAMS, f"`_meta` needs an object {mcp.META_CLIENT_CAPABILITIES}."
        )


def _internal_error(id: bytes) -> bytes:
    traceback.print_exc(file=sys.stderr)
    return jsonrpc.error_response(
        id, errors.INTERNAL.code, "Internal error. See stderr of the server."
    )


def _unknown_method(method: str) -> InterlockError:
    return InterlockError(errors.METHOD_NOT_FOUND, f"Unknown method {method!r}.")
