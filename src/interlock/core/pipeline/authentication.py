"""Who is calling? The first stage: a stranger learns nothing, not even which tools exist.

It never waits. What has to be asked of somebody else first (an issuer's keys, a server that knows
opaque tokens) is an `PendingIdentity`: whoever called waits for its `settle`, and asks again.
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
_NEEDED: Final = (
    "A bearer token is needed: send `Authorization: Bearer …` with a token from the node's "
    "`tokens`, from `interlock token create`, or of an issuer that it believes."
)
_WHY: Final = {
    OTHER_USER: "This connection does not belong to the user who runs the node. ",
    FORWARDED: "A proxy forwarded this request. ",
}
_MOST_KEPT: Final = 10_000
"""So many tokens are known by their digest; beyond that all are looked at anew."""

Settle = Callable[[], Awaitable[None]]


class PendingIdentity(InterlockError):
    """Who calls cannot be said before something was asked of somebody else.

    `settle` asks, and never raises. Afterwards the same credentials have an answer; if they are
    still unsettled then, that is a refusal.
    """

    def __init__(
        self,
        settle: Settle,
        message: str = "Whose token this is could not be found out in time: try again.",
    ) -> None:
        super().__init__(UNAUTHENTICATED, message)
        self.settle = settle


class KnownToken(msgspec.Struct, frozen=True):
    """Whose a bearer token is, and for how long that need not be looked at again."""

    caller: Caller
    until: float | None = None
    """On the wall clock. None: until somebody says otherwise."""
    ends: float | None = None
    """When the token itself is over. None: it does not say."""


class BearerSource(Protocol):
    """Somebody who knows bearer tokens of one kind."""

    @property
    def demands(self) -> bool:
        """Whether it has given out any: then everybody who comes over the network needs one."""
        ...

    def find(self, bearer: str) -> KnownToken | None:
        """Whose it is; None when it is of another kind. Raises InterlockError, PendingIdentity."""
        ...


class CertificateSource(Protocol):
    """Somebody who knows callers by the names in their certificates."""

    def find(self, names: tuple[str, ...]) -> Caller | None: ...


class Authenticator:
    """Accepts this machine's own user, the bearer of a token, or who shows a certificate.

    Once there are tokens they are demanded of everybody who comes over the network, loopback
    included: a token is there to tell callers apart, and an open side door would undo that.
    """

    def __init__(
        self,
        tokens: Mapping[str, Caller],
        *,
        sources: Sequence[BearerSource] = (),
        certificates: CertificateSource | None = None,
        local: Caller = LOCAL_CALLER,
        wall_clock: Callable[[], float] = time.time,
        on_known: Callable[[KnownToken], None] | None = None,
        on_unread: Callable[[], None] | None = None,
    ) -> None:
        """`tokens`: whose each token of the config is. `on_known` is told of everybody whom a
        source knew, `on_unread` when somebody shows a token and nobody looks at any. Raises
        InterlockError for an empty token."""
        if "" in tokens:
            # An unset secret must not become a password that everybody knows.
            raise InterlockError(
                CONFIG,
                f"The token of {tokens[''].name} is empty: put the secret into the variable or "
                "file that the config names.",
            )
        # Kept and looked up by digest: comparing digests leaks nothing about the token.
        self._configured = {
            sha256(token.encode()).digest(): KnownToken(caller) for token, caller in tokens.items()
        }
        self._sources = tuple(sources)
        self._certificates = certificates
        self._local = local
        self._clock = wall_clock
        self._on_known = on_known
        self._on_unread = on_unread
        self._known: dict[bytes, KnownToken] = {}
        self._demands = False
        self.forget()
        self.minted: Callable[[Credentials], Caller | None] | None = None
        """Reads the token that the node above made for a call. None: there is none to read."""

    def __call__(self, credentials: Credentials) -> Caller:
        """The caller. Raises InterlockError; PendingIdentity, when it has to be asked for first."""
        if credentials.assigned_name:
            reads = self.minted
            minted = None if reads is None else reads(credentials)
            return minted or Caller(credentials.assigned_name, kind=PARENT_KIND)
        bearer = credentials.bearer
        if bearer is not None and self._demands:
            digest = sha256(bearer.encode()).digest()
            known = self._known.get(digest)
            if known is None or not (known.until is None or self._clock() < known.until):
                known = self._find(bearer, digest)
            return known.caller
        if credentials.certificate_names and self._certificates is not None:
            caller = self._certificates.find(credentials.certificate_names)
            if caller is not None:
                return caller
        if credentials.peer == LOCAL_PEER:
            return self._local
        if credentials.peer != LOOPBACK or self._demands:
            raise InterlockError(UNAUTHENTICATED, _WHY.get(credentials.peer, "") + _NEEDED)
        if bearer is not None and self._on_unread is not None:
            self._on_unread()
        return self._local

    def forget(self) -> None:
        """Something was made, revoked or rotated: look at every token anew."""
        self._known = dict(self._configured)
        self._demands = (
            bool(self._configured)
            or self._certificates is not None
            or any(source.demands for source in self._sources)
        )

    def _find(self, bearer: str, digest: bytes) -> KnownToken:
        self._known.pop(digest, None)
        for source in self._sources:
            known = source.find(bearer)
            if known is not None:
                break
        else:
            raise InterlockError(UNAUTHENTICATED, "This bearer token is not known here.")
        if len(self._known) >= _MOST_KEPT:
            self._known = dict(self._configured)
        self._known[digest] = known
        if self._on_known is not None:
            self._on_known(known)
        return known
