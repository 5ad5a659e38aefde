"""Versions of contracts: which one a change asks for, and which two get on with each other."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from semantic_version import Version

from interlock.contracts.diff.changes import ONLY_WORDS, SchemaChange
from interlock.errors import INVALID_ARGUMENTS, InterlockError


class Bump(StrEnum):
    """Which part of a version a change raises."""

    MAJOR = "major"
    MINOR = "minor"
    PATCH = "patch"


class Compatibility(StrEnum):
    """What a client may expect of a server that has another version of the contract."""

    FULL = "full"
    """Everything up to the client's version is there."""
    DEGRADED = "degraded"
    """The client may ask for what the server does not have yet, and has to cope."""
    INCOMPATIBLE = "incompatible"
    """It is refused, or routed to a version that fits."""


def read_version(text: str) -> Version:
    """A version `major.minor.patch`. Raises InterlockError for anything else."""
    try:
        return Version(text)
    except (ValueError, TypeError):
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"{text!r} is no version: write major.minor.patch, such as 1.4.0.",
            {"version": str(text)},
        ) from None


def bump(changes: Iterable[SchemaChange]) -> Bump:
    """Major for what breaks, minor for what was added, patch where the contract is as it was."""
    raised = Bump.PATCH
    for change in changes:
        if change.breaking:
            return Bump.MAJOR
        if change.reason not in ONLY_WORDS:
            raised = Bump.MINOR
    return raised


def next_version(version: str, changes: Iterable[SchemaChange]) -> str:
    """The lowest version that may carry these changes."""
    current = read_version(version)
    wanted = bump(changes)
    if wanted is Bump.MAJOR:
        return str(current.next_major())
    if wanted is Bump.MINOR:
        return str(current.next_minor())
    return str(current.next_patch())


def compatible(client: str, server: str) -> Compatibility:
    """Whether a client of one version can speak with a server of another. Patches do not count."""
    asked, offered = read_version(client), read_version(server)
    if asked.major != offered.major:
        return Compatibility.INCOMPATIBLE
    if asked.minor <= offered.minor:
        return Compatibility.FULL
    return Compatibility.DEGRADED
