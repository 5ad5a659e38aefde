"""Errors between a node and an authorization server.

Modules of this package raise `SignInProblem` with the rest of a sentence. `convert_problems` adds
the name of the upstream at the edge of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from interlock.core.upstreams.transports.credentials import SignInError


class SignInProblem(Exception):
    """The reason why a sign-in failed. Never contains a secret."""

    def __init__(self, reason: str, *, is_temporary: bool = False, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_temporary = is_temporary
        """True if a retry may succeed: there was no response, or a server error."""
        self.code = code
        """The `error` of an OAuth response, such as `invalid_grant`."""


class SignInFailedError(SignInError):
    """A sign-in or a renewal failed."""

    def __init__(self, key: str, problem: SignInProblem) -> None:
        super().__init__(
            f"Cannot sign in to {key}: {problem.reason}", is_permanent=not problem.is_temporary
        )
        self.problem = problem


@contextmanager
def convert_problems(key: str) -> Iterator[None]:
    """Convert problems in the block to errors with the name of the upstream."""
    try:
        yield
    except SignInProblem as problem:
        raise SignInFailedError(key, problem) from None
