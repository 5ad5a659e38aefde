"""Who may do what: identity, policy, scopes, budgets, pins, approvals."""
