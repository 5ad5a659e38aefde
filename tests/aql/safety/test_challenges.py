"""Tests of verification challenges: codes, expiry, lockouts and secrecy of codes."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import logging
import pickle
import re
import secrets
import traceback
import uuid
from base64 import b32decode
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.aql.safety.approval_requests import ApprovalRequests
from interlock.aql.safety.codes import CODE_BYTES, VerificationCode, VerificationCodes, matches_code
from interlock.core.call import Caller
from interlock.errors import InterlockError
from tests.aql.safety.guarded_pipeline import (
    GuardedPipeline,
    RecordedCodes,
    challenge_id,
    notification_types,
    token,
)
from tests.aql.safety.test_loop import run
from tests.support.calls import tool_call
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import claims_for, sign

WRONG_CODE = "AAAA-BBBB-CCCC-DDDD-EEEE-FFFF-GGGG-HHHH"
RISKY = "purge the mail queue of staging"


async def pause_step(node: GuardedPipeline, hint: str = RISKY, **more: Any) -> str:
    """Report a step that needs verification and return the id of its challenge."""
    directive = await node.report(hint, **more)
    assert directive["continue"] is False
    assert directive["nextStepRisk"] == "verify"
    assert "stopped" not in directive
    assert "autonomy_pause" in notification_types(directive)
    return challenge_id(directive)


@pytest.mark.spec("AQ-8.8-1", "AQ-8.8.2-2", "AQ-8.8.2-3", "AQ-8.7.1-2", "AQ-8.8.1-1", "AQ-8.7.3-3")
async def test_code_lets_step_pass(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = await pause_step(node)
    assert "ada" in node.human.sentences[-1]
    told = await node.read_builtin("verify_challenge", challenge_id=id, code=node.code(id))
    assert told == {"verified": True, "challenge_id": id, "unblocked": False}
    going = await node.report(RISKY)
    assert going["continue"] is True
    assert notification_types(going) == []
    # Once: the next time it is asked again, by another challenge.
    assert await pause_step(node) != id
    # It is one and the same approval store, and says by what it was decided.
    asked = [one for one in node.approvals.recent() if one.tool == "aql.unblock"]
    assert [(one.by, one.action) for one in asked if one.state == "done"] == [("code", "verify")]
    node.close()


@pytest.mark.spec("AQ-8.8-1", "AQ-8.8.1-1", "AQ-8.8.2-2", "AQ-8.8.2-3")
async def test_danger_zone_stops_an_agent_until_its_code_is_entered(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    directive = await node.report("purge all mail queues of live customers")
    assert (directive["continue"], directive["stopped"]) == (False, True)
    assert directive["nextStepRisk"] == "danger_zone"
    assert notification_types(directive) == ["danger_zone"]
    id = challenge_id(directive)
    for operation, params in [
        ("record_execution_step", {"element_name": "agent", "next_action_hint": "list_issues x"}),
        ("execute_agent", {"element_name": "another"}),
    ]:
        error = await node.get_builtin_error(operation, **params)
        assert error.data is not None
        assert error.data["reason"] == "hard_blocked"
    result = await node.read_builtin("verify_challenge", challenge_id=id, code=node.code(id))
    assert result["unblocked"] is True
    assert (await node.report("list_issues of docs"))["continue"] is True
    node.close()


@pytest.mark.spec("AQ-8.8.2-3", "AQ-8.8.2-5")
async def test_wrong_code_ends_challenge_and_creates_another(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = await pause_step(node)
    wrong = await node.get_builtin_error("verify_challenge", challenge_id=id, code=WRONG_CODE)
    assert wrong.code == "TOKEN_INVALID"
    assert wrong.data is not None
    new = wrong.data["challenge_id"]
    assert new != id
    late = await node.get_builtin_error("verify_challenge", challenge_id=id, code=node.code(id))
    assert late.code == "TOKEN_INVALID"
    # The old code is none of the new challenge's.
    crossed = await node.get_builtin_error("verify_challenge", challenge_id=new, code=node.code(id))
    assert crossed.data is not None
    newest = crossed.data["challenge_id"]
    assert challenge_id(await node.report(RISKY)) == newest
    code = node.code(newest)
    assert await node.read_builtin("verify_challenge", challenge_id=newest, code=code)
    # And never a second time.
    replay = await node.get_builtin_error("verify_challenge", challenge_id=newest, code=code)
    assert replay.code == "TOKEN_INVALID"
    node.close()


@pytest.mark.spec("AQ-8.8.2-3")
async def test_a_code_is_valid_for_its_own_challenge_only(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    await node.begin("deputy", "robot")
    id = await pause_step(node)
    other = await pause_step(node, who="deputy", element="robot")
    wrong = await node.get_builtin_error("verify_challenge", challenge_id=id, code=node.code(other))
    assert wrong.code == "TOKEN_INVALID"
    assert await node.read_builtin(
        "verify_challenge", "deputy", challenge_id=other, code=node.code(other)
    )
    node.close()


@pytest.mark.spec("AQ-8.8.2-4", "AQ-8.8.3-3", "AQ-8.8-1", "AQ-8.7.3-3")
async def test_challenge_expires_on_either_clock(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = await pause_step(node)
    again = await node.report("list_issues of docs")
    assert again["continue"] is False
    assert id in again["reason"]
    assert challenge_id(again) == id
    node.wall -= 5_000
    node.rig.clock.advance(301)
    late = await node.get_builtin_error("verify_challenge", challenge_id=id, code=node.code(id))
    assert late.code in ("TOKEN_EXPIRED", "TOKEN_INVALID")
    # The pause is lifted, and the same step is judged anew.
    other = await pause_step(node)
    assert other != id
    node.pass_time(301)
    over = await node.report("list_issues of docs")
    assert over["continue"] is True
    assert notification_types(over) == []
    node.close()


@pytest.mark.spec("AQ-8.8.2-4")
async def test_rejects_right_code_after_expiry(tmp_path: Path) -> None:
    # The approval holds for longer here: what ends is the challenge.
    node = GuardedPipeline(tmp_path, challenge=60.0)
    await node.begin()
    id = await pause_step(node)
    await node.wait_for_approval("unblock")
    node.pass_time(61)
    late = await node.get_builtin_error("verify_challenge", challenge_id=id, code=node.code(id))
    assert (late.code, late.data) == ("TOKEN_EXPIRED", {"reason": "expired"})
    assert "verification_failed" in node.list_outcomes("ada")
    node.close()


@pytest.mark.spec("AQ-8.8.3-3")
async def test_restart_ends_pause(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    await pause_step(node)
    await node.wait_for_approval("unblock")
    node.close()
    again = GuardedPipeline(tmp_path, keys=node.keys)
    assert (await again.report("list_issues of docs"))["continue"] is True
    again.close()


@pytest.mark.spec("AQ-8.8.5-1", "AQ-8.8.2-5")
async def test_limits_wrong_codes_per_minute(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = challenge_id(await node.report("drop_table users"))
    for _ in range(10):
        wrong = await node.get_builtin_error("verify_challenge", challenge_id=id, code=WRONG_CODE)
        assert wrong.data is not None
        id = wrong.data["challenge_id"]
    assert wrong.data["retry_after_ms"] > 59_000  # type: ignore[index]
    code = node.code(id)
    # Not even the right one is taken now.
    eleventh = await node.get_builtin_error("verify_challenge", challenge_id=id, code=code)
    assert eleventh.code == "RATE_LIMIT_EXCEEDED"
    events = [word for word in node.list_outcomes("ada") if word.startswith("verification_")]
    assert events == ["verification_failed"] * 10 + ["verification_limited"]
    # Others may try.
    assert (
        await node.get_builtin_error("verify_challenge", "deputy", challenge_id=id, code=WRONG_CODE)
    ).code == "TOKEN_INVALID"
    await node.wait_until_stored(id)
    node.close()

    again = GuardedPipeline(tmp_path, keys=node.keys, now=node.wall)
    limited = await again.get_builtin_error("verify_challenge", challenge_id=id, code=code)
    assert limited.code == "RATE_LIMIT_EXCEEDED"
    # A clock that is set back gives no further try, and no longer wait than there was.
    again.wall -= 3_600
    assert (
        await again.get_builtin_error("verify_challenge", challenge_id=id, code=code)
    ).code == "RATE_LIMIT_EXCEEDED"
    again.wall += 3_600
    again.pass_time(61)
    told = await again.call_builtin("verify_challenge", challenge_id=id, code=code)
    assert told["structuredContent"]["unblocked"] is True
    assert again.loop.challenges.attempt_limiter.wait(("ada", "token", "")) == 0.0
    again.close()


async def test_doubles_each_lockout(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path, attempts=2)
    tries, who = node.loop.challenges.attempt_limiter, ("ada", "token", "")
    waits = []
    for _ in range(3):
        tries.record_failure(who)
        waits.append(tries.record_failure(who))
        node.pass_time(waits[-1] + 1)
        assert tries.wait(who) == 0.0
    assert waits == [60.0, 120.0, 240.0]
    node.close()


async def test_challenge_of_another_caller_looks_unknown(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = await pause_step(node)
    code = node.code(id)
    told = [
        await node.get_builtin_error("verify_challenge", "deputy", challenge_id=one, code=code)
        for one in (id, "00000000-0000-4000-8000-000000000000", "x", "../../etc")
    ]
    assert len({(one.code, one.message, str(one.data)) for one in told}) == 1
    assert node.loop.challenges.get(id) is not None
    node.close()


@pytest.mark.spec("AQ-8.7.3-5")
async def test_rejects_code_as_approval_proof(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = await pause_step(node)
    record = await node.wait_for_approval("unblock")
    for proof in (f"code:{node.code(id)}", "code:", f"code:{id}", f"code:{record.id}"):
        with pytest.raises(InterlockError, match="not accepted"):
            await node.approvals.confirm(record.id, proof)
    assert node.approvals.find(record.id) == record
    # A service or a policy engine is no human.
    claims = claims_for(record, node.wall, nonce=record.nonce)
    by_engine = sign(node.keys.engine, claims, "ES256")
    with pytest.raises(InterlockError, match="own key or passkey"):
        await node.approvals.confirm(record.id, by_engine)
    node.close()


async def test_rejects_unblock_without_challenge(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    stopped = await node.report("drop_table users")
    id = challenge_id(stopped)
    first = await node.wait_for_approval("unblock")
    # No wire can name the tool.
    call = tool_call("aql.unblock", {"challenge_id": id}, credentials=token("ada"))
    told = await node.ask(call)
    assert isinstance(told, InterlockError)
    assert told.failure.name == "unknown_tool"
    # And where somebody got as far as to have one approved that is not the challenge's own,
    # nothing comes of it.
    caller = node.loop.runs.runs_of(next(iter(node.loop.watched)))[0].caller
    ApprovalRequests(node.approvals, node.rig.catalog.find).create(
        "unblock", caller, {"challenge_id": "00000000-0000-4000-8000-000000000000"}, "x"
    )
    async with asyncio.timeout(HANG_TIMEOUT):
        while True:
            over = [one for one in node.approvals.recent() if one.state == "refused"]
            if over:
                break
            await asyncio.sleep(0.001)
    assert over[0].id != first.id
    assert len(node.loop.blocks) == 1
    node.close()


@pytest.mark.spec("AQ-8.8.2-1")
def test_codes_and_ids_are_random(tmp_path: Path) -> None:
    assert CODE_BYTES >= 16
    texts = {VerificationCode().reveal() for _ in range(10_000)}
    assert len(texts) == 10_000
    assert all(re.fullmatch(r"([A-Z2-7]{4}-){7}[A-Z2-7]{4}", one) for one in list(texts)[:100])
    assert len({uuid.uuid4() for _ in range(100_000)}) == 100_000
    codes = VerificationCodes()
    shown = RecordedCodes()
    codes.channels = [shown]
    one, two = codes.create("1", "x"), codes.create("1", "x")
    assert one != two
    assert not matches_code(one, shown.codes["1"])
    assert matches_code(two, shown.codes["1"])
    spelled = shown.codes["1"].lower().replace("-", " ")
    assert matches_code(two, f" {spelled}\n")
    assert not matches_code(two, "")
    assert not matches_code(two, shown.codes["1"][:-1])
    assert not matches_code(two, "\ud800")


@pytest.mark.spec("AQ-8.8.2-1", "AQ-8.8.4-1")
def test_every_bit_of_a_code_is_drawn_by_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []

    def draw(size: int) -> bytes:
        drawn.append(bytes([len(drawn)]) * size)
        return drawn[-1]

    monkeypatch.setattr(secrets, "token_bytes", draw)
    for text in [VerificationCode().reveal() for _ in range(3)]:
        assert b32decode(text.replace("-", "")) == drawn.pop(0)
    assert drawn == []


@pytest.mark.spec("AQ-8.8.2-1")
async def test_ids_of_challenges_are_random_uuids(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    caller = Caller("ada", kind="token")
    ids = [node.loop.challenges.issue(caller, "agent", "same", "verify") for _ in range(20)]
    assert len(set(ids)) == 20
    assert {uuid.UUID(id).version for id in ids} == {4}
    node.close()


def test_code_cannot_be_printed_copied_or_serialized() -> None:
    code = VerificationCode()
    text = code.reveal()
    for shown in (repr(code), str(code), f"{code}", "%s" % code, format(code)):  # noqa: UP031
        assert text not in shown
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError) as raised:
            attempt(code)
        assert text not in str(raised.value)
    with pytest.raises(TypeError):
        json.dumps(code)
    with pytest.raises(TypeError):
        msgspec.json.encode(code)
    assert not hasattr(code, "__dict__")


class FailingChannel:
    """A channel that fails with the code in its exception."""

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        raise RuntimeError(f"cannot show {code}")


@pytest.mark.spec("AQ-8.8.2-2", "AQ-8.8.4-1")
def test_code_appears_in_no_output(tmp_path: Path) -> None:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    codes: set[str] = set()
    seen: list[str] = []

    async def test() -> None:
        asyncio.get_running_loop().set_debug(True)
        node = GuardedPipeline(tmp_path)
        node.codes.channels = [FailingChannel(), node.human]
        await node.begin()
        await node.begin("deputy", "robot")
        id = await pause_step(node)
        wrong = await node.get_builtin_error("verify_challenge", challenge_id=id, code=WRONG_CODE)
        seen.append("".join(traceback.format_exception(wrong)))
        assert wrong.data is not None
        id = wrong.data["challenge_id"]
        await node.wait_for_approval("unblock")
        seen.extend(
            repr(one)
            for one in (
                node.loop.challenges,
                node.codes,
                node.challenge(id),
                list(node.loop.challenges),
                node.approvals.pending(),
                vars(node.codes),
            )
        )
        await node.read_builtin("verify_challenge", challenge_id=id, code=node.code(id))
        await node.report("drop_table users")
        await node.get_call_error("list_issues")
        await node.report("list_issues of docs", "deputy", "robot")
        node.pass_time(400)
        await node.get_builtin_error("execute_agent", element_name="x")
        await node.wait_for_approval("unblock")
        for record in node.approvals.recent():
            seen.extend(
                [repr(record), str(msgspec.to_builtins(record)), str(node.approvals.view(record))]
            )
        codes.update(node.human.codes.values())
        seen.extend([json.dumps(node.told, default=str), json.dumps(node.journal.entries)])
        node.close()
        assert len(codes) >= 4

    try:
        run(test())
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    seen.append(heard.getvalue())
    assert "RuntimeError" in heard.getvalue()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for code in codes:
        bare = code.replace("-", "")
        for text in seen:
            assert code not in text
            assert bare not in text
        assert code.encode() not in kept
        assert bare.encode() not in kept
