"""The fast path for common requests: operations with flat parameters that are the tool's own, and
results with text or structured content.

All other requests take the general path (`stage.py`, `response_writer.py`), with the same outcome.
The fast path makes no decisions: it only recognizes requests that need none.

The cached entries belong to one catalog snapshot and one config. They describe operations and
contain nothing about callers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from interlock.aql.language.limits import has_long_number
from interlock.aql.operations import Operation
from interlock.aql.request import AqlRequest
from interlock.core.call import Call, Outcome
from interlock.core.catalog.offering import Tool
from interlock.core.pipeline.validation import get_validator
from interlock.protocol.aql_terms import EndpointFamily, OperationView
from interlock.protocol.mcp import COMPLETE, Era, ResultSummary

MAX_REQUEST_BYTES: Final = 4 * 1024
"""Bytes. Longer requests are checked against every limit on the general path."""
MAX_RESULT_BYTES: Final = 64 * 1024
"""Bytes. Longer results take the general path."""
_MAX_VIEWS: Final = 64
_MAX_OPERATIONS: Final = 10_000
"""Per endpoint. There are about as many spellings as operations."""
_MAX_INTEGER: Final = 10**15 - 1
"""Integers with more digits can exceed what every JSON reader represents exactly."""
_REQUEST_HEAD: Final = b'{"operation":"'
_PARAMS_HEAD: Final = b'","params":{'
_SINGLE_TEXT: Final = b'[{"type":"text","text":"'
_FRACTIONAL_TYPES: Final = frozenset({"number", "any"})
"""Types of parameters that may be fractional numbers."""
_NESTED_TYPES: Final = frozenset({"object", "array", "any"})
_SESSION: Final = Era.SESSION
_SESSION_HEAD: Final = b'{"content":[{"type":"text","text":"'
_SESSION_HEAD_LENGTH: Final = len(_SESSION_HEAD)
_STATELESS_HEAD: Final = b'{"resultType":"complete","content":[{"type":"text","text":"'
_STATELESS_HEAD_LENGTH: Final = len(_STATELESS_HEAD)
_RESULT_TAIL: Final = b'"}]}'
_DATA_ENVELOPE: Final = b'{"success":true,"data":%b}'
_TEXT_ENVELOPE: Final = b'{"success":true,"data":{"content":[{"type":"text","text":"%b"}]}}'
_OTHER_CONTENT: Final = re.compile(rb'"structuredContent"|"type":')
"""Parts of a result that show that it is more than a single text."""
_TEXT_RESULT: Final = b'"content":[{"type":"text","text":%b}]}'
_TEXT_AND_DATA_RESULT: Final = b'"content":[{"type":"text","text":%b}],"structuredContent":%b}'
_STATELESS: Final = b'"resultType":"complete",'
_SESSION_GLANCE: Final = ResultSummary()
_STATELESS_GLANCE: Final = ResultSummary(result_type=COMPLETE)
UNSTRUCTURED: Final = frozenset({"2024-11-05", "2025-03-26"})
"""Revisions of the session protocol without structured content."""
_JSON_STARTS: Final = b'{[ \\"'
# Single bytes are searched by number: `b"{" in` first raises and drops an exception inside CPython.
_OBJECT: Final = ord("{")
_OBJECT_END: Final = ord("}")
_ARRAY: Final = ord("[")
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')


class _Result(msgspec.Struct):
    content: Raw | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET


_SafeInteger = Annotated[int, Meta(ge=-_MAX_INTEGER, le=_MAX_INTEGER)]
_read_integers: Final = msgspec.json.Decoder(dict[str, str | _SafeInteger | bool | None]).decode
_read_numbers: Final = msgspec.json.Decoder(
    dict[str, str | _SafeInteger | float | bool | None]
).decode
_read_result = msgspec.json.Decoder(_Result).decode
_encode = msgspec.json.Encoder().encode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FastPathEntry:
    """The constant part of requests for one operation through one endpoint of one view."""

    __slots__ = (
        "_has_fractions",
        "_required",
        "canonical",
        "exact_count",
        "family",
        "has_nested",
        "is_valid",
        "names",
        "needs_check",
        "operation",
        "params_offset",
        "read",
        "tool",
    )

    def __init__(self, request: AqlRequest, tool: Tool, canonical: str, params_offset: int) -> None:
        signature = request.operation.signature
        validator, schema_required = get_validator(tool)
        self.operation: Operation = request.operation
        self.family: EndpointFamily | None = request.family
        self.tool = tool
        self.canonical = canonical
        self.params_offset = params_offset
        """Offset of the parameters in a request."""
        self.is_valid: Callable[[Any], bool] = validator.is_valid
        self.names = signature.names
        self.exact_count = len(schema_required) if schema_required <= signature.names else -1
        """The number of parameters if they are exactly those that the schema requires. -1:
        other."""
        self._required = signature.required - schema_required
        """Required parameters that the schema does not require."""
        self._has_fractions = any(
            parameter.type in _FRACTIONAL_TYPES for parameter in signature.parameters
        )
        """True if a parameter may be a fractional number."""
        self.has_nested = any(parameter.type in _NESTED_TYPES for parameter in signature.parameters)
        """True if a parameter may be an object or array. Searching parsed values costs more."""
        self.needs_check = self._has_fractions or bool(self._required)
        """True if `passes_extra_checks` must be called."""
        self.read = _read_numbers if self._has_fractions else _read_integers

    def passes_extra_checks(self, arguments: dict[str, Any], params: bytes) -> bool:
        return self._required <= arguments.keys() and not (
            self._has_fractions and has_long_number(params)
        )


FastPathTable = dict[str, dict[bytes, FastPathEntry]]
"""Entries by endpoint, and by the beginning of the request."""


class FastPath:
    """The operations that the fast path can call, until the operation catalog changes."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[OperationView, FastPathTable]] = {}
        self._view: OperationView | None = None
        self._table: FastPathTable = {}
        """The table of the view that was used last."""

    def clear(self) -> None:
        self._tables.clear()
        self._view, self._table = None, {}

    def add(
        self, call: Call, endpoint: str, request: AqlRequest, spelled_name: str, tool: Tool
    ) -> None:
        """Store an ordinary call that took the general path, so that the next one can take the fast
        path.

        Args:
            tool: the tool of this name in the catalog that the entry is valid for.
        """
        signature = request.operation.signature
        if (
            not signature.is_unchanged
            or request.operation.builtin is not None
            or tool.effect.choices
        ):
            return
        operation_view = request.operation_view
        table = self._tables.get(id(operation_view))
        if table is None or table[0] is not operation_view:
            if len(self._tables) >= _MAX_VIEWS:
                self.clear()
            table = self._tables[id(operation_view)] = (operation_view, {})
        operations = table[1].setdefault(endpoint, {})
        head = _REQUEST_HEAD + spelled_name.encode()
        # Names with a leading underscore are never parameters.
        if head in operations or any(name[:1] == "_" for name in signature.names):
            return
        if len(operations) >= _MAX_OPERATIONS:
            operations.clear()
        entry = FastPathEntry(request, tool, call.name, len(head) + len(_PARAMS_HEAD) - 1)
        # The general path measures the cost of the validator first.
        if tool.unmeasured >= MAX_REQUEST_BYTES:
            operations[head] = entry

    def _switch_view(self, operation_view: OperationView) -> FastPathTable:
        cached = self._tables.get(id(operation_view))
        if cached is None or cached[0] is not operation_view:
            return {}
        self._view, self._table = cached
        return self._table

    def resolve_operation(self, call: Call, operation_view: OperationView) -> bool:
        """Turn an AQL request into a call of its tool with valid arguments.

        Returns:
            False if the request needs the general path. The call is unchanged then.
        """
        table = self._table if operation_view is self._view else self._switch_view(operation_view)
        operations = table.get(call.name)
        if operations is None:
            return False
        # Faster than `bytes`, which first looks for a method.
        body = b"" + call.arguments
        if len(body) > MAX_REQUEST_BYTES:
            return False
        # Programs write {"operation":"NAME","params":{…}}.
        head, _, params_text = body.partition(_PARAMS_HEAD)
        entry = operations.get(head)
        if (
            entry is None
            or body[-1] != _OBJECT_END
            # Only flat parameters without escapes. Others are checked against all limits on the
            # general path.
            or (entry.has_nested and (_OBJECT in params_text or _ARRAY in params_text))
            or (_BACKSLASH in params_text and params_text.partition(b"\\u")[1])
        ):
            return False
        params = body[entry.params_offset : -1]
        # Local variables: calling slots costs more.
        read, is_valid = entry.read, entry.is_valid
        try:
            arguments = read(params)
        except _DECODE_ERRORS:
            return False
        if (
            not is_valid(arguments)
            or (len(arguments) != entry.exact_count and not entry.names.issuperset(arguments))
            or (entry.needs_check and not entry.passes_extra_checks(arguments, params))
        ):
            return False
        if call.header_params is not None:
            # An endpoint has no parameter headers, so the headers cannot contradict its arguments.
            call.header_params = None
        tool = entry.tool
        call.name = entry.canonical
        call.arguments = params
        call.operation_request = AqlRequest(
            entry.operation, operation_view, entry.family, ordinary=True
        )
        call.route = tool
        call.upstream = tool.upstream
        call.effect = tool.effect_name
        call.is_retryable = tool.repeatable
        call.decoded_arguments = arguments
        return True


