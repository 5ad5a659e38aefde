"""The response envelope, `{success, data}` or `{success, error}`, and the MCP result around it.

Data of an upstream is inserted unchanged. The bytes are stable: `success` comes first, and equal
input results in equal bytes.
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
"""Prefixes of error codes that a model can recover from."""

NULL: Final = b"null"
_encode: Final = msgspec.json.Encoder().encode
_decode_text: Final = msgspec.json.Decoder(str).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Result(msgspec.Struct, gc=False):
    """The parts of a `tools/call` result that are examined."""

    content: list[Raw] | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET
    isError: bool = False


class _Block(msgspec.Struct, gc=False):
    """The parts of a content block that are examined."""

    type: str = ""
    text: Raw | UnsetType = UNSET
    mimeType: str | UnsetType = UNSET
    uri: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


_decode_result: Final = msgspec.json.Decoder(_Result).decode
_decode_block: Final = msgspec.json.Decoder(_Block).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode


def is_error(code: str, policy: ErrorPolicy = "aql") -> bool:
    """Return whether a failure also sets MCP's `isError`."""
    return policy == "mcp" or not code.startswith(RECOVERABLE)


# -- responses


def write_success(
    data: bytes | Raw, warnings: Sequence[Any] = (), meta: dict[str, Any] | None = None
) -> bytes:
    """Return the envelope of a success. `data` is JSON. The order of warnings is kept."""
    if not warnings and meta is None:
        return b'{"success":true,"data":%b}' % data
    return b'{"success":true,"data":%b%b}' % (data, _optional_members(warnings, meta))


def write_failure(code: str, message: str, details: Any = None) -> bytes:
    """Return the envelope of a failure. Empty details are omitted."""
    error: dict[str, Any] = {"code": code, "message": message}
    if details:
        error["details"] = details
    return b'{"success":false,"error":%b}' % _encode(error)


def _optional_members(warnings: Sequence[Any], meta: dict[str, Any] | None) -> bytes:
    members = b""
    if warnings:
        members = b',"warnings":' + _encode(list(warnings))
    if meta is not None:
        members += b',"_meta":' + _encode(meta)
    return members


def request_meta(request_id: str, duration_ms: float) -> dict[str, Any]:
    """Return the metadata of a request with an id."""
    return {"request_id": request_id, "duration_ms": round(duration_ms, 3)}


# -- batches


class BatchItem(msgspec.Struct, frozen=True, gc=False):
    """The result of one operation of a batch."""

    index: int
    operation: str
    result: bytes
    """The response of the operation."""
    status: str = ""
    """`pending_confirmation` if the batch continues without it, else empty."""

    @property
    def succeeded(self) -> bool:
        return self.result.startswith(b'{"success":true')


class BatchHalt(msgspec.Struct, frozen=True, gc=False):
    """The position where a batch stopped, because an operation needs approval."""

    at: BatchItem
    pending: Sequence[bytes | Raw]
    """The remaining operations as they were sent, so that the client can send them again."""


def write_batch(
    items: Sequence[BatchItem],
    *,
    total: int,
    halt: BatchHalt | None = None,
    warnings: Sequence[Any] = (),
    meta: dict[str, Any] | None = None,
) -> bytes:
    """Return the response of a completed or halted batch."""
    pending_count = sum(1 for item in items if item.status)
    succeeded = sum(1 for item in items if not item.status and item.succeeded)
    summary = {
        "total": total,
        "succeeded": succeeded,
        "failed": len(items) - succeeded - pending_count,
    }
    if pending_count:
        summary["pending_confirmation"] = pending_count
    halted = b""
    if halt is not None:
        summary |= {"halted": 1, "pending": len(halt.pending)}
        halted = b',"halted_at":%b,"pending_operations":[%b]' % (
            _write_item(halt.at),
            b",".join(bytes(item) for item in halt.pending),
        )
    return b'{"success":true,"data":null,"results":[%b],"summary":%b%b%b}' % (
        b",".join(map(_write_item, items)),
        _encode(summary),
        halted,
        _optional_members(warnings, meta),
    )


class _Summary(msgspec.Struct, gc=False):
    succeeded: int


class _BatchResponse(msgspec.Struct, gc=False):
    summary: _Summary


def any_succeeded(response: bytes) -> bool:
    """Return whether any operation of a batch succeeded, from the response that `batch` wrote."""
    return msgspec.json.decode(response, type=_BatchResponse).summary.succeeded > 0


