"""Policy: decides who may do what. The most restrictive matching rule counts."""

from interlock.trust.policy.decision import Decision, PolicyAction
from interlock.trust.policy.policy import Policy

__all__ = ["Decision", "Policy", "PolicyAction"]
