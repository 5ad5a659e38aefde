"""Journal rows of a contract call: the selected driver, the requests to drivers, and the outcome
(AIP-30).

Rows contain names of inputs, never values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from interlock.core.call import Call
from interlock.core.ports import Clock
from interlock.drivers.errors import aip_code
from interlock.drivers.resolver import DriverChoice, resolved_row
from interlock.errors import InterlockError
from interlock.manifests.model import ImplementedContract, ToolContract
from interlock.primitives.timestamps import format_utc_ms

if TYPE_CHECKING:
    from interlock.drivers.driver import Driver

ROW_RESOLVED = "driver.resolved"
ROW_INVOKED = "driver.invoked"
ROW_TOOL = "tool.invoked"

RowRecorder = Callable[[Call, str, str, str, str, int, Mapping[str, Any]], None]
"""Records a row: the call, the kind of row, the contract, the driver, the outcome, microseconds,
and the row itself."""


class DriverJournal:
    """A writer of the journal rows of contract calls."""

    def __init__(self, record: RowRecorder, workspace: str, wall_clock: Clock) -> None:
        self._record = record
        self._workspace = workspace
        self._wall_clock = wall_clock
        self._second, self._prefix = -1, ""
        # Cache of the last decision: most calls reuse the same decision object.
        self._decision: DriverChoice | None = None
        self._row: dict[str, Any] = {}

    def _now(self) -> str:
        """Return the time in the format of the rows. The part that is constant within a second is
        cached."""
        now = self._wall_clock()
        second = int(now)
        if second != self._second:
            self._second, self._prefix = second, format_utc_ms(second)[:-4]
        return f"{self._prefix}{int((now - second) * 1000):03}Z"

    def record_choice(self, call: Call, contract: ToolContract, decision: DriverChoice) -> None:
        if decision is not self._decision:
            self._row = resolved_row(decision, user_id="", workspace_id=self._workspace, at=0.0)
            self._decision = decision
        row = {**self._row, "user_id": _user(call), "ts": self._now()}
        chosen = "" if decision.selected is None else f"driver:{decision.selected.driver.key}"
        outcome = "ok" if decision.failure is None else decision.failure.name
        self._record(call, ROW_RESOLVED, contract.id, chosen, outcome, 0, row)

    def record_attempt(
        self,
        call: Call,
        contract: ToolContract,
        driver: Driver,
        entry: ImplementedContract,
        inputs: Mapping[str, Any],
        duration: float,
        error: InterlockError | None,
    ) -> None:
        manifest = driver.manifest
        server = manifest.server
        cost = entry.cost or manifest.cost
        row: dict[str, Any] = {
            "type": ROW_INVOKED,
            "kind": manifest.kind,
            "provider_id": manifest.id,
            "provider_version": manifest.version,
            "tool_id": contract.id,
            "user_id": _user(call),
            "workspace_id": self._workspace,
            "input_keys": sorted(inputs),
            "duration_ms": round(duration * 1000, 3),
            "ok": error is None,
            "cost_units_charged": 0 if cost is None else cost.units_per_call or 0,
            "auth_state": "authed" if driver.condition.authed else "unauthed",
            "mcp_tool_name": "" if entry.mcp is None else entry.mcp.tool_name,
            "transport": manifest.transport,
            "server_kind": "" if server is None else server.kind,
            "ts": self._now(),
        }
        outcome = "ok" if error is None else aip_code(error)
        self._record(call, ROW_INVOKED, contract.id, driver.key, outcome, int(duration * 1e6), row)

    def record_call(
        self,
        call: Call,
        contract: ToolContract,
        driver: Driver | None,
        inputs: Mapping[str, Any],
        duration: float,
        retries: int,
        *,
        ok: bool,
    ) -> None:
        row = {
            "type": ROW_TOOL,
            "tool_id": contract.id,
            "tool_version": contract.version,
            "tool_mutates": list(contract.mutates),
            "resolved_provider_id": "" if driver is None else driver.manifest.id,
            "resolved_provider_version": "" if driver is None else driver.manifest.version,
            "user_id": _user(call),
            "workspace_id": self._workspace,
            "input_keys": sorted(inputs),
            "duration_ms": round(duration * 1000, 3),
            "retries": retries,
            "ok": ok,
            "ts": self._now(),
        }
        key = "" if driver is None else driver.key
        self._record(
            call, ROW_TOOL, contract.id, key, "ok" if ok else "failed", int(duration * 1e6), row
        )


def _user(call: Call) -> str:
    return "" if call.caller is None else call.caller.name
