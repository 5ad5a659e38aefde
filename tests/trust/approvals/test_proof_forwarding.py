"""Proofs that are forwarded to child nodes, and the results that come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, Credentials, Outcome, RelayedError, UpstreamResponseError
from interlock.errors import (
    DEADLINE_EXCEEDED,
    PROOF_INVALID,
    TOO_BUSY,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.protocol.mcp import Era, summarize_result
from interlock.protocol.mcpax import encode_error
from interlock.trust.approvals.downstream import MAX_KNOWN_APPROVALS, NO_PROOF, ProofForwarder
from tests.support.calls import SESSION, tool_call
from tests.support.offerings import definition, offer
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, claims_for, sign, wipe, wipe_offering

IRREVERSIBLE = {"x-mcpax-capability": {"mutable": True, "reversible": False}}
INNER_ID = "0f2a9c64-54f7-4f64-8c0c-111111111111"


class Inner:
    """A node below, as its parent's peer sees it: errors come in the words of its channel."""

    def __init__(self, gated: Gated) -> None:
        self.gated = gated
        self.asked: list[str] = []
        self.shown: list[str] = []

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[Outcome]:
        assert method == "mcpax/confirm"
        self.shown.append(params["proof"])
        self.asked.append(params["confirmation_id"])
        return self._answer(params)

    async def _answer(self, params: dict[str, Any]) -> Outcome:
        extra = {key: Raw(json.dumps(value).encode()) for key, value in params.items()}
        parent = Credentials("10.0.0.1", assigned_name="parent")
        call = Call("mcpax/confirm", "ax", parent, SESSION, extra_params=extra)
        try:
            outcome = await self.gated.pipeline.run(call)
        except InterlockError as error:
            code, message, data = encode_error(error)
            raise UpstreamResponseError(code, message, Raw(json.dumps(data).encode())) from None
        return Outcome(outcome.result, Era.SESSION, summarize_result(outcome.result))


class Pair:
    """Two nodes with a gate each. What the upper one sends reaches the lower one by hand."""

    def __init__(self, folder: Path) -> None:
        for name in ("outer", "inner"):
            (folder / name).mkdir()
        self.inner = Gated(folder / "inner", wipe_offering(), node_id=INNER_ID)
        self.child = Inner(self.inner)
        below = offer("s", [definition("wipe", _meta=IRREVERSIBLE)], registered="aggregator")
        self.outer = Gated(folder / "outer", below, children={"s": self.child})

    async def through_the_outer(self) -> dict[str, Any]:
        """A call that passed the outer gate and waits at the inner one: its answer there."""
        held = await self.outer.hold()
        task = asyncio.ensure_future(self.outer.approvals.confirm(held.id, self.outer.proof(held)))
        exchange = await self.outer.reached()
        answer = await self.inner.ask(wipe(credentials=Credentials("x", assigned_name="parent")))
        exchange.answer(**answer)
        async with asyncio.timeout(HANG_TIMEOUT):
            assert json.loads((await task).result) == answer
        content: dict[str, Any] = answer["structuredContent"]
        assert content["aud"] == INNER_ID
        return content

    async def again(self) -> Any:
        """The same call once more at the outer node, which asks the inner one."""
        sent = len(self.outer.upstream.started)
        over = self.outer.start(wipe())
        exchange = await self.outer.reached(sent + 1)
        answer = await self.inner.ask(wipe(credentials=Credentials("x", assigned_name="parent")))
        if isinstance(answer, InterlockError):
            exchange.fail(RelayedError(answer.failure, answer.message, answer.data))
        else:
            exchange.answer(**answer)
        async with asyncio.timeout(HANG_TIMEOUT):
            return await over

    def proof(self, content: dict[str, Any], **changes: Any) -> str:
        approval = self.inner.approvals.find(content["confirmation_id"])
        assert approval is not None
        return sign(self.inner.keys.operator, claims_for(approval, self.inner.wall, **changes))

    def forget(self) -> None:
        """The outer node knows nothing of it any more."""
        self.outer.approvals._forwarder._upstreams.clear()
        self.outer.approvals._inbox.entries.clear()

    def close(self) -> None:
        self.outer.close()
        self.inner.close()


