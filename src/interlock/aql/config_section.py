"""The section `aql` of the config: its struct, checks, environment, views and reference."""

from __future__ import annotations

from typing import Final

from interlock.aql.config import (
    AgentSafety,
    ApiLimit,
    AqlConfig,
    AqlLimits,
    ChannelConfig,
    ClientView,
    ExecutionsConfig,
    FamilyConfig,
    OperationConfig,
    ProfileConfig,
    QuotaConfig,
    SafetyConfig,
    SearchConfig,
)
from interlock.aql.config_checks import check_aql
from interlock.aql.config_environment import with_environment
from interlock.aql.view_table import view_table
from interlock.core.config.feature_sections import SectionDefinition

SECTION: Final = SectionDefinition(
    AqlConfig,
    check=check_aql,
    environment=with_environment,
    views=view_table,
    reference=(
        ("`aql`", AqlConfig, "See [aql.md](aql.md)."),
        ("`aql.clients`", ClientView, "A list."),
        ("`aql.profiles.NAME`", ProfileConfig, ""),
        ("`aql.profiles.NAME.families.NAME`", FamilyConfig, ""),
        ("`aql.operations.GLOB`", OperationConfig, ""),
        ("`aql.limits`", AqlLimits, ""),
        ("`aql.safety`", SafetyConfig, "See [aql-safety.md](aql-safety.md)."),
        ("`aql.safety.agents.GLOB`", AgentSafety, ""),
        ("`aql.channels`", ChannelConfig, "A list."),
        ("`aql.executions`", ExecutionsConfig, ""),
        ("`aql.search`", SearchConfig, ""),
        ("`aql.quotas`", QuotaConfig, "A list."),
        ("`aql.api_limits`", ApiLimit, "A list."),
    ),
)
