"""The contributions of the feature `topics` to the node and the command line."""

from __future__ import annotations

from typing import Final

from interlock.core.feature import Command, Feature

FEATURE: Final = Feature(
    "topics",
    "Topics for agents and people, and proposals (MCPx).",
    commands=(Command("topic", "topics.commands.topic", "Use"),),
    reports="topics.commands.reports:REPORTS",
    sections=("topics.config_section:SECTION",),
    component="topics.component:create",
)
