"""The short way of requests that are like nearly all others: an operation with flat parameters that
are its tool's own, answered with text or structured content.

Whatever is out of the ordinary in any way takes the long way (`stage.py`, `told.py`), and means
the same there. So this decides nothing: it only knows when there is nothing to decide.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.call import Call, Outcome
from interlock.catalog.aql.operation import Operation
from interlock.pipeline.aql.asking import Asked
from interlock.protocol.aql.words import Face, Family
from interlock.protocol.mcp import COMPLETE, Era, ResultGlance

MOST: Final = 4 * 1024
"""Bytes of a request. Longer ones are held against every limit."""
LONGEST_NUMBER: Final = 15
"""Characters. One of more may be more than every reader of JSON can keep."""
MOST_ANSWERED: Final = 64 * 1024
_MOST_FACES: Final = 64
_BEGINS: Final = b'{"operation":"'
_NAMED: Final = len(_BEGINS)
_BETWEEN: Final = b'","params":'
_ONE_TEXT: Final = b'[{"type":"text","text":"'
_NO_NUMBERS: Final = frozenset({"string", "boolean"})
_SESSION: Final = Era.SESSION
_SESSION_BEGINS: Final = b'{"content":[{"type":"text","text":"'
_STATELESS_BEGINS: Final = b'{"resultType":"complete","content":[{"type":"text","text":"'
_PROSE: Final = b'{"success":true,"data":{"content":[{"type":"text","text":"'
_NOTHING_MORE: Final = len(b"}]}")
_TELLING: Final = re.compile(rb'"structuredContent"|"type":')
"""What there is more to a result than one text."""
_SESSION_HEAD: Final = (b"{", ResultGlance())
_STATELESS_HEAD: Final = (b'{"resultType":"complete",', ResultGlance(result_type=COMPLETE))
UNSTRUCTURED: Final = frozenset({"2024-11-05", "2025-03-26"})
"""Revisions of the session wire that do not know structured content."""
_MAYBE_JSON: Final = b'{[ \\"'
_ESCAPES: Final = ord("\\")
_ORDINARY: Final = ("", COMPLETE)


class _Result(msgspec.Struct):
    content: Raw | UnsetType = UNSET
    structuredContent: Raw | UnsetType = UNSET


_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_result = msgspec.json.Decoder(_Result).decode
_encode = msgspec.json.Encoder().encode
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Ready(NamedTuple):
    """An operation by one endpoint of one face, as far as that is always the same."""

    operation: Operation
    family: Family | None
    canonical: str
    names: frozenset[str]
    required: frozenset[str]
    numbers: tuple[str, ...]
    """Parameters that may be numbers."""


class Shortcut:
    """Remembers which operations can be called quickly, until the book is another one."""

    def __init__(self) -> None:
        self._faces: dict[int, tuple[Face, dict[tuple[str, bytes], Ready]]] = {}

    def forget(self) -> None:
        self._faces.clear()

    def remember(self, call: Call, endpoint: str, asked: Asked, spelled: str) -> None:
        """A call was made the long way, as an ordinary one: the next one need not be."""
        signature = asked.operation.signature
        if not signature.same or asked.operation.native is not None:
            return
        face = asked.face
        known = self._faces.get(id(face))
        if known is None or known[0] is not face:
            if len(self._faces) >= _MOST_FACES:
                self._faces.clear()
            known = self._faces[id(face)] = (face, {})
        known[1][(endpoint, spelled.encode())] = Ready(
            asked.operation,
            asked.family,
            call.name,
            signature.names,
            signature.required,
            tuple(one.name for one in signature.parameters if one.type not in _NO_NUMBERS),
        )

    def take(self, call: Call, face: Face) -> bool:
        """Make it a call of its tool. False: it is for the long way to say what it is."""
        known = self._faces.get(id(face))
        if known is None or known[0] is not face:
            return False
        raw = bytes(call.arguments)
        # As programs write it: {"operation":"NAME","params":{…}}. Bytes are taken apart by
        # `partition`, which is three times quicker than `find`, `count` and `in`.
        named, between, rest = raw.partition(_BETWEEN)
        if not between or named[:_NAMED] != _BEGINS or len(raw) > MOST:
            return False
        ready = known[1].get((call.name, named[_NAMED:]))
        if ready is None or rest[-2:] != b"}}":
            return False
        params = rest[:-1]
        # Flat, and nothing beside parameters: the rest is held against what the config says.
        if (
            params.rpartition(b"{")[0]
            or params.partition(b'"_')[1]
            or params.partition(b"\\u")[1]
            or params.partition(b"[")[1]
        ):
            return False
        try:
            if not params.isascii():
                params.decode()
            given = _members(params)
        except _UNREADABLE:
            return False
        keys = given.keys()
        # As many keys as were written: none twice.
        if len(params.split(b'":')) - 1 != len(given) or not (
            keys <= ready.names and ready.required <= keys
        ):
            return False
        for name in ready.numbers:
            number = given.get(name)
            if number is not None and len(bytes(number)) > LONGEST_NUMBER:
                return False
        call.header_params = None
        call.name = ready.canonical
        call.arguments = params
        call.asked = asked = Asked(ready.operation, face, ready.family)
        asked.ordinary = True
        return True


def told(call: Call, outcome: Outcome, structured: bool) -> Outcome | None:
    """The answer to an ordinary call that came to an ordinary result. None: one of them is not."""
    asked = call.asked
    glance = outcome.glance
    if (
        type(asked) is not Asked
        or not asked.ordinary
        or asked.warnings
        or glance is None
        or glance.is_error
        or glance.result_type not in _ORDINARY
    ):
        return None
    result = outcome.result
    if len(result) > MOST_ANSWERED:
        return None
    client = call.client
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
        and (len(tail) == _NOTHING_MORE or not _TELLING.search(tail))
        and (result.isascii() or _is_text(result))
    ):
        # One block of text, and of text that is no JSON: its content is the data, as it is.
        written = _PROSE + said + b'"}]}}'
    else:
        found = _structured(result)
        if found is None:
            return None
        written = b'{"success":true,"data":%b}' % found
    text = _encode(written.decode())
    head, glance = _SESSION_HEAD if client.era is _SESSION else _STATELESS_HEAD
    if structured and client.revision not in UNSTRUCTURED:
        answer = b'%b"content":[{"type":"text","text":%b}],"structuredContent":%b}'
        return Outcome(answer % (head, text, written), client.era, glance)
    return Outcome(b'%b"content":[{"type":"text","text":%b}]}' % (head, text), client.era, glance)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _structured(result: bytes) -> bytes | None:
    """The structured content of a result that has nothing but text beside it."""
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
    return None if data == b"null" else data
