"""Who is calling? The first stage: a stranger learns nothing, not even which tools exist."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from interlock.call import Caller, Credentials
from interlock.errors import CONFIG, UNAUTHENTICATED, InterlockError

LOCAL_PEER: Final = "local"
LOCAL_CALLER: Final = Caller("local")


class Authenticator:
    """Accepts this machine's own user, or the bearer of a configured token.

    Once tokens are configured they are demanded of everybody who comes over the network, loopback
    included: a token is set to tell callers apart, and an open side door would undo that.
    """

    def __init__(self, tokens: Mapping[str, Caller]) -> None:
        """`tokens`: whose each token is. Raises InterlockError for an empty one."""
        if "" in tokens:
            # An unset secret must not become a password that everybody knows.
            raise InterlockError(
                CONFIG,
                f"The token of {tokens[''].name} is empty: put the secret into the variable or "
                "file that the config names.",
            )
        # Kept and looked up by digest: comparing digests leaks nothing about the token.
        self._callers = {
            sha256(token.encode()).digest(): caller for token, caller in tokens.items()
        }

    def __call__(self, credentials: Credentials) -> Caller:
        if credentials.known_as:
            return Caller(credentials.known_as)
        bearer = credentials.bearer
        if bearer is not None and self._callers:
            caller = self._callers.get(sha256(bearer.encode()).digest())
            if caller is None:
                raise InterlockError(UNAUTHENTICATED, "This bearer token is not known here.")
            return caller
        if credentials.peer == LOCAL_PEER:
            return LOCAL_CALLER
        if self._callers or credentials.peer != "loopback":
            raise InterlockError(
                UNAUTHENTICATED,
                "A bearer token is needed: send `Authorization: Bearer …` with a token from the "
                "node's `tokens`.",
            )
        return LOCAL_CALLER
