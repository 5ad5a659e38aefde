"""A pipeline with views and approvals, and with scripted servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from interlock.aql.batch import BatchRunner
from interlock.aql.builtin_operations import BuiltinUpstream, hidden_operation
from interlock.aql.config import AqlConfig
from interlock.aql.confirmation_tokens import ConfirmationTokens, confirmation_operations
from interlock.aql.execution_store import ExecutionStore
from interlock.aql.executions import Executions
from interlock.aql.language.cursors import CursorCodec
from interlock.aql.language.errors import is_safe_message
from interlock.aql.operations import BuiltinOperation, OperationCatalogBuilder
from interlock.aql.preview import Preview
from interlock.aql.read_modify_write import ReadModifyWrite
from interlock.aql.request import AqlRequest
from interlock.aql.response_writer import ResponseWriter
from interlock.aql.stage import BATCH, MERGE, PREVIEW, START, AqlStage
from interlock.aql.view import ViewListBuilder, choose_view
from interlock.core.call import Call, Client, Outcome
from interlock.core.catalog.offering import Offering
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY, Category, EndpointFamily, OperationView
from tests.support.calls import SESSION, tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness, ScriptedRequest
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated

CRUDE = tuple(
    EndpointFamily(one.value.lower(), f"mcp_aql_{one.value.lower()}", frozenset({one}))
    for one in Category
)
FIVE = OperationView("semantic", "crude", CRUDE)
SINGLE = OperationView("single", "crude", CRUDE)
ALL = OperationView("all", "crude", CRUDE)
AUTO = OperationView("auto", "crude", CRUDE)
READS = {"readOnlyHint": True}
DELETES = {"x-mcpax-capability": {"mutable": True, "reversible": False}}


def object_schema(*required: str, **properties: Any) -> dict[str, Any]:
    """Return a closed object schema. A property is a type or a schema."""
    return {
        "type": "object",
        "properties": {
            name: {"type": one} if isinstance(one, str) else one for name, one in properties.items()
        },
        "required": list(required),
        "additionalProperties": False,
    }


def hub_offering() -> Offering:
    """Return a server with an operation of every category."""
    issue = {"owner": "string", "repo": "string"}
    return offer(
        "hub",
        [
            definition(
                "get_issue",
                inputSchema=object_schema("owner", "number", owner="string", number="integer"),
                annotations=READS,
            ),
            definition("list_issues", inputSchema=object_schema(owner="string"), annotations=READS),
            definition(
                "createIssue",
                description="Opens an issue.",
                inputSchema=object_schema(
                    "owner",
                    "issueTitle",
                    owner={"type": "string", "description": "Whose it is."},
                    issueTitle="string",
                    priority={"type": "integer", "minimum": 1, "maximum": 5},
                    kind={"type": "string", "enum": ["bug", "wish"]},
                    due={"type": "string", "format": "date"},
                    apiKey="string",
                    count="integer",
                ),
            ),
            definition(
                "update_issue",
                inputSchema=object_schema(
                    "issue_id",
                    issue_id="string",
                    title="string",
                    labels={"type": "array", "items": {"type": "string"}},
                    bodyText={"type": ["string", "null"]},
                    settings={"type": "object"},
                ),
            ),
            definition(
                "delete_repo",
                inputSchema=object_schema("owner", "repo", **issue),
                _meta=DELETES,
            ),
            definition("run_report", inputSchema={"type": "object"}),
        ],
    )


class ViewPipeline:
    """A pipeline in which clients see operations."""

    def __init__(
        self,
        rig: PipelineHarness,
        gated: Gated | None = None,
        config: AqlConfig | None = None,
        natives: Iterable[BuiltinOperation] = (),
    ) -> None:
        self.rig = rig
        self.gated = gated
        self.pipeline, self.authorizer = rig.pipeline, rig.authorizer
        self.config = config or AqlConfig()
        self.journal = rig.journal
        listed = list(natives)
        tokens = None
        catalog_builder = OperationCatalogBuilder(self.config)
        if gated is not None:
            tokens = ConfirmationTokens(
                gated.approvals,
                rig.audit,
                settings=catalog_builder.settings,
                clock=rig.clock,
                wall_clock=lambda: gated.wall,
            )
            listed += confirmation_operations(tokens)
        catalog_builder.configure(self.config, listed)
        self.tokens = tokens
        self.batches = BatchRunner(self.pipeline, self.config, self._find)
        self.executions: Executions | None = None
        check = None if tokens is None else tokens.check
        merging = ReadModifyWrite(self.pipeline, self._find, check)
        self.own = BuiltinUpstream(
            listed,
            [
                hidden_operation(BATCH, self.batches.run, "Several operations."),
                hidden_operation(PREVIEW, Preview(self.authorizer), "What would be done."),
                hidden_operation(START, self._start, "What goes on by itself."),
                hidden_operation(MERGE, merging.run, "An update that keeps what it does not name."),
            ],
            find=lambda name: self.stage.operation_catalog().find_builtin(name),
        )
        self.teller = ResponseWriter(
            self.config,
            clock=rig.clock,
            cursors=CursorCodec(b"c" * 32),
            settings=catalog_builder.settings,
            tokens=tokens,
        )
        self.catalog_builder = catalog_builder
        self.stage = AqlStage(
            self.config,
            host=self.pipeline,
            catalog_builder=catalog_builder,
            catalog=rig.catalog,
            builtin_upstream=self.own,
            authorizer=self.authorizer,
            listing=ViewListBuilder(b"{}"),
            response_writer=self.teller,
            choose_view=choose_view,
            tokens=tokens,
        )
        self.pipeline.install_operations(self.stage)
        self.authorizer.set_operation_rules(exempt=self.own.free, minimums={}, fixed=())
        rig.upstreams[BUILTIN_KEY] = self.own  # type: ignore[assignment]
        offering = self.own.offering()
        rig.catalog.publish(offering)
        rig.catalog.hide_tools(BUILTIN_KEY, frozenset(tool.canonical for tool in offering.tools))
        self._waiting: asyncio.Event | None = None
        self.hub = rig.upstreams["hub"]
        start = self.hub.start

        def started(call: Call, back: ResponseHandler) -> UpstreamRequest:
            exchange = start(call, back)
            if self._waiting is not None:
                self._waiting.set()
            return exchange

        self.hub.start = started  # type: ignore[method-assign]
        self.corpus: list[dict[str, Any]] = []
        """Every answer that was given."""

    def _find(self, name: str, face: OperationView) -> Any:
        return self.stage.find(name, face)

    async def _start(self, asked: AqlRequest) -> Any:
        assert self.executions is not None
        return await self.executions.start((asked.params or {})["child"], asked)

    def keep_executions(self, store: ExecutionStore) -> Executions:
        """With executions, which are kept there."""
        self.executions = Executions(
            self.pipeline,
            store,
            operation_catalog=self.stage.operation_catalog,
            wall_clock=lambda: 1_700_000_000.0,
            settings=self.config.executions,
            concurrent=8,
            prepare_retry=self.stage.prepare_retry,
        )
        return self.executions

    # -- requests

    def begin(
        self,
        endpoint: str,
        arguments: Any,
        *,
        view: OperationView = FIVE,
        client: Client = SESSION,
        **fields: Any,
    ) -> Call:
        call = tool_call(endpoint, arguments, client=client, view=view, **fields)
        self.rig.begin(call)
        return call

    def last_envelope(self) -> dict[str, Any]:
        """The envelope of the call that ended last."""
        _, result = self.rig.done[-1]
        assert not isinstance(result, InterlockError), result
        return self.read(result)

    def read(self, result: dict[str, Any]) -> dict[str, Any]:
        envelope: dict[str, Any] = json.loads(result["content"][0]["text"])
        if "structuredContent" in result:
            assert result["structuredContent"] == envelope
        self._assert_valid(envelope)
        self.corpus.append(envelope)
        return envelope

    def _assert_valid(self, envelope: dict[str, Any]) -> None:
        assert isinstance(envelope["success"], bool)
        if not envelope["success"]:
            assert set(envelope) == {"success", "error"}
            assert set(envelope["error"]) <= {"code", "message", "details"}
            assert is_safe_message(envelope["error"]["message"]), envelope["error"]["message"]

    def ask(self, endpoint: str, arguments: Any, **fields: Any) -> dict[str, Any]:
        """The answer to a request that is answered at once."""
        before = len(self.rig.done)
        self.begin(endpoint, arguments, **fields)
        assert len(self.rig.done) == before + 1, "it is still under way"
        return self.last_envelope()

    def call(
        self, operation: str, endpoint: str = "", view: OperationView = FIVE, **params: Any
    ) -> Any:
        """The same, of one operation at its own endpoint."""
        if not endpoint:
            endpoint = self.endpoint_of(operation, view)
        return self.ask(endpoint, {"operation": operation, "params": params}, view=view)

    def endpoint_of(self, operation: str, view: OperationView = FIVE) -> str:
        if view.mode == "single":
            return view.single_tool
        found = self.stage.find(operation, view)
        assert found is not None, operation
        return view.find_family(found.name, found.category).tool

    async def wait_for_call(self, number: int) -> ScriptedRequest:
        """Wait until so many calls have reached the server, and give the last of those."""
        async with asyncio.timeout(HANG_TIMEOUT):
            while len(self.hub.started) < number:
                self._waiting = asyncio.Event()
                await self._waiting.wait()
        return self.hub.started[number - 1]

    @property
    def last(self) -> ScriptedRequest:
        return self.hub.last

    @property
    def sent_calls(self) -> list[tuple[str, Any]]:
        """What reached the server: the tool, and its arguments."""
        return [
            (one.call.route.upstream_name, json.loads(bytes(one.call.arguments)))
            for one in self.hub.started
            if one.call.route is not None
        ]

    def error(self, *args: Any, **fields: Any) -> dict[str, Any]:
        envelope = self.call(*args, **fields)
        assert envelope["success"] is False, envelope
        error: dict[str, Any] = envelope["error"]
        return error


def view_pipeline(
    config: AqlConfig | None = None, *offerings: Offering, **settings: Any
) -> ViewPipeline:
    """Return a pipeline without approvals."""
    natives = settings.pop("natives", ())
    return ViewPipeline(
        PipelineHarness(*(offerings or (hub_offering(),)), **settings), None, config, natives
    )


def gated_pipeline(folder: Path, config: AqlConfig | None = None, **settings: Any) -> ViewPipeline:
    """Return a pipeline with approvals. It needs a running loop."""
    natives = settings.pop("natives", ())
    node = Gated(folder, *settings.pop("offerings", (hub_offering(),)), **settings)
    return ViewPipeline(node.rig, node, config, natives)


def text_result(text: str, **members: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **members}


def read_result(outcome: Outcome) -> Any:
    return json.loads(bytes(outcome.result))
