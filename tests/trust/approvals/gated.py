"""A pipeline with a gate: a real store, real proofs, clocks that a test turns."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey
from msgspec import Raw

from interlock.core.call import Call, Caller, Client, Outcome
from interlock.core.catalog.offering import Offering
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig, PolicyConfig, RuleConfig
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import InterlockError
from interlock.protocol.mcp import Era
from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT
from interlock.trust.approvals.downstream import ChildPeer
from interlock.trust.approvals.proofs import Anchors, Proofs
from interlock.trust.approvals.record import Approval
from interlock.trust.approvals.service import Approvals
from interlock.trust.approvals.store import ApprovalStore
from interlock.trust.policy.policy import Policy
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer
from tests.support.pipeline import PipelineHarness, ScriptedRequest, ScriptedUpstream
from tests.support.timeouts import HANG_TIMEOUT

NODE = "6c7bd6a5-6a8f-4d5e-9d35-1f8dd9a8f3b1"
NOW = 1_800_000_000.0
IRREVERSIBLE = {"readOnlyHint": False, "destructiveHint": True}
EARLIER = "the result of an earlier call"
SECRET = "a secret of a service that is long enough"
URL_CAPABLE = b'{"elicitation":{"url":{}}}'


def wipe_offering(description: str = "Wipes a disk.") -> Offering:
    """Two tools: one that a human must confirm, and one that nobody minds."""
    capability = {"x-mcpax-capability": {"mutable": True, "reversible": False}}
    return offer(
        "s",
        [
            definition("wipe", description=description, _meta=capability),
            definition("look", annotations={"readOnlyHint": True}),
        ],
    )


_HANDLES: dict[str, dict[tuple[str, str], str]] = {}


def _called(call: Call) -> tuple[str, str]:
    try:
        return call.name, json.dumps(json.loads(bytes(call.arguments)), sort_keys=True)
    except (ValueError, RecursionError):
        return call.name, repr(bytes(call.arguments))


class Keys:
    """Everybody's keys, and the proofs that they make."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.operator = OKPKey.generate_key("Ed25519")
        self.engine = ECKey.generate_key("P-256")
        self.stranger = OKPKey.generate_key("Ed25519")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.service = OctKey.import_key(SECRET)

    def file(self, name: str, key: Any) -> str:
        path = self._folder / f"{name}.pem"
        path.write_bytes(key.as_pem(private=False))
        return str(path)

    def anchors(self) -> list[AnchorConfig]:
        return [
            AnchorConfig("clerk", key=self.file("clerk", self.operator)),
            AnchorConfig("engine", kind="policy_engine", key=self.file("engine", self.engine)),
            AnchorConfig("desk", kind="service", secret="${env:DESK}"),
        ]


