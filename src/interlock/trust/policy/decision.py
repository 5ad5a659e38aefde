"""Decisions of the policy."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class PolicyAction(IntEnum):
    """The actions, from the least to the most restrictive."""

    ALLOW = 0
    CONFIRM = 1
    VERIFY = 2
    DENY = 3

    label: str

    def __init__(self, _: int) -> None:
        self.label = self._name_.lower()


ACTIONS: Final = {action.label: action for action in PolicyAction}


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The result of a rule or default. It is made with the policy, not for each call."""

    action: PolicyAction
    rule: str
    """The name of the rule that decided, or `default:…`."""
    reason: str = ""
    """Why, in the text of the operator."""
    needs_approval: bool = False
    """True if the call waits for approval: confirm or verify."""
    names_tool: bool = False
    """True if the rule names tools, and not all tools or all callers."""


def make_decision(
    action: PolicyAction, rule: str, reason: str = "", *, names_tool: bool = False
) -> Decision:
    gated = action in (PolicyAction.CONFIRM, PolicyAction.VERIFY)
    return Decision(action, rule, reason, gated, names_tool)
