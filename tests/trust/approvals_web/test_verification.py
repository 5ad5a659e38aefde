"""Verification codes over HTTP: visible to signed-in operators only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.aql.safety.guarded_pipeline import challenge_id
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals_web.code_office import CodeOffice


def run(test: Any) -> None:
    async def within() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await test

    asyncio.run(within())


@pytest.mark.spec("AQ-8.8.2-5", "AQ-8.8.2-2")
async def test_only_signed_in_operator_sees_codes(tmp_path: Path) -> None:
    office = CodeOffice(tmp_path)
    node = office.node
    await node.begin()
    id = challenge_id(await node.report("drop_table users"))
    await node.wait_for_approval("unblock")
    code = node.code(id)
    # Not with a token that may see approvals, not as the node's own user, not by a guess.
    answers = [
        await office.ask("GET", "/approvals/codes"),
        await office.ask("GET", "/approvals/codes", authorization="Bearer clerk"),
        await office.ask("GET", "/approvals/codes", local=True),
        await office.ask("GET", "/approvals/codes", local=True, interlock_session="x" * 43),
        await office.ask("POST", "/approvals/codes", {"renew": id}, local=True),
        await office.ask("POST", "/approvals/codes", {"blocked": "ada"}, local=True),
        await office.ask("HEAD", "/approvals/codes", local=True),
    ]
    assert all(status >= 400 for status, _ in answers)
    # What those may see who may see approvals has no code in it.
    for path in ("/approvals/", f"/approvals/{(await node.wait_for_approval('unblock')).id}"):
        status, told = await office.ask("GET", path, local=True)
        assert status == 200
        answers.append((status, told))
    assert code not in json.dumps(answers)
    assert office.refusals

    session = await office.sign_in()
    status, shown = await office.ask("GET", "/approvals/codes", interlock_session=session)
    assert status == 200
    [challenge] = shown["challenges"]
    assert (challenge["id"], challenge["code"]) == (id, code)
    assert shown["blocks"][0]["caller"] == "ada"
    assert challenge["approval"] == (await node.wait_for_approval("unblock")).id
    node.close()


@pytest.mark.spec("AQ-8.8.2-5")
async def test_operator_renews_lost_code(tmp_path: Path) -> None:
    office = CodeOffice(tmp_path)
    node = office.node
    await node.begin()
    id = challenge_id(await node.report("drop_table users"))
    await node.wait_for_approval("unblock")
    session = await office.sign_in()
    status, made = await office.ask(
        "POST", "/approvals/codes", {"renew": id[:8]}, interlock_session=session
    )
    assert status == 200
    assert made["id"] != id
    old = await node.get_builtin_error("verify_challenge", challenge_id=id, code=node.code(id))
    assert old.code == "TOKEN_INVALID"
    response = await node.read_builtin(
        "verify_challenge", challenge_id=made["id"], code=made["code"].lower()
    )
    assert response["unblocked"]
    for sent, status in [
        ({"renew": id}, 404),
        ({"renew": ""}, 400),
        ({"renew": "x", "blocked": "y"}, 400),
        ({"blocked": "ada"}, 404),
        ({"code": "x"}, 400),
    ]:
        assert (await office.ask("POST", "/approvals/codes", sent, interlock_session=session))[
            0
        ] == status
    node.close()


@pytest.mark.spec("AQ-8.8.3-1")
async def test_operator_requests_unblock_for_caller(tmp_path: Path) -> None:
    office = CodeOffice(tmp_path)
    node = office.node
    await node.begin()
    await node.report("drop_table users")
    await node.wait_for_approval("unblock")
    node.pass_time(400)
    session = await office.sign_in()
    _, shown = await office.ask("GET", "/approvals/codes", interlock_session=session)
    assert (shown["challenges"], len(shown["blocks"])) == ([], 1)
    status, made = await office.ask(
        "POST", "/approvals/codes", {"blocked": "ada"}, interlock_session=session
    )
    assert status == 200
    record = node.approvals.find(made["approval"])
    assert record is not None
    await node.approve(record)
    assert len(node.loop.blocks) == 0
    assert {"challenge_renewed", "unblocked"} <= set(node.list_outcomes("ada"))
    node.close()


async def test_codes_path_requires_verification_loop(tmp_path: Path) -> None:
    office = CodeOffice(tmp_path)
    office.app.verification = None
    status, told = await office.ask("GET", "/approvals/codes", local=True)
    assert (status, told["error"]) == (404, "unknown_approval")
    office.node.close()
