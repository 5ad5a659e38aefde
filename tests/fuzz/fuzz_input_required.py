"""`input_required`: any bytes are questions or none, and what is passed on can be read again."""

from __future__ import annotations

from msgspec import Raw

from interlock.errors import ProtocolError
from interlock.protocol.input_required import (
    read_input_request,
    read_input_responses,
    replace_params,
    replace_state,
    to_session_params,
    write_input_request,
)
from interlock.protocol.jsonrpc import decode_members

SEEDS = [
    b'{"resultType":"input_required","requestState":"s"}',
    b'{"inputRequests":{"a":{"method":"roots/list"}},"requestState":"\\u00e9"}',
    b'{"inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url","url":"x:y",'
    b'"message":"m"}}}}',
    b'{"inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"form","message":"m",'
    b'"requestedSchema":{},"_meta":{"progressToken":1},"task":{},"elicitationId":"e"}},'
    b'"":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1e3}}}}',
    b'{"inputRequests":{"a":{"method":"m","params":null}},"requestState":null}',
    b'{"inputRequests":{"a":{"method":"m","params":{}},"a":{"method":"n"}}}',
    b'{"a":{"action":"accept","content":{}},"b":{"roots":[]}}',
    b'{"inputRequests":' * 40 + b"{}" + b"}" * 40,
    b"{}",
    b"[",
]


def TestOneInput(data: bytes) -> None:
    """Once as what a server says, once as what a client brings back."""
    try:
        # Whoever reads it from a wire has made sure of this.
        data.decode()
    except UnicodeDecodeError:
        return
    try:
        answers = read_input_responses(Raw(data))
    except ProtocolError:
        answers = {}
    assert all(bytes(answer)[:1] == b"{" for answer in answers.values())
    try:
        needed = read_input_request(data)
    except ProtocolError:
        return
    assert needed.requests or needed.state is not None
    sealed = read_input_request(replace_state(data, "ours"))
    assert (sealed.requests, sealed.state) == (needed.requests, "ours")
    if needed.requests:
        capped = read_input_request(
            replace_params(data, dict.fromkeys(needed.requests, b'{"x":1}'))
        )
        assert all(params == b'{"x":1}' for _, params in capped.requests.values())
    relayed = read_input_request(write_input_request(needed.requests, "ours"))
    assert list(relayed.requests) == list(needed.requests)
    for method, params in needed.requests.values():
        for revision in ("2025-06-18", "2025-11-25"):
            asked = to_session_params(method, params, revision, "minted")
            assert not asked or decode_members(asked) is not None