def _single_text_templates(head: bytes) -> tuple[bytes, bytes]:
    """Return the templates of a result with one text: as text only, and as text with structured
    data.
    """
    text = _encode(_TEXT_ENVELOPE.decode())
    return head + _TEXT_RESULT % text, head + _TEXT_AND_DATA_RESULT % (text, _TEXT_ENVELOPE)


_SESSION_TEXT, _SESSION_BOTH = _single_text_templates(b"{")
_STATELESS_TEXT, _STATELESS_BOTH = _single_text_templates(b"{" + _STATELESS)


def write_fast_response(
    call: Call, outcome: Outcome, glance: ResultSummary, structured: bool
) -> Outcome | None:
    """Return the response to an ordinary call with an ordinary result. None: use the general path.

    Args:
        glance: the glance at a result that is no error.
    """
    request = call.operation_request
    if (
        type(request) is not AqlRequest
        or not request.ordinary
        or request.warnings
        or (glance.result_type and glance.result_type != COMPLETE)
    ):
        return None
    result = outcome.result
    if len(result) > MAX_RESULT_BYTES:
        return None
    client = call.client
    era = client.era
    if structured and client.revision in UNSTRUCTURED:
        structured = False
    if outcome.era is _SESSION:
        text_bytes = result[_SESSION_HEAD_LENGTH:-4]
        expected = _SESSION_HEAD + text_bytes + _RESULT_TAIL
    else:
        text_bytes = result[_STATELESS_HEAD_LENGTH:-4]
        expected = _STATELESS_HEAD + text_bytes + _RESULT_TAIL
    if (
        expected == result
        and text_bytes
        and _BACKSLASH not in text_bytes
        and _QUOTE not in text_bytes
        and text_bytes[0] not in _JSON_STARTS
        and (text_bytes.isascii() or _is_text(text_bytes))
    ):
        # A single text that is not JSON and needs no escaping inside another text.
        if era is _SESSION:
            if structured:
                return Outcome(_SESSION_BOTH % (text_bytes, text_bytes), era, _SESSION_GLANCE)
            return Outcome(_SESSION_TEXT % text_bytes, era, _SESSION_GLANCE)
        if structured:
            return Outcome(_STATELESS_BOTH % (text_bytes, text_bytes), era, _STATELESS_GLANCE)
        return Outcome(_STATELESS_TEXT % text_bytes, era, _STATELESS_GLANCE)
    envelope = _wrap_text(outcome) or _wrap_structured(result)
    if envelope is None:
        return None
    text = _encode(envelope.decode())
    members = _TEXT_AND_DATA_RESULT % (text, envelope) if structured else _TEXT_RESULT % text
    if era is _SESSION:
        return Outcome(b"{" + members, era, _SESSION_GLANCE)
    return Outcome(b"{" + _STATELESS + members, era, _STATELESS_GLANCE)


