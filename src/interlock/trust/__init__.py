"""The decisions about callers: identity, policy, scopes, budgets, pins, approvals."""