def sign(key: Any, claims: Mapping[str, Any], algorithm: str = "EdDSA", **header: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        protected = {"alg": algorithm, **header}
        return jws.serialize_compact(
            protected, json.dumps(claims).encode(), key, algorithms=[algorithm]
        )


def claims_for(approval: Approval, now: float, **changes: Any) -> dict[str, Any]:
    claims = {
        "aud": approval.audience,
        "jti": approval.id,
        "args_sha256": approval.digest,
        "iat": int(now),
        "exp": int(now) + 300,
        "decision": "approve",
        **changes,
    }
    return {key: value for key, value in claims.items() if value is not ...}


class Gated:
    """Everything of one node that has to do with approvals."""

    def __init__(
        self,
        folder: Path,
        *offerings: Offering,
        rules: list[RuleConfig] | None = None,
        default: Any = "safe",
        tokens: dict[str, str] | None = None,
        page: str | None = None,
        settings: dict[str, Any] | None = None,
        keys: Keys | None = None,
        children: Mapping[str, ChildPeer] | None = None,
        node_id: str = NODE,
        now: float = NOW,
    ) -> None:
        self.folder = folder
        self.keys = keys or Keys(folder)
        self.wall = now
        self.rig = PipelineHarness(*(offerings or (wipe_offering(),)), tokens=tokens)
        self._arrived = asyncio.Event()
        self.handles = _HANDLES.setdefault(str(folder), {})
        """The approvals that clients know of, by what they called, also after a restart."""
        self.marks: list[tuple[str, str]] = []
        """Of each result that was kept: the approval, and when its call was answered."""
        self.texts: list[str] = []
        """What each of them says of itself."""
        for upstream in self.rig.upstreams.values():
            upstream.start = self._telling(upstream.start)  # type: ignore[method-assign]
        self.journal = self.rig.journal
        self.pipeline, self.authorizer = self.rig.pipeline, self.rig.authorizer
        self.policy = Policy(PolicyConfig(default=default, rules=rules or []))
        self.authorizer.policy = self.policy
        config = ApprovalsConfig(anchors=self.keys.anchors(), **(settings or {}))
        loop = asyncio.get_running_loop()
        self.store = ApprovalStore(folder / "approvals.db", deliver=loop.call_soon_threadsafe)
        self.anchors = Anchors(config, environ={"DESK": SECRET}, base_dir=folder)
        self.proofs = Proofs(self.anchors)
        self.children: dict[str, ChildPeer] = dict(children or {})
        self.approvals = Approvals(
            self.store,
            self.proofs,
            settings=config,
            node_id=lambda: node_id,
            authorizer=self.authorizer,
            page=lambda: page,
            seals=StateSealer(b"k" * 32, lambda: self.wall),
            recorder=self.journal,
            clock=self.rig.clock,
            wall_clock=lambda: self.wall,
            call_later=self.rig.clock.call_later,
            children=lambda: self.children,
        )
        self.pipeline.install_gate(self.approvals.gate, self.approvals.confirm_call)
        self.approvals.load()

    @property
    def upstream(self) -> ScriptedUpstream:
        return self.rig.upstreams["s"]

    def close(self) -> None:
        self.approvals.close()

    def _telling(
        self, start: Callable[[Call, ResponseHandler], UpstreamRequest]
    ) -> Callable[..., UpstreamRequest]:
        def started(call: Call, back: ResponseHandler) -> UpstreamRequest:
            exchange = start(call, back)
            self._arrived.set()
            return exchange

        return started

    # -- calls

    def start(self, call: Call, *, handle: bool = True) -> asyncio.Future[Any]:
        """Begin a call; what it comes to is its result as JSON, or its error. `handle`: its client
        names the approval that it was told of for the same call."""
        over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        called = _called(call)
        if handle and called in self.handles and APPROVAL not in (call.meta or {}):
            known = Raw(json.dumps(self.handles[called]).encode())
            call.meta = {**(call.meta or {}), APPROVAL: known}

        def done(_: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
            assert (outcome is None) != (error is None)
            read = error if outcome is None else self._read(bytes(outcome.result))
            if isinstance(read, dict):
                held = read.get("structuredContent") or {}
                if isinstance(held, dict) and "confirmation_id" in held:
                    self.handles[called] = held["confirmation_id"]
            over.set_result(read)

        call.on_done = done
        self.pipeline.begin(call)
        return over

    def _read(self, result: bytes) -> Any:
        """A result as its server gave it; how it is marked when it was kept is noted apart."""
        read = json.loads(result)
        if APPROVAL in read.get("_meta", {}):
            meta = read["_meta"]
            self.marks.append((meta.pop(APPROVAL), meta.pop(EXECUTED_AT)))
            if not meta:
                del read["_meta"]
            if read["content"] and EARLIER in read["content"][-1].get("text", ""):
                self.texts.append(read["content"].pop()["text"])
        return read

    async def ask(self, call: Call | None = None, *, handle: bool = True) -> Any:
        async with asyncio.timeout(HANG_TIMEOUT):
            return await self.start(call or wipe(), handle=handle)

    async def hold(self, call: Call | None = None) -> Approval:
        """Make a call that is held, and give its approval."""
        answer = await self.ask(call)
        record = self.approvals.find(answer["structuredContent"]["confirmation_id"])
        assert record is not None
        return record

    async def reached(self, number: int = 1) -> ScriptedRequest:
        """Wait until so many calls have reached the upstream."""
        async with asyncio.timeout(HANG_TIMEOUT):
            while len(self.upstream.started) < number:
                self._arrived.clear()
                await self._arrived.wait()
        return self.upstream.last

    def breakers_forgive(self) -> None:
        """Let what an upstream did be forgotten."""
        self.rig.breakers.record_success("s")

    # -- proofs

    def proof(self, approval: Approval, **changes: Any) -> str:
        """The operator's signature."""
        return sign(self.keys.operator, claims_for(approval, self.wall, **changes))

    async def confirm(
        self, approval: Approval, proof: str | None = None, by: Caller | None = None
    ) -> Any:
        """Confirm, and let the upstream answer. The result as JSON."""
        before = len(self.upstream.started)
        task = asyncio.ensure_future(
            self.approvals.confirm(approval.id, proof or self.proof(approval), by)
        )
        exchange = await self.reached(before + 1)
        exchange.answer(content=[{"type": "text", "text": "wiped"}])
        async with asyncio.timeout(HANG_TIMEOUT):
            return json.loads((await task).result)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.rig.clock.advance(seconds)


def wipe(arguments: Any = None, **fields: Any) -> Call:
    """A call of the dangerous tool."""
    return tool_call("s.wipe", {"disk": "a"} if arguments is None else arguments, **fields)


def a_session_client() -> Client:
    return Client(Era.SESSION, "2025-11-25", "tests", URL_CAPABLE)


def stateless_client() -> Client:
    return Client(Era.STATELESS, "2026-07-28", "tests", URL_CAPABLE)
