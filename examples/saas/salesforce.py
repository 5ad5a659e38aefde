"""A list of customers."""

from __future__ import annotations

from interlock.tree.subserver import Subserver

ACCOUNTS = {"north": ["Ore & Sons", "Tall Timber"], "south": ["Lime Works"]}

salesforce = Subserver("salesforce")


@salesforce.tool(latency_class="standard", mutable=False, cost_class="metered")
def list_accounts(region: str = "") -> list[str]:
    """List the customers of a region, or all customers."""
    return [name for key, names in ACCOUNTS.items() if region in ("", key) for name in names]


if __name__ == "__main__":
    salesforce.run()
