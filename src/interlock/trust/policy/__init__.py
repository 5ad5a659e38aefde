"""Policy: who × what × when → allow, confirm, verify or deny. The most restrictive rule decides."""

from interlock.trust.policy.decision import Action, Decision
from interlock.trust.policy.policy import Policy

__all__ = ["Action", "Decision", "Policy"]
