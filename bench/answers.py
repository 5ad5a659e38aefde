"""What the raw upstream answers: one JSON-RPC message in, bytes out. No I/O here.

It is as thin as Python gets, so that what is measured in front of it is not its own cost. Both
wires are spoken: a request with a protocol version in ``_meta`` is a stateless one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bench.synthetic_tools import synthetic_tool, tool_list
from bench.wire import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    SESSION_REVISION,
    SESSION_REVISIONS,
    STATELESS_REVISION,
    SUBSCRIPTION_ID,
    UNSUPPORTED_VERSION,
)

Wire = Literal["session", "stateless", "both"]

SERVER_INFO = {"name": "raw-upstream", "version": "1"}

SESSION_ECHO = b'{"jsonrpc":"2.0","id":%b,"result":{"content":[{"type":"text","text":%b}]}}'
STATELESS_ECHO = (
    b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete",'
    b'"content":[{"type":"text","text":%b}]}}'
)
RESULT = b'{"jsonrpc":"2.0","id":%b,"result":%b}'
CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


NOTHING = msgspec.Raw(b"")
"""A field that was not sent; msgspec keeps raw values only where nothing else is possible."""


class RequestMeta(msgspec.Struct, gc=False):
    version: str = msgspec.field(name="io.modelcontextprotocol/protocolVersion", default="")


class Arguments(msgspec.Struct, gc=False):
    text: msgspec.Raw = NOTHING
    n: msgspec.Raw = NOTHING


class RequestParams(msgspec.Struct, gc=False):
    name: str = ""
    arguments: Arguments | None = None
    meta: RequestMeta | None = msgspec.field(name="_meta", default=None)
    protocol_version: str = msgspec.field(name="protocolVersion", default="")


class Request(msgspec.Struct, gc=False):
    method: str = ""
    id: msgspec.Raw = NOTHING
    params: RequestParams | None = None


class Answer(msgspec.Struct, gc=False):
    """The bytes to send (none for a notification) and what the transport must know about them."""

    body: bytes
    status: int = 200
    opens_session: bool = False
    opens_listen_stream: bool = False


decode_request = msgspec.json.Decoder(Request).decode


def error(request_id: bytes, code: int, message: str, data: Any = None) -> bytes:
    failure: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        failure["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, msgspec.json.encode(failure))


class Endpoint:
    """One MCP server: its tools as ready bytes, and how often its list was asked for."""

    def __init__(self, synthetic: int, wire: Wire = "both", changes: bool = False) -> None:
        self.tools = tool_list(synthetic)
        self.next_synthetic = synthetic
        self.session = wire != "stateless"
        self.stateless = wire != "session"
        self.changes = changes
        self.list_requests = 0
        self.calls = 0
        self.make_bytes()

    def make_bytes(self) -> None:
        self.names = frozenset(tool["name"] for tool in self.tools)
        tools = msgspec.json.encode(self.tools)
        self.session_list = b'{"tools":%b}' % tools
        self.stateless_list = (
            b'{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":%b}' % tools
        )

    def add_tool(self) -> str:
        """Change the list by one tool, and say its name."""
        tool = synthetic_tool(self.next_synthetic)
        self.next_synthetic += 1
        self.tools.append(tool)
        self.make_bytes()
        return str(tool["name"])

    def answer(self, body: bytes) -> bytes | Answer:
        """The answer to one message; plain bytes when there is nothing else to say about it."""
        try:
            request = decode_request(body)
        except msgspec.DecodeError as cause:
            return Answer(error(b"null", PARSE_ERROR, str(cause)), status=400)
        if not request.id:
            return Answer(b"", status=202)
        request_id = bytes(request.id)
        params = request.params
        stateless = params is not None and params.meta is not None and params.meta.version != ""
        if request.method == "tools/call" and params is not None:
            return self.call(request_id, params, stateless)
        return self.other(request_id, request.method, params, stateless)

    def call(self, request_id: bytes, params: RequestParams, stateless: bool) -> bytes | Answer:
        self.calls += 1
        if params.name == "echo":
            raw = bytes(params.arguments.text) if params.arguments is not None else b""
            if not raw.startswith(b'"'):
                return error(request_id, INVALID_PARAMS, "echo needs a text")
        elif params.name in self.names:
            raw = b'"%b done"' % params.name.encode()
        else:
            return error(request_id, INVALID_PARAMS, f"unknown tool {params.name!r}")
        return (STATELESS_ECHO if stateless else SESSION_ECHO) % (request_id, raw)

    def other(
        self, request_id: bytes, method: str, params: RequestParams | None, stateless: bool
    ) -> bytes | Answer:
        if method == "tools/list":
            self.list_requests += 1
            tools = self.stateless_list if stateless else self.session_list
            return RESULT % (request_id, tools)
        if method == "initialize" and self.session:
            return Answer(RESULT % (request_id, self.initialize_result(params)), opens_session=True)
        if method == "server/discover" and self.stateless:
            return RESULT % (request_id, self.discover_result())
        if method == "ping":
            return RESULT % (request_id, b'{"resultType":"complete"}' if stateless else b"{}")
        if method == "subscriptions/listen" and self.stateless and self.changes:
            return Answer(subscription_frame(request_id), opens_listen_stream=True)
        if method == "initialize":
            supported = {"supported": [STATELESS_REVISION]}
            message = "only the stateless wire is served"
            return Answer(error(request_id, UNSUPPORTED_VERSION, message, supported), status=400)
        status = 404 if stateless else 200
        return Answer(error(request_id, METHOD_NOT_FOUND, f"no method {method}"), status=status)

    def capabilities(self) -> dict[str, Any]:
        return {"tools": {"listChanged": True} if self.changes else {}}

    def initialize_result(self, params: RequestParams | None) -> bytes:
        asked = params.protocol_version if params is not None else ""
        revision = asked if asked in SESSION_REVISIONS else SESSION_REVISION
        return msgspec.json.encode(
            {
                "protocolVersion": revision,
                "capabilities": self.capabilities(),
                "serverInfo": SERVER_INFO,
            }
        )

    def discover_result(self) -> bytes:
        supported = [STATELESS_REVISION, *(SESSION_REVISIONS if self.session else ())]
        return msgspec.json.encode(
            {
                "resultType": "complete",
                "supportedVersions": supported,
                "capabilities": self.capabilities(),
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": SERVER_INFO},
            }
        )


class NamedEndpoint(Endpoint):
    """Says who it is in front of every text, so that a caller sees whom it reached."""

    def __init__(self, name: str) -> None:
        super().__init__(0)
        self.name = name

    def call(self, request_id: bytes, params: RequestParams, stateless: bool) -> bytes | Answer:
        if params.arguments is not None and bytes(params.arguments.text).startswith(b'"'):
            said = b'"%b: %b' % (self.name.encode(), bytes(params.arguments.text)[1:])
            params.arguments.text = msgspec.Raw(said)
        return super().call(request_id, params, stateless)


def subscription_frame(request_id: bytes) -> bytes:
    """The first message on a listen stream: what was agreed to."""
    return (
        b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":'
        b'{"_meta":{"%b":%b},"notifications":{"toolsListChanged":true}}}'
        % (SUBSCRIPTION_ID.encode(), request_id)
    )


def changed_frame(subscription_id: bytes | None) -> bytes:
    """The message that says the list changed: plain, or tagged with the listen request's id."""
    if subscription_id is None:
        return CHANGED
    return (
        b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"%b":%b}}}'
        % (SUBSCRIPTION_ID.encode(), subscription_id)
    )
