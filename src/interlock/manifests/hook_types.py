"""The arguments and results of the hooks of a driver.py."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class HookArguments(Struct, frozen=True, kw_only=True):
    """One call, for a hook."""

    tool_id: str
    """The id of the contract."""
    tool_name: str = ""
    """The tool of the server. Empty: there is none."""
    input: dict[str, Any] = field(default_factory=dict)
    """The validated input of the contract."""
    context: dict[str, Any] = field(default_factory=dict)
    """The validated context of the contract. Tenants belong here, not into the environment of the
    server."""
    user: str = ""
    """The caller."""
    result: Any = None
    """The result of the server's tool, for `parse_tool_result`."""


class HookResult(Struct, frozen=True, kw_only=True):
    """The result envelope of AIP-30, for hooks that return more than a value. `code` may be a code
    of the driver, with a namespace: `stripe:card_declined`."""

    ok: bool = True
    value: Any = None
    code: str = ""
    message: str = ""
    retryable: bool = False
