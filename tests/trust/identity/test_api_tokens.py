"""API tokens of the node: their format and validity."""

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


class TokenHarness:
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
        self.tokens.access = AccessSnapshot({token.id: token for token in tokens})
        self.authenticate.clear_cache()

    def refusal(self, bearer: str | None) -> str:
        with pytest.raises(InterlockError) as error:
            self.authenticate(Credentials("loopback", bearer))
        assert error.value.failure is UNAUTHENTICATED
        assert self.secret not in error.value.message
        return error.value.message


def test_token_contains_no_digest_or_repr_of_secret() -> None:
    harness = TokenHarness()
    prefix, id, secret = harness.shown.split("_", 2)
    assert (prefix, id, secret) == ("ilk", harness.id, harness.secret)
    assert len(id) == 16
    assert len(secret) >= 43  # 32 bytes
    assert len({new_token()[2] for _ in range(100)}) == 100
    assert harness.secret not in repr(harness.token)
    assert harness.secret.encode() not in harness.token.digest


@pytest.mark.spec("ST-4.8.5-4")
def test_token_authenticates_caller_with_its_permissions() -> None:
    harness = TokenHarness(
        may=("call", "approve"), roles=("r",), scopes=("read", "write:a.*"), expires=NOW + 5
    )
    assert harness.authenticate(Credentials("192.0.2.7", harness.shown)) == Caller(
        "agent",
        can_register=False,
        can_view_approvals=True,
        kind="token",
        roles=("r",),
        scopes=("read", "write:a.*"),
        expires_at=NOW + 5,
        id=harness.id,
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
def test_rejects_altered_or_unknown_token(change: object) -> None:
    harness = TokenHarness()
    assert " token" in harness.refusal(change(harness.shown))  # type: ignore[operator]
    other = TokenHarness()
    assert "this API token is not known here" in harness.refusal(other.shown)
    # The id of one and the secret of another.
    assert "this API token is not known here" in harness.refusal(f"ilk_{harness.id}_{other.secret}")


@pytest.mark.spec("ST-4.8.4-1")
def test_rejects_expired_token() -> None:
    harness = TokenHarness(expires=NOW + 30)
    credentials = Credentials("loopback", harness.shown)
    assert harness.authenticate(credentials)
    harness.now = NOW + 29.9
    assert harness.authenticate(credentials)
    harness.now = NOW + 30
    assert "has expired" in harness.refusal(harness.shown)


@pytest.mark.spec("ST-4.8.5-2")
def test_rejects_revoked_token_after_use() -> None:
    harness = TokenHarness()
    assert harness.authenticate(Credentials("loopback", harness.shown))
    harness.keep(replace(harness.token, revoked=NOW))
    assert "was revoked" in harness.refusal(harness.shown)


def test_revoking_last_token_keeps_tokens_required() -> None:
    """Revoking the last one must not let everybody in."""
    harness = TokenHarness()
    empty = ApiTokens(lambda: NOW)
    assert Authenticator({}, sources=[empty])(LOOPBACK).name == "local"
    assert "is required" in harness.refusal(None)
    harness.keep(replace(harness.token, revoked=NOW))
    assert "is required" in harness.refusal(None)
    harness.keep()
    assert "is required" in harness.refusal(None)
    # Its own user still comes in by the socket that nobody else can open.
    assert harness.authenticate(Credentials("local")).name == "local"


def test_records_last_use_at_intervals() -> None:
    harness = TokenHarness()
    credentials = Credentials("loopback", harness.shown)
    for _ in range(3):
        harness.authenticate(credentials)
    assert harness.tokens.last_uses == {harness.id: NOW}
    harness.now += RECHECK_SECONDS
    harness.authenticate(credentials)
    assert harness.tokens.last_uses == {harness.id: NOW + RECHECK_SECONDS}
