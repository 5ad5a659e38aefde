"""`input_required` as data: what a stateless server wants to know before it answers. Pure.

On the stateless wire a server puts its questions into a result, and the client makes its request
again with the answers. On the session wire the same questions are requests of the server. The
questions differ in small things, which are written here.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from interlock.errors import INVALID_PARAMS, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import ELICITATION

INPUT_REQUESTS: Final = "inputRequests"
INPUT_RESPONSES: Final = "inputResponses"
REQUEST_STATE: Final = "requestState"
# Members of a question that belong to the session wire alone.
_SESSION_ONLY: Final = ("_meta", "task", "elicitationId")


class InputRequest(msgspec.Struct):
    """What a result asks for. `questions`: method and raw params by key."""

    requests: dict[str, tuple[str, bytes]]
    state: str | None = None


def read_input_request(result: bytes) -> InputRequest:
    """What a stateless server wants to know. Raises ProtocolError when that cannot be read."""
    try:
        members = decode_members(result)
        asked = decode_members(members[INPUT_REQUESTS]) if INPUT_REQUESTS in members else {}
        questions = {}
        for key, raw in asked.items():
            # Every member is looked at: what is passed on must be readable as a whole.
            question = decode_members(raw)
            method = decode_value(question["method"]) if "method" in question else None
            if not isinstance(method, str):
                raise ProtocolError(f"`method` of {key[:50]!r} must be a string")
            params = question.get("params")
            if params is not None:
                decode_members(params)
            questions[key] = (method, b"" if params is None else bytes(params))
        state = decode_value(members[REQUEST_STATE]) if REQUEST_STATE in members else None
    except ProtocolError as exc:
        raise ProtocolError(
            f"The server asks for input, but cannot be understood: {exc}.", UPSTREAM_PROTOCOL
        ) from None
    if state is not None and not isinstance(state, str):
        raise ProtocolError("The server's `requestState` is not a string.", UPSTREAM_PROTOCOL)
    if not questions and state is None:
        raise ProtocolError("The server asks for input, but for none.", UPSTREAM_PROTOCOL)
    return InputRequest(questions, state)


def write_input_request(questions: dict[str, tuple[str, bytes]], state: str | None) -> bytes:
    """The result that puts questions of a session server to a stateless client."""
    asked = {
        key: Raw(_stateless_question(method, params)) for key, (method, params) in questions.items()
    }
    members: dict[str, Raw] = {"resultType": Raw(b'"input_required"')}
    if asked:
        members[INPUT_REQUESTS] = Raw(encode_members(asked))
    if state is not None:
        members[REQUEST_STATE] = Raw(encode_value(state))
    return encode_members(members)


def replace_state(result: bytes, state: str) -> bytes:
    """The same questions, with another state to bring back."""
    members = decode_members(result)
    members[REQUEST_STATE] = Raw(encode_value(state))
    return encode_members(members)


def replace_params(result: bytes, changed: dict[str, bytes]) -> bytes:
    """The same questions, some of them with other params, by key."""
    members = decode_members(result)
    asked = decode_members(members[INPUT_REQUESTS])
    for key, params in changed.items():
        question = decode_members(asked[key])
        question["params"] = Raw(params)
        asked[key] = Raw(encode_members(question))
    members[INPUT_REQUESTS] = Raw(encode_members(asked))
    return encode_members(members)


def read_input_responses(raw: Raw | None) -> dict[str, Raw]:
    """The answers that a client brought. Raises ProtocolError for what are none."""
    if raw is None:
        return {}
    try:
        answers = decode_members(raw)
    except ProtocolError:
        raise ProtocolError("`inputResponses` must be an object.", INVALID_PARAMS) from None
    for key, answer in answers.items():
        if bytes(answer)[:1] != b"{":
            raise ProtocolError(f"`inputResponses` {key[:50]!r} must be an object.", INVALID_PARAMS)
    return answers


def to_session_params(method: str, params: bytes, revision: str, mint: str) -> bytes:
    """The params of a stateless server's question, as a session client must be asked.

    `mint`: an id for a question that needs one there.
    """
    if method != ELICITATION or not params:
        return params
    members = decode_members(params)
    if _mode(members) == "url":
        members.setdefault("elicitationId", Raw(encode_value(mint)))
    elif revision == "2025-06-18":
        # There were no modes then.
        members.pop("mode", None)
    return encode_members(members)


def _mode(members: dict[str, Raw]) -> object:
    try:
        return decode_value(members["mode"]) if "mode" in members else None
    except ProtocolError:
        return None


def _stateless_question(method: str, params: bytes) -> bytes:
    name = encode_value(method)
    if not params:
        return b'{"method":%b}' % name
    members = decode_members(params)
    for only in _SESSION_ONLY:
        members.pop(only, None)
    if not members:
        return b'{"method":%b}' % name
    return b'{"method":%b,"params":%b}' % (name, encode_members(members))
