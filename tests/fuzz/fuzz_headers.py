"""Header rules: what the client's side mirrors, the server's side accepts; all else is refused."""

from __future__ import annotations

import json

from interlock.errors import ProtocolError
from interlock.protocol.headers import (
    check_param_headers,
    check_request_headers,
    decode_header_value,
    encode_header_value,
    read_header_params,
    write_param_headers,
)

SEEDS = [
    b"us-west1",
    b"=?base64?SGVsbG8sIOS4lueVjA==?=",
    b"=?base64?YR==?=",
    b"=?base64?/w==?=",
    b"=?base64?=",
    b" padded ",
    b"caf\xe9\r\n",
    b'[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}},{"a":" \xc3\xa9 "}]',
    b'[{"properties":{"a":{"type":"integer","x-mcp-header":"A"}}},{"a":42.0}]',
    b'[{"properties":{"a":{"type":"integer","x-mcp-header":"A"}}},{"a":1e300}]',
    b'[{"properties":{"a":{"type":"boolean","x-mcp-header":"A"}}},{"a":true}]',
    b'[{"properties":{"o":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}},'
    b'{"o":{"a":"\\ud800"}}]',
    b'[{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}},{}]',
    b'[{"allOf":[{"x-mcp-header":1}]},null]',
]


def TestOneInput(data: bytes) -> None:
    """The input is a header's value, and also `[inputSchema, arguments]` where it is such JSON."""
    value = decode_header_value(data.decode("latin-1"))
    if value is not None:
        assert decode_header_value(encode_header_value(value)) == value
    answer = check_request_headers("tools/call", "v", value, b"v", b"tools/call", data)
    assert answer is None or answer.startswith("Mcp-Name")
    try:
        schema, arguments = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return
    if arguments is None or isinstance(arguments, dict):
        _mirror_and_check(schema, arguments)


def _mirror_and_check(schema: object, arguments: dict[str, object] | None) -> None:
    try:
        params = read_header_params(schema)
        mirrored = write_param_headers(params, arguments)
    except ProtocolError:
        return
    headers = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in mirrored]
    assert check_param_headers(params, arguments, headers) is None
