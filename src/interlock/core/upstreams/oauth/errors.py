"""What can go wrong between a node and an authorization server, and how it is told.

Modules of this package raise `SignInProblem` with the rest of a sentence. `told` adds the name of
the upstream at the edge of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from interlock.core.upstreams.transports.credentials import SignInError


class SignInProblem(Exception):
    """Why a sign-in cannot go on. Never holds a secret."""

    def __init__(self, why: str, *, passing: bool = False, code: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.passing = passing
        """Whether it may be better in a moment: nobody answered, or a server failed."""
        self.code = code
        """The `error` of an OAuth answer, such as `invalid_grant`."""


class SignInFailedError(SignInError):
    """A sign-in, or the renewal of one, did not work out."""

    def __init__(self, key: str, trouble: SignInProblem) -> None:
        super().__init__(f"Cannot sign in to {key}: {trouble.why}", lasting=not trouble.passing)
        self.trouble = trouble


@contextmanager
def told(key: str) -> Iterator[None]:
    """Tell whatever goes wrong in the block with the name of its upstream."""
    try:
        yield
    except SignInProblem as trouble:
        raise SignInFailedError(key, trouble) from None