def _write_item(item: BatchItem) -> bytes:
    status = b',"status":%b' % _encode(item.status) if item.status else b""
    return b'{"index":%d,"operation":%b%b,"result":%b}' % (
        item.index,
        _encode(item.operation),
        status,
        item.result,
    )


# -- MCP results


def write_tool_result(
    envelope: bytes,
    *,
    is_error: bool = False,
    structured: bool = True,
    blocks: Iterable[bytes | Raw] = (),
    era: Era = Era.SESSION,
) -> bytes:
    """Return a response as the result of `tools/call`.

    Args:
        structured: True if the client supports structured content and it is enabled.
        blocks: content blocks that the data refers to. They follow the text.
    """
    text_block = b'{"type":"text","text":%b}' % _encode(envelope.decode())
    content = b",".join((text_block, *map(bytes, blocks))) if blocks else text_block
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
    """JSON: the structured content, the text parsed as JSON, or `{"content": [...]}`."""
    blocks: list[Raw]
    """Blocks other than text. The data refers to them by index: 0 is the first after the text."""
    failed: bool
    """True if the upstream marked the result as an error."""
    json: bool
    """True if the data is structured and not only text."""


def data_of(result: bytes | Raw) -> ResultData:
    """Return the data of a `tools/call` result.

    Raises:
        ValueError: It is no valid result.
    """
    try:
        raw = bytes(result)
        if not raw.isascii():
            # Raw ranges are skipped and not validated, so invalid UTF-8 would pass unnoticed.
            raw.decode()
        result_parts = _decode_result(raw)
        content = [] if result_parts.content is UNSET else result_parts.content
        if result_parts.structuredContent is not UNSET and _is_not_null(
            result_parts.structuredContent
        ):
            return ResultData(
                bytes(result_parts.structuredContent),
                _without_text(content),
                result_parts.isError,
                True,
            )
        if len(content) == 1:
            json_data = _json_text(content[0])
            if json_data is not None:
                return ResultData(json_data, [], result_parts.isError, True)
        data_blocks, blocks = _split_blocks(content)
    except _DECODE_ERRORS as exc:
        raise ValueError(f"invalid tool result: {exc}") from None
    return ResultData(
        b'{"content":[%b]}' % b",".join(data_blocks), blocks, result_parts.isError, False
    )


def text_of(result: bytes | Raw, limit: int = 4_000) -> str:
    """Return the text of a result. Empty: there is no readable text."""
    try:
        result_parts = _decode_result(result)
        lines = []
        for raw in () if result_parts.content is UNSET else result_parts.content:
            block = _decode_block(raw)
            if block.type == "text" and block.text is not UNSET:
                lines.append(_decode_text(block.text))
    except _DECODE_ERRORS:
        return ""
    return "\n".join(lines)[:limit]


def _is_not_null(raw: Raw) -> bool:
    return bytes(raw) != NULL


def _without_text(content: list[Raw]) -> list[Raw]:
    return [raw for raw in content if _decode_block(raw).type != "text"] if content else content


def _json_text(raw: Raw) -> bytes | None:
    """Return the JSON object or array in a text block. None: the block has none."""
    block = _decode_block(raw)
    if block.type != "text" or block.text is UNSET:
        return None
    text = _decode_text(block.text).strip()
    if text[:1] not in ("{", "["):
        return None
    json_data = text.encode()
    try:
        _decode_raw(json_data)
    except _DECODE_ERRORS:
        return None
    return json_data


def _split_blocks(content: list[Raw]) -> tuple[list[bytes], list[Raw]]:
    """Return the blocks as data shows them, and the blocks that follow the text."""
    data_blocks: list[bytes] = []
    blocks: list[Raw] = []
    for raw in content:
        block = _decode_block(raw)
        if block.type == "text":
            data_blocks.append(bytes(raw))
            continue
        reference: dict[str, Any] = {"$block": len(blocks), "type": block.type}
        if block.mimeType is not UNSET:
            reference["mimeType"] = block.mimeType
        if block.type in ("image", "audio"):
            reference["encoding"] = "base64"
        for name, value in (("uri", block.uri), ("name", block.name)):
            if value is not UNSET:
                reference[name] = value
        data_blocks.append(_encode(reference))
        blocks.append(raw)
    return data_blocks, blocks
