"""Authentication of callers: by token, or as the local user."""

from __future__ import annotations

import pytest

from interlock.core.call import Caller, Credentials
from interlock.core.pipeline.authentication import Authenticator
from interlock.errors import CONFIG, UNAUTHENTICATED, InterlockError

TOKENS = {"s3cret-operator": "operator", "s3cret-auditor": "auditor"}
LOCAL, LOOPBACK, REMOTE = "local", "loopback", "192.0.2.7"


@pytest.mark.parametrize(
    ("tokens", "peer", "bearer", "caller"),
    [
        # no tokens: only this machine
        ({}, LOCAL, None, "local"),
        ({}, LOOPBACK, None, "local"),
        ({}, LOOPBACK, "whatever", "local"),
        ({}, REMOTE, None, None),
        ({}, REMOTE, "whatever", None),
        ({}, "", None, None),
        ({}, "127.0.0.1", None, None),
        ({}, "loopback ", None, None),
        # tokens: whoever comes over the network needs one, loopback included
        (TOKENS, LOCAL, None, "local"),
        (TOKENS, LOOPBACK, None, None),
        (TOKENS, REMOTE, None, None),
        (TOKENS, LOOPBACK, "s3cret-operator", "operator"),
        (TOKENS, REMOTE, "s3cret-auditor", "auditor"),
        (TOKENS, LOCAL, "s3cret-auditor", "auditor"),
        # a wrong token is refused wherever it comes from
        (TOKENS, LOCAL, "wrong", None),
        (TOKENS, LOOPBACK, "wrong", None),
        (TOKENS, REMOTE, "wrong", None),
        (TOKENS, REMOTE, "", None),
        (TOKENS, LOOPBACK, "", None),
        (TOKENS, REMOTE, "s3cret-alic", None),
        (TOKENS, REMOTE, "s3cret-operator ", None),
        (TOKENS, REMOTE, "S3CRET-OPERATOR", None),
        (TOKENS, REMOTE, "operator", None),
        (TOKENS, REMOTE, "s3cret-alicé", None),
    ],
)
def test_authenticates_by_token_or_local_address(
    tokens: dict[str, str], peer: str, bearer: str | None, caller: str | None
) -> None:
    authenticate = Authenticator({token: Caller(name) for token, name in tokens.items()})
    credentials = Credentials(peer, bearer)
    if caller is not None:
        assert authenticate(credentials) == Caller(caller)
        return
    with pytest.raises(InterlockError) as caught:
        authenticate(credentials)
    assert caught.value.failure is UNAUTHENTICATED
    for secret in ("s3cret", "wrong", "operator", "auditor"):
        assert secret not in caught.value.message
        assert caught.value.data is None


def test_accepts_token_with_any_text() -> None:
    authenticate = Authenticator({"пароль 🔑": Caller("me")})
    assert authenticate(Credentials(REMOTE, "пароль 🔑")) == Caller("me")


def test_rejects_empty_token() -> None:
    with pytest.raises(InterlockError, match="The token of operator is empty") as caught:
        Authenticator({"": Caller("operator"), "s3cret": Caller("auditor")})
    assert caught.value.failure is CONFIG


def test_does_not_store_plain_tokens() -> None:
    authenticate = Authenticator({token: Caller(name) for token, name in TOKENS.items()})
    assert not [part for part in vars(authenticate).values() if "s3cret" in repr(part)]
    assert "s3cret" not in repr(authenticate)
