"""Credentials that a link sends but does not own: they are found, renewed and lost elsewhere.

A link asks for the current ones whenever it sends, and reports when a server refused them. Only
shapes here; `core/upstreams/oauth` has the behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError

Settle = Callable[[InterlockError | None], None]
"""Takes what came of a refusal: None when the request should be sent again, else why not."""


class SignInError(InterlockError):
    """There are no credentials that an upstream would take."""

    def __init__(self, message: str, *, lasting: bool) -> None:
        """`lasting`: no other request will fare better, so the link is of no use."""
        super().__init__(UPSTREAM_UNAVAILABLE, message)
        self.lasting = lasting


class SignInNeededError(SignInError):
    """Nothing helps but a human who signs in. The sentence says how."""


class BearerCredentials(Protocol):
    """The credentials for one upstream."""

    idle: bool
    """Whether there are none, and nobody has asked for any: `current` need not be asked."""

    def current(self) -> bytes:
        """The `Authorization` header line to send now; empty when there is none.

        The same object for as long as nothing changed. Called for every request: must not block.
        """
        ...

    def refused(self, status: int, challenge: bytes, sent: bytes, settle: Settle) -> None:
        """The server answered 401 or 403 to a request that carried the line `sent`.

        Such an answer proves that the request was not executed. `challenge` is its
        `WWW-Authenticate`. `settle` is called once: at once, or when other credentials were tried
        for.
        """
        ...
