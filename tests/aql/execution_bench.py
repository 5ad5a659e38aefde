"""Executions on a real pipeline and a real store, with scripted upstreams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interlock.aql.config import ExecutionsConfig
from interlock.aql.execution_store import ExecutionStore
from interlock.aql.executions import Executions
from interlock.aql.language import envelope
from interlock.aql.language.errors import code_of
from interlock.aql.operations import Operation, Signature
from interlock.aql.request import AqlRequest
from interlock.core.call import Call, Caller, Client, Outcome
from interlock.core.catalog.offering import Tool
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import Category, Danger, EndpointFamily, OperationView
from tests.support.calls import LOCAL, SESSION
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness, ScriptedRequest, ScriptedUpstream

VIEW = OperationView("single", "crude", (EndpointFamily("all", "mcp_aql", frozenset(Category)),))
CLERK = Caller("clerk", kind="token")
GUARD = Caller("guard", kind="token")
_SIGNATURE = Signature((), {}, {}, frozenset(), frozenset(), True, frozenset())


class EnvelopeWriter:
    """A response writer that only writes envelopes."""

    def resolve_operation(self, call: Call) -> bool:
        return False

    def write_response(
        self,
        call: Call,
        outcome: Outcome | None,
        error: InterlockError | None,
        duration: float = 0.0,
    ) -> tuple[Outcome | None, InterlockError | None]:
        if error is not None:
            if error.failure.name == "cancelled":
                return outcome, error
            written = envelope.write_failure(code_of(error), error.message, error.data)
        else:
            assert outcome is not None
            data = envelope.data_of(outcome.result)
            written = (
                envelope.write_failure("INTERNAL_ERROR", "It failed.")
                if data.failed
                else envelope.write_success(data.raw)
            )
        return Outcome(envelope.write_tool_result(written), call.client.era), None


class ToolOperations:
    """An operation catalog with one operation per tool, under the name of the tool."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.number = 1
        self._all = {
            tool.canonical.replace(".", "_"): Operation(
                name=tool.canonical.replace(".", "_"),
                local_name=tool.upstream_name,
                canonical=tool.canonical,
                server=tool.segment,
                category=Category.READ if tool.effect_name == "read_only" else Category.EXECUTE,
                danger=Danger.REVERSIBLE,
                tool=tool,
                build_signature=lambda _: _SIGNATURE,
                description=tool.description,
            )
            for tool in tools
        }

    def find(self, name: str) -> Operation | None:
        return self._all.get(name)

    def for_tool(self, tool: Tool) -> Operation:
        return self._all[tool.canonical.replace(".", "_")]

    def all(self) -> list[Operation]:
        return list(self._all.values())

    def find_similar(self, name: str, limit: int = 5, sees: Any = None) -> list[str]:
        return sorted(self._all)[:limit]


class ClientSession:
    """A session that lasts until `end`."""

    def __init__(self) -> None:
        self.client = SESSION
        self.owner = "clerk"
        self.is_alive = True
        self.log_level = None
        self.on_close: list[Any] = []
        self.on_roots_changed: list[Any] = []

    def end(self) -> None:
        self.is_alive = False
        closed, self.on_close = self.on_close, []
        for ended in closed:
            ended()


class Bench:
    """The parts of a node that executions need, inside one event loop."""

    def __init__(self, path: Path | None = None, **settings: Any) -> None:
        concurrent = settings.pop("concurrent", 64)
        self.rig = PipelineHarness(
            offer(
                "s", [definition("build"), definition("look", annotations={"readOnlyHint": True})]
            )
        )
        self.rig.pipeline.install_operations(EnvelopeWriter())  # type: ignore[arg-type]
        self.now = 1_700_000_000.0
        self.store = ExecutionStore(path, deliver=asyncio.get_running_loop().call_soon_threadsafe)
        self.operation_catalog = ToolOperations(self.rig.catalog.current.tools)
        self.executions = Executions(
            self.rig.pipeline,
            self.store,
            operation_catalog=lambda: self.operation_catalog,
            wall_clock=lambda: self.now,
            settings=ExecutionsConfig(**settings),
            concurrent=concurrent,
        )

    @property
    def server(self) -> ScriptedUpstream:
        return self.rig.upstreams["s"]

    @property
    def last(self) -> ScriptedRequest:
        return self.server.last

    def asked(
        self, params: dict[str, Any] | None = None, caller: Caller = CLERK, **fields: Any
    ) -> AqlRequest:
        """A request of somebody, as one of the node's own operations gets it."""
        client: Client = fields.pop("client", SESSION)
        parent = Call("tools/call", "test", LOCAL, client, "aql.x", view=VIEW, **fields)
        parent.caller = caller
        return AqlRequest(
            self.operation_catalog.all()[0], VIEW, None, params=params or {}, call=parent
        )

    def child(self, asked: AqlRequest, operation: str = "s_build", arguments: Any = None) -> Call:
        """What `_async` makes of an operation."""
        parent = asked.call
        found = self.operation_catalog.find(operation)
        assert parent is not None
        assert found is not None
        return Call(
            "tools/call", parent.server, parent.credentials, parent.client, found.canonical,
            parent.session_owner, arguments=json.dumps(arguments or {}).encode(), meta=parent.meta,
            session=parent.session, view=parent.view,
            operation_request=AqlRequest(found, VIEW, None),
        )  # fmt: skip

    async def start(
        self,
        operation: str = "s_build",
        arguments: Any = None,
        caller: Caller = CLERK,
        **fields: Any,
    ) -> dict[str, Any]:
        asked = self.asked(caller=caller, **fields)
        data = await self.executions.start(self.child(asked, operation, arguments), asked)
        assert isinstance(data, dict)
        return data

    async def settle(self) -> None:
        """Until everything that was to be written is."""
        over = asyncio.get_running_loop().create_future()
        self.store._file.submit(lambda _: None, lambda *_: over.set_result(None))
        await over

    def close(self) -> None:
        self.store.close()
