"""When a driver is another one: what must not change without a new major version.

Two majors are two drivers, so somebody who pinned one is not handed the other. A change of the
protocol's version, of the transport, of where the server comes from, or of what is narrowed away
is such a change.
"""

from __future__ import annotations

import re
from typing import Final

from interlock.config.problems import Problem
from interlock.manifests.driver import DriverManifest, Implements, ServerBlock

_PACKAGE: Final = re.compile(r"(?P<name>@?[^@]+)(?:@(?P<version>.+))?")
_FIRST_NUMBER: Final = re.compile(r"[^0-9]*([0-9]+)")


def major_changes(old: DriverManifest, new: DriverManifest) -> list[str]:
    """What of a new version of a driver demands a new major, in words. Empty: nothing does."""
    changes = []
    if old.kind != new.kind:
        changes.append(f"the kind changes from {old.kind} to {new.kind}")
    if old.protocol_version != new.protocol_version:
        changes.append(
            "the version of MCP changes from "
            f"{old.protocol_version or 'the newest'} to {new.protocol_version or 'the newest'}"
        )
    if old.server is not None and new.server is not None:
        if old.transport != new.transport:
            changes.append(f"the transport changes from {old.transport} to {new.transport}")
        before, after = _origin(old.server), _origin(new.server)
        if before != after:
            changes.append(f"the server changes from {before} to {after}")
    entries = {_tool(entry): entry for entry in old.implements}
    for entry in new.implements:
        earlier = entries.get(_tool(entry))
        if earlier is not None and _narrowing(earlier) != _narrowing(entry):
            changes.append(f"the narrowing of {entry.tool} changes")
    return changes


def successor_problems(old: DriverManifest, new: DriverManifest) -> list[Problem]:
    """Why a driver may not take the place of the one that was registered under its id and major."""
    if old.id != new.id or old.major != new.major:
        return []
    hint = f"write version: {new.major + 1}.0.0, or take the change back"
    return [
        Problem(str(new.file), 0, 0, "version", f"{change}, which needs a new major version", hint)
        for change in major_changes(old, new)
    ]


def _origin(server: ServerBlock) -> str:
    """Where a server comes from, as far as it matters: a package with its major."""
    if server.kind == "npm":
        parts = _PACKAGE.fullmatch(server.package)
        if parts is None:
            return f"npm {server.package}"
        number = _FIRST_NUMBER.match(parts["version"] or "")
        return f"npm {parts['name']}" + (f"@{number[1]}" if number else "")
    if server.kind == "docker":
        place, slash, name = server.image.partition("@")[0].rpartition("/")
        return f"docker {place}{slash}{name.partition(':')[0]}"
    return f"{server.kind} {server.path or server.url}"


def _tool(entry: Implements) -> str:
    return entry.tool.removeprefix("./")


def _narrowing(entry: Implements) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(entry.drop_inputs), frozenset(entry.drop_outputs)
