"""The feature `automation`: its parts of a node and of the command line."""

from __future__ import annotations

from typing import Final

from interlock.core.feature import Command, Feature

FEATURE: Final = Feature(
    "automation",
    "Rules that are learned from the decisions of operators.",
    commands=(Command("automation", "automation.commands", "Trust"),),
    sections=("automation.config:SECTION",),
    component="automation.component:create",
)
