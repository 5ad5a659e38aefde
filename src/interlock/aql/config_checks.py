"""What must hold between the settings of AQL."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, get_args

from interlock.aql.config import (
    BUILT_IN_VIEWS,
    KIBIBYTE,
    MEBIBYTE,
    AqlConfig,
    CategoryName,
    ProfileConfig,
)
from interlock.core.config.model import ServerConfig
from interlock.core.config.problems import KeyPath, quoted
from interlock.core.config.quantities import default_segment
from interlock.core.config.reader import NodeReader
from interlock.protocol.aql_terms import RESERVED

_OWN_SEGMENT: Final = "aql"
_SIZES: Final = {
    "request_bytes": (64 * KIBIBYTE, 10 * MEBIBYTE, "64KiB to 10MiB"),
    "response_bytes": (MEBIBYTE, 100 * MEBIBYTE, "1MiB to 100MiB"),
    "string_bytes": (64 * KIBIBYTE, 10 * MEBIBYTE, "64KiB to 10MiB"),
}


def check_aql(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem between them."""
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        if (server.segment or default_segment(key)) == _OWN_SEGMENT:
            reader.report(
                ("servers", key),
                f"the segment {quoted(_OWN_SEGMENT)} is taken by the node's own operations",
                "write another one: segment: NAME",
            )
    aql: AqlConfig | None = values.get("aql")
    if aql is None or ("aql",) not in reader.places:
        return
    if aql.safety_only and servers:
        reader.report(
            ("aql", "safety_only"),
            "a node for the safety loop alone has no servers",
            "take the servers out, or write safety_only: false",
        )
    _check_views(reader, aql)
    for name, profile in aql.profiles.items():
        _check_profile(reader, ("aql", "profiles", name), name, profile)
    for name, (least, most, said) in _SIZES.items():
        if not least <= getattr(aql.limits, name) <= most:
            reader.report(("aql", "limits", name), f"it must be {said}", f"write {said}")
    if aql.limits.page > aql.limits.most_page:
        reader.report(
            ("aql", "limits", "page"),
            f"it is more than limits.most_page, which is {aql.limits.most_page}",
            "write less, or a larger most_page",
        )
    _check_names(reader, aql)
    for at, channel in enumerate(aql.channels):
        if (channel.kind == "command") != bool(channel.command):
            reader.report(
                ("aql", "channels", at),
                "a channel of the kind command has a command, and no other has",
                "write kind: command with command: [PROGRAM, ARGUMENT]",
            )
    for at, quota in enumerate(aql.quotas):
        steps = [quota.warn, quota.pause]
        if quota.hard_stop is not None:
            steps.append(quota.hard_stop)
        if steps != sorted(steps):
            reader.report(
                ("aql", "quotas", at),
                "warn must come before pause, and pause before hard_stop",
                "write them in growing order",
            )
    for at, limit in enumerate(aql.api_limits):
        for scope in ("endpoint", "category"):
            if (limit.scope == scope) != (getattr(limit, scope) is not None):
                reader.report(
                    ("aql", "api_limits", at),
                    f"{scope} goes with scope: {scope}",
                    f"write both or none: scope: {scope}, {scope}: …",
                )


def _check_names(reader: NodeReader, aql: AqlConfig) -> None:
    """A name of your own is one tool's, and nobody else's."""
    given: dict[str, str] = {}
    for glob, operation in aql.operations.items():
        name = operation.name
        if name is None:
            continue
        path = ("aql", "operations", glob, "name")
        if name in RESERVED:
            reader.report(path, f"{quoted(name)} is the node's own", "give it another name")
        elif name in given:
            reader.report(
                path, f"{quoted(given[name])} has this name already", "give it another name"
            )
        elif any(one in glob for one in "*?["):
            reader.report(
                path,
                "a name is for one tool, and this may be several",
                "write the whole canonical name of the tool, such as github.create_issue",
            )
        given.setdefault(name, glob)


def _check_views(reader: NodeReader, aql: AqlConfig) -> None:
    known = [*BUILT_IN_VIEWS, *aql.profiles]
    named: list[tuple[KeyPath, str]] = [(("aql", "view"), aql.view)]
    named += [(("aql", "clients", at, "view"), one.view) for at, one in enumerate(aql.clients)]
    for path, view in named:
        if view not in known:
            reader.report(path, f"there is no view {quoted(view)}", f"write {', '.join(known)}")
        elif view == "plain" and aql.plain == "deny" and path in reader.places:
            reader.report(
                path,
                "the plain view is denied by aql.plain",
                "write another view, or plain: allow",
            )


def _check_profile(reader: NodeReader, path: KeyPath, name: str, profile: ProfileConfig) -> None:
    if name in BUILT_IN_VIEWS:
        reader.report(path, f"{quoted(name)} is a view already", "give the profile another name")
    found = Counter(
        category for family in profile.families.values() for category in family.categories
    )
    for category in get_args(CategoryName):
        if found[category] != 1:
            how = "in none" if not found[category] else f"in {found[category]}"
            reader.report(
                path,
                f"{category} is {how} of its families",
                "put every category into exactly one family",
            )
