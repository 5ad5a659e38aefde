"""Policy: who × what × when → allow, confirm, verify or deny. The most restrictive rule decides."""

from interlock.pipeline.policy.decision import Action, Decision
from interlock.pipeline.policy.policy import Policy

__all__ = ["Action", "Decision", "Policy"]
