"""Scope checks: compares what a call requires with what its caller was granted, and with what its
subserver is registered for.

A call on behalf of a caller may do what that caller may. No other caller's scopes count (MCP-AX
§10.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from interlock.core.call import Call, Caller
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import ListedEntry, Tool
from interlock.core.pipeline.authentication import PARENT_KIND
from interlock.core.pipeline.resolution import is_passed_on
from interlock.errors import FORBIDDEN, InterlockError
from interlock.protocol.capabilities import read_capability
from interlock.protocol.mcp import (
    METHODS,
    PROMPT_METHODS,
)
from interlock.protocol.scopes import (
    READ,
    WRITE,
    escape_glob,
    highest_level,
    is_level_within,
    scopes_cover,
)

_MAX_NAME_LENGTH: Final = 200
RESOURCES: Final = "resources"
"""The name, after the segment, of an upstream's resources in scopes."""
_RESOURCE_METHODS: Final = frozenset(
    name for name, method in METHODS.items() if method.target in ("resource", "reference")
)


def check_scopes(call: Call, tool: Tool | None, limits: Mapping[str, str]) -> None:
    """Raise InterlockError when a call requires more than its caller or its upstream may do.

    Args:
        tool: None for a tool that no list names.
        limits: the highest level of restricted subservers, by the key of their upstream.
    """
    limit, caller = limits.get(call.upstream), call.caller
    scopes = None if caller is None else caller.scopes
    if limit is None and scopes is None:
        return
    if scopes is not None:
        name = scope_name(call)
        missing = _missing_level(scopes, tool, name)
        if missing:
            raise _missing_scope_error(caller, missing, name)
    if limit is not None:
        level = WRITE if tool is None else required_level(tool)
        if not is_level_within(level, limit):
            raise _limit_error(call, scope_name(call), level, limit)


@lru_cache(maxsize=20_000)
def _missing_level(scopes: tuple[str, ...], tool: Tool | None, name: str) -> str:
    """Return the level that the scopes lack. Empty: none."""
    level = WRITE if tool is None else required_level(tool)
    return "" if scopes_cover(scopes, level, name) else level


def check_method_scopes(call: Call, catalog: Catalog, limits: Mapping[str, str]) -> None:
    """Raise InterlockError when a request that calls no tool requires more than its caller may do.

    Methods that the node knows only read. A method that is passed on may change anything. Lists are
    free for every caller.
    """
    level = WRITE if is_passed_on(call) else READ
    limit = limits.get(call.upstream) if level == WRITE else None
    if limit is not None and not is_level_within(level, limit):
        raise _limit_error(call, call.method, level, limit)
    caller = call.caller
    if caller is None or caller.scopes is None:
        return
    if call.method in PROMPT_METHODS:
        prompt = catalog.current.prompt(call.name)
        name = call.name if prompt is None else prompt.canonical
    elif call.method in _RESOURCE_METHODS:
        name = name_prefix(call.upstream, catalog) + RESOURCES
    elif level == WRITE:
        name = name_prefix(call.upstream, catalog) + call.method[:_MAX_NAME_LENGTH]
    else:
        return
    if not scopes_cover(caller.scopes, level, name):
        raise _missing_scope_error(caller, level, name)


@lru_cache(maxsize=20_000)
def required_level(tool: Tool) -> str:
    """Return the scope level of a tool: the declared one, at least `write` if it may change
    anything."""
    capability, _ = read_capability(tool.capability())
    return highest_level(capability.auth_scope, WRITE if tool.mutable else READ)


def scope_name(call: Call) -> str:
    """Return the name of a tool in scopes: its canonical name, or the name that a parent node
    used."""
    caller, route = call.caller, call.route
    if route is None or (caller is not None and caller.kind == PARENT_KIND):
        return call.name
    return route.canonical


def name_prefix(upstream: str, catalog: Catalog) -> str:
    """Return the prefix of the canonical names of an upstream's tools, with the dot."""
    offering = catalog.offering(upstream)
    if offering is None:
        return ""
    entries: tuple[ListedEntry, ...] = offering.tools or offering.prompts
    if entries:
        entry = entries[0]
        return (entry.alias or entry.canonical).removesuffix(entry.upstream_name)
    return f"{offering.segment}."


def _limit_error(call: Call, name: str, level: str, limit: str) -> InterlockError:
    return InterlockError(
        FORBIDDEN,
        f"{name[:_MAX_NAME_LENGTH]} requires the scope {level}. Its subserver is registered for "
        f"{limit} only.",
        {"missing": [level], "auth_scope": limit, "upstream": call.upstream},
    )


def _missing_scope_error(caller: Caller | None, level: str, name: str) -> InterlockError:
    scope = f"{level}:{escape_glob(name)}"
    label = "The caller" if caller is None else caller.parent_caller or caller.name
    return InterlockError(FORBIDDEN, f"{label} lacks the scope {scope}.", {"missing": [scope]})
