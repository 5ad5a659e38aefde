"""A pipeline with approvals and the safety loop: real stores, real proofs and manual clocks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from interlock.aql.builtin_operations import BuiltinUpstream
from interlock.aql.config import AqlConfig, SafetyConfig
from interlock.aql.decision_steps import FIRM_FLOORS, FLOORS
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.aql.operations import OperationCatalogBuilder
from interlock.aql.safety.codes import VerificationCodes
from interlock.aql.safety.loop import SafetyLoop
from interlock.aql.safety.operations import internal_operations, safety_operations
from interlock.aql.safety.store import SafetyChallenge, SafetyStore
from interlock.core.call import Call, Credentials
from interlock.core.catalog.offering import Offering
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.trust.approvals.record import Approval
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, Keys

TOKENS = {"a" * 32: "ada", "b" * 32: "deputy"}
READS = {"readOnlyHint": True}
IRREVERSIBLE = {"x-mcpax-capability": {"mutable": True, "reversible": False}}


def tools() -> Offering:
    """Return a server with tools of every category."""
    return offer(
        "s",
        [
            definition("list_issues", annotations=READS),
            definition("get_issue", annotations=READS),
            definition("create_issue"),
            definition("delete_repo", _meta=IRREVERSIBLE),
            definition("drop_table"),
            definition("wipe", _meta=IRREVERSIBLE),
        ],
        trust_annotations=True,
    )


class RecordedCodes:
    """A channel that records codes for operators."""

    def __init__(self) -> None:
        self.codes: dict[str, str] = {}
        self.sentences: list[str] = []

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        self.codes[challenge_id] = code
        self.sentences.append(sentence)


class GuardedPipeline(Gated):
    """A pipeline whose agents run in the safety loop."""

    def __init__(
        self,
        folder: Path,
        *,
        keys: Keys | None = None,
        now: float | None = None,
        default: Any = "allow",
        **safety: Any,
    ) -> None:
        more: dict[str, Any] = {} if now is None else {"now": now}
        super().__init__(folder, tools(), tokens=dict(TOKENS), keys=keys, default=default, **more)
        self.config = SafetyConfig(**{"mode": "enforcing", **safety})
        self.codes = VerificationCodes()
        self.human = RecordedCodes()
        self.codes.channels = [self.human]
        catalog = self.rig.catalog
        self.loop = SafetyLoop(
            self.config,
            store=SafetyStore(folder / "safety.db"),
            codes=self.codes,
            approvals=self.approvals,
            proofs=self.proofs,
            audit=self.rig.audit,
            find_tool=catalog.find,
            operation_catalog=lambda: self.catalog_builder.build(catalog.current),
            clock=self.rig.clock,
            wall_clock=lambda: self.wall,
        )
        natives = self.builtin_operations = safety_operations(self.loop)
        self.catalog_builder = OperationCatalogBuilder(AqlConfig(), natives)
        own = BuiltinUpstream(
            natives,
            internal_operations(self.loop),
            find=lambda name: self.catalog_builder.build(catalog.current).find(name),
        )
        catalog.publish(own.offering())
        self.rig.upstreams[BUILTIN_KEY] = own  # type: ignore[assignment]
        self.authorizer.set_operation_rules(
            exempt={one.name for one in natives if one.free},
            minimums=FLOORS,
            fixed=FIRM_FLOORS,
        )
        self.authorizer.install(self.loop.decision_step)
        self.loop.load()
        self.told: list[Any] = []
        """All that agents were ever told."""

    def configure(self, **safety: Any) -> None:
        self.config = replace(self.config, **safety)
        self.loop.configure(self.config)

    def close(self) -> None:
        self.loop.close()
        super().close()

    # -- agents

    async def call_builtin(self, operation: str, who: str = "ada", **params: Any) -> Any:
        """What an agent is told, or the error. As the AQL stage makes the call."""
        native = next(one for one in self.builtin_operations if one.name == operation)
        names = {one.name: one.upstream_name for one in native.parameters}
        arguments = {names.get(name, name): value for name, value in params.items()}
        call = tool_call(f"{BUILTIN_KEY[:-1]}.{operation}", arguments, credentials=token(who))
        call.operation_request = SimpleNamespace(confirmation="")
        return self._record(await self.ask(call))

    async def read_builtin(self, operation: str, who: str = "ada", **params: Any) -> dict[str, Any]:
        told = await self.call_builtin(operation, who, **params)
        assert not isinstance(told, InterlockError), told
        data: dict[str, Any] = told["structuredContent"]
        return data

    async def get_builtin_error(self, operation: str, who: str = "ada", **params: Any) -> AqlError:
        told = await self.call_builtin(operation, who, **params)
        assert isinstance(told, AqlError), told
        assert is_safe_message(told.message), told.message
        return told

    def _record(self, told: Any) -> Any:
        self.told.append(
            {"message": told.message, "data": told.data}
            if isinstance(told, InterlockError)
            else told
        )
        return told

    async def begin(self, who: str = "ada", element: str = "agent", **more: Any) -> str:
        """An execution that a human let begin."""
        told = await self.call_builtin("execute_agent", who, element_name=element, **more)
        record = self.approvals.find(told["structuredContent"]["confirmation_id"])
        assert record is not None
        outcome = await self.approve(record)
        started: str = outcome["structuredContent"]["execution_id"]
        return started

    async def report(
        self, hint: str, who: str = "ada", element: str = "agent", **more: Any
    ) -> dict[str, Any]:
        directive = await self.read_builtin(
            "record_execution_step", who, element_name=element, next_action_hint=hint, **more
        )
        if self.loop.mode in ("enforcing", "monitoring"):
            assert_directive(directive)
        return directive

    def start_call(self, tool: str, who: str = "ada", **arguments: Any) -> asyncio.Future[Any]:
        """A call of a tool of the server, by the plain view."""
        return self.start(agent_call(tool, who, **arguments))

    async def call_executes(self, tool: str, who: str = "ada", **arguments: Any) -> bool:
        """Whether a call reached its server. It is answered there."""
        before = len(self.upstream.started)
        over = self.start_call(tool, who, **arguments)
        for _ in range(200):
            if over.done() or len(self.upstream.started) > before:
                break
            await asyncio.sleep(0)
        if len(self.upstream.started) == before:
            self._record(await over)
            return False
        self.upstream.last.answer(content=[])
        self._record(await over)
        return True

    async def get_call_error(self, tool: str, who: str = "ada", **arguments: Any) -> AqlError:
        before = len(self.upstream.started)
        over = self.start_call(tool, who, **arguments)
        for _ in range(200):
            if over.done() or len(self.upstream.started) > before:
                break
            await asyncio.sleep(0)
        assert len(self.upstream.started) == before, "the call reached its server"
        async with asyncio.timeout(HANG_TIMEOUT):
            error = self._record(await over)
        assert isinstance(error, AqlError), error
        assert is_safe_message(error.message), error.message
        return error

    # -- the human

    async def approve(self, record: Approval, **changes: Any) -> Any:
        """Approve by key something that the node itself does."""
        async with asyncio.timeout(HANG_TIMEOUT):
            outcome = await self.approvals.confirm(record.id, self.proof(record, **changes))
        return json.loads(outcome.result)

    async def wait_for_approval(self, tool: str) -> Approval:
        """The approval of one of the loop's own questions, once it is written down."""
        async with asyncio.timeout(HANG_TIMEOUT):
            while True:
                found = [one for one in self.approvals.pending() if one.tool == f"aql.{tool}"]
                if found:
                    return found[-1]
                await asyncio.sleep(0.001)

    async def wait_until_stored(self, id: str) -> None:
        """Wait until the approval of this challenge is on disk. Those that it replaced may be
        pending for a moment longer."""
        async with asyncio.timeout(HANG_TIMEOUT):
            while not self.challenge(id).approval:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.001)

    def challenge(self, id: str) -> SafetyChallenge:
        found = self.loop.challenges.get(id)
        assert found is not None
        return found

    def code(self, id: str) -> str:
        return self.human.codes[id]

    def list_outcomes(self, who: str = "") -> list[str]:
        """What the journal has of the loop."""
        return [
            one["outcome"]
            for one in self.journal.entries
            if one["verb"] == "safety" and who in ("", one["name"])
        ]

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.rig.clock.advance(seconds)