async def test_forwards_rejection_to_inner_node(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    outcome = await pair.outer.approvals.confirm(
        content["confirmation_id"], pair.proof(content, decision="refuse", reason="no")
    )
    assert json.loads(outcome.result)["status"] == "refused"
    response = await pair.outer.ask()
    assert response.failure.name == "approval_refused"
    assert len(pair.outer.upstream.started) == 1
    assert (await pair.outer.hold()).state == "pending"
    pair.close()


async def test_reports_pending_inner_approval_to_identical_call(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    for _ in range(2):
        assert (await pair.again())["structuredContent"] == content
    assert len(pair.inner.approvals.pending()) == 1
    # When that has expired it is a new call, and asks the outer human again.
    pair.outer.wall += 301
    again = await pair.outer.hold()
    assert again.id != content["confirmation_id"]
    pair.close()


async def test_forwards_bad_proof_to_inner_node(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    inner = pair.inner.approvals.find(content["confirmation_id"])
    assert inner is not None
    by_the_outer_human = sign(pair.outer.keys.operator, claims_for(inner, pair.inner.wall))
    with pytest.raises(InterlockError) as error:
        await pair.outer.approvals.confirm(inner.id, by_the_outer_human)
    assert error.value.failure.name == "proof_invalid"
    assert "no trust anchor" in error.value.message
    assert pair.inner.upstream.started == []
    pair.close()


async def test_learns_of_rejection_made_at_inner_node(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    await pair.inner.approvals.reject(content["confirmation_id"], reason="no", local=True)
    response = await pair.again()
    assert response.failure.name == "approval_refused"
    # Told once: after that it is a new call.
    assert (await pair.outer.hold()).state == "pending"
    assert pair.inner.upstream.started == []
    pair.close()


async def test_retries_after_inner_node_was_unavailable(tmp_path: Path) -> None:
    """The node below is away, or has no time: the call waits there as before."""

    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    late = {"confirmation_id": content["confirmation_id"]}
    for number, error in enumerate(
        (
            InterlockError(UPSTREAM_UNAVAILABLE, "It is away."),
            RelayedError(TOO_BUSY, "Later."),
            RelayedError(DEADLINE_EXCEEDED, "Still under way.", late),
        )
    ):
        over = pair.outer.start(wipe())
        exchange = await pair.outer.reached(number + 2)
        # Whoever is away was not reached; the others have said something.
        exchange.call.is_dispatched = isinstance(error, RelayedError)
        exchange.fail(error)
        assert (await over).failure is error.failure
        pair.outer.breakers_forgive()
    assert (await pair.again())["structuredContent"] == content
    pair.close()


async def test_does_not_retry_after_unknown_outcome(tmp_path: Path) -> None:
    """The inner gate may have vanished, and the call have been made."""

    pair = Pair(tmp_path)
    await pair.through_the_outer()
    over = pair.outer.start(wipe())
    (await pair.outer.reached(2)).lose(sent=True)
    assert (await over).failure.name == "upstream_lost"
    pair.outer.breakers_forgive()
    assert (await pair.outer.hold()).state == "pending"
    assert len(pair.outer.upstream.started) == 2
    pair.close()


async def test_does_not_repeat_inner_call_after_kill(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    await pair.through_the_outer()
    pair.outer.start(wipe())
    await pair.outer.reached(2)
    # Nothing more of it gets to the disk.
    pair.outer.close()
    below = offer("s", [definition("wipe", _meta=IRREVERSIBLE)], registered="aggregator")
    after = Gated(tmp_path / "outer", below, keys=pair.outer.keys)
    response = await after.ask()
    assert response.failure.name == "upstream_lost"
    assert "outcome is unknown" in response.message
    assert (await after.hold()).state == "pending"
    assert after.upstream.started == []
    after.close()
    pair.inner.close()


async def test_forwards_concurrent_confirmations_once(tmp_path: Path) -> None:
    """And what is let through meanwhile, by the way of the outer node, is not lost."""

    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    first, second = pair.outer.start(wipe()), pair.outer.start(wipe())
    exchange = await pair.outer.reached(2)
    answer = await pair.inner.ask(wipe(credentials=Credentials("x", assigned_name="parent")))
    task = asyncio.ensure_future(
        pair.outer.approvals.confirm(content["confirmation_id"], pair.proof(content))
    )
    (await pair.inner.reached()).answer(content=[])
    async with asyncio.timeout(HANG_TIMEOUT):
        assert json.loads((await task).result) == {"content": []}
        exchange.answer(**answer)
        assert await first == await second == {"content": []}
    assert len(pair.outer.upstream.started) == 2
    assert len(pair.inner.upstream.started) == 1
    pair.close()


class LyingUpstream:
    """A node below that says what it likes."""

    def __init__(self, *, claims: bool = False) -> None:
        self.claims = claims
        self.shown: list[str] = []

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[Outcome]:
        self.shown.append(params["proof"])
        return self._answer(params["proof"])

    async def _answer(self, proof: str) -> Outcome:
        if proof == NO_PROOF and self.claims:
            code, message, data = encode_error(InterlockError(PROOF_INVALID, "It waits here."))
            raise UpstreamResponseError(code, message, Raw(json.dumps(data).encode()))
        result = b'{"content":[{"type":"text","text":"all fine, says the liar"}]}'
        return Outcome(result, Era.SESSION, summarize_result(Raw(result)))


async def confirmed_by(pair: Pair, id: str, proof: str) -> InterlockError:
    with pytest.raises(InterlockError) as error:
        await pair.outer.approvals.confirm(id, proof)
    return error.value


async def test_sends_proof_only_to_source_of_id(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    id = content["confirmation_id"]
    liar = LyingUpstream(claims=True)
    pair.outer.children.clear()
    pair.outer.children.update({"a-liar": liar, "s": pair.child})
    # It has heard of the id, and says it itself.
    pair.outer.approvals._forwarder.remember(id, "a-liar", 0.0)
    outcome = await pair.outer.approvals.confirm(id, pair.proof(content, decision="refuse"))
    assert json.loads(outcome.result)["status"] == "refused"
    assert liar.shown == []
    pair.close()


async def test_sends_proof_to_no_other_node_while_source_is_unavailable(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    liar = LyingUpstream(claims=True)
    pair.outer.children.clear()
    pair.outer.children["a-liar"] = liar
    error = await confirmed_by(pair, content["confirmation_id"], pair.proof(content))
    assert error.failure.name == "upstream_unavailable"
    assert liar.shown == []
    pair.close()


async def test_locates_forgotten_id_without_sending_proof(tmp_path: Path) -> None:
    """A neighbour that answers everything, and one that knows nothing, see no proof."""

    (tmp_path / "other").mkdir()
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    pair.forget()
    pair.outer.approvals._forwarder._find_upstream = lambda _: None
    liar, other = LyingUpstream(), Inner(Gated(tmp_path / "other"))
    pair.outer.children.clear()
    pair.outer.children.update({"a-liar": liar, "other": other, "s": pair.child})
    id, proof = content["confirmation_id"], pair.proof(content)
    task = asyncio.ensure_future(pair.outer.approvals.confirm(id, proof))
    (await pair.inner.reached()).answer(content=[])
    async with asyncio.timeout(HANG_TIMEOUT):
        assert json.loads((await task).result) == {"content": []}
    assert liar.shown == [NO_PROOF]
    assert other.shown == [NO_PROOF]
    assert pair.child.shown == [NO_PROOF, proof]
    other.gated.close()
    pair.close()


async def test_rejects_id_claimed_by_two_upstreams(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    pair.forget()
    pair.outer.approvals._forwarder._find_upstream = lambda _: None
    liar = LyingUpstream(claims=True)
    pair.outer.children.clear()
    pair.outer.children.update({"a-liar": liar, "s": pair.child})
    error = await confirmed_by(pair, content["confirmation_id"], pair.proof(content))
    assert error.failure.name == "unknown_approval"
    assert error.data is not None
    assert error.data["upstreams"] == ["a-liar", "s"]
    assert liar.shown == [NO_PROOF]
    assert pair.inner.upstream.started == []
    pair.close()


async def test_rejects_id_while_its_node_is_unavailable(tmp_path: Path) -> None:
    """After a restart, while that node is away: another says that it knows the id."""

    pair = Pair(tmp_path)
    content = await pair.through_the_outer()
    pair.outer.approvals._forwarder._upstreams.clear()
    pair.outer.approvals._forwarder._find_upstream = lambda _: None
    pair.outer.children.clear()
    pair.outer.children["a-liar"] = LyingUpstream(claims=True)
    error = await confirmed_by(pair, content["confirmation_id"], pair.proof(content))
    assert error.failure.name in ("unknown_approval", "upstream_unavailable")
    # The original caller still hears that its call waits.
    assert (await pair.again())["structuredContent"] == content
    pair.close()


async def test_sends_proof_to_upstream_with_pending_call() -> None:
    right, wrong = LyingUpstream(claims=True), LyingUpstream(claims=True)
    at = {"z" * 32: "right"}
    below = ProofForwarder(lambda: {"wrong": wrong, "right": right}, at.get)
    assert (await below.confirm("z" * 32, "proof")).upstream == "right"
    assert right.shown == ["proof"]
    assert wrong.shown == []


async def test_intermediate_node_forwards_lookup_without_proof() -> None:
    knows = LyingUpstream(claims=True)
    between = ProofForwarder(lambda: {"knows": knows})
    with pytest.raises(InterlockError) as error:
        await between.confirm("z" * 32, NO_PROOF)
    assert error.value.failure is PROOF_INVALID
    assert knows.shown == [NO_PROOF]


async def test_forwards_only_well_formed_ids(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for nonsense in ("", "x", "y" * 500, "../../etc", "a b c d e f g h i j k"):
        with pytest.raises(InterlockError) as error:
            await pair.outer.approvals.confirm(nonsense, "proof")
        assert error.value.failure.name == "unknown_approval"
    assert pair.child.asked == []
    with pytest.raises(InterlockError) as error:
        await pair.outer.approvals.confirm("z" * 32, "proof")
    assert error.value.failure.name == "unknown_approval"
    assert pair.child.asked == ["z" * 32]
    assert pair.child.shown == [NO_PROOF]
    pair.close()


def test_limits_remembered_approvals() -> None:
    below = ProofForwarder(dict)
    for number in range(MAX_KNOWN_APPROVALS + 10):
        below.remember(f"approval-number-{number}", "s", 0.0)
    assert len(below._upstreams) == MAX_KNOWN_APPROVALS
    assert "approval-number-9" not in below._upstreams


async def test_ignores_approval_claims_of_ordinary_server(tmp_path: Path) -> None:
    """A server that is no node answers as if it were one."""

    gated = Gated(tmp_path, default="allow")
    over = gated.start(tool_call("s.wipe", {}))
    gated.upstream.last.answer(
        content=[],
        isError=True,
        structuredContent={"confirmation_id": "c" * 32},
        _meta={"x-mcpax-status": "confirmation_required"},
    )
    assert (await over)["isError"] is True
    assert gated.approvals._forwarder._upstreams == {}
    gated.close()
