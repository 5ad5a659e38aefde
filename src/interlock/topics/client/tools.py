"""Functions of a program as tools, resources and prompts of an MCP server.

`RequestServer` is the interface that the room uses. A bridge to another server implements it too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from interlock.core.config import redact
from interlock.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNKNOWN_PROMPT,
    UNKNOWN_RESOURCE,
    UNKNOWN_TOOL,
    InterlockError,
)
from interlock.protocol import mcp
from interlock.protocol.jsonrpc import encode_value
from interlock.sdk.functions import FunctionTool, threads
from interlock.sdk.tool import Report, ToolError, ToolResult
from interlock.topics.wire.payloads import Request

_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")


def _ignore_progress(done: float, total: float, message: str) -> None:
    """Ignore progress."""


progress_reporter: ContextVar[Report] = ContextVar("reporting", default=_ignore_progress)
"""The function that reports progress of the current request."""


class RequestServer(Protocol):
    """Handles requests."""

    def can_handle(self, method: str, context: str) -> bool:
        """Return whether it handles a request that is addressed to everybody."""
        ...

    async def handle(self, request: Request) -> bytes:
        """Return the result. An InterlockError becomes the error response."""
        ...


class _ListParams(msgspec.Struct):
    cursor: str | None = None


class _NamedParams(msgspec.Struct):
    arguments: Raw = Raw(b"{}")


class _InitializeParams(msgspec.Struct):
    protocolVersion: str


class _Resource(msgspec.Struct):
    listed: dict[str, Any]
    read: Callable[[], Any]


class _Prompt(msgspec.Struct):
    listed: dict[str, Any]
    tool: FunctionTool


def _decorate(function: Any, add: Callable[[Any], None]) -> Any:
    """Add the function and return it. Without a function, return a decorator that does so."""

    def offer(target: Any) -> Any:
        if not callable(target):
            raise TypeError(f"{target!r} is not a function. Pass a name as name={target!r}.")
        add(target)
        return target

    return offer if function is None else offer(function)


class ToolServer:
    """The functions that a program offers."""

    def __init__(self, name: str, version: str, instructions: str | None = None) -> None:
        self._info = {"name": name, "version": version}
        self._instructions = instructions
        self._tools: dict[str, FunctionTool] = {}
        self._resources: dict[str, _Resource] = {}
        self._prompts: dict[str, _Prompt] = {}
        self._methods: dict[str, Callable[[Request], Awaitable[Any]]] = {
            mcp.INITIALIZE: self._initialize,
            mcp.PING: self._ping,
            mcp.TOOLS_LIST: self._list_tools,
            mcp.TOOLS_CALL: self._call,
            mcp.RESOURCES_LIST: self._list_resources,
            mcp.TEMPLATES_LIST: self._list_templates,
            mcp.RESOURCES_READ: self._read,
            mcp.PROMPTS_LIST: self._list_prompts,
            mcp.PROMPTS_GET: self._prompt,
        }

    # -- what is offered

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        mutable: bool | None = None,
        reversible: bool | None = None,
        idempotent: bool | None = None,
    ) -> Any:
        """Register a tool, directly or as a decorator."""
        capability = {"mutable": mutable, "reversible": reversible, "idempotent": idempotent}
        return _decorate(
            function,
            lambda target: self.add_tool(
                target, name or target.__name__, title, description, capability
            ),
        )

    def prompt(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Any:
        """Register a prompt, directly or as a decorator."""
        return _decorate(
            function, lambda target: self.add_prompt(target, name or target.__name__, description)
        )

    def add_tool(
        self,
        function: Callable[..., Any],
        name: str,
        title: str | None,
        description: str | None,
        capability: dict[str, Any],
    ) -> None:
        self._check(name, self._tools, "tool")
        self._tools[name] = FunctionTool(
            function, name=name, title=title, description=description, capability=capability
        )

    def add_resource(
        self, read: Callable[[], Any], uri: str, name: str, description: str, mime_type: str
    ) -> None:
        if not uri or any(character.isspace() for character in uri) or ":" not in uri:
            raise ValueError(f"{uri!r} is not a URI.")
        if uri in self._resources:
            raise ValueError(f"A resource {uri!r} already exists.")
        listed = {"uri": uri, "name": name, "description": description, "mimeType": mime_type}
        self._resources[uri] = _Resource(listed, read)

    def add_prompt(self, function: Callable[..., Any], name: str, description: str | None) -> None:
        self._check(name, self._prompts, "prompt")
        tool = FunctionTool(function, name=name, title=None, description=description, capability={})
        schema = tool.listed()["inputSchema"]
        required = schema.get("required", ())
        arguments = [
            {"name": argument, "required": argument in required}
            for argument in schema.get("properties", {})
        ]
        listed = {"name": name, "description": tool.listed()["description"]}
        self._prompts[name] = _Prompt({**listed, "arguments": arguments}, tool)

    def _check(self, name: str, existing: dict[str, Any], kind: str) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a valid name of a {kind}. Use 1 to 128 letters, digits, _, -, . "
                f'and /, or set another name: {kind}(name="…").'
            )
        if name in existing:
            raise ValueError(f"A {kind} {name!r} already exists. Use another name.")

    # -- RequestServer

    def can_handle(self, method: str, context: str) -> bool:
        if method == mcp.TOOLS_CALL:
            return context in self._tools
        if method == mcp.RESOURCES_READ:
            return context in self._resources
        if method == mcp.PROMPTS_GET:
            return context in self._prompts
        return method in self._methods

    async def handle(self, request: Request) -> bytes:
        method = self._methods.get(request.method)
        if method is None:
            raise InterlockError(
                METHOD_NOT_FOUND, f"There is no method {request.method[:100]!r} here."
            )
        return encode_value(await method(request))

    # -- the methods

    async def _initialize(self, request: Request) -> dict[str, Any]:
        requested_version = _read_params(request, _InitializeParams).protocolVersion
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
        result = {
            "protocolVersion": mcp.negotiate_revision(requested_version),
            "capabilities": capabilities,
            "serverInfo": self._info,
        }
        if self._instructions:
            result["instructions"] = self._instructions
        return result

    async def _ping(self, request: Request) -> dict[str, Any]:
        return {}

    async def _list_tools(self, request: Request) -> dict[str, Any]:
        _check_cursor(request)
        return {"tools": [tool.listed() for tool in self._tools.values()]}

    async def _list_resources(self, request: Request) -> dict[str, Any]:
        _check_cursor(request)
        return {"resources": [resource.listed for resource in self._resources.values()]}

    async def _list_templates(self, request: Request) -> dict[str, Any]:
        _check_cursor(request)
        return {"resourceTemplates": []}

    async def _list_prompts(self, request: Request) -> dict[str, Any]:
        _check_cursor(request)
        return {"prompts": [prompt.listed for prompt in self._prompts.values()]}

    async def _call(self, request: Request) -> dict[str, Any]:
        tool = self._tools.get(request.context)
        if tool is None:
            raise InterlockError(
                UNKNOWN_TOOL,
                f"There is no tool {request.context[:100]!r} here. Available tools: "
                f"{', '.join(self._tools) or 'none'}.",
            )
        arguments = _read_params(request, _NamedParams).arguments
        try:
            output: ToolResult = await tool.start(arguments, progress_reporter.get())
        except ToolError as error:
            return {"content": [{"type": "text", "text": _error_text(error)}], "isError": True}
        result: dict[str, Any] = {"content": [{"type": "text", "text": output.text}]}
        if output.data is not None:
            result["structuredContent"] = output.data
        return result

    async def _read(self, request: Request) -> dict[str, Any]:
        uri = request.context
        resource = self._resources.get(uri)
        if resource is None:
            raise InterlockError(UNKNOWN_RESOURCE, f"There is no resource {uri[:100]!r} here.")
        read = resource.read
        method = await read() if inspect.iscoroutinefunction(read) else await threads.run(read)
        text = method if isinstance(method, str) else encode_value(method).decode()
        mime_type = resource.listed["mimeType"]
        return {"contents": [{"uri": uri, "mimeType": mime_type, "text": text}]}

    async def _prompt(self, request: Request) -> dict[str, Any]:
        prompt = self._prompts.get(request.context)
        if prompt is None:
            raise InterlockError(
                UNKNOWN_PROMPT, f"There is no prompt {request.context[:100]!r} here."
            )
        arguments = _read_params(request, _NamedParams).arguments
        try:
            result: ToolResult = await prompt.tool.start(arguments, _ignore_progress)
        except ToolError as error:
            raise InterlockError(INVALID_PARAMS, _error_text(error)) from None
        message = {"role": "user", "content": {"type": "text", "text": result.text}}
        return {"description": prompt.listed["description"], "messages": [message]}


def _error_text(error: ToolError) -> str:
    """Return the error text of a tool.

    Every participant can read it. An unexpected exception of a library may contain secrets, so its
    text is redacted.
    """
    return str(error) if error.__cause__ is None else redact(str(error))


def _read_params(request: Request, shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(request.params, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InterlockError(
            INVALID_PARAMS, f"The params of {request.method} are invalid: {error}."
        ) from None


def _check_cursor(request: Request) -> None:
    if _read_params(request, _ListParams).cursor is not None:
        raise InterlockError(INVALID_PARAMS, "The cursor is invalid: this list has only one page.")
