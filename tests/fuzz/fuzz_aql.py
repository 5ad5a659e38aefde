"""AQL: any bytes are a request or a fault of AQL, and any result of a tool is data or none."""

from __future__ import annotations

import msgspec

from interlock.aql.config import AqlLimits
from interlock.aql.language import envelope, errors, fields
from interlock.aql.language.collections import CollectionSchema, query_collection
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import (
    BatchRequest,
    SingleRequest,
    find_unreadable_call,
    read_item,
    read_request,
)

SEEDS = [
    b'{"operation":"list_users"}',
    b'{"operation":"get_user","user_id":"a","params":{"user_id":"b"},"_request_id":"r"}',
    b'{"operation":"a","params":{"filter":{"a":{"gte":1}},"sort":{"field":"a","order":"desc"}}}',
    b'{"operation":"a","params":{"first":2,"after":"x","fields":["a.b"],"query":"\\"x y\\" z"}}',
    b'{"operation":"a","params":{"aggregate":{"n":{"group_by":"a","count":true}},"last":1}}',
    b'{"operation":"a","params":{"limit":3,"offset":1,"fields":"minimal","preset":"full"}}',
    b'{"operations":[{"operation":"a"},{"operation":"b","params":{"x":1}},7]}',
    b'{"operations":[],"operation":"a"}',
    b'{"operation":7,"params":[]}',
    b'{"operation":"a","params":{"x":"\\ud800","y":"\\u0000"}}',
    b'{"operation":"a","params":{"x":"\xc0\x80"}}',
    b'{"operation":"a","params":' + b"[" * 40 + b"]" * 40 + b"}",
    b'{"operation":"a","params":{"x":123456789012345678901234567890}}',
    b'{"operation":"a","operation":"b","params":null,"params":{}}',
    b'{"content":[{"type":"text","text":"{\\"a\\":1}"}],"isError":true}',
    b'{"content":[{"type":"image","data":"aGk=","mimeType":"x/y"}],"structuredContent":{"a":[]}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"a":"\xff\\udc00"}}}',
    b'{"content":[{"type":"text","tex\xff":"{}"}]}',
    b"{" * 64_000,
    b"[" * 64_000,
]
LIMITS = AqlLimits(array_elements=100, depth=8)
KIND = CollectionSchema("seeds")
CURSORS = CursorCodec(b"fuzz" * 8)
ROWS = [{"id": number, "a": number % 3, "b": {"c": "x y"}} for number in range(5)]


def TestOneInput(data: bytes) -> None:
    find_unreadable_call(data)
    envelope.text_of(data)
    try:
        found = envelope.data_of(data)
    except ValueError:
        pass
    else:
        msgspec.json.decode(envelope.write_success(found.raw))
    try:
        request = read_request(data, LIMITS)
    except AqlError as error:
        known(error)
        return
    if isinstance(request, BatchRequest):
        assert 0 < len(request.items) <= LIMITS.batch
        for one in request.items:
            try:
                read_item(one, LIMITS)
            except AqlError as error:
                known(error)
        return
    check_single(request)


def known(error: AqlError) -> None:
    assert errors.code_of(error) in errors.FAILURE_BY_CODE
    assert error.message


def check_single(request: SingleRequest) -> None:
    """What was read is all there; and as a question to a collection it is answered or refused."""
    assert request.operation
    assert not any(name.startswith("_") for name in request.params)
    if request.raw_params is not None:
        again = msgspec.json.decode(request.raw_params, type=dict[str, msgspec.Raw])
        assert set(again) == set(request.params)
    try:
        spec = {name: msgspec.json.decode(raw) for name, raw in request.params.items()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    try:
        page = query_collection(ROWS, spec, KIND, CURSORS)
        selection = fields.parse_selection(spec.get("fields"), spec.get("preset"))
        data = page.data(lambda row: fields.apply(row, selection))
    except AqlError as error:
        known(error)
        return
    assert len(page.items) <= len(ROWS)
    msgspec.json.encode(data)
