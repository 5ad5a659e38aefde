"""Policy: who × what × when → allow, confirm, verify or deny. The most restrictive rule decides."""

from interlock.trust.policy.decision import Decision, PolicyAction
from interlock.trust.policy.policy import Policy

__all__ = ["Decision", "Policy", "PolicyAction"]
