"""The scopes that a sign-in requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client.auth.utils import union_scopes

from interlock.core.upstreams.oauth import challenge as scopes

written = st.lists(st.sampled_from("abcd"), max_size=4).map(" ".join)


@pytest.mark.parametrize(
    ("configured", "challenged", "resource", "server", "chosen"),
    [
        ([], "a b", ["c"], None, "a b"),
        ([], None, ["c", "d"], None, "c d"),
        ([], None, None, ["e"], None),
        ([], None, [], None, None),
        ([], "", ["c"], None, None),
        (["x"], "a", ["c"], None, "x"),
        # Where the authorization server has it, it is how a refresh token is asked for.
        ([], "a", None, ["a", "offline_access"], "a offline_access"),
        ([], "a offline_access", None, ["offline_access"], "a offline_access"),
        (["x"], None, None, ["offline_access"], "x offline_access"),
        ([], None, None, ["offline_access"], None),
    ],
)
def test_chooses_scopes_for_first_sign_in(
    configured: list[str],
    challenged: str | None,
    resource: list[str] | None,
    server: list[str] | None,
    chosen: str | None,
) -> None:
    result = scopes.choose_scopes(
        configured=configured,
        challenged=challenged,
        resource=resource,
        server=server,
        can_refresh=True,
    )
    assert result == chosen


def test_omits_offline_access_without_refresh() -> None:
    result = scopes.choose_scopes(
        configured=[], challenged="a", resource=None, server=["offline_access"], can_refresh=False
    )
    assert result == "a"


@given(written, written)
def test_union_of_scopes_equals_official_sdk(one: str, other: str) -> None:
    both = scopes.join_scopes(one, other)
    assert scopes.includes_scopes(both, one)
    assert scopes.includes_scopes(both, other)
    assert scopes.split_scopes(both) == list(
        dict.fromkeys((union_scopes(one, other) or "").split())
    )
