"""Parsing of `WWW-Authenticate`."""

from __future__ import annotations

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client.auth.utils import extract_field_from_www_auth

from interlock.core.upstreams.oauth.challenge import (
    AuthChallenge,
    BearerChallenge,
    bearer_challenge,
    read_challenges,
)

HEADERS: list[tuple[str, BearerChallenge | None]] = [
    ("", None),
    ("Basic realm=x", None),
    ("Bearer", BearerChallenge()),
    ("bearer scope=a", BearerChallenge(scope="a")),
    ('Bearer scope=""', BearerChallenge(scope="")),
    (
        'Bearer resource_metadata="https://a/b", scope="files:read files:write"',
        BearerChallenge("files:read files:write", "https://a/b"),
    ),
    (
        'Bearer error="insufficient_scope",\n  scope="x"',
        BearerChallenge("x", None, "insufficient_scope"),
    ),
    # Several challenges in one header, in any order.
    ('Basic realm="a, Bearer scope=b", Bearer scope="c"', BearerChallenge("c")),
    ("Negotiate abc==, Bearer scope=c", BearerChallenge("c")),
    (
        'Bearer realm="old", Bearer resource_metadata="https://m"',
        BearerChallenge(None, "https://m"),
    ),
    # The first of a name counts, escapes are taken off, blanks around = are forgiven.
    ('Bearer scope="a", scope="b"', BearerChallenge("a")),
    (r'Bearer scope="a\"b\\c"', BearerChallenge(r"a\"b\c".replace('\\"', '"'))),
    ('Bearer scope = "a"', BearerChallenge("a")),
    ('Bearer SCOPE="a"', BearerChallenge("a")),
    # Parameters of another scheme are not ours.
    ('DPoP scope="x", algs="ES256"', None),
    # What makes no sense is passed over.
    (',,, "lost" Bearer =, scope="a"', BearerChallenge("a")),
    ('Bearer scope="never closed', BearerChallenge()),
]


@pytest.mark.parametrize(("header", "result"), HEADERS)
def test_reads_bearer_challenge(header: str, result: BearerChallenge | None) -> None:
    assert bearer_challenge(header) == result


@given(st.text(max_size=200))
def test_reads_any_text(text: str) -> None:
    for challenge in read_challenges(text):
        assert challenge.scheme


names = st.from_regex(r"[a-z_]{1,10}", fullmatch=True)
plain = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters='"\\'))


@given(
    st.lists(st.tuples(names, st.dictionaries(names, plain, min_size=1, max_size=4)), max_size=4)
)
def test_reads_written_challenges(challenges: list[tuple[str, dict[str, str]]]) -> None:
    header = ", ".join(
        f"{scheme} " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())
        for scheme, parameters in challenges
    )
    assert read_challenges(header) == [AuthChallenge(*challenge) for challenge in challenges]


@given(plain.filter(bool))
def test_scope_equals_official_sdk(value: str) -> None:
    header = f'Bearer scope="{value}", resource_metadata="https://a"'
    response = httpx2.Response(401, headers={"WWW-Authenticate": header})
    result = bearer_challenge(header)
    assert result is not None
    assert result.scope == extract_field_from_www_auth(response, "scope")


def test_reads_endless_header_quickly() -> None:
    assert len(read_challenges('Bearer x="' + "\\" * 1_000_000)) <= 4
    assert len(read_challenges("a " * 1_000_000)) <= 16 * 1024
