"""Sentences about tools whose servers do not say what they do: what was assumed, and how to change
it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from interlock.core.catalog.effects import Effect, EffectLevel
from interlock.primitives.text import format_count

INFERENCE_NOTE: Final = (
    "Inference reads names, descriptions and parameters; it cannot see what a tool really does."
)
CHANGE_HINT: Final = (
    "Change it: servers.NAME.effects, servers.NAME.unannotated, unannotated: confirm"
)
UNANNOTATED_TEXTS: Final = {
    "infer": (
        "Tools without annotations are judged by name, description and parameters: what deletes, "
        "overwrites, sends, pays, publishes or runs code waits for approval, the rest runs."
    ),
    "confirm": "Tools without annotations wait for approval unless they are inferred to read.",
    "allow": "Tools without annotations run without approval, whatever they do.",
}
"""What each `unannotated` means."""


def describe_assumed(tools: Iterable[tuple[str, Effect]]) -> list[str]:
    """What was assumed of tools, given as server and effect, in a few lines. Empty: nothing was."""
    every = list(tools)
    assumed = [one for one in every if one[1].assumed and not one[1].hint_ignored]
    ignored = [one for one in every if one[1].hint_ignored]
    lines = []
    if assumed:
        held = sum(effect.level is EffectLevel.IRREVERSIBLE for _, effect in assumed)
        judged = sum(bool(effect.choices) for _, effect in assumed)
        servers = len({server for server, _ in assumed})
        verb = "has" if len(assumed) == 1 else "have"
        by_call = f", {judged} of them by the arguments of each call" if judged else ""
        lines.append(
            f"{format_count(len(assumed), 'tool')} of {format_count(servers, 'server')} {verb} no "
            f"annotations: {held} assumed irreversible (held{by_call}), {len(assumed) - held} run."
        )
    if ignored:
        servers = len({server for server, _ in ignored})
        lines.append(
            f"{format_count(len(ignored), 'tool')} of {format_count(servers, 'server')} marked "
            "destructive by their library, like every tool there: inferred to read, so they run."
        )
    return [*lines, INFERENCE_NOTE, CHANGE_HINT] if lines else []
