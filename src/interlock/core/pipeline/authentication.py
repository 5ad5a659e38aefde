"""Authentication: the first stage. An unknown caller learns nothing, not even which tools exist.

It never blocks. If an external server must be asked first (keys of an issuer, introspection of an
opaque token), it raises `PendingIdentity`. Then await its `resolve` and authenticate again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Protocol

import msgspec

from interlock.core.call import FORWARDED, LOCAL, LOOPBACK, OTHER_USER, Caller, Credentials
from interlock.errors import CONFIG, UNAUTHENTICATED, InterlockError

LOCAL_PEER: Final = LOCAL
LOCAL_CALLER: Final = Caller("local")
PARENT_KIND: Final = "parent"
_TOKEN_NEEDED: Final = (
    "A bearer token is required. Send `Authorization: Bearer …` with a token from the `tokens` "
    "of the config, from `interlock token create`, or from a trusted issuer."
)
_WHY: Final = {
    OTHER_USER: "This connection does not belong to the user who runs the node. ",
    FORWARDED: "A proxy forwarded this request. ",
}
_MAX_CACHED_TOKENS: Final = 10_000
"""Maximum number of cached tokens, by digest. Beyond that the cache is emptied."""

Settle = Callable[[], Awaitable[None]]


class PendingIdentity(InterlockError):
    """The caller cannot be identified before an external server was asked.

    `resolve` asks it and never raises. Afterwards authenticate the same credentials again. If they
    are still pending, reject the request.
    """

    def __init__(
        self,
        resolve: Settle,
        message: str = "The owner of this token could not be determined in time. Try again.",
    ) -> None:
        super().__init__(UNAUTHENTICATED, message)
        self.resolve = resolve


class KnownToken(msgspec.Struct, frozen=True):
    """The caller of a bearer token, and for how long this may be cached."""

    caller: Caller
    check_again_at: float | None = None
    """The time of the next check of the token (wall clock). None: only after
    `Authenticator.forget`."""
    expires_at: float | None = None
    """The end of the token. None: unknown."""


class BearerSource(Protocol):
    """A verifier of one kind of bearer tokens."""

    @property
    def requires_token(self) -> bool:
        """True if it has issued tokens. Then every caller from the network needs one."""
        ...

    def find(self, bearer: str) -> KnownToken | None:
        """Return the owner of a token. None: it is a token of another kind. Raises InterlockError,
        PendingIdentity."""
        ...


class CertificateSource(Protocol):
    """A lookup of callers by the names in their certificates."""

    def find(self, names: tuple[str, ...]) -> Caller | None: ...


class Authenticator:
    """Authenticates the local user, bearer tokens and client certificates.

    If there are tokens, every caller from the network needs one, including loopback: tokens
    distinguish callers, and an unauthenticated connection would defeat that.
    """

    def __init__(
        self,
        tokens: Mapping[str, Caller],
        *,
        sources: Sequence[BearerSource] = (),
        certificates: CertificateSource | None = None,
        local: Caller = LOCAL_CALLER,
        wall_clock: Callable[[], float] = time.time,
        on_verified: Callable[[KnownToken], None] | None = None,
        on_ignored_token: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            tokens: the tokens of the config, with their callers.
            on_verified: called for every token that a source verified.
            on_ignored_token: called when a request has a token, but the node verifies no tokens.

        Raises:
            InterlockError: a token is empty.
        """
        if "" in tokens:
            # An unset secret must not become a password that everybody knows.
            raise InterlockError(
                CONFIG,
                f"The token of {tokens[''].name} is empty. Put the secret into the variable or "
                "file that the config names.",
            )
        # Stored and looked up by digest: comparing digests leaks nothing about the token.
        self._configured = {
            sha256(token.encode()).digest(): KnownToken(caller) for token, caller in tokens.items()
        }
        self._sources = tuple(sources)
        self._certificates = certificates
        self._local = local
        self._clock = wall_clock
        self._on_verified = on_verified
        self._on_ignored_token = on_ignored_token
        self._cache: dict[bytes, KnownToken] = {}
        self._needs_token = False
        self.clear_cache()
        self.verify_hop_token: Callable[[Credentials], Caller | None] | None = None
        """Verifies the hop token that the parent minted for a call. None: there are no hop
        tokens."""

    def __call__(self, credentials: Credentials) -> Caller:
        """Return the caller. Raises InterlockError, PendingIdentity."""
        if credentials.assigned_name:
            verify = self.verify_hop_token
            caller = None if verify is None else verify(credentials)
            return caller or Caller(credentials.assigned_name, kind=PARENT_KIND)
        bearer = credentials.bearer
        if bearer is not None and self._needs_token:
            digest = sha256(bearer.encode()).digest()
            token = self._cache.get(digest)
            if token is None or not (
                token.check_again_at is None or self._clock() < token.check_again_at
            ):
                token = self._find(bearer, digest)
            return token.caller
        if credentials.certificate_names and self._certificates is not None:
            caller = self._certificates.find(credentials.certificate_names)
            if caller is not None:
                return caller
        if credentials.peer == LOCAL_PEER:
            return self._local
        if credentials.peer != LOOPBACK or self._needs_token:
            raise InterlockError(UNAUTHENTICATED, _WHY.get(credentials.peer, "") + _TOKEN_NEEDED)
        if bearer is not None and self._on_ignored_token is not None:
            self._on_ignored_token()
        return self._local

    def clear_cache(self) -> None:
        """Empty the cache, after tokens were created, revoked or rotated."""
        self._cache = dict(self._configured)
        self._needs_token = (
            bool(self._configured)
            or self._certificates is not None
            or any(source.requires_token for source in self._sources)
        )

    def _find(self, bearer: str, digest: bytes) -> KnownToken:
        self._cache.pop(digest, None)
        for source in self._sources:
            token = source.find(bearer)
            if token is not None:
                break
        else:
            raise InterlockError(
                UNAUTHENTICATED, "Unknown bearer token. Check the token, or get a new one."
            )
        if len(self._cache) >= _MAX_CACHED_TOKENS:
            self._cache = dict(self._configured)
        self._cache[digest] = token
        if self._on_verified is not None:
            self._on_verified(token)
        return token
