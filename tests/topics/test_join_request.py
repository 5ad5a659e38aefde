"""Tests of the reader of join requests."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from interlock.errors import INVALID_REQUEST, InterlockError
from interlock.topics.join_request import (
    JoinCredentials,
    JoinRequest,
    check_unique_headers,
    read_join_credentials,
    read_join_request,
)

TOKEN = "s3cr3t-of-somebody"


@pytest.mark.parametrize(
    ("query", "knock"),
    [
        (b"topic=ops", JoinRequest("ops")),
        (b"topic=A.b_c-9", JoinRequest("A.b_c-9")),
        (b"topic=%6fps", JoinRequest("ops")),
        (b"routing=directed&topic=ops", JoinRequest("ops", "directed")),
        (b"topic=ops&routing=all&id=boss&name=boss&participant=boss", JoinRequest("ops", "all")),
        (b"topic=" + b"x" * 128, JoinRequest("x" * 128)),
    ],
)
def test_reads_join_request(query: bytes, knock: JoinRequest) -> None:
    assert read_join_request(query) == knock


@pytest.mark.parametrize(
    "query",
    [
        b"", b"topic", b"topic=", b"Topic=ops", b"topic=a/b", b"topic=a%00", b"topic=a%0a",
        b"topic=ops%0a", b"topic=%C3%BC", b"topic=%ff", b"topic=" + b"x" * 129, b"topic=*",
        b"topic=a&topic=b", b"topic=a&topic=a", b"topic=a&routing=some", b"topic=a&routing=",
        b"topic=a&routing=all&routing=all", b"topic=a\xff", b"topic=a&" + b"x=1&" * 100,
    ],
)  # fmt: skip
def test_rejects_invalid_join_requests(query: bytes) -> None:
    with pytest.raises(InterlockError) as refused:
        read_join_request(query)
    assert refused.value.failure is INVALID_REQUEST
    assert refused.value.message.endswith(".")


NAMES = [
    "token", "access_token", "bearer", "authorization", "api_key", "key", "auth", "Token",
    "ACCESS-TOKEN", "apikey", "id_token", "jwt", "session",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_rejects_token_in_url(name: str) -> None:
    for query in (f"topic=ops&{name}={TOKEN}", f"{name}={TOKEN}&topic=ops", f"topic=o&{name}="):
        with pytest.raises(InterlockError) as refused:
            read_join_request(query.encode())
        assert "contains a token" in refused.value.message
        assert TOKEN not in refused.value.message


@pytest.mark.parametrize(
    "value",
    [
        "Bearer " + TOKEN,
        "bearer " + TOKEN,
        "mcpx.bearer." + TOKEN,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl",
        "ghp_" + "a1" * 18,
    ],
)
def test_rejects_token_in_other_parameters(value: str) -> None:
    for query in (
        f"topic=ops&x={quote(value)}",
        f"topic={quote(value)}",
        f"topic=a&{quote(value)}",
    ):
        with pytest.raises(InterlockError) as refused:
            read_join_request(query.encode())
        assert value not in refused.value.message


@given(st.binary(max_size=200) | st.text("topicrung=&%+;", max_size=60).map(str.encode))
def test_reads_or_rejects_any_query(query: bytes) -> None:
    try:
        knock = read_join_request(query)
    except InterlockError as error:
        event(error.message)
        return
    assert 1 <= len(knock.topic) <= 128
    assert knock.topic.isascii()


# -- tokens

AUTHORIZATION = (b"authorization", b"Bearer " + TOKEN.encode())
OFFERED = (b"sec-websocket-protocol", b"mcpx, mcpx.bearer." + TOKEN.encode())
ALONE = (b"sec-websocket-protocol", b"mcpx.bearer." + TOKEN.encode())


@pytest.mark.parametrize(
    ("headers", "bearer", "anything", "subprotocol"),
    [
        ([], None, False, b""),
        ([AUTHORIZATION], TOKEN, True, b""),
        ([OFFERED], TOKEN, True, b"mcpx"),
        ([ALONE], TOKEN, True, ALONE[1]),
        ([(b"sec-websocket-protocol", b"mcpx"), ALONE], TOKEN, True, b"mcpx"),
        ([AUTHORIZATION, (b"sec-websocket-protocol", b"chat, mcpx")], TOKEN, True, b"mcpx"),
        ([(b"sec-websocket-protocol", b"chat")], None, False, b""),
        ([(b"authorization", b"Basic dTpw")], None, True, b""),
        ([(b"authorization", b"")], None, True, b""),
        ([(b"authorization", b"Bearer")], None, True, b""),
        ([(b"sec-websocket-protocol", b"mcpx.bearer.")], "", True, b"mcpx.bearer."),
        ([(b"sec-websocket-protocol", b"MCPX.BEARER.abc")], "abc", True, b"MCPX.BEARER.abc"),
        ([(b"sec-websocket-protocol", b"mcpx, Mcpx.Bearer.aBc")], "aBc", True, b"mcpx"),
        ([(b"sec-websocket-protocol", b"mcpx, bearer.abc")], "", True, b"mcpx"),
        ([(b"sec-websocket-protocol", b"mcpx, Bearer abc")], "", True, b"mcpx"),
    ],
)
def test_reads_join_credentials(
    headers: list[tuple[bytes, bytes]], bearer: str | None, anything: bool, subprotocol: bytes
) -> None:
    shown = read_join_credentials(headers)
    assert (shown.bearer, shown.is_present, shown.subprotocol) == (bearer, anything, subprotocol)


@pytest.mark.parametrize(
    "headers",
    [
        [AUTHORIZATION, AUTHORIZATION],
        [AUTHORIZATION, (b"authorization", b"Bearer other")],
        [AUTHORIZATION, ALONE],
        [AUTHORIZATION, OFFERED],
        [(b"sec-websocket-protocol", b"mcpx.bearer.a, mcpx.bearer.b")],
        [ALONE, ALONE],
        [AUTHORIZATION, (b"sec-websocket-protocol", b"MCPX.BEARER.other")],
    ],
)
def test_rejects_two_credentials(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InterlockError) as refused:
        read_join_credentials(headers)
    assert refused.value.failure is INVALID_REQUEST
    assert TOKEN not in refused.value.message


def test_credentials_repr_hides_token() -> None:
    shown = read_join_credentials([ALONE])
    assert TOKEN not in repr(shown)
    assert TOKEN not in repr(JoinCredentials(TOKEN, True, TOKEN.encode()))


@pytest.mark.parametrize("name", [b"host", b"origin", b"authorization"])
def test_rejects_duplicate_headers(name: bytes) -> None:
    check_unique_headers(
        [(b"host", b"a"), (b"origin", b"b"), (b"authorization", b"c"), (b"x", b"d")]
    )
    check_unique_headers([(b"cookie", b"a"), (b"cookie", b"b")])
    for second in (b"first", b"other"):
        with pytest.raises(InterlockError) as refused:
            check_unique_headers([(name, b"first"), (b"x", b"y"), (name, second)])
        assert refused.value.failure is INVALID_REQUEST
        assert "other" not in refused.value.message
