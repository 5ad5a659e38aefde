"""Parser of join requests: the query and the headers of an upgrade request.

It decides only whether a request is valid. Authentication and admission are elsewhere. Error
messages quote no value of the request, because it may be a misplaced token. This module does no
I/O.
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

ROUTING_VALUES: Final = ("all", "directed")
_MAX_PARAMETERS: Final = 20
_UNIQUE_HEADERS: Final = frozenset({b"host", b"origin", *CREDENTIAL_HEADERS})
_is_topic: Final = re.compile(TOPIC_PATTERN.removeprefix("^").removesuffix("$")).fullmatch


class JoinCredentials(msgspec.Struct, frozen=True, gc=False):
    """The credentials of a join request."""

    bearer: str | None = None
    is_present: bool = False
    """True if the request has any credential, valid or not: then the client is no guest."""
    subprotocol: bytes = b""
    """The subprotocol that the response must name for browsers."""

    def __repr__(self) -> str:
        """Return a text without secrets, for logs and tracebacks."""
        return f"JoinCredentials(anything={self.is_present})"


class JoinRequest(msgspec.Struct, frozen=True, gc=False):
    """The topic that a client wants to join, and the routing it requests."""

    topic: str
    routing: str | None = None
    """None: the routing from the config."""


def check_unique_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise InterlockError if a security-relevant header occurs twice: a proxy may have used the
    other value."""
    names: set[bytes] = set()
    for name, _ in headers:
        if name in _UNIQUE_HEADERS:
            if name in names:
                raise _invalid_request(
                    f"The header `{name.decode().title()}` occurs twice: send it once."
                )
            names.add(name)


def read_join_credentials(headers: Sequence[tuple[bytes, bytes]]) -> JoinCredentials:
    """Return the token from the Authorization header, or from the subprotocol header that browsers
    can set.

    Raises InterlockError if there is more than one.
    """
    credential_headers = [name for name, _ in headers if name in CREDENTIAL_HEADERS]
    subprotocols = [
        subprotocol.strip()
        for name, value in headers
        if name == b"sec-websocket-protocol"
        for subprotocol in value.split(b",")
    ]
    prefix = BEARER_SUBPROTOCOL.encode()
    # Anything with "bearer" is meant as a token. A client that sends a token is never a guest.
    tokens = [subprotocol for subprotocol in subprotocols if b"bearer" in subprotocol.lower()]
    if len(credential_headers) + len(tokens) > 1:
        raise InterlockError(
            INVALID_REQUEST,
            "The request has more than one token: send one `Authorization` header or, in a "
            f"browser, one subprotocol `{BEARER_SUBPROTOCOL}<token>`.",
        )
    subprotocol_bytes = (
        SUBPROTOCOL.encode() if SUBPROTOCOL.encode() in subprotocols else b"".join(tokens)
    )
    bearer = read_credentials(dict(headers), "").bearer
    if tokens:
        is_bearer = tokens[0][: len(prefix)].lower() == prefix
        bearer = tokens[0][len(prefix) :].decode("latin-1") if is_bearer else ""
    return JoinCredentials(bearer, bool(credential_headers or tokens), subprotocol_bytes)


def parse_query(query: bytes) -> list[tuple[str, str]]:
    """Parse the query of a URL. Raises InterlockError if it is invalid or contains a token."""
    try:
        parameters = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise _invalid_request("The query of the URL is invalid.") from None
    if any(
        is_secret_key(name) or _is_secret(name) or _is_secret(value) for name, value in parameters
    ):
        raise _invalid_request(
            "The URL contains a token. URLs appear in logs: send the token as `Authorization: "
            f"Bearer …` or, in a browser, as the subprotocol `{BEARER_SUBPROTOCOL}<token>`. "
            "Revoke the token that was sent and create another."
        )
    return parameters


def get_parameter(parameters: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return the value of a parameter, or None. Raises InterlockError if it occurs twice."""
    values = [value for key, value in parameters if key == name]
    if len(values) > 1:
        raise _invalid_request(f"`{name}` occurs twice in the URL: send it once.")
    return values[0] if values else None


def read_join_request(query: bytes) -> JoinRequest:
    """Parse the query of a join request. Raises InterlockError."""
    parameters = parse_query(query)
    topic = get_parameter(parameters, "topic")
    if topic is None:
        raise _invalid_request("The URL names no topic. Add one: /ws?topic=NAME.")
    if _is_topic(topic) is None:
        raise _invalid_request(
            "The topic name is invalid. Use 1 to 128 letters, digits, `.`, `_` and `-`."
        )
    routing = get_parameter(parameters, "routing")
    if routing is not None and routing not in ROUTING_VALUES:
        raise _invalid_request("`routing` must be `all` or `directed`.")
    return JoinRequest(topic, routing)


def _is_secret(text: str) -> bool:
    lowered = text.lower()
    return is_secret_value(text) or lowered.startswith(("bearer ", BEARER_SUBPROTOCOL))


def _invalid_request(sentence: str) -> InterlockError:
    return InterlockError(INVALID_REQUEST, sentence)
