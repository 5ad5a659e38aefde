"""Budgets as a pipeline uses them, on a manual clock."""

from __future__ import annotations

import json
from typing import Any

from interlock.core.call import Call, Caller, ClientSession
from interlock.core.catalog.offering import Tool
from interlock.core.config import BudgetsConfig, CallerBudget
from interlock.core.server.mcp.sessions import Sessions
from interlock.errors import BUDGET_EXCEEDED, InterlockError
from interlock.trust.budgets import Budgets
from tests.support.calls import SESSION, tool_call
from tests.support.clock import ManualClock
from tests.support.offerings import offer

IDLE = 600.0
_capability = {"mutable": True, "cost_class": "free"}


def _tool(name: str, **capability: Any) -> bytes:
    meta = {"x-mcpax-capability": {**_capability, **capability}}
    return json.dumps(
        {"name": name, "inputSchema": {"type": "object"}, "_meta": meta}
    ).encode()  # fmt: skip


TOOLS: dict[str, Tool] = {
    tool.upstream_name: tool
    for tool in offer(
        "s",
        [
            _tool("read", mutable=False),
            _tool("write"),
            _tool("metered", mutable=False, cost_class="metered"),
            _tool("expensive", mutable=False, cost_class="expensive"),
        ],
        trust_annotations=True,
    ).tools
}


class BudgetHarness:
    """Budgets, a clock, and calls of a caller."""

    def __init__(self, config: BudgetsConfig, idle: float = IDLE) -> None:
        self.clock = ManualClock()
        self.budgets = Budgets(self.clock, lambda: 1_700_000_000.0 + self.clock() - 1000)
        self.sessions = Sessions(max_sessions=100, idle=idle, clock=self.clock)
        self.budgets.configure(config, idle=idle)

    def session(self, who: str = "ada") -> Any:
        return self.sessions.open(SESSION, who)

    def call(
        self,
        tool: str = "read",
        who: str = "ada",
        session: ClientSession | None = None,
        upstream: str = "s",
    ) -> Call:
        call = tool_call(f"{upstream}.{tool}", upstream=upstream, session=session)
        call.caller, call.route = Caller(who), TOOLS[tool]
        return call

    def passes(self, *args: Any, **named: Any) -> bool:
        call = self.call(*args, **named)
        return self.refusal(call) is None

    def refusal(self, call: Call) -> InterlockError | None:
        try:
            self.budgets.reserve(call, None)
        except InterlockError as error:
            caught = error
        else:
            return None
        assert caught.failure is BUDGET_EXCEEDED
        assert call.reservations is None
        return caught


def caller_budgets(*callers: CallerBudget) -> BudgetsConfig:
    return BudgetsConfig(callers=list(callers))


# -- whose
