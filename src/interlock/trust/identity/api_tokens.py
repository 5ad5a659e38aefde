"""API tokens of the node (`interlock token`), and revocations.

A token is `ilk_<id>_<secret>`. The prefix identifies a leaked token, and its id says which token to
revoke. Only a digest of the secret is stored. `AccessSnapshot` is the content of the store at one
moment. It is replaced as a whole when the store changes, so a lookup never waits for a file.
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import b32encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final

import msgspec

from interlock.core.call import Caller
from interlock.core.pipeline.authentication import KnownToken
from interlock.trust.identity.claims import LEEWAY_SECONDS, token_error

PREFIX: Final = "ilk"
SECRET_BYTES: Final = 32
_ID_BYTES: Final = 10
"""Sixteen characters of base32, without padding."""
_TOKEN: Final = re.compile(r"ilk_([a-z2-7]{8,32})_([A-Za-z0-9_-]{40,100})")
RECHECK_SECONDS: Final = 60.0
"""The time for which a token is cached, which is also the precision of its last use."""


class AccessToken(msgspec.Struct, frozen=True):
    """A stored API token. It does not contain the secret."""

    id: str
    name: str
    """The caller. A caller may have several tokens, so that one can replace another."""
    digest: bytes
    may: tuple[str, ...] = ("call",)
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    created: float = 0.0
    expires: float | None = None
    last_used: float | None = None
    revoked: float | None = None

    def state(self, now: float) -> str:
        """Return `good`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "good"

    def __repr__(self) -> str:
        return f"AccessToken({self.id}, {self.name})"


class AccessSnapshot(msgspec.Struct, frozen=True):
    """All API tokens and revocations at one moment."""

    tokens: Mapping[str, AccessToken] = {}
    subjects: Mapping[str, float] = {}
    """Callers of other issuers, and the time before which their tokens are revoked."""
    jtis: frozenset[str] = frozenset()

    def is_revoked(self, name: str, jti: str | None, issued: float | None) -> bool:
        """Return whether a token of another issuer was revoked here.

        The revocation of a subject covers all tokens issued until then. It also covers tokens
        without a time of issue, and those of a clock that is slightly ahead.
        """
        if jti is not None and jti in self.jtis:
            return True
        revoked_at = self.subjects.get(name)
        return revoked_at is not None and (issued is None or issued <= revoked_at + LEEWAY_SECONDS)

    def good_names(self, now: float) -> frozenset[str]:
        """Return the callers that have a valid token."""
        return frozenset(token.name for token in self.tokens.values() if token.state(now) == "good")


class ApiTokens:
    """Finds the callers of API tokens."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._clock = wall_clock
        self.access = AccessSnapshot()
        """The current content of the store, set by the reader of the store."""
        self.last_uses: dict[str, float] = {}
        """The last uses of tokens, by id, that are not stored yet."""
        self._requires_token = False

    @property
    def requires_token(self) -> bool:
        # Revoked tokens count as well: revoking the last token must not admit callers without one.
        # Once tokens are demanded, they are demanded for as long as the node runs.
        self._requires_token = self._requires_token or bool(self.access.tokens)
        return self._requires_token

    def is_revoked(self, name: str, jti: str | None, issued: float | None) -> bool:
        return self.access.is_revoked(name, jti, issued)

    def find(self, bearer: str) -> KnownToken | None:
        """Return the caller of a token. None: it is no API token. Raises InterlockError."""
        if not bearer.startswith(f"{PREFIX}_"):
            return None
        match = _TOKEN.fullmatch(bearer)
        token = None if match is None else self.access.tokens.get(match[1])
        if match is None or token is None:
            raise token_error("this API token is not known here")
        if not hmac.compare_digest(digest_of(match[2]), token.digest):
            raise token_error("this API token is not known here")
        now = self._clock()
        state = token.state(now)
        if state != "good":
            verb = "was revoked" if state == "revoked" else "has expired"
            raise token_error(f"this API token {verb}")
        self.last_uses[token.id] = now
        until = now + RECHECK_SECONDS
        return KnownToken(
            caller_of_token(token),
            until if token.expires is None else min(until, token.expires),
            token.expires,
        )


def caller_of_token(token: AccessToken) -> Caller:
    return Caller(
        token.name,
        can_call="call" in token.may,
        can_register="register" in token.may,
        can_join="join" in token.may,
        can_view_approvals="approve" in token.may,
        kind="token",
        roles=token.roles,
        scopes=token.scopes,
        expires_at=token.expires,
        id=token.id,
    )


def new_token() -> tuple[str, str, str]:
    """Return a new id, its secret, and the token for the caller."""
    id = b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return id, secret, f"{PREFIX}_{id}_{secret}"


def digest_of(secret: str) -> bytes:
    """Return the digest of a secret. The secret is long and random, so a plain hash is enough."""
    return sha256(secret.encode()).digest()