def _wrap_text(outcome: Outcome) -> bytes | None:
    """Return the envelope for a result with a single text block that is not JSON."""
    result = outcome.result
    head = _SESSION_HEAD if outcome.era is _SESSION else _STATELESS_HEAD
    head_length = len(head)
    # The text ends at the first quote, and the block must end there too.
    text_bytes, quote, tail = result[head_length:].partition(b'"')
    if (
        result[:head_length] == head
        and quote
        and tail[:2] == b"}]"
        and text_bytes
        and text_bytes[0] not in _JSON_STARTS
        and text_bytes[-1] != _BACKSLASH
        and not _OTHER_CONTENT.search(tail)
        and (result.isascii() or _is_text(result))
    ):
        return _TEXT_ENVELOPE % text_bytes
    return None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _wrap_structured(result: bytes) -> bytes | None:
    """Return the envelope for a result with structured content and at most one text block."""
    try:
        if not result.isascii():
            result.decode()
        parsed = _read_result(result)
    except _DECODE_ERRORS:
        return None
    content = b"[]" if parsed.content is UNSET else bytes(parsed.content)
    has_single_text = content.startswith(_SINGLE_TEXT) and content.count(b'"type":') == 1
    if parsed.structuredContent is UNSET or not (has_single_text or content == b"[]"):
        return None
    data = bytes(parsed.structuredContent)
    return None if data == b"null" else _DATA_ENVELOPE % data
