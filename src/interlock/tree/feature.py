"""The feature `tree`: its parts of a node and of the command line."""

from __future__ import annotations

from typing import Final

from interlock.core.feature import Command, Feature

FEATURE: Final = Feature(
    "tree",
    "Nodes that register with each other (MCP-AX).",
    commands=(
        Command("join", "tree.commands.join", "Run"),
        Command("tree", "tree.commands.tree", "Look"),
        Command("claims", "tree.commands.claims", "Look"),
    ),
    sections=("tree.config_section:PARENT", "tree.config_section:SUBSERVERS"),
    reports="tree.commands.reports:REPORTS",
    component="tree.component:create",
)
