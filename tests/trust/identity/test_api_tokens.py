"""The node's own API tokens: what they look like, and when they count."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from interlock.core.call import Caller, Credentials
from interlock.core.pipeline.authentication import Authenticator
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.trust.identity.api_tokens import (
    RECHECK_SECONDS,
    AccessSnapshot,
    AccessToken,
    ApiTokens,
    digest_of,
    new_token,
)

NOW = 1_800_000_000.0
LOOPBACK = Credentials("loopback")


class Desk:
    """A node with one API token."""

    def __init__(self, **changes: object) -> None:
        self.now = NOW
        self.id, self.secret, self.shown = new_token()
        token = AccessToken(self.id, "agent", digest_of(self.secret), created=NOW)
        self.token = replace(token, **changes)
        self.tokens = ApiTokens(lambda: self.now)
        self.tokens.access = AccessSnapshot({self.id: self.token})
        self.authenticate = Authenticator({}, sources=[self.tokens], wall_clock=lambda: self.now)

    def keep(self, *tokens: AccessToken) -> None:
        """The store is another one, and the node has seen it."""
        self.tokens.access = AccessSnapshot({one.id: one for one in tokens})
        self.authenticate.clear_cache()

    def refusal(self, bearer: str | None) -> str:
        with pytest.raises(InterlockError) as caught:
            self.authenticate(Credentials("loopback", bearer))
        assert caught.value.failure is UNAUTHENTICATED
        assert self.secret not in caught.value.message
        return caught.value.message


def test_a_token_says_what_it_is_and_nothing_else() -> None:
    desk = Desk()
    prefix, id, secret = desk.shown.split("_", 2)
    assert (prefix, id, secret) == ("ilk", desk.id, desk.secret)
    assert len(id) == 16
    assert len(secret) >= 43  # 32 bytes
    assert len({new_token()[2] for _ in range(100)}) == 100
    assert desk.secret not in repr(desk.token)
    assert desk.secret.encode() not in desk.token.digest


@pytest.mark.spec("ST-4.8.5-4")
def test_its_bearer_is_known_with_its_rights() -> None:
    desk = Desk(
        may=("call", "approve"), roles=("r",), scopes=("read", "write:a.*"), expires=NOW + 5
    )
    assert desk.authenticate(Credentials("192.0.2.7", desk.shown)) == Caller(
        "agent",
        can_register=False,
        can_view_approvals=True,
        kind="token",
        roles=("r",),
        scopes=("read", "write:a.*"),
        expires_at=NOW + 5,
        id=desk.id,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda shown: shown[:-1],
        lambda shown: shown + "A",
        lambda shown: shown + " ",
        lambda shown: shown.upper(),
        lambda shown: shown.replace("ilk_", "ilk"),
        lambda shown: "ilk_" + "a" * 16 + "_" + shown.split("_", 2)[2],
        lambda shown: "ilk_",
        lambda shown: "ilk__",
        lambda shown: shown.rpartition("_")[0] + "_",
    ],
)
def test_nearly_is_not_enough(change: object) -> None:
    desk = Desk()
    assert " token" in desk.refusal(change(desk.shown))  # type: ignore[operator]
    other = Desk()
    assert "this API token is not known here" in desk.refusal(other.shown)
    # The id of one and the secret of another.
    assert "this API token is not known here" in desk.refusal(f"ilk_{desk.id}_{other.secret}")


@pytest.mark.spec("ST-4.8.4-1")
def test_it_is_over_when_it_says() -> None:
    desk = Desk(expires=NOW + 30)
    credentials = Credentials("loopback", desk.shown)
    assert desk.authenticate(credentials)
    desk.now = NOW + 29.9
    assert desk.authenticate(credentials)
    desk.now = NOW + 30
    assert "has expired" in desk.refusal(desk.shown)


@pytest.mark.spec("ST-4.8.5-2")
def test_a_revoked_one_is_refused_though_it_was_known() -> None:
    desk = Desk()
    assert desk.authenticate(Credentials("loopback", desk.shown))
    desk.keep(replace(desk.token, revoked=NOW))
    assert "was revoked" in desk.refusal(desk.shown)


def test_a_token_closes_the_door_for_good() -> None:
    """Revoking the last one must not let everybody in."""
    desk = Desk()
    empty = ApiTokens(lambda: NOW)
    assert Authenticator({}, sources=[empty])(LOOPBACK).name == "local"
    assert "is required" in desk.refusal(None)
    desk.keep(replace(desk.token, revoked=NOW))
    assert "is required" in desk.refusal(None)
    desk.keep()
    assert "is required" in desk.refusal(None)
    # Its own user still comes in by the socket that nobody else can open.
    assert desk.authenticate(Credentials("local")).name == "local"


def test_uses_are_noted_now_and_then() -> None:
    desk = Desk()
    credentials = Credentials("loopback", desk.shown)
    for _ in range(3):
        desk.authenticate(credentials)
    assert desk.tokens.last_uses == {desk.id: NOW}
    desk.now += RECHECK_SECONDS
    desk.authenticate(credentials)
    assert desk.tokens.last_uses == {desk.id: NOW + RECHECK_SECONDS}
