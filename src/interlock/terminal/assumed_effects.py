"""Sentences about tools without annotations: the effect that Interlock assumes for each, and how to
change it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from interlock.core.catalog.effects import Effect, EffectLevel
from interlock.primitives.text import format_count

INFERENCE_NOTE: Final = (
    "Inference reads names, descriptions and parameters. It cannot see what a tool really does."
)
CHANGE_HINT: Final = (
    "Change it: servers.NAME.effects, servers.NAME.unannotated, unannotated: confirm"
)
UNANNOTATED_TEXTS: Final = {
    "infer": (
        "Tools without annotations are classified by name, description and parameters: tools that "
        "delete, overwrite, send, pay, publish or run code need an approval. Other tools run."
    ),
    "confirm": "Tools without annotations need an approval unless they are inferred to only read.",
    "allow": "Tools without annotations run without an approval.",
}
"""A sentence for each value of `unannotated`."""


def describe_assumed(tools: Iterable[tuple[str, Effect]]) -> list[str]:
    """Return lines that describe the assumed effects, or no lines if nothing was assumed.

    Args:
        tools: the server and the effect of each tool.
    """
    all_tools = list(tools)
    assumed = [tool for tool in all_tools if tool[1].is_assumed and not tool[1].is_hint_ignored]
    ignored = [tool for tool in all_tools if tool[1].is_hint_ignored]
    lines = []
    if assumed:
        irreversible = sum(effect.level is EffectLevel.IRREVERSIBLE for _, effect in assumed)
        dependent = sum(bool(effect.choices) for _, effect in assumed)
        servers = len({server for server, _ in assumed})
        verb = "has" if len(assumed) == 1 else "have"
        by_call = f", {dependent} of them depending on the arguments" if dependent else ""
        lines.append(
            f"{format_count(len(assumed), 'tool')} of {format_count(servers, 'server')} {verb} no "
            f"annotations: {irreversible} assumed irreversible (approval needed{by_call}), "
            f"{len(assumed) - irreversible} run."
        )
    if ignored:
        servers = len({server for server, _ in ignored})
        lines.append(
            f"{format_count(len(ignored), 'tool')} of {format_count(servers, 'server')} marked "
            "destructive by their library, like every tool there: inferred to only read, so they "
            "run."
        )
    return [*lines, INFERENCE_NOTE, CHANGE_HINT] if lines else []
