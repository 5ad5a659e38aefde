"""Resolution of names and URIs, in every accepted form, to an upstream."""

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

_MAX_COMPARED_NAMES: Final = 20
"""The comparison is slow, and a typo must not delay other calls."""
_MAX_SHOWN_CHARACTERS: Final = 100
_READ_METHODS: Final = frozenset(name for name, method in METHODS.items() if method.scope == READ)
"""Methods, other than tool calls, that change nothing at an upstream."""


def resolve_tool(
    call: Call, catalog: Catalog, view_of: Callable[[Call], View | None] = lambda _: None
) -> Tool:
    """Find the tool of a call, and set the route and the effect of the call.

    Args:
        view_of: returns the tools that the caller can see. Only these are suggested for a typo.

    Raises:
        InterlockError: the tool is unknown.
    """
    tool = catalog.by_name.get(call.name)
    if tool is None:
        tool = catalog.find(call.name)
    if tool is None:
        raise unknown_tool_error(call.name, catalog.current, view_of(call))
    call.route = tool
    call.upstream = tool.upstream
    call.effect = tool.effect_name
    call.is_retryable = tool.repeatable
    return tool


def resolve_method(call: Call, catalog: Catalog) -> bool:
    """Find the upstream of a request that is not a tool call, and set the names of the upstream.

    Return False if the method names nothing in the catalog. Raises InterlockError.
    """
    method = call.method
    if method in PROMPT_METHODS:
        prompt = catalog.current.prompt(call.name)
        if prompt is None:
            raise _unknown_prompt(call.name)
        call.upstream = prompt.upstream
        _set_text_member(call, "name", prompt.upstream_name)
        if bytes(call.arguments) != EMPTY_OBJECT:
            _set_member(call, "arguments", Raw(call.arguments))
    elif method in RESOURCE_METHODS:
        call.upstream, own_uri = _resource(call.name, catalog)
        _set_text_member(call, "uri", own_uri)
    elif method == COMPLETE_ARGUMENT:
        _resolve_reference(call, catalog)
    else:
        return False
    call.is_retryable = method in RETRYABLE_METHODS
    return True


def _resource(uri: str, catalog: Catalog) -> tuple[str, str]:
    route = catalog.current.resource(uri)
    if route is None:
        raise InterlockError(
            UNKNOWN_RESOURCE,
            f"Unknown resource {_truncate(uri)!r}. `resources/list` returns the URIs.",
            {"uri": uri},
        )
    return route.upstream, route.upstream_uri


def _resolve_reference(call: Call, catalog: Catalog) -> None:
    """Find the upstream of a completion request, by its reference to a prompt or a resource."""
    try:
        reference = decode_members((call.extra_params or {})["ref"])
        data = {
            key: decode_value(reference[key]) for key in ("type", "name", "uri") if key in reference
        }
    except (KeyError, ProtocolError):
        raise ProtocolError(
            "`ref` must be an object with a prompt or a resource.", INVALID_PARAMS
        ) from None
    name, uri = data.get("name"), data.get("uri")
    if data.get("type") == "ref/prompt" and isinstance(name, str):
        prompt = catalog.current.prompt(name)
        if prompt is None:
            raise _unknown_prompt(name)
        call.upstream = prompt.upstream
        reference["name"] = Raw(encode_value(prompt.upstream_name))
    elif data.get("type") == "ref/resource" and isinstance(uri, str):
        call.upstream, own_uri = _resource(uri, catalog)
        reference["uri"] = Raw(encode_value(own_uri))
    else:
        raise ProtocolError("`ref` must be a ref/prompt or a ref/resource.", INVALID_PARAMS)
    _set_member(call, "ref", Raw(encode_members(reference)))


def _unknown_prompt(name: str) -> InterlockError:
    return InterlockError(
        UNKNOWN_PROMPT,
        f"Unknown prompt {_truncate(name)!r}. `prompts/list` returns the names.",
        {"prompt": _truncate(name)},
    )


def _set_text_member(call: Call, member: str, value: str) -> None:
    _set_member(call, member, Raw(encode_value(value)))


def _set_member(call: Call, member: str, value: Raw) -> None:
    call.extra_params = {
        member: value,
        **{k: v for k, v in (call.extra_params or {}).items() if k != member},
    }


def _truncate(name: str) -> str:
    return name if len(name) <= _MAX_SHOWN_CHARACTERS else name[:_MAX_SHOWN_CHARACTERS] + "…"


def unknown_tool_error(name: str, snapshot: Snapshot, view: View | None) -> InterlockError:
    """Return the error for a tool that does not exist, or that the caller cannot see."""
    similar = _find_similar(name[:_MAX_SHOWN_CHARACTERS], snapshot, view)
    shown_name = _truncate(name)
    hint = (
        f" Did you mean {' or '.join(similar)}?" if similar else " `tools/list` returns the names."
    )
    return InterlockError(
        UNKNOWN_TOOL, f"Unknown tool {shown_name!r}.{hint}", {"tool": shown_name, "near": similar}
    )


def _find_similar(name: str, snapshot: Snapshot, view: View | None) -> list[str]:
    """Return similar names: with the same last part, or close in the alphabet.

    An irreversible tool is never suggested, since a model might call it. If the most similar tool
    is irreversible, nothing is suggested, because another name would be misleading.
    """
    requested = name.lower().replace("__", ".")
    leaf = requested.rpartition(".")[2]
    by_name = {tool.transparent_name or tool.canonical: tool for tool in snapshot.plain_tools}
    names = sorted(by_name)
    same_leaf = [candidate for candidate in names if leaf in candidate] if leaf else []
    index = bisect_left(names, requested)
    neighbours = names[max(0, index - _MAX_COMPARED_NAMES) : index + _MAX_COMPARED_NAMES]
    candidates = [
        candidate
        for candidate in dict.fromkeys([*same_leaf[:_MAX_COMPARED_NAMES], *neighbours])
        if view is None or view.includes(by_name[candidate])
    ]
    matches = get_close_matches(requested, candidates, n=3, cutoff=0.5)
    irreversible = [by_name[match].effect.level is EffectLevel.IRREVERSIBLE for match in matches]
    if irreversible and irreversible[0]:
        return []
    return [
        match
        for match, is_irreversible in zip(matches, irreversible, strict=True)
        if not is_irreversible
    ]


def is_passed_on(call: Call) -> bool:
    """Return whether a request that is not a tool call may change something at its upstream."""
    return bool(call.upstream) and call.method not in _READ_METHODS
