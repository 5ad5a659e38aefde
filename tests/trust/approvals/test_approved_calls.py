"""Approved calls pass the whole pipeline again: caller and tool are checked as they are now."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import Raw

from interlock.core.call import Call, Caller, Credentials
from interlock.core.pipeline.authentication import Authenticator
from interlock.errors import UNAUTHENTICATED, InterlockError
from interlock.trust.approvals.gate import APPROVED_CREDENTIALS
from tests.support.calls import SESSION
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated, wipe


async def test_voids_approved_call_of_removed_caller(tmp_path: Path) -> None:
    gated = Gated(tmp_path, tokens={"one": "chief"})
    approval = await gated.hold(wipe(credentials=Credentials("10.0.0.1", "one")))

    def recall(caller: Caller) -> Caller:
        assert caller.name == "chief"
        raise InterlockError(UNAUTHENTICATED, "chief is not known here any more.")

    gated.pipeline.admission.recall = recall
    with pytest.raises(InterlockError) as error:
        await gated.approvals.confirm(approval.id, gated.proof(approval))
    assert error.value.failure is UNAUTHENTICATED
    record = gated.approvals.find(approval.id)
    assert record is not None
    assert record.state == "void"
    assert gated.upstream.started == []
    gated.close()


def test_approval_credentials_authenticate_no_caller() -> None:
    for tokens in ({}, {"t": Caller("chief")}):
        with pytest.raises(InterlockError):
            Authenticator(tokens)(APPROVED_CREDENTIALS)


async def test_approved_call_runs_as_its_caller_without_meta(tmp_path: Path) -> None:
    gated = Gated(tmp_path, tokens={"one": "chief"})
    credentials = Credentials("10.0.0.1", "one")
    approval = await gated.hold(
        wipe(credentials=credentials, meta={"progressToken": 7, "sneaked": "in"})
    )
    await gated.confirm(approval)
    call = gated.upstream.last.call
    assert call.caller is not None
    assert call.caller.name == "chief"
    assert call.credentials.bearer is None
    assert (call.meta, call.extra_params) == (None, None)
    assert call.is_retryable is False
    gated.close()


async def test_cancelled_call_before_dispatch_is_void(tmp_path: Path) -> None:
    """Approved before a restart, made again by its caller, who hangs up at once."""

    from tests.trust.approvals.test_restart import stop_in_state

    before = await stop_in_state(tmp_path, "approved")
    gated = Gated(tmp_path, keys=before.keys)
    over = asyncio.Event()
    gated.approvals.watch(lambda record: over.set() if record.is_final else None)
    call = wipe()
    answer = gated.start(call)
    gated.pipeline.cancel(call)
    assert (await answer).failure.name == "cancelled"
    async with asyncio.timeout(HANG_TIMEOUT):
        await over.wait()
    [record] = gated.approvals.recent()
    assert record.state == "void"
    assert gated.upstream.started == []
    gated.close()


async def test_approved_call_after_restart_is_sent_without_meta(tmp_path: Path) -> None:
    """The caller makes it again, with something beside it that no human saw."""

    from tests.trust.approvals.test_restart import stop_in_state

    before = await stop_in_state(tmp_path, "approved")
    gated = Gated(tmp_path, keys=before.keys)
    answer = gated.start(wipe(meta={"dev.interlock/driver": "another"}))
    sent = await gated.reached()
    assert (sent.call.meta, sent.call.extra_params) == (None, None)
    sent.answer(content=[])
    assert await answer == {"content": []}
    gated.close()


async def test_approved_call_is_reported_with_its_operator(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    events = []
    gated.approvals.gate.on_approved_tool = lambda tool, by: events.append((tool.canonical, by))
    approval = await gated.hold()
    assert events == []
    await gated.confirm(approval)
    assert events == [("s.wipe", "clerk")]
    gated.close()


async def test_approver_without_call_permission_may_send_proof(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    people = {
        "seer": Caller("seer", can_call=False, can_view_approvals=True),
        "child": Caller("child", can_call=False),
    }
    gated.pipeline.admission.authenticate = Authenticator(people)
    approval = await gated.hold(wipe(credentials=Credentials("local")))

    def request(bearer: str) -> Call:
        params = {"confirmation_id": approval.id, "proof": gated.proof(approval)}
        extra = {key: Raw(json.dumps(value).encode()) for key, value in params.items()}
        credentials = Credentials("10.0.0.1", bearer)
        return Call("mcpax/confirm", "test", credentials, SESSION, extra_params=extra)

    assert (await gated.ask(request("child"))).failure.name == "forbidden"
    over = gated.start(request("seer"))
    (await gated.reached()).answer(content=[])
    assert await over == {"content": []}
    response = await gated.ask(wipe(credentials=Credentials("10.0.0.1", "seer")))
    assert response.failure.name == "forbidden"
    gated.close()
