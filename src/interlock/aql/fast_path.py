"""The fast path of common requests: an operation with flat parameters that are those of its tool,
answered with text or structured content.

Whatever is out of the ordinary in any way takes the long way (`stage.py`, `response_writer.py`),
and means the same there. So this decides nothing: it only knows when there is nothing to decide.

What it remembers belongs to one snapshot of the catalog and one config, and is of operations only:
nothing of whoever called them.
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

MOST: Final = 4 * 1024
"""Bytes of a request. Longer ones are held against every limit."""
MOST_ANSWERED: Final = 64 * 1024
_MOST_FACES: Final = 64
_MOST_OPERATIONS: Final = 10_000
"""Of one endpoint. There are as many spellings as operations, or a few more."""
_LARGEST: Final = 10**15 - 1
"""An integer of more digits may be more than every reader of JSON can keep."""
_BEGINS: Final = b'{"operation":"'
_BETWEEN: Final = b'","params":{'
_ONE_TEXT: Final = b'[{"type":"text","text":"'
_BROKEN: Final = frozenset({"number", "any"})
"""Types of parameters that may be numbers with a fraction."""
_NESTED: Final = frozenset({"object", "array", "any"})
_SESSION: Final = Era.SESSION
_SESSION_BEGINS: Final = b'{"content":[{"type":"text","text":"'
_SESSION_FIRST: Final = len(_SESSION_BEGINS)
_STATELESS_BEGINS: Final = b'{"resultType":"complete","content":[{"type":"text","text":"'
_STATELESS_FIRST: Final = len(_STATELESS_BEGINS)
_ENDS: Final = b'"}]}'
_DATA: Final = b'{"success":true,"data":%b}'
_PROSE: Final = b'{"success":true,"data":{"content":[{"type":"text","text":"%b"}]}}'
_TELLING: Final = re.compile(rb'"structuredContent"|"type":')
"""What there is more to a result than one text."""
_TEXT: Final = b'"content":[{"type":"text","text":%b}]}'
_BOTH: Final = b'"content":[{"type":"text","text":%b}],"structuredContent":%b}'
_STATELESS: Final = b'"resultType":"complete",'
_SESSION_GLANCE: Final = ResultSummary()
_STATELESS_GLANCE: Final = ResultSummary(result_type=COMPLETE)
UNSTRUCTURED: Final = frozenset({"2024-11-05", "2025-03-26"})
"""Revisions of the session wire that do not know structured content."""
_MAYBE_JSON: Final = b'{[ \\"'
# One byte is looked for by its number: for `b"{" in` an exception is made and dropped first.
_OBJECT: Final = ord("{")
_OBJECT_ENDS: Final = ord("}")
_ARRAY: Final = ord("[")
_ESCAPES: Final = ord("\\")
_QUOTE: Final = ord('"')


class _Result(msgspec.Struct):
    content: Raw | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET


_Whole = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)]
_read_whole: Final = msgspec.json.Decoder(dict[str, str | _Whole | bool | None]).decode
_read_broken: Final = msgspec.json.Decoder(dict[str, str | _Whole | float | bool | None]).decode
_read_result = msgspec.json.Decoder(_Result).decode
_encode = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FastPathEntry:
    """An operation by one endpoint of one face, as far as that is always the same."""

    __slots__ = (
        "_broken",
        "_required",
        "canonical",
        "family",
        "first",
        "is_valid",
        "least",
        "names",
        "nests",
        "operation",
        "particular",
        "read",
        "tool",
    )

    def __init__(self, asked: AqlRequest, tool: Tool, canonical: str, first: int) -> None:
        signature = asked.operation.signature
        validator, insists = get_validator(tool)
        self.operation: Operation = asked.operation
        self.family: EndpointFamily | None = asked.family
        self.tool = tool
        self.canonical = canonical
        self.first = first
        """Where its parameters begin in a request."""
        self.is_valid: Callable[[Any], bool] = validator.is_valid
        self.names = signature.names
        self.least = len(insists) if insists <= signature.names else -1
        """So many that are valid are those that the validator asks for, and no others."""
        self._required = signature.required - insists
        """What is to be given, and the validator does not ask for."""
        self._broken = any(one.type in _BROKEN for one in signature.parameters)
        """Whether there may be numbers with a fraction."""
        self.nests = any(one.type in _NESTED for one in signature.parameters)
        """Whether there may be objects and arrays. To find them in what was read costs more."""
        self.particular = self._broken or bool(self._required)
        """Whether `suits` has to be asked."""
        self.read = _read_broken if self._broken else _read_whole

    def suits(self, given: dict[str, Any], params: bytes) -> bool:
        return self._required <= given.keys() and not (self._broken and has_long_number(params))


FastPathTable = dict[str, dict[bytes, FastPathEntry]]
"""By endpoint, and by how a request begins."""


class FastPath:
    """The operations that can be called by the fast path, until the operation catalog changes."""

    def __init__(self) -> None:
        self._faces: dict[int, tuple[OperationView, FastPathTable]] = {}
        self._face: OperationView | None = None
        self._known: FastPathTable = {}
        """Of that face, which was asked for last."""

    def forget(self) -> None:
        self._faces.clear()
        self._face, self._known = None, {}

    def remember(
        self, call: Call, endpoint: str, asked: AqlRequest, spelled: str, tool: Tool
    ) -> None:
        """A call was made the long way, as an ordinary one: the next one need not be.

        `tool`: what its name means in the catalog that all this is true for."""
        signature = asked.operation.signature
        if not signature.same or asked.operation.native is not None or tool.effect.choices:
            return
        face = asked.face
        known = self._faces.get(id(face))
        if known is None or known[0] is not face:
            if len(self._faces) >= _MOST_FACES:
                self.forget()
            known = self._faces[id(face)] = (face, {})
        operations = known[1].setdefault(endpoint, {})
        begins = _BEGINS + spelled.encode()
        # What begins with an underscore is never a parameter, wherever it stands.
        if begins in operations or any(name[:1] == "_" for name in signature.names):
            return
        if len(operations) >= _MOST_OPERATIONS:
            operations.clear()
        ready = FastPathEntry(asked, tool, call.name, len(begins) + len(_BETWEEN) - 1)
        # The long way measures the work of its validator first.
        if tool.unmeasured >= MOST:
            operations[begins] = ready

    def _turn_to(self, face: OperationView) -> FastPathTable:
        found = self._faces.get(id(face))
        if found is None or found[0] is not face:
            return {}
        self._face, self._known = found
        return self._known

    def take(self, call: Call, face: OperationView) -> bool:
        """Make it a call of its tool, whose arguments fit. False: it is for the long way to say
        what it is, and nothing was done."""
        known = self._known if face is self._face else self._turn_to(face)
        operations = known.get(call.name)
        if operations is None:
            return False
        # Quicker than `bytes`, which first looks for a method.
        raw = b"" + call.arguments
        if len(raw) > MOST:
            return False
        # As programs write it: {"operation":"NAME","params":{…}}.
        named, _, rest = raw.partition(_BETWEEN)
        ready = operations.get(named)
        if (
            ready is None
            or raw[-1] != _OBJECT_ENDS
            # Flat, and text that nobody could be misled by: the rest is held against the limits.
            or (ready.nests and (_OBJECT in rest or _ARRAY in rest))
            or (_ESCAPES in rest and rest.partition(b"\\u")[1])
        ):
            return False
        params = raw[ready.first : -1]
        # Out of their slots: to call them there costs more.
        read, is_valid = ready.read, ready.is_valid
        try:
            given = read(params)
        except _UNREADABLE:
            return False
        if (
            not is_valid(given)
            or (len(given) != ready.least and not ready.names.issuperset(given))
            or (ready.particular and not ready.suits(given, params))
        ):
            return False
        if call.header_params is not None:
            # An endpoint has no headers of its own that could say what its arguments say.
            call.header_params = None
        tool = ready.tool
        call.name = ready.canonical
        call.arguments = params
        call.operation_request = AqlRequest(ready.operation, face, ready.family, ordinary=True)
        call.route = tool
        call.upstream = tool.upstream
        call.effect = tool.effect_name
        call.is_retryable = tool.repeatable
        call.decoded_arguments = given
        return True


def _answers(head: bytes) -> tuple[bytes, bytes]:
    """How results are written that hold one prose: as text alone, and as text and data."""
    text = _encode(_PROSE.decode())
    return head + _TEXT % text, head + _BOTH % (text, _PROSE)


_SESSION_TEXT, _SESSION_BOTH = _answers(b"{")
_STATELESS_TEXT, _STATELESS_BOTH = _answers(b"{" + _STATELESS)


def told(call: Call, outcome: Outcome, glance: ResultSummary, structured: bool) -> Outcome | None:
    """The answer to an ordinary call that came to an ordinary result. None: one of them is not.

    `glance`: of a result that does not say that something failed."""
    asked = call.operation_request
    if (
        type(asked) is not AqlRequest
        or not asked.ordinary
        or asked.warnings
        or (glance.result_type and glance.result_type != COMPLETE)
    ):
        return None
    result = outcome.result
    if len(result) > MOST_ANSWERED:
        return None
    client = call.client
    era = client.era
    if structured and client.revision in UNSTRUCTURED:
        structured = False
    if outcome.era is _SESSION:
        said = result[_SESSION_FIRST:-4]
        whole = _SESSION_BEGINS + said + _ENDS
    else:
        said = result[_STATELESS_FIRST:-4]
        whole = _STATELESS_BEGINS + said + _ENDS
    if (
        whole == result
        and said
        and _ESCAPES not in said
        and _QUOTE not in said
        and said[0] not in _MAYBE_JSON
        and (said.isascii() or _is_text(said))
    ):
        # One text that is no JSON, and reads the same in a text within a text.
        if era is _SESSION:
            if structured:
                return Outcome(_SESSION_BOTH % (said, said), era, _SESSION_GLANCE)
            return Outcome(_SESSION_TEXT % said, era, _SESSION_GLANCE)
        if structured:
            return Outcome(_STATELESS_BOTH % (said, said), era, _STATELESS_GLANCE)
        return Outcome(_STATELESS_TEXT % said, era, _STATELESS_GLANCE)
    written = _prose(outcome) or _structured(result)
    if written is None:
        return None
    text = _encode(written.decode())
    answer = _BOTH % (text, written) if structured else _TEXT % text
    if era is _SESSION:
        return Outcome(b"{" + answer, era, _SESSION_GLANCE)
    return Outcome(b"{" + _STATELESS + answer, era, _STATELESS_GLANCE)


def _prose(outcome: Outcome) -> bytes | None:
    """The answer to one block of text, and of text that is no JSON: its content is the data."""
    result = outcome.result
    begins = _SESSION_BEGINS if outcome.era is _SESSION else _STATELESS_BEGINS
    first = len(begins)
    # The text ends at the first quote, and the block with it: nothing may stand between.
    said, quote, tail = result[first:].partition(b'"')
    if (
        result[:first] == begins
        and quote
        and tail[:2] == b"}]"
        and said
        and said[0] not in _MAYBE_JSON
        and said[-1] != _ESCAPES
        and not _TELLING.search(tail)
        and (result.isascii() or _is_text(result))
    ):
        return _PROSE % said
    return None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _structured(result: bytes) -> bytes | None:
    """The answer to a result with structured content that has nothing but text beside it."""
    try:
        if not result.isascii():
            result.decode()
        found = _read_result(result)
    except _UNREADABLE:
        return None
    content = b"[]" if found.content is UNSET else bytes(found.content)
    one_text = content.startswith(_ONE_TEXT) and content.count(b'"type":') == 1
    if found.structuredContent is UNSET or not (one_text or content == b"[]"):
        return None
    data = bytes(found.structuredContent)
    return None if data == b"null" else _DATA % data
