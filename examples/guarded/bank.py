"""Accounts that begin with some money, and payments that cannot be taken back."""

from __future__ import annotations

import msgspec

from interlock.tree.subserver import Subserver, ToolError

bank = Subserver("bank")


class Account(msgspec.Struct):
    name: str
    cents: int


ACCOUNTS = {name: Account(name, cents) for name, cents in (("house", 500_000), ("supplier", 0))}


@bank.tool(latency_class="fast", mutable=False)
def balance(account: str) -> Account:
    """What is in an account."""
    if account not in ACCOUNTS:
        raise ToolError(f"There is no account {account!r}.")
    return ACCOUNTS[account]


@bank.tool(latency_class="fast", mutable=True, reversible=False)
def pay(account: str, cents: int) -> Account:
    """Pay from the house's account to another one. A payment cannot be taken back."""
    to = balance(account)
    house = ACCOUNTS["house"]
    if not 0 < cents <= house.cents:
        raise ToolError("There is not that much in the house's account.")
    house.cents -= cents
    to.cents += cents
    return to


@bank.tool(latency_class="fast", mutable=True, reversible=False)
def close_account(account: str) -> str:
    """Close an account for good."""
    balance(account)
    del ACCOUNTS[account]
    return f"{account} is closed."


if __name__ == "__main__":
    bank.run()
