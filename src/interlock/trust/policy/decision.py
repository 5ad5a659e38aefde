"""What the policy says of a call, and which rule says so."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class PolicyAction(IntEnum):
    """From the freest to the most restrictive."""

    ALLOW = 0
    CONFIRM = 1
    VERIFY = 2
    DENY = 3

    word: str

    def __init__(self, _: int) -> None:
        self.word = self._name_.lower()


ACTIONS: Final = {action.word: action for action in PolicyAction}


class Decision(msgspec.Struct, frozen=True, gc=False):
    """One per rule and one per default, made with the policy: nothing is made for a call."""

    action: PolicyAction
    rule: str
    """The name of the rule that decided; `default:…` when none did."""
    reason: str = ""
    """Why, in the operator's words."""
    needs_approval: bool = False
    """Whether the call waits for a human: confirm or verify."""
    names_tool: bool = False
    """Whether its rule is about tools by name, and not just about everything or everybody."""


def decision(
    action: PolicyAction, rule: str, reason: str = "", *, names_tool: bool = False
) -> Decision:
    gated = action in (PolicyAction.CONFIRM, PolicyAction.VERIFY)
    return Decision(action, rule, reason, gated, names_tool)
