"""May it, by its scopes? What a call takes is held against what its caller was granted, and
against what its subserver was registered for.

Nobody else's standing counts: a call on behalf of somebody may do what that somebody may.
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

_SHOWN: Final = 200
RESOURCES: Final = "resources"
"""The name, behind the segment, by which scopes speak of an upstream's resources."""
_ABOUT_RESOURCES: Final = frozenset(
    verb for verb, method in METHODS.items() if method.target in ("resource", "reference")
)


def check_scopes(call: Call, tool: Tool | None, limits: Mapping[str, str]) -> None:
    """Raises InterlockError when the call takes more than its caller or its upstream may.

    `tool` is None for one that no list names. `limits`: the highest level of the subservers that
    may not be asked for everything, by the key of their upstream.
    """
    limit, caller = limits.get(call.upstream), call.caller
    scopes = None if caller is None else caller.scopes
    if limit is None and scopes is None:
        return
    if scopes is not None:
        name = name_of(call)
        lacks = _lacks(scopes, tool, name)
        if lacks:
            raise _missing(caller, lacks, name)
    if limit is not None:
        level = WRITE if tool is None else level_of(tool)
        if not is_level_within(level, limit):
            raise _beyond(call, name_of(call), level, limit)


@lru_cache(maxsize=20_000)
def _lacks(scopes: tuple[str, ...], tool: Tool | None, name: str) -> str:
    """The level that is missing. Empty: none is."""
    level = WRITE if tool is None else level_of(tool)
    return "" if scopes_cover(scopes, level, name) else level


def check_other_scopes(call: Call, catalog: Catalog, limits: Mapping[str, str]) -> None:
    """The same for what is not about a tool, once its upstream is known: what is understood here
    reads, what is passed on may change anything. Lists are for everybody who is known."""
    level = WRITE if is_passed_on(call) else READ
    limit = limits.get(call.upstream) if level == WRITE else None
    if limit is not None and not is_level_within(level, limit):
        raise _beyond(call, call.method, level, limit)
    caller = call.caller
    if caller is None or caller.scopes is None:
        return
    if call.method in PROMPT_METHODS:
        prompt = catalog.current.prompt(call.name)
        name = call.name if prompt is None else prompt.canonical
    elif call.method in _ABOUT_RESOURCES:
        name = prefix_of(call.upstream, catalog) + RESOURCES
    elif level == WRITE:
        name = prefix_of(call.upstream, catalog) + call.method[:_SHOWN]
    else:
        return
    if not scopes_cover(caller.scopes, level, name):
        raise _missing(caller, level, name)


@lru_cache(maxsize=20_000)
def level_of(tool: Tool) -> str:
    """What a call of a tool takes: what it says itself, and `write` if it may change something."""
    capability, _ = read_capability(tool.capability())
    return highest_level(capability.auth_scope, WRITE if tool.mutable else READ)


def name_of(call: Call) -> str:
    """What scopes call the tool: its canonical name; a parent's speak of what the parent called."""
    caller, route = call.caller, call.route
    if route is None or (caller is not None and caller.kind == PARENT_KIND):
        return call.name
    return route.canonical


def prefix_of(upstream: str, catalog: Catalog) -> str:
    """What the canonical names of an upstream's tools begin with, the dot included."""
    offering = catalog.offering(upstream)
    if offering is None:
        return ""
    named: tuple[ListedEntry, ...] = offering.tools or offering.prompts
    if named:
        one = named[0]
        return (one.alias or one.canonical).removesuffix(one.upstream_name)
    return f"{offering.segment}."


def _beyond(call: Call, name: str, level: str, limit: str) -> InterlockError:
    return InterlockError(
        FORBIDDEN,
        f"{name[:_SHOWN]} takes the scope {level}, and its subserver is registered for {limit} "
        "only.",
        {"missing": [level], "auth_scope": limit, "upstream": call.upstream},
    )


def _missing(caller: Caller | None, level: str, name: str) -> InterlockError:
    scope = f"{level}:{escape_glob(name)}"
    whom = "The caller" if caller is None else caller.parent_caller or caller.name
    return InterlockError(FORBIDDEN, f"{whom} lacks the scope {scope}.", {"missing": [scope]})
