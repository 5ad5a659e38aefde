"""Contributions of the feature `drivers` to a node and to the command line."""

from __future__ import annotations

from typing import Final

from interlock.core.feature import Command, Feature

FEATURE: Final = Feature(
    "drivers",
    "MCP servers that are declared as DRIVER.md files (AIP-32).",
    commands=(Command("drivers", "drivers.commands.drivers", "Use"),),
    sections=("drivers.config:SECTION",),
    reports="drivers.commands.reports:REPORTS",
    component="drivers.folders:create",
    requires=("contracts",),
)
