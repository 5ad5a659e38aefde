"""Rules that name tools, and rules that match everything."""

from __future__ import annotations

import pytest

from interlock.core.config.trust import RuleConfig
from interlock.trust.policy.rules import Rule


@pytest.mark.parametrize(
    ("tools", "named"),
    [
        ([], False),
        (["*"], False),
        (["shop.*"], False),
        (["*.*"], False),
        (["shop.delete_user"], True),
        (["shop.delete_*"], True),
        (["*.drop_*"], True),
        (["shop.delete_user", "*"], False),
    ],
)
def test_rule_names_tool_or_everything(tools: list[str], named: bool) -> None:
    rule = Rule(RuleConfig(name="a", tools=tools, callers=["*"], then="allow"), 0)
    assert rule.decision.names_tool is named
