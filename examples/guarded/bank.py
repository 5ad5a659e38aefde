"""A demo bank with accounts, and payments that cannot be undone."""

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
    """Return the balance of an account."""
    if account not in ACCOUNTS:
        raise ToolError(f"There is no account {account!r}.")
    return ACCOUNTS[account]


@bank.tool(latency_class="fast", mutable=True, reversible=False)
def pay(account: str, cents: int) -> Account:
    """Pay from the account `house` to another account. A payment cannot be undone."""
    recipient = balance(account)
    house = ACCOUNTS["house"]
    if not 0 < cents <= house.cents:
        raise ToolError(
            "The amount is not positive, or more than the balance of the account house."
        )
    house.cents -= cents
    recipient.cents += cents
    return recipient


@bank.tool(latency_class="fast", mutable=True, reversible=False)
def close_account(account: str) -> str:
    """Close an account permanently."""
    balance(account)
    del ACCOUNTS[account]
    return f"{account} is closed."


if __name__ == "__main__":
    bank.run()