def token(who: str) -> Credentials:
    bearer = next(bearer for bearer, name in TOKENS.items() if name == who)
    return Credentials("10.0.0.1", bearer)


def agent_call(tool: str, who: str = "ada", **arguments: Any) -> Call:
    return tool_call(f"s.{tool}", arguments, credentials=token(who))


def notification_types(directive: dict[str, Any]) -> list[str]:
    return [one["type"] for one in directive.get("notifications", [])]


def challenge_id(directive: dict[str, Any]) -> str:
    """Return the id of the challenge in a directive."""
    [id] = {
        one["metadata"]["verificationId"]
        for one in directive["notifications"]
        if one.get("metadata", {}).get("verificationId")
    }
    found: str = id
    return found


TIERS = {"advisory", "confirm", "verify", "danger_zone"}
NOTICES = {"permission_pending", "autonomy_pause", "danger_zone", "status", "error"}


def assert_directive(told: dict[str, Any]) -> None:
    """Assert that a directive has only the members of the draft."""
    assert isinstance(told["continue"], bool)
    assert all(isinstance(one, str) for one in told["factors"])
    known = {"continue", "factors", "stopped", "reason", "stepsRemaining", "nextStepRisk"}
    assert told.keys() <= known | {"notifications"}
    assert told.get("nextStepRisk", "verify") in TIERS
    assert told.get("stopped", True) is True
    assert not (told["continue"] and "stopped" in told)
    for text in (told.get("reason", ""), *told["factors"]):
        assert is_safe_message(text), text
    for one in told.get("notifications", []):
        assert one["type"] in NOTICES
        assert one.keys() <= {"type", "message", "timestamp", "metadata"}
        about = {"operation", "reason", "level", "verificationId", "approvalId", "url", "hint"}
        assert one.get("metadata", {}).keys() <= about
        assert is_safe_message(one["message"]), one
        if one["type"] == "autonomy_pause" and one["metadata"]["level"] == "verify":
            assert one["metadata"]["verificationId"]
