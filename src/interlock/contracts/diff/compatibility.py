"""Versions of contracts: the version that a change requires, and which versions work together."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from semantic_version import Version

from interlock.contracts.diff.changes import PATCH_REASONS, SchemaChange
from interlock.errors import INVALID_ARGUMENTS, InterlockError


class Bump(StrEnum):
    """The part of a version that a change raises."""

    MAJOR = "major"
    MINOR = "minor"
    PATCH = "patch"


class Compatibility(StrEnum):
    """The compatibility of a client and a server with different versions of a contract."""

    FULL = "full"
    """The server has everything up to the client's version."""
    DEGRADED = "degraded"
    """The client may use features that the server does not have yet, and must handle their
    absence."""
    INCOMPATIBLE = "incompatible"
    """The client is rejected, or routed to a server with a matching version."""


def read_version(text: str) -> Version:
    """Parse a version `major.minor.patch`. Raises InterlockError for an invalid version."""
    try:
        return Version(text)
    except (ValueError, TypeError):
        raise InterlockError(
            INVALID_ARGUMENTS,
            f"Invalid version {text!r}. Use major.minor.patch, such as 1.4.0.",
            {"version": str(text)},
        ) from None


def required_bump(changes: Iterable[SchemaChange]) -> Bump:
    """Return major for breaking changes, minor for additions, and patch for everything else."""
    result = Bump.PATCH
    for change in changes:
        if change.breaking:
            return Bump.MAJOR
        if change.reason not in PATCH_REASONS:
            result = Bump.MINOR
    return result


def next_version(version: str, changes: Iterable[SchemaChange]) -> str:
    """Return the lowest version that may carry these changes."""
    current = read_version(version)
    bump = required_bump(changes)
    if bump is Bump.MAJOR:
        return str(current.next_major())
    if bump is Bump.MINOR:
        return str(current.next_minor())
    return str(current.next_patch())


def check_compatibility(client: str, server: str) -> Compatibility:
    """Return how well a client of one version works with a server of another. Patch numbers do
    not matter."""
    client_version, server_version = read_version(client), read_version(server)
    if client_version.major != server_version.major:
        return Compatibility.INCOMPATIBLE
    if client_version.minor <= server_version.minor:
        return Compatibility.FULL
    return Compatibility.DEGRADED
