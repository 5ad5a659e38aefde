"""The feature `aql`: its parts of a node and of the command line."""

from __future__ import annotations

from typing import Final

from interlock.core.feature import Command, Feature

FEATURE: Final = Feature(
    "aql",
    "Operations instead of tools, executions and the safety loop (MCP-AQL).",
    commands=(
        Command("operations", "aql.commands.operations", "Use"),
        Command("operator", "aql.commands.operator", "Trust"),
    ),
    sections=("aql.config_section:SECTION",),
    reports="aql.commands.reports:REPORTS",
    component="aql.component:create",
)
