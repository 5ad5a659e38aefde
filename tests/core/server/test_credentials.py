"""Credentials of requests, as every path reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import FORWARDED, LOOPBACK, Credentials
from interlock.core.server.http.credentials import (
    CERTIFICATE,
    CREDENTIAL_HEADERS,
    PEER,
    read_credentials,
    read_scope_credentials,
)
from interlock.core.server.http.plain_requests import create_call

TOKENS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1)


@given(TOKENS, st.sampled_from([b"Bearer ", b"bearer ", b"BEARER  "]))
def test_reads_bearer_token(token: str, scheme: bytes) -> None:
    read = read_credentials({b"authorization": scheme + token.encode()}, LOOPBACK)
    assert read == Credentials(LOOPBACK, token)


@pytest.mark.parametrize("value", [b"", b"Basic dTpw", b"Bearer", b"Token t"])
def test_ignores_other_schemes(value: bytes) -> None:
    assert read_credentials({b"authorization": value}, LOOPBACK).bearer is None


@pytest.mark.parametrize("header", [b"via", b"forwarded", b"x-real-ip", b"x-forwarded-for"])
def test_forwarded_request_is_not_local(header: bytes) -> None:
    read = read_credentials({header: b"1", b"authorization": b"Bearer t"}, LOOPBACK, ("a",))
    assert read == Credentials(FORWARDED, "t", certificate_names=("a",))


def make_scope(*headers: tuple[bytes, bytes], **extensions: Any) -> dict[str, Any]:
    return {
        "headers": list(headers),
        "path": "/status",
        "client": ("10.0.0.9", 1),
        "server": ("10.0.0.1", 2),
        "extensions": extensions,
    }


def test_reads_credentials_of_asgi_scope() -> None:
    shown = (b"authorization", b"Bearer t")
    assert read_scope_credentials(make_scope(shown)) == Credentials("10.0.0.9", "t")
    known = {PEER: {"name": LOOPBACK}, CERTIFICATE: {"names": ("a",)}}
    assert read_scope_credentials(make_scope(shown, **known)) == Credentials(
        LOOPBACK, "t", certificate_names=("a",)
    )
    passed_on = make_scope(shown, (b"via", b"1.1 proxy"), **known)
    assert read_scope_credentials(passed_on).peer == FORWARDED


def test_keeps_supplied_peer() -> None:
    assert (
        create_call(make_scope((b"via", b"1.1 proxy")), "x", peer="local").credentials.peer
        == "local"
    )


def test_credential_headers_are_lower_case() -> None:
    assert all(name == name.lower() for name in CREDENTIAL_HEADERS)
