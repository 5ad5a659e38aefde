"""The node's own API tokens (`interlock token`), and what was revoked before its time.

A token is `ilk_<id>_<secret>`: whoever finds one lying about sees what it is, and its id says which
one to revoke. Of the secret only a digest is kept. `AccessSnapshot` is what the store holds at one
moment; it is swapped whole when that changes, so looking somebody up never waits for a file.
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
from interlock.trust.identity.claims import LEEWAY, refused

PREFIX: Final = "ilk"
SECRET_BYTES: Final = 32
_ID_BYTES: Final = 10
"""As sixteen characters of base32, without any to pad."""
_TOKEN: Final = re.compile(r"ilk_([a-z2-7]{8,32})_([A-Za-z0-9_-]{40,100})")
LOOKED_AT_AGAIN: Final = 60.0
"""How exactly it is known when a token was last used."""


class AccessToken(msgspec.Struct, frozen=True):
    """An API token, as it is kept: nobody can be it who reads this."""

    id: str
    name: str
    """Whose it is. Several tokens may be the same caller's, so that one can replace another."""
    digest: bytes
    may: tuple[str, ...] = ("call",)
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    created: float = 0.0
    expires: float | None = None
    last_used: float | None = None
    revoked: float | None = None

    def state(self, now: float) -> str:
        """`good`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "good"

    def __repr__(self) -> str:
        return f"AccessToken({self.id}, {self.name})"


class AccessSnapshot(msgspec.Struct, frozen=True):
    """Every API token, and everything that was revoked, at one moment."""

    tokens: Mapping[str, AccessToken] = {}
    subjects: Mapping[str, float] = {}
    """Callers of other issuers, and since when what was issued to them does not count."""
    jtis: frozenset[str] = frozenset()

    def is_revoked(self, name: str, jti: str | None, issued: float | None) -> bool:
        """Whether a token that somebody else issued was revoked here.

        A subject's revocation is about every token issued up to then. One that does not say when it
        was issued may be such a one, and so may one from a clock that is a little ahead.
        """
        if jti is not None and jti in self.jtis:
            return True
        since = self.subjects.get(name)
        return since is not None and (issued is None or issued <= since + LEEWAY)

    def good_names(self, now: float) -> frozenset[str]:
        """The callers who have a token that is good."""
        return frozenset(one.name for one in self.tokens.values() if one.state(now) == "good")


class ApiTokens:
    """Knows the callers of API tokens."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._clock = wall_clock
        self.access = AccessSnapshot()
        """What holds now. Whoever reads the store puts it here."""
        self.used: dict[str, float] = {}
        """Tokens by id that came since somebody last looked, and when."""
        self._demands = False

    @property
    def requires_token(self) -> bool:
        # One that was revoked counts: revoking the last token must not open the door to everybody.
        # And once closed, it stays so for as long as the node runs.
        self._demands = self._demands or bool(self.access.tokens)
        return self._demands

    def is_revoked(self, name: str, jti: str | None, issued: float | None) -> bool:
        return self.access.is_revoked(name, jti, issued)

    def find(self, bearer: str) -> KnownToken | None:
        """Whose it is; None when it is of another kind. Raises InterlockError."""
        if not bearer.startswith(f"{PREFIX}_"):
            return None
        match = _TOKEN.fullmatch(bearer)
        token = None if match is None else self.access.tokens.get(match[1])
        if match is None or token is None:
            raise refused("this API token is not known here")
        if not hmac.compare_digest(digest_of(match[2]), token.digest):
            raise refused("this API token is not known here")
        now = self._clock()
        state = token.state(now)
        if state != "good":
            verb = "was revoked" if state == "revoked" else "has expired"
            raise refused(f"this API token {verb}")
        self.used[token.id] = now
        until = now + LOOKED_AT_AGAIN
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
    """A fresh id, its secret, and both as the token that its caller is given."""
    id = b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return id, secret, f"{PREFIX}_{id}_{secret}"


def digest_of(secret: str) -> bytes:
    """What is kept of a secret. It is long and random: nobody finds it by trying."""
    return sha256(secret.encode()).digest()
