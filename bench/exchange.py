"""What the load generator sends, and how it judges what comes back. Pure: no sockets, no clock.

Every request has its own id and its own text. An answer is right only when its HTTP status, its
id and its content are the ones that belong to the request.
"""

from __future__ import annotations

import secrets
from typing import Literal, Protocol

import msgspec

from bench.http_answers import HttpAnswer, event_messages
from bench.wire import SESSION_REVISION, STATELESS_META, STATELESS_REVISION

Mode = Literal["session", "stateless"]

OK = "ok"
FIRST_ID = 1_000_001
"""Seven digits, so that every request of a run has the same length."""


class Content(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""


class ToolResult(msgspec.Struct, gc=False):
    content: list[Content] = []
    is_error: bool = msgspec.field(name="isError", default=False)
    result_type: str = msgspec.field(name="resultType", default="")


class RpcAnswer(msgspec.Struct, gc=False):
    jsonrpc: str = ""
    id: int | str | None = None
    result: ToolResult | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


decode_answer = msgspec.json.Decoder(RpcAnswer).decode


class EnvelopeData(msgspec.Struct, gc=False):
    content: list[Content] = []


class Envelope(msgspec.Struct, gc=False):
    """AQL's, around a tool's result."""

    success: bool
    data: EnvelopeData | None = None

    @property
    def text(self) -> str:
        """What the tool said; nothing where the envelope does not say that it went well."""
        if not self.success or self.data is None or len(self.data.content) != 1:
            return ""
        return self.data.content[0].text


decode_envelope = msgspec.json.Decoder(Envelope).decode


class Exchange(Protocol):
    """Makes the request with a number, and judges the answer to it: ``ok`` or what is wrong."""

    def request(self, number: int) -> bytes: ...

    def judge(self, number: int, answer: HttpAnswer) -> str: ...


class BulkExchange(Protocol):
    """Makes the request with a number, and says which pieces its large answer is made of."""

    def request(self, number: int) -> bytes: ...

    def expected(self, number: int) -> tuple[bytes, ...] | None: ...

    def learn(self, number: int, body: bytes) -> str: ...


def post_head(host: str, path: str, extra: dict[str, str], length: int) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        "content-type: application/json",
        "accept: application/json, text/event-stream",
        *(f"{name}: {value}" for name, value in extra.items()),
        f"content-length: {length}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def mode_headers(mode: Mode, session_id: str | None, method: str, name: str = "") -> dict[str, str]:
    """The headers that each wire asks for on a request."""
    if mode == "session":
        headers = {"mcp-protocol-version": SESSION_REVISION}
        if session_id is not None:
            headers["mcp-session-id"] = session_id
        return headers
    headers = {"mcp-protocol-version": STATELESS_REVISION, "mcp-method": method}
    if name:
        headers["mcp-name"] = name
    return headers


class EchoCalls:
    """``tools/call`` on an echo tool, each with a text that no other call has.

    With an operation, the tool is an endpoint of AQL, and the echo is asked for by its operation.
    """

    def __init__(
        self,
        host: str,
        path: str,
        mode: Mode,
        tool: str,
        session_id: str | None,
        operation: str = "",
    ) -> None:
        self.mark = secrets.token_hex(4)
        self.stateless = mode == "stateless"
        self.operation = operation
        meta = f',"_meta":{STATELESS_META}' if self.stateless else ""
        arguments = '{"text":"text %d of MARK","n":7}'
        if operation:
            arguments = f'{{"operation":"{operation}","params":{arguments}}}'
        body = (
            '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"NAME",'
            '"arguments":ARGUMENTSMETA}}'
        )
        body = body.replace("NAME", tool).replace("ARGUMENTS", arguments)
        body = body.replace("MARK", self.mark).replace("META", meta)
        length = len(body % (FIRST_ID, FIRST_ID))
        head = post_head(host, path, mode_headers(mode, session_id, "tools/call", tool), length)
        self.template = head.replace(b"%", b"%%") + body.encode()

    def request(self, number: int) -> bytes:
        return self.template % (number, number)

    def judge(self, number: int, answer: HttpAnswer) -> str:
        body = answer.body
        if answer.event_stream:
            messages = event_messages(body)
            if not messages:
                return "empty event stream"
            body = messages[-1]
        try:
            message = decode_answer(body)
        except msgspec.DecodeError:
            return f"HTTP {answer.status}" if answer.status != 200 else "not a JSON-RPC answer"
        if message.id != number:
            return f"HTTP {answer.status}" if message.id is None else "wrong id"
        if message.error:
            return "JSON-RPC error"
        if answer.status != 200:
            return f"HTTP {answer.status}"
        result = message.result
        if result is None:
            return "no result"
        if result.is_error:
            return "tool error"
        said = result.content[0].text if len(result.content) == 1 else ""
        if self.operation:
            try:
                said = decode_envelope(said).text
            except msgspec.DecodeError:
                return "not an envelope"
        if said != f"text {number} of {self.mark}":
            return "wrong text"
        if self.stateless and result.result_type != "complete":
            return "no resultType"
        return OK


class ToolLists:
    """``tools/list``, each answer compared byte for byte with the first, apart from its id."""

    def __init__(self, host: str, path: str, mode: Mode, session_id: str | None) -> None:
        meta = f',"params":{{"_meta":{STATELESS_META}}}' if mode == "stateless" else ""
        body = '{"jsonrpc":"2.0","id":%d,"method":"tools/list"META}'.replace("META", meta)
        length = len(body % FIRST_ID)
        head = post_head(host, path, mode_headers(mode, session_id, "tools/list"), length)
        self.template = head.replace(b"%", b"%%") + body.encode()
        self.before: bytes | None = None
        self.after = b""

    def request(self, number: int) -> bytes:
        return self.template % number

    def expected(self, number: int) -> tuple[bytes, ...] | None:
        if self.before is None:
            return None
        return self.before, b"%d" % number, self.after

    def learn(self, number: int, body: bytes) -> str:
        """The first answer is decoded whole; the others must then be the same bytes."""
        try:
            message = msgspec.json.decode(body, type=ListAnswer)
        except msgspec.DecodeError:
            return "not a tools/list answer"
        if message.id != number:
            return "wrong id"
        before, _, after = body.partition(b"%d" % number)
        self.before, self.after = before, after
        return OK


class ListedTool(msgspec.Struct):
    name: str
    input_schema: msgspec.Raw = msgspec.field(name="inputSchema")


class ListResult(msgspec.Struct):
    tools: list[ListedTool]
    next_cursor: str | None = msgspec.field(name="nextCursor", default=None)


class ListAnswer(msgspec.Struct):
    id: int
    result: ListResult


class StaticFile:
    """``GET`` of one file, every answer compared with the first."""

    def __init__(self, host: str, path: str) -> None:
        self.bytes = f"GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\n\r\n".encode()
        self.body: bytes | None = None

    def request(self, number: int) -> bytes:
        return self.bytes

    def expected(self, number: int) -> tuple[bytes, ...] | None:
        return None if self.body is None else (self.body,)

    def learn(self, number: int, body: bytes) -> str:
        self.body = body
        return OK
