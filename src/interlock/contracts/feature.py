"""The feature `contracts`: its parts of a node and of the command line."""

from __future__ import annotations

from typing import Final

from interlock.core.feature import Command, Feature

FEATURE: Final = Feature(
    "contracts",
    "Versions of tool schemas, and a registry of them.",
    commands=(Command("contracts", "contracts.commands.contracts", "Use"),),
    sections=("contracts.config:SECTION",),
    component="contracts.component:create",
)
