"""The merged description of all upstreams: capabilities, instructions and server info. Pure.

The merged capabilities are a union: they contain only what an upstream has, and no extension that
the node does not serve for several servers. List changes are announced by the node itself, because
a merged list also changes when an upstream comes or goes. A single upstream that is shown as itself
(`expose: transparent`) keeps its own description.

Tasks are an exception. Those of the session generation are not offered. Those of the stateless
generation are, also by the node itself: a client request of a session server in the middle of a
call becomes a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from interlock.protocol.mcp import SKILLS_EXTENSION, TASKS_EXTENSION, UI_EXTENSION

_SERVED_EXTENSIONS: Final = frozenset({SKILLS_EXTENSION, TASKS_EXTENSION, UI_EXTENSION})
"""Extensions that a node serves for any number of servers. Methods of others only reach a server
that is shown as itself."""
_WITHOUT_SETTINGS: Final = ("completions", "logging")
_ALL_CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


class UpstreamIntroduction(NamedTuple):
    """The introduction of one upstream, from the handshake."""

    segment: str
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    server_info: Mapping[str, Any] = {}
    transparent: bool = False
    sends_requests: bool = False
    """True if it may send client requests during a call, as session servers do."""


class MergedIntroduction(msgspec.Struct, frozen=True):
    """The introduction of all upstreams by the node."""

    capabilities: dict[str, Any]
    instructions: str | None = None
    server_info: dict[str, Any] | None = None
    """The server info to use. None: the node's own."""


def merge(introductions: Iterable[UpstreamIntroduction]) -> MergedIntroduction:
    """Merge the introductions. The result does not depend on their order."""
    ordered = sorted(
        introductions, key=lambda introduction: (not introduction.transparent, introduction.segment)
    )
    makes_tasks = any(introduction.sends_requests for introduction in ordered)
    if len(ordered) == 1 and ordered[0].transparent:
        only = ordered[0]
        capabilities = {name: value for name, value in only.capabilities.items() if name != "tasks"}
        return MergedIntroduction(
            _add_tasks_extension(capabilities, makes_tasks),
            only.instructions or None,
            dict(only.server_info) or None,
        )
    union = _union(
        [
            introduction.capabilities
            if introduction.transparent
            else _remove_unserved_extensions(introduction.capabilities)
            for introduction in ordered
        ]
    )
    return MergedIntroduction(_add_tasks_extension(union, makes_tasks), _join_instructions(ordered))


def _add_tasks_extension(capabilities: dict[str, Any], makes_tasks: bool) -> dict[str, Any]:
    """Add the tasks extension if the node makes tasks of calls itself."""
    extensions = capabilities.get("extensions")
    if makes_tasks and not (isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions):
        current = extensions if isinstance(extensions, Mapping) else {}
        capabilities["extensions"] = {**current, TASKS_EXTENSION: {}}
    return capabilities


def capabilities_for_parent(capabilities: dict[str, Any]) -> dict[str, Any]:
    """Return the capabilities for the parent node. It reads them once, so they must contain
    everything that this node may serve later. Lists without entries are empty."""
    return _add_tasks_extension({**capabilities, **_ALL_CAPABILITIES}, makes_tasks=True)


def offered_capabilities(
    capabilities: Mapping[str, Any], *, prompts: bool, resources: bool
) -> dict[str, Any]:
    """Return the capabilities of a subnode without those for which it offers nothing now."""
    missing = set() if prompts else {"prompts"}
    missing |= set() if resources else {"resources"}
    if len(missing) == 2:
        missing.add("completions")
    return {name: value for name, value in capabilities.items() if name not in missing}


def capabilities_for_session(capabilities: dict[str, Any]) -> dict[str, Any]:
    """Return the capabilities for session clients, for which the tasks extension has no meaning."""
    extensions = capabilities.get("extensions")
    if not isinstance(extensions, Mapping) or TASKS_EXTENSION not in extensions:
        return capabilities
    others = {name: value for name, value in extensions.items() if name != TASKS_EXTENSION}
    result = {name: value for name, value in capabilities.items() if name != "extensions"}
    return {**result, "extensions": others} if others else result


def _union(all_capabilities: list[Mapping[str, Any]]) -> dict[str, Any]:
    # Tools are always declared: a client that connects while upstreams are starting would
    # otherwise never list them.
    union: dict[str, Any] = {"tools": {"listChanged": True}}
    if any(_has_capability(capabilities, "prompts") for capabilities in all_capabilities):
        union["prompts"] = {"listChanged": True}
    resources = [
        capabilities["resources"]
        for capabilities in all_capabilities
        if _has_capability(capabilities, "resources")
    ]
    if resources:
        union["resources"] = {"listChanged": True}
        if any(
            isinstance(resource, Mapping) and resource.get("subscribe") is True
            for resource in resources
        ):
            union["resources"]["subscribe"] = True
    for name in _WITHOUT_SETTINGS:
        if any(_has_capability(capabilities, name) for capabilities in all_capabilities):
            union[name] = {}
    extensions: dict[str, Any] = {}
    for capabilities in all_capabilities:
        if isinstance(capabilities.get("extensions"), Mapping):
            for name, settings in capabilities["extensions"].items():
                is_known = name in extensions
                extensions[name] = (
                    _merge_settings(extensions[name], settings) if is_known else settings
                )
    if extensions:
        union["extensions"] = extensions
    return union


def _remove_unserved_extensions(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the capabilities of one of several servers without extensions that are not served."""
    extensions = capabilities.get("extensions")
    if not isinstance(extensions, Mapping):
        return capabilities
    supported = {name: value for name, value in extensions.items() if name in _SERVED_EXTENSIONS}
    return {**capabilities, "extensions": supported}


def _has_capability(capabilities: Mapping[str, Any], name: str) -> bool:
    # Some servers write `null` or `false` for missing capabilities.
    return capabilities.get(name) not in (None, False)


def _merge_settings(first: Any, second: Any) -> Any:
    """Merge the settings of one extension: objects and lists contain the entries of both. If values
    conflict, the first wins."""
    if isinstance(first, dict) and isinstance(second, dict):
        added = {key: value for key, value in second.items() if key not in first}
        return {
            **{key: _merge_settings(value, second[key]) if key in second else value
               for key, value in first.items()},
            **added,
        }  # fmt: skip
    if isinstance(first, list) and isinstance(second, list):
        return first + [value for value in second if value not in first]
    return first


def _join_instructions(introductions: list[UpstreamIntroduction]) -> str | None:
    """Join the instructions of all upstreams, each under the segment of its tools."""
    texts = []
    for introduction in introductions:
        text = (introduction.instructions or "").strip()
        if text:
            texts.append(
                text if introduction.transparent else f"# {introduction.segment}\n\n{text}"
            )
    return "\n\n".join(texts) or None
