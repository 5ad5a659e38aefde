"""May this be asked of the caller? What an upstream wants to know, held against what was promised.

An upstream may ask its caller for a sample of its model, for the answers to a form, or for its
roots. It may do so only of a client that said it can, and only where the config lets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.call import Ask, Call, Client
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members
from interlock.protocol.mcp import ELICITATION, ROOTS, SAMPLING, TASKS_EXTENSION

_CAPABILITY: Final = {SAMPLING: "sampling", ELICITATION: "elicitation", ROOTS: "roots"}
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602
_REFUSED: Final = -1
"""What a client says when its user did not want to."""


class AskPolicy(msgspec.Struct, frozen=True):
    """What the servers behind a node may ask of its callers."""

    sampling: bool = True
    elicitation: bool = True
    roots: bool = True
    max_tokens: int | None = None
    """More tokens than this are not sampled at once, whatever the server asks for."""


ANYTHING: Final = AskPolicy()


class Refusal(msgspec.Struct, frozen=True):
    """Why a question is not put, in the words of JSON-RPC."""

    code: int
    message: str
    missing: dict[str, Any] | None = None
    """The capability that the client would need, as the client would declare it."""


class Questions:
    """Looks at questions before they are put. `policy` is asked for by the upstream's key."""

    def __init__(self, policy: Callable[[str], AskPolicy]) -> None:
        self._policy = policy

    def look_at(self, ask: Ask, client: Client, upstream: str) -> Refusal | None:
        """None: it may be put, within the limits that it has now."""
        capability = _CAPABILITY.get(ask.method)
        if capability is None:
            return Refusal(_METHOD_NOT_FOUND, f"{ask.method} is not something to ask a client.")
        policy = self._policy(upstream)
        if not getattr(policy, capability):
            return Refusal(_REFUSED, f"This node does not let servers ask for {capability}.")
        try:
            params = decode_members(ask.params) if ask.params else {}
        except ProtocolError:
            return Refusal(_INVALID_PARAMS, "`params` must be an object.")
        lacking = _lacking(ask.method, params, capabilities_of(client.capabilities))
        if lacking is not None:
            return lacking
        if ask.method == SAMPLING and policy.max_tokens is not None:
            _cap(ask, params, policy.max_tokens)
        return None


@lru_cache(maxsize=4096)
def capabilities_of(raw: bytes) -> dict[str, Any]:
    """What a client can do. What cannot be read counts as nothing."""
    try:
        said = decode_value(raw)
    except ProtocolError:
        return {}
    return said if isinstance(said, dict) else {}


def speaks_tasks(client: Client) -> bool:
    """Whether the client can be given a task in place of an answer."""
    extensions = capabilities_of(client.capabilities).get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def have_in_common(call: Call, offered: Mapping[str, Any]) -> bool:
    """Whether client and server know an extension that a method unknown here may belong to."""
    declared = capabilities_of(call.client.capabilities)
    extensions, theirs = declared.get("extensions"), offered.get("extensions")
    if isinstance(extensions, dict) and isinstance(theirs, dict):
        return bool(extensions.keys() & theirs.keys())
    # The tasks of 2025-11-25 were no extension yet.
    return call.verb.startswith("tasks/") and "tasks" in offered


def _lacking(method: str, params: dict[str, Raw], declared: dict[str, Any]) -> Refusal | None:
    capability = _CAPABILITY[method]
    able = declared.get(capability)
    if not isinstance(able, dict):
        missing: dict[str, Any] = {capability: {}}
        return Refusal(_METHOD_NOT_FOUND, f"The client does not support {capability}.", missing)
    if method == SAMPLING and ("tools" in params or "toolChoice" in params) and "tools" not in able:
        missing = {"sampling": {"tools": {}}}
        return Refusal(_INVALID_PARAMS, "The client does not sample with tools.", missing)
    if method == ELICITATION:
        mode = _text(params.get("mode")) or "form"
        # An empty object is the old way to say `form`.
        if mode not in able and not (mode == "form" and not able):
            missing = {"elicitation": {mode: {}}}
            return Refusal(
                _INVALID_PARAMS, f"The client does not support elicitation by {mode[:20]}.", missing
            )
    return None


def _cap(ask: Ask, params: dict[str, Raw], most: int) -> None:
    try:
        wanted = decode_value(params["maxTokens"])
    except (KeyError, ProtocolError):
        wanted = None
    if not isinstance(wanted, int) or wanted > most:
        params["maxTokens"] = Raw(b"%d" % most)
        ask.params = encode_members(params)


def _text(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        value = decode_value(raw)
    except ProtocolError:
        return None
    return value if isinstance(value, str) else None
