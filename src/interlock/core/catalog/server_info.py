"""What upstreams say about themselves, said once for all of them. Pure.

The merged capabilities are an honest union: nothing is claimed that nobody has, and no extension
that the node does not serve for several servers. Changes of lists
are announced by the node itself, because a merged list also changes when an upstream comes or
goes. An upstream that is shown as itself, and is alone, speaks in its own words.

Tasks are the exception. Those of the session wire are between two neighbours, and are not offered
from here. Those of the stateless wire are, also by the node itself: what a session server asks in
the middle of a call becomes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from interlock.protocol.mcp import SKILLS_EXTENSION, TASKS_EXTENSION, UI_EXTENSION

_SERVED_EXTENSIONS: Final = frozenset({SKILLS_EXTENSION, TASKS_EXTENSION, UI_EXTENSION})
"""Extensions that a node serves for any number of servers. Methods of others reach only a server
that is shown as itself."""
_WITHOUT_SETTINGS: Final = ("completions", "logging")
_ALL_KINDS: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


class UpstreamIntroduction(NamedTuple):
    """What one upstream said when the conversation was opened."""

    segment: str
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    server_info: Mapping[str, Any] = {}
    transparent: bool = False
    asks: bool = False
    """Whether it may ask in the middle of a call, as servers of the session wire do."""


class MergedIntroduction(msgspec.Struct, frozen=True):
    """What the node can say for all of them."""

    capabilities: dict[str, Any]
    instructions: str | None = None
    server_info: dict[str, Any] | None = None
    """Whom it is to introduce itself as. None: as itself."""


def merge(voices: Iterable[UpstreamIntroduction]) -> MergedIntroduction:
    """One introduction from many, the same in whichever order they come."""
    ordered = sorted(voices, key=lambda voice: (not voice.transparent, voice.segment))
    own_tasks = any(voice.asks for voice in ordered)
    if len(ordered) == 1 and ordered[0].transparent:
        alone = ordered[0]
        said = {name: value for name, value in alone.capabilities.items() if name != "tasks"}
        return MergedIntroduction(
            _with_tasks(said, own_tasks),
            alone.instructions or None,
            dict(alone.server_info) or None,
        )
    union = _union(
        [
            voice.capabilities if voice.transparent else _served(voice.capabilities)
            for voice in ordered
        ]
    )
    return MergedIntroduction(_with_tasks(union, own_tasks), _joined(ordered))


def _with_tasks(capabilities: dict[str, Any], own: bool) -> dict[str, Any]:
    """`own`: the node makes tasks of calls itself."""
    extensions = capabilities.get("extensions")
    if own and not (isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions):
        known = extensions if isinstance(extensions, Mapping) else {}
        capabilities["extensions"] = {**known, TASKS_EXTENSION: {}}
    return capabilities


def for_parent(capabilities: dict[str, Any]) -> dict[str, Any]:
    """The same for the node above, which asks once and stays: whatever may come to this node later
    must be said now. Of what there is none, it will find an empty list."""
    return _with_tasks({**capabilities, **_ALL_KINDS}, own=True)


def as_offered(
    capabilities: Mapping[str, Any], *, prompts: bool, resources: bool
) -> dict[str, Any]:
    """What a node below says that it can do, without what it offers nothing of now."""
    missing = set() if prompts else {"prompts"}
    missing |= set() if resources else {"resources"}
    if len(missing) == 2:
        missing.add("completions")
    return {name: value for name, value in capabilities.items() if name not in missing}


def for_session(capabilities: dict[str, Any]) -> dict[str, Any]:
    """The same for a client of the session wire, where the extension means nothing."""
    extensions = capabilities.get("extensions")
    if not isinstance(extensions, Mapping) or TASKS_EXTENSION not in extensions:
        return capabilities
    others = {name: value for name, value in extensions.items() if name != TASKS_EXTENSION}
    said = {name: value for name, value in capabilities.items() if name != "extensions"}
    return {**said, "extensions": others} if others else said


def _union(all_capabilities: list[Mapping[str, Any]]) -> dict[str, Any]:
    # Tools are what a node is for. Who asks while its upstreams are still starting would never
    # list them if this were not said.
    union: dict[str, Any] = {"tools": {"listChanged": True}}
    if any(_has(one, "prompts") for one in all_capabilities):
        union["prompts"] = {"listChanged": True}
    serving = [one["resources"] for one in all_capabilities if _has(one, "resources")]
    if serving:
        union["resources"] = {"listChanged": True}
        if any(isinstance(one, Mapping) and one.get("subscribe") is True for one in serving):
            union["resources"]["subscribe"] = True
    for name in _WITHOUT_SETTINGS:
        if any(_has(one, name) for one in all_capabilities):
            union[name] = {}
    extensions: dict[str, Any] = {}
    for one in all_capabilities:
        if isinstance(one.get("extensions"), Mapping):
            for name, settings in one["extensions"].items():
                known = name in extensions
                extensions[name] = _merged(extensions[name], settings) if known else settings
    if extensions:
        union["extensions"] = extensions
    return union


def _served(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """The capabilities of one of many servers, without extensions that the node does not serve."""
    extensions = capabilities.get("extensions")
    if not isinstance(extensions, Mapping):
        return capabilities
    kept = {name: value for name, value in extensions.items() if name in _SERVED_EXTENSIONS}
    return {**capabilities, "extensions": kept}


def _has(capabilities: Mapping[str, Any], name: str) -> bool:
    # Some write out what they have not: `null` and `false` are no capability.
    return capabilities.get(name) not in (None, False)


def _merged(one: Any, other: Any) -> Any:
    """Settings of one extension from two upstreams: objects and lists have what both have; of two
    values that cannot both be, the first stays."""
    if isinstance(one, dict) and isinstance(other, dict):
        added = {key: value for key, value in other.items() if key not in one}
        return {
            **{key: _merged(value, other[key]) if key in other else value
               for key, value in one.items()},
            **added,
        }  # fmt: skip
    if isinstance(one, list) and isinstance(other, list):
        return one + [value for value in other if value not in one]
    return one


def _joined(voices: list[UpstreamIntroduction]) -> str | None:
    """Everybody's instructions, each under the segment that its tools begin with."""
    said = []
    for voice in voices:
        text = (voice.instructions or "").strip()
        if text:
            said.append(text if voice.transparent else f"# {voice.segment}\n\n{text}")
    return "\n\n".join(said) or None
