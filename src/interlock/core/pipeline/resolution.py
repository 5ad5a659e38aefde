"""What is meant? Names and URIs in any accepted form become a way to one upstream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from difflib import get_close_matches
from typing import Final

from msgspec import Raw

from interlock.core.call import EMPTY_OBJECT, Call
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import Tool
from interlock.core.catalog.snapshot import Snapshot, View
from interlock.errors import (
    INVALID_PARAMS,
    UNKNOWN_PROMPT,
    UNKNOWN_RESOURCE,
    UNKNOWN_TOOL,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import (
    COMPLETE_ARGUMENT,
    METHODS,
    PROMPT_METHODS,
    RESOURCE_METHODS,
    RETRYABLE_METHODS,
)
from interlock.protocol.scopes import READ

_MOST_COMPARED: Final = 20
"""Comparing is slow, and a caller's typo must not hold up everybody else."""
_MOST_CHARACTERS: Final = 100
_READS: Final = frozenset(verb for verb, method in METHODS.items() if method.scope == READ)
"""What goes to an upstream beside calls of tools, and is known to change nothing there."""


def resolve_tool(
    call: Call, catalog: Catalog, view_of: Callable[[Call], View | None] = lambda _: None
) -> Tool:
    """The tool that the call names; the call learns its route and effect. `view_of`: what its
    caller sees of the tools: nothing else is suggested for a name that leads to none."""
    tool = catalog.by_name.get(call.name)
    if tool is None:
        tool = catalog.find(call.name)
    if tool is None:
        raise unknown_tool_error(call.name, catalog.current, view_of(call))
    call.route = tool
    call.upstream = tool.upstream
    call.effect = tool.effect_word
    call.is_retryable = tool.repeatable
    return tool


def resolve_method(call: Call, catalog: Catalog) -> bool:
    """Find the upstream of a request that is not about a tool, and say it in its words.

    False: this verb names nothing that the catalog knows.
    """
    verb = call.method
    if verb in PROMPT_METHODS:
        prompt = catalog.current.prompt(call.name)
        if prompt is None:
            raise _unknown_prompt(call.name)
        call.upstream = prompt.upstream
        _say(call, "name", prompt.upstream_name)
        if bytes(call.arguments) != EMPTY_OBJECT:
            _put(call, "arguments", Raw(call.arguments))
    elif verb in RESOURCE_METHODS:
        call.upstream, own_uri = _resource(call.name, catalog)
        _say(call, "uri", own_uri)
    elif verb == COMPLETE_ARGUMENT:
        _resolve_reference(call, catalog)
    else:
        return False
    call.is_retryable = verb in RETRYABLE_METHODS
    return True


def _resource(uri: str, catalog: Catalog) -> tuple[str, str]:
    route = catalog.current.resource(uri)
    if route is None:
        raise InterlockError(
            UNKNOWN_RESOURCE, f"There is no resource {_shown(uri)!r}.", {"uri": uri}
        )
    return route.upstream, route.own_uri


def _resolve_reference(call: Call, catalog: Catalog) -> None:
    """Completion is about a prompt or a resource: whose, is in the reference."""
    try:
        reference = decode_members((call.extra_params or {})["ref"])
        about = {
            key: decode_value(reference[key]) for key in ("type", "name", "uri") if key in reference
        }
    except (KeyError, ProtocolError):
        raise ProtocolError(
            "`ref` must be an object that names what is meant.", INVALID_PARAMS
        ) from None
    name, uri = about.get("name"), about.get("uri")
    if about.get("type") == "ref/prompt" and isinstance(name, str):
        prompt = catalog.current.prompt(name)
        if prompt is None:
            raise _unknown_prompt(name)
        call.upstream = prompt.upstream
        reference["name"] = Raw(encode_value(prompt.upstream_name))
    elif about.get("type") == "ref/resource" and isinstance(uri, str):
        call.upstream, own_uri = _resource(uri, catalog)
        reference["uri"] = Raw(encode_value(own_uri))
    else:
        raise ProtocolError("`ref` must be a ref/prompt or a ref/resource.", INVALID_PARAMS)
    _put(call, "ref", Raw(encode_members(reference)))


def _unknown_prompt(name: str) -> InterlockError:
    return InterlockError(
        UNKNOWN_PROMPT,
        f"There is no prompt called {_shown(name)!r}. `prompts/list` has the names.",
        {"prompt": _shown(name)},
    )


def _say(call: Call, member: str, value: str) -> None:
    _put(call, member, Raw(encode_value(value)))


def _put(call: Call, member: str, value: Raw) -> None:
    call.extra_params = {
        member: value,
        **{k: v for k, v in (call.extra_params or {}).items() if k != member},
    }


def _shown(name: str) -> str:
    return name if len(name) <= _MOST_CHARACTERS else name[:_MOST_CHARACTERS] + "…"


def unknown_tool_error(name: str, snapshot: Snapshot, view: View | None) -> InterlockError:
    """For a name that leads to nothing, or to nothing that the caller may know of."""
    near = _near(name[:_MOST_CHARACTERS], snapshot, view)
    shown = _shown(name)
    hint = f" Did you mean {' or '.join(near)}?" if near else " `tools/list` has the names."
    return InterlockError(
        UNKNOWN_TOOL, f"There is no tool called {shown!r}.{hint}", {"tool": shown, "near": near}
    )


def _near(name: str, snapshot: Snapshot, view: View | None) -> list[str]:
    """Names that may have been meant: those that end alike, and neighbours in the alphabet. Never
    a tool whose effect cannot be undone: a model would call it instead. Where the nearest is such
    a tool, nothing is suggested: another name would only mislead."""
    asked = name.lower().replace("__", ".")
    leaf = asked.rpartition(".")[2]
    by_name = {tool.transparent_name or tool.canonical: tool for tool in snapshot.plain_tools}
    names = sorted(by_name)
    alike = [known for known in names if leaf in known] if leaf else []
    place = bisect_left(names, asked)
    around = names[max(0, place - _MOST_COMPARED) : place + _MOST_COMPARED]
    candidates = [
        known
        for known in dict.fromkeys([*alike[:_MOST_COMPARED], *around])
        if view is None or view.sees(by_name[known])
    ]
    found = get_close_matches(asked, candidates, n=3, cutoff=0.5)
    held = [by_name[one].effect.level is EffectLevel.IRREVERSIBLE for one in found]
    if held and held[0]:
        return []
    return [one for one, is_held in zip(found, held, strict=True) if not is_held]


def is_passed_on(call: Call) -> bool:
    """Whether nobody but its upstream knows what a request does that calls no tool."""
    return bool(call.upstream) and call.method not in _READS
