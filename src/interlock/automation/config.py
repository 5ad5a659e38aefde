"""The config section `automation`: when decisions become suggestions. Accepted rules are part of
the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from interlock.core.config.feature_sections import SectionDefinition
from interlock.core.config.section import Count, Duration, FeatureSection, help_text

_DAY_SECONDS: Final = 86_400.0


class AutomationConfig(FeatureSection, frozen=True):
    """The conditions for suggesting a rule."""

    KEY = "automation"
    RENAMED: ClassVar[Mapping[str, str]] = {"most": "max_stored"}

    enabled: Annotated[
        bool, help_text("Store decisions and suggest rules. false: decisions are not stored.")
    ] = True
    decisions: Annotated[
        Annotated[int, Meta(ge=3)],
        help_text("The number of equal decisions that a suggestion requires; at least 3."),
    ] = 20
    agreement: Annotated[
        Annotated[float, Meta(ge=0.5, le=1.0)],
        help_text("The share of decisions that must agree with a suggested rule."),
    ] = 0.98
    keep: Annotated[Duration, help_text("How long a decision is stored.")] = 180 * _DAY_SECONDS
    max_stored: Annotated[Count, help_text("The maximum number of stored decisions.")] = 100_000


SECTION: Final = SectionDefinition(
    AutomationConfig,
    reference=(("`automation`", AutomationConfig, "See [automation.md](automation.md)."),),
)
