"""What somebody who wants into a topic asked for: the query and the headers of its request.

Pure. It decides only whether the request can be understood; who it is, and whether it may come in,
is for others to say. No value of the request stands in a sentence: it may be a token in the wrong
place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from interlock.core.redaction import is_secret_key, is_secret_value
from interlock.core.server.http.credentials import CREDENTIAL_HEADERS, read_credentials
from interlock.errors import INVALID_REQUEST, InterlockError
from interlock.protocol.mcpx_terms import BEARER_SUBPROTOCOL, SUBPROTOCOL, TOPIC_PATTERN

ROUTINGS: Final = ("all", "directed")
_MOST_PARAMETERS: Final = 20
_ONCE: Final = frozenset({b"host", b"origin", *CREDENTIAL_HEADERS})
_is_topic: Final = re.compile(TOPIC_PATTERN.removeprefix("^").removesuffix("$")).fullmatch


class JoinCredentials(msgspec.Struct, frozen=True, gc=False):
    """The credentials of a join request."""

    bearer: str | None = None
    anything: bool = False
    """Whether it showed anything at all: then it is no guest, however bad that was."""
    subprotocol: bytes = b""
    """What the answer has to say for a browser to go on."""

    def __repr__(self) -> str:
        """Without what somebody could use who reads it in a log or a traceback."""
        return f"JoinCredentials(anything={self.anything})"


class JoinRequest(msgspec.Struct, frozen=True, gc=False):
    """The topic that a client wants to join, and the routing it asks for."""

    topic: str
    routing: str | None = None
    """What it wants to be sent. None: what its seat says."""


def check_said_once(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises InterlockError when a header stands twice by which it is decided: somebody in front of
    the node may have judged by the other one."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in _ONCE:
            if name in seen:
                raise _bad(f"The header `{name.decode().title()}` was sent twice: send it once.")
            seen.add(name)


def shown_by(headers: Sequence[tuple[bytes, bytes]]) -> JoinCredentials:
    """The token in the Authorization header, or in the one a browser can set. Raises
    InterlockError when there is more than one."""
    sent = [name for name, _ in headers if name in CREDENTIAL_HEADERS]
    offered = [
        one.strip()
        for name, value in headers
        if name == b"sec-websocket-protocol"
        for one in value.split(b",")
    ]
    prefix = BEARER_SUBPROTOCOL.encode()
    # Whatever speaks of a bearer was meant as a token: who shows one is never a guest.
    tokens = [one for one in offered if b"bearer" in one.lower()]
    if len(sent) + len(tokens) > 1:
        raise InterlockError(
            INVALID_REQUEST,
            "More than one token was sent: use one `Authorization` header, or, in a browser, one "
            f"subprotocol `{BEARER_SUBPROTOCOL}<token>`.",
        )
    chosen = SUBPROTOCOL.encode() if SUBPROTOCOL.encode() in offered else b"".join(tokens)
    bearer = read_credentials(dict(headers), "").bearer
    if tokens:
        known = tokens[0][: len(prefix)].lower() == prefix
        bearer = tokens[0][len(prefix) :].decode("latin-1") if known else ""
    return JoinCredentials(bearer, bool(sent or tokens), chosen)


def parameters(query: bytes) -> list[tuple[str, str]]:
    """What stands in the query of a URL. Raises InterlockError, also for a token in it."""
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:
        raise _bad("The query of the URL cannot be read.") from None
    if any(is_secret_key(name) or _is_secret(name) or _is_secret(value) for name, value in pairs):
        raise _bad(
            "A token must not stand in a URL, which ends up in logs: send it as `Authorization: "
            f"Bearer …`, or, in a browser, as the subprotocol `{BEARER_SUBPROTOCOL}<token>`. "
            "Treat the one that was sent as lost, and make another."
        )
    return pairs


def one_of(pairs: Sequence[tuple[str, str]], name: str) -> str | None:
    """The value of this name. Raises InterlockError when it stands there twice."""
    found = [value for key, value in pairs if key == name]
    if len(found) > 1:
        raise _bad(f"`{name}` stands twice in the URL: say it once.")
    return found[0] if found else None


def read_query(query: bytes) -> JoinRequest:
    """Raises InterlockError."""
    pairs = parameters(query)
    topic = one_of(pairs, "topic")
    if topic is None:
        raise _bad("Say which topic: /ws?topic=NAME.")
    if _is_topic(topic) is None:
        raise _bad(
            "The topic has a name that none can have: letters, digits, `.`, `_` and `-`, at most "
            "128 of them."
        )
    routing = one_of(pairs, "routing")
    if routing is not None and routing not in ROUTINGS:
        raise _bad("`routing` is `all` or `directed`.")
    return JoinRequest(topic, routing)


def _is_secret(text: str) -> bool:
    lowered = text.lower()
    return is_secret_value(text) or lowered.startswith(("bearer ", BEARER_SUBPROTOCOL))


def _bad(sentence: str) -> InterlockError:
    return InterlockError(INVALID_REQUEST, sentence)
