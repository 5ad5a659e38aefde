"""Tests of the settings of the automation."""

from __future__ import annotations

import pytest

from interlock.automation.config import AutomationConfig
from interlock.core.config.load import parse_config
from interlock.core.config.problems import ConfigError


@pytest.mark.parametrize("decisions", [2, 1, 0, -1])
def test_rejects_less_than_three_decisions(decisions: int) -> None:
    with pytest.raises(ConfigError, match=r"automation\.decisions"):
        parse_config(f"automation: {{decisions: {decisions}}}\n")
    config = parse_config("automation: {decisions: 3}\n")
    assert config.section(AutomationConfig).decisions == 3


@pytest.mark.parametrize(
    ("agreement", "said"),
    [
        ("0.2", "automation.agreement"),
        ("98", "1:14: automation.agreement: this must be at most 1; write 0.98 for 98 %"),
        ("2", "1:14: automation.agreement: this must be at most 1; write 1 or less"),
    ],
)
def test_rejects_agreement_outside_of_range(agreement: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"automation: {{agreement: {agreement}}}")
    assert said in str(caught.value)
