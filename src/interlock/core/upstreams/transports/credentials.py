"""Interfaces of credentials that a transport sends. `core/upstreams/oauth` implements them.

A transport asks for the current credentials whenever it sends, and reports when a server rejected
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError

OnCredentialsResult = Callable[[InterlockError | None], None]
"""Called after a rejection: None to send the request again, else the error."""


class SignInError(InterlockError):
    """No credentials are available that the upstream accepts."""

    def __init__(self, message: str, *, is_permanent: bool) -> None:
        """
        Args:
            is_permanent: other requests will fail as well, so the connection is of no use.
        """
        super().__init__(UPSTREAM_UNAVAILABLE, message)
        self.is_permanent = is_permanent


class SignInNeededError(SignInError):
    """A person has to sign in. The message says how."""


class BearerCredentials(Protocol):
    """The credentials for one upstream."""

    idle: bool
    """True if there are no credentials and none are requested: `current` need not be called."""

    def current(self) -> bytes:
        """Return the `Authorization` header line to send. Empty: none.

        Returns the same object as long as the credentials stay the same. Called for every request:
        must not block.
        """
        ...

    def on_rejected(
        self, status: int, challenge: bytes, sent_line: bytes, on_result: OnCredentialsResult
    ) -> None:
        """Handle a 401 or 403 response to a request with the header line `sent_line`.

        Such a response proves that the request was not executed.

        Args:
            challenge: the `WWW-Authenticate` header (RFC 9110 §11.6.1).
            on_result: called once, immediately or after other credentials were requested.
        """
        ...
