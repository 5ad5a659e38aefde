"""What a config may say of learning from decisions."""

from __future__ import annotations

import pytest

from interlock.automation.config import AutomationConfig
from interlock.core.config.load import parse_config
from interlock.core.config.problems import ConfigError


@pytest.mark.parametrize("decisions", [2, 1, 0, -1])
def test_no_rule_is_made_of_less_than_three_decisions(decisions: int) -> None:
    with pytest.raises(ConfigError, match=r"automation\.decisions"):
        parse_config(f"automation: {{decisions: {decisions}}}\n")
    config = parse_config("automation: {decisions: 3}\n")
    assert config.section(AutomationConfig).decisions == 3


def test_most_decisions_must_agree() -> None:
    with pytest.raises(ConfigError, match=r"automation\.agreement"):
        parse_config("automation: {agreement: 0.2}")
