"""The response envelope, `{success, data}` or `{success, error}`, and the MCP result around it.

What an upstream said is spliced in as it came. Whoever looks at an answer can rely on its bytes:
`success` stands first, and the same input makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.protocol.mcp import Era

ErrorPolicy = Literal["aql", "mcp"]

RECOVERABLE: Final = (
    "VALIDATION_", "NOT_FOUND_", "PERMISSION_", "CONFLICT_", "RATE_LIMIT_", "TOKEN_",
    "BATCH_VALIDATION_ERROR", "INVALID_QUERY_TYPE", "CONFIRMATION_REQUIRED",
)  # fmt: skip
"""How codes begin that a model can do something about by itself."""

NULL: Final = b"null"
_encode: Final = msgspec.json.Encoder().encode
_decode_text: Final = msgspec.json.Decoder(str).decode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Result(msgspec.Struct, gc=False):
    """What the node looks for in a result of `tools/call`."""

    content: list[Raw] | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET
    isError: bool = False


class _Block(msgspec.Struct, gc=False):
    """What it looks for in a block of content."""

    type: str = ""
    text: Raw | UnsetType = UNSET
    mimeType: str | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


_decode_result: Final = msgspec.json.Decoder(_Result).decode
_decode_block: Final = msgspec.json.Decoder(_Block).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode


def is_error(code: str, policy: ErrorPolicy = "aql") -> bool:
    """Whether a failure is marked as an error of MCP, too."""
    return policy == "mcp" or not code.startswith(RECOVERABLE)


# -- answers


def success(
    data: bytes | Raw, warnings: Sequence[Any] = (), meta: dict[str, Any] | None = None
) -> bytes:
    """`data` is JSON. Warnings stand in the order in which they come."""
    if not warnings and meta is None:
        return b'{"success":true,"data":%b}' % data
    return b'{"success":true,"data":%b%b}' % (data, _beside(warnings, meta))


def failure(code: str, message: str, details: Any = None) -> bytes:
    """No details: there is nothing to add to the sentence. A failure has nothing beside it."""
    error: dict[str, Any] = {"code": code, "message": message}
    if details:
        error["details"] = details
    return b'{"success":false,"error":%b}' % _encode(error)


def _beside(warnings: Sequence[Any], meta: dict[str, Any] | None) -> bytes:
    members = b""
    if warnings:
        members = b',"warnings":' + _encode(list(warnings))
    if meta is not None:
        members += b',"_meta":' + _encode(meta)
    return members


def request_meta(request_id: str, duration_ms: float) -> dict[str, Any]:
    """What is said of a request that named itself."""
    return {"request_id": request_id, "duration_ms": round(duration_ms, 3)}


# -- batches


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """The result of one operation of a batch."""

    index: int
    operation: str
    result: bytes
    """Its answer."""
    status: str = ""
    """`pending_confirmation`, where a batch goes on without it."""

    @property
    def succeeded(self) -> bool:
        return self.result.startswith(b'{"success":true')


class BatchHalt(msgspec.Struct, frozen=True, gc=False):
    """Where a batch stopped, because a human has to confirm something first."""

    at: BatchItem
    pending: Sequence[bytes | Raw]
    """The operations behind it, as they were sent, so that they can be sent again."""


def batch(
    items: Sequence[BatchItem],
    *,
    total: int,
    halt: BatchHalt | None = None,
    warnings: Sequence[Any] = (),
    meta: dict[str, Any] | None = None,
) -> bytes:
    """The answer to a batch that was worked through, or as far as it went."""
    waiting = sum(1 for one in items if one.status)
    succeeded = sum(1 for one in items if not one.status and one.succeeded)
    summary = {
        "total": total,
        "succeeded": succeeded,
        "failed": len(items) - succeeded - waiting,
    }
    if waiting:
        summary["pending_confirmation"] = waiting
    halted = b""
    if halt is not None:
        summary |= {"halted": 1, "pending": len(halt.pending)}
        halted = b',"halted_at":%b,"pending_operations":[%b]' % (
            _item(halt.at),
            b",".join(bytes(one) for one in halt.pending),
        )
    return b'{"success":true,"data":null,"results":[%b],"summary":%b%b%b}' % (
        b",".join(map(_item, items)),
        _encode(summary),
        halted,
        _beside(warnings, meta),
    )


class _Summary(msgspec.Struct, gc=False):
    succeeded: int


class _BatchAnswer(msgspec.Struct, gc=False):
    summary: _Summary


def any_succeeded(answer: bytes) -> bool:
    """Whether an operation of a batch succeeded, by the answer that `batch` wrote."""
    return msgspec.json.decode(answer, type=_BatchAnswer).summary.succeeded > 0


def _item(one: BatchItem) -> bytes:
    status = b',"status":%b' % _encode(one.status) if one.status else b""
    return b'{"index":%d,"operation":%b%b,"result":%b}' % (
        one.index,
        _encode(one.operation),
        status,
        one.result,
    )


# -- as results of MCP


def as_tool_result(
    envelope: bytes,
    *,
    is_error: bool = False,
    structured: bool = True,
    blocks: Iterable[bytes | Raw] = (),
    era: Era = Era.SESSION,
) -> bytes:
    """An answer as the result of `tools/call`. `blocks`: what it refers to, behind the text.

    `structured`: whether the client knows structured content, and wants it.
    """
    first = b'{"type":"text","text":%b}' % _encode(envelope.decode())
    content = b",".join((first, *map(bytes, blocks))) if blocks else first
    head = b'{"resultType":"complete",' if era is Era.STATELESS else b"{"
    parts = [head, b'"content":[', content, b"]"]
    if structured:
        parts += (b',"structuredContent":', envelope)
    if is_error:
        parts.append(b',"isError":true')
    parts.append(b"}")
    return b"".join(parts)


class ResultData(msgspec.Struct, frozen=True, gc=False):
    """The data of an upstream result, as AQL returns it."""

    raw: bytes
    """JSON: its structured content, the JSON that its text is, or `{"content": [...]}`."""
    blocks: list[Raw]
    """What is no text. The data refers to them by number: 0 is the first behind the text."""
    failed: bool
    """Whether the upstream marked it as an error."""
    json: bool
    """Whether there is structure in it, not just prose."""


def data_of(result: bytes | Raw) -> ResultData:
    """The data of a result of `tools/call`. Raises ValueError for one that is none."""
    try:
        raw = bytes(result)
        if not raw.isascii():
            # Raw ranges are skipped, not read: bytes that are not UTF-8 would travel on unseen.
            raw.decode()
        found = _decode_result(raw)
        content = [] if found.content is UNSET else found.content
        if found.structuredContent is not UNSET and _is_some(found.structuredContent):
            return ResultData(
                bytes(found.structuredContent), _without_text(content), found.isError, True
            )
        if len(content) == 1:
            inside = _json_text(content[0])
            if inside is not None:
                return ResultData(inside, [], found.isError, True)
        shown, blocks = _referred(content)
    except _UNREADABLE as exc:
        raise ValueError(f"not the result of a tool: {exc}") from None
    return ResultData(b'{"content":[%b]}' % b",".join(shown), blocks, found.isError, False)


def text_of(result: bytes | Raw, most: int = 4_000) -> str:
    """What the text of a result says, for whoever has to explain it. Empty: nothing readable."""
    try:
        found = _decode_result(result)
        lines = []
        for raw in () if found.content is UNSET else found.content:
            block = _decode_block(raw)
            if block.type == "text" and block.text is not UNSET:
                lines.append(_decode_text(block.text))
    except _UNREADABLE:
        return ""
    return "\n".join(lines)[:most]


def _is_some(raw: Raw) -> bool:
    return bytes(raw) != NULL


def _without_text(content: list[Raw]) -> list[Raw]:
    return [raw for raw in content if _decode_block(raw).type != "text"] if content else content


def _json_text(raw: Raw) -> bytes | None:
    """The object or array that a block of text is. None: it is another block, or prose."""
    block = _decode_block(raw)
    if block.type != "text" or block.text is UNSET:
        return None
    text = _decode_text(block.text).strip()
    if text[:1] not in ("{", "["):
        return None
    inside = text.encode()
    try:
        _decode_raw(inside)
    except _UNREADABLE:
        return None
    return inside


def _referred(content: list[Raw]) -> tuple[list[bytes], list[Raw]]:
    """Blocks as data shows them, and those that are passed on beside it."""
    shown: list[bytes] = []
    blocks: list[Raw] = []
    for raw in content:
        block = _decode_block(raw)
        if block.type == "text":
            shown.append(bytes(raw))
            continue
        reference: dict[str, Any] = {"$block": len(blocks), "type": block.type}
        if block.mimeType is not UNSET:
            reference["mimeType"] = block.mimeType
        if block.type in ("image", "audio"):
            reference["encoding"] = "base64"
        for name, value in (("uri", block.uri), ("name", block.name)):
            if value is not UNSET:
                reference[name] = value
        shown.append(_encode(reference))
        blocks.append(raw)
    return shown, blocks
