"""The config section `automation`: how many decisions it takes to suggest a rule.

The rules that a human accepted are a part of the policy."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.section import Count, Duration, FeatureSection, says

_DAY: Final = 86_400.0


class AutomationConfig(FeatureSection, frozen=True):
    """When decisions of the past become a suggestion."""

    KEY = "automation"

    enabled: Annotated[bool, says("false: decisions are neither kept nor looked at.")] = True
    decisions: Annotated[
        Annotated[int, Meta(ge=3)], says("So many alike it takes to suggest a rule; 3 at least.")
    ] = 20
    agreement: Annotated[
        Annotated[float, Meta(ge=0.5, le=1.0)], says("The share of them that must agree.")
    ] = 0.98
    keep: Annotated[Duration, says("How long a decision is remembered.")] = 180 * _DAY
    most: Annotated[Count, says("The most decisions that are kept.")] = 100_000


SECTION: Final = SectionDefinition(
    AutomationConfig,
    reference=(("`automation`", AutomationConfig, "See [automation.md](automation.md)."),),
)
