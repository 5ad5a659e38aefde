"""What the hooks of a driver.py are called with, and what they may answer."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class HookArguments(Struct, frozen=True, kw_only=True):
    """One call, as a hook sees it."""

    tool_id: str
    """The contract."""
    tool_name: str = ""
    """The server's tool; empty where there is none."""
    input: dict[str, Any] = field(default_factory=dict)
    """The contract's input, validated."""
    context: dict[str, Any] = field(default_factory=dict)
    """What the contract's context schema asks for, validated. Tenants belong here, not into the
    server's environment."""
    user: str = ""
    """Who calls."""
    result: Any = None
    """Of the server's tool, for `parse_tool_result`."""


class HookResult(Struct, frozen=True, kw_only=True):
    """The envelope of AIP-30, for hooks that want to say more than a value. `code` may be one of
    your own, behind a namespace: `stripe:card_declined`."""

    ok: bool = True
    value: Any = None
    code: str = ""
    message: str = ""
    retryable: bool = False
