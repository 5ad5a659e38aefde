"""May this be asked of the caller? What an upstream wants to know, held against what was promised.

An upstream may ask its caller for a sample of its model, for the answers to a form, or for its
roots. It may do so only of a client that said it can, and only where the config lets it. What was
asked, and what came of it, is written down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.call import Answer, Ask, Call, Client, ClientSession
from interlock.errors import (
    FORBIDDEN,
    MISSING_CLIENT_CAPABILITY,
    UPSTREAM_PROTOCOL,
    InterlockError,
    ProtocolError,
)
from interlock.pipeline.audit import ANSWERED, ASKED, REFUSED, WITHDRAWN, Audit
from interlock.ports import Clock
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members
from interlock.protocol.mcp import ELICITATION, ROOTS, SAMPLING, TASKS_EXTENSION

_CAPABILITY: Final = {SAMPLING: "sampling", ELICITATION: "elicitation", ROOTS: "roots"}
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602
_REFUSED: Final = -1
"""What a client says when its user did not want to."""
_ACTIONS: Final = frozenset({"accept", "decline", "cancel"})

_log = logging.getLogger("interlock.pipeline")


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

    def as_error(self) -> InterlockError:
        """What a caller is told whose request was answered with such a question."""
        if self.missing is not None:
            data = {"requiredCapabilities": self.missing}
            return InterlockError(MISSING_CLIENT_CAPABILITY, self.message, data)
        if self.code == _REFUSED:
            return InterlockError(FORBIDDEN, self.message)
        return InterlockError(UPSTREAM_PROTOCOL, f"The server asks what it cannot: {self.message}")


class Questions:
    """Looks at questions before they are put. `policy` is asked for by the upstream's key."""

    def __init__(self, policy: Callable[[str], AskPolicy], audit: Audit, clock: Clock) -> None:
        self._policy = policy
        self._audit = audit
        self._clock = clock

    def follow(
        self,
        ask: Ask,
        call: Call | None,
        session: ClientSession | None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Write down what comes of a question. `then` is run when it is over."""
        began = self._clock()

        def over(answer: Answer | str) -> None:
            if isinstance(answer, str):
                outcome, detail = WITHDRAWN, answer
            elif answer.refused:
                outcome, detail = REFUSED, answer.message
            else:
                outcome, detail = ANSWERED, _action(ask.method, answer.result)
            self._write(ask, call, session, outcome, began, detail)
            if then is not None:
                then()

        ask.on_over = over

    def passed_on(self, ask: Ask, call: Call) -> None:
        """Write down a question that its server is answered in another request."""
        self._write(ask, call, None, ASKED, self._clock(), "")

    def _write(
        self,
        ask: Ask,
        call: Call | None,
        session: ClientSession | None,
        outcome: str,
        began: float,
        detail: str,
    ) -> None:
        caller = "" if session is None else session.owner
        face = about = ""
        if call is not None:
            caller = caller if call.caller is None else call.caller.name
            face, about = call.face, call.name if call.route is None else call.route.canonical
        try:
            self._audit.record_question(
                ask.method,
                caller=caller,
                face=face,
                about=about,
                upstream=ask.upstream,
                outcome=outcome,
                duration_us=int((self._clock() - began) * 1e6),
                detail=detail,
            )
        except Exception:
            # The answer is waited for, whatever the journal is up to.
            _log.exception("%.100r could not be recorded", ask.method)

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


def to_look_at(method: str, params: bytes, upstream: str) -> Ask:
    """A question that is answered elsewhere, and only held against the rules here."""
    return Ask(method, params, _nowhere, upstream)


def _nowhere(answer: Answer) -> None:
    """The answer comes in another request."""


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
    if not isinstance(extensions, dict) or not isinstance(theirs, dict):
        return False
    # Tasks are known here: whatever is not, does not belong to them.
    return bool(extensions.keys() & theirs.keys() - {TASKS_EXTENSION})


def _lacking(method: str, params: dict[str, Raw], declared: dict[str, Any]) -> Refusal | None:
    capability = _CAPABILITY[method]
    able = declared.get(capability)
    mode = _text(params.get("mode")) or "form"
    if not isinstance(able, dict):
        by_url = method == ELICITATION and mode == "url"
        missing: dict[str, Any] = {capability: {"url": {}} if by_url else {}}
        return Refusal(_METHOD_NOT_FOUND, f"The client does not support {capability}.", missing)
    if method == SAMPLING and ("tools" in params or "toolChoice" in params) and "tools" not in able:
        missing = {"sampling": {"tools": {}}}
        return Refusal(_INVALID_PARAMS, "The client does not sample with tools.", missing)
    # To name no mode at all is the old way to say `form`.
    if method == ELICITATION and mode not in able and not (mode == "form" and "url" not in able):
        if mode not in ("form", "url"):
            return Refusal(_INVALID_PARAMS, f"There is no elicitation by {mode[:20]!r}.")
        missing = {"elicitation": {mode: {}}}
        return Refusal(
            _INVALID_PARAMS, f"The client does not support elicitation by {mode}.", missing
        )
    return None


def _cap(ask: Ask, params: dict[str, Raw], most: int) -> None:
    try:
        wanted = decode_value(params["maxTokens"])
    except (KeyError, ProtocolError):
        wanted = None
    if not isinstance(wanted, int | float) or isinstance(wanted, bool) or wanted > most:
        params["maxTokens"] = Raw(b"%d" % most)
        ask.params = encode_members(params)


def _action(method: str, result: bytes) -> str:
    """What somebody did with a form: that much of an answer is no secret."""
    if method != ELICITATION:
        return ""
    try:
        action = _text(decode_members(result).get("action"))
    except ProtocolError:
        return ""
    return action if action in _ACTIONS else ""


def _text(raw: Raw | None) -> str | None:
    if raw is None:
        return None
    try:
        value = decode_value(raw)
    except ProtocolError:
        return None
    return value if isinstance(value, str) else None
