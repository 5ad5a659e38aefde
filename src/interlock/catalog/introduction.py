"""What upstreams say about themselves, said once for all of them. Pure.

The merged capabilities are an honest union: nothing is claimed that nobody has. Changes of lists
are announced by the node itself, because a merged list also changes when an upstream comes or
goes. An upstream that is shown as itself, and is alone, speaks in its own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

_WITHOUT_SETTINGS: Final = ("completions", "logging")


class Voice(NamedTuple):
    """What one upstream said when the conversation was opened."""

    segment: str
    capabilities: Mapping[str, Any]
    instructions: str | None = None
    server_info: Mapping[str, Any] = {}
    transparent: bool = False


class Merged(msgspec.Struct, frozen=True):
    """What the node can say for all of them."""

    capabilities: dict[str, Any]
    instructions: str | None = None
    server_info: dict[str, Any] | None = None
    """Whom it is to introduce itself as. None: as itself."""


def merge(voices: Iterable[Voice]) -> Merged:
    """One introduction from many, the same in whichever order they come."""
    ordered = sorted(voices, key=lambda voice: (not voice.transparent, voice.segment))
    if len(ordered) == 1 and ordered[0].transparent:
        alone = ordered[0]
        return Merged(
            dict(alone.capabilities), alone.instructions or None, dict(alone.server_info) or None
        )
    return Merged(_union([voice.capabilities for voice in ordered]), _joined(ordered))


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


def _joined(voices: list[Voice]) -> str | None:
    """Everybody's instructions, each under the segment that its tools begin with."""
    said = []
    for voice in voices:
        text = (voice.instructions or "").strip()
        if text:
            said.append(text if voice.transparent else f"# {voice.segment}\n\n{text}")
    return "\n\n".join(said) or None
