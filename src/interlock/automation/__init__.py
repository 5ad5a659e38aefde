"""Progressive automation: suggests policy rules from the decisions of operators. An operator
accepts them."""
