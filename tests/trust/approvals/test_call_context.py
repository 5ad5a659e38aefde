"""The context of a contract's call: shown to operators, covered by the proof, sent unchanged. Other
members of `_meta` are not sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from interlock.automation.decision import is_decision
from interlock.core.call import Call
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import CONTRACTS, Offering, read_contract_offering
from interlock.core.config.secrets import digest_of_secret
from interlock.errors import CONFIRMATION_EXPIRED, INVALID_ARGUMENTS, InterlockError
from interlock.trust.approvals.downstream import read_report
from interlock.trust.approvals.gate import record_size
from interlock.trust.approvals.record import APPROVED, Approval, view
from interlock.trust.approvals.web import to_json, to_summary
from tests.support.calls import tool_call
from tests.support.offerings import definition
from tests.support.pipeline import ScriptedUpstream
from tests.trust.approvals.gated import Gated, wipe, wipe_offering

CONTEXT, DRIVER = "dev.interlock/context", "dev.interlock/driver"
TENANT = {CONTEXT: {"tenant": "blue"}}
SENT = {"content": [{"type": "text", "text": "wiped"}]}


def contracts(check: Callable[[Any], None] | None = None) -> Offering:
    """One contract that a human must confirm."""
    name = "disk.wipe"
    return read_contract_offering(
        CONTRACTS,
        None,
        [definition(name)],
        {name: EffectLevel.IRREVERSIBLE},
        {name: ("disk-mcp@1.0.0 abc",)},
        {name: "digest"},
        None if check is None else {name: check},
    )


class ContractGated(Gated):
    """A gate before a contract."""

    @property
    def upstream(self) -> ScriptedUpstream:
        return self.rig.upstreams[CONTRACTS]


def contract_call(meta: dict[str, Any] | None = None, **fields: Any) -> Call:
    return tool_call("disk.wipe", {"disk": "a"}, meta=meta, **fields)


def sent_meta(gated: Gated) -> Any:
    """The `_meta` of the call that reached the upstream last."""
    meta = gated.upstream.last.call.meta
    return None if meta is None else {key: json.loads(bytes(raw)) for key, raw in meta.items()}


async def test_context_is_shown_and_sent(tmp_path: Path) -> None:
    gated = ContractGated(tmp_path, contracts())
    arguments = {**TENANT, DRIVER: "disk-mcp", "traceparent": "00-1-1-00", "own": "s3cret"}
    answer = await gated.ask(contract_call(arguments))
    along = {**TENANT, DRIVER: "disk-mcp"}
    assert answer["structuredContent"]["meta"] == along
    [approval] = gated.approvals.pending()
    assert view(approval)["meta"] == along
    assert json.loads(to_json(approval, gated.wall)["meta_text"]) == along
    assert b"s3cret" not in approval.meta
    assert await gated.confirm(approval) == SENT
    assert sent_meta(gated) == along
    # Who asked gets the outcome by the very same call.
    assert await gated.ask(contract_call(arguments)) == SENT
    assert len(gated.upstream.started) == 1
    record = gated.approvals.find(approval.id)
    assert record is not None
    assert (record.meta, json.loads(record.meta_shown)) == (b"", along)
    gated.close()


@pytest.mark.parametrize(
    "other",
    [None, {}, {CONTEXT: {"tenant": "green"}}, {**TENANT, DRIVER: "disk-mcp"}, {CONTEXT: None}],
    ids=["nothing", "empty", "another", "more", "null"],
)
async def test_changed_context_requires_new_approval(
    tmp_path: Path, other: dict[str, Any] | None
) -> None:
    gated = ContractGated(tmp_path, contracts())
    one, another = await gated.hold(contract_call(TENANT)), await gated.hold(contract_call(other))
    assert one.id != another.id
    assert one.digest != another.digest
    # In whatever spelling: the same is the same.
    same = contract_call()
    same.meta = {CONTEXT: Raw(b'{ "tenant" : "blue" }')}
    assert (await gated.hold(same)).id == one.id
    gated.close()


async def test_secrets_in_context_are_masked_only_for_display(tmp_path: Path) -> None:
    gated = ContractGated(tmp_path, contracts())
    known = frozenset({digest_of_secret("hunter2hunter2")})
    gated.approvals.gate.secrets = known
    arguments = {CONTEXT: {"api_key": "hunter2hunter2", "token": "shown"}}
    answer = await gated.ask(contract_call(arguments))
    [approval] = gated.approvals.pending()
    for shown in (answer, view(approval), to_json(approval, gated.wall)):
        assert "hunter2" not in json.dumps(shown)
        assert "14 characters" in json.dumps(shown)
        assert '"token": "shown"' in json.dumps(shown)
    assert approval.masked == ("/meta/dev.interlock~1context/api_key",)
    assert "hunter2" in json.dumps(view(gated.approvals.reveal(approval.id, "clerk")))
    await gated.confirm(approval)
    assert sent_meta(gated) == arguments
    gated.close()


@pytest.mark.parametrize(
    "meta", [b'{"dev.interlock/context":{"tenant":"green"}}', b""], ids=["another", "nothing"]
)
async def test_rejects_record_with_changed_context(tmp_path: Path, meta: bytes) -> None:
    """The proof is about a digest, and that is about all that is sent."""

    gated = ContractGated(tmp_path, contracts())
    approval = await gated.hold(contract_call(TENANT))
    entry = gated.approvals._inbox.entries.get(approval.id)
    assert entry is not None
    entry.record = msgspec.structs.replace(approval, meta=meta)
    with pytest.raises(InterlockError, match="the call changed") as error:
        await gated.approvals.confirm(approval.id, gated.proof(approval))
    assert error.value.failure is CONFIRMATION_EXPIRED
    assert gated.upstream.started == []
    gated.close()


async def test_context_is_sent_after_restart(
    tmp_path: Path,
) -> None:
    before = ContractGated(tmp_path, contracts())
    approval = await before.hold(contract_call(TENANT))
    entry = before.approvals._inbox.entries.get(approval.id)
    assert entry is not None
    over = asyncio.get_running_loop().create_future()
    step = approval.with_state(APPROVED, by="clerk", proof="operator", decided=before.wall)
    before.approvals._inbox.save(entry, step, over.set_result)
    await over
    before.close()
    gated = ContractGated(tmp_path, contracts(), keys=before.keys)
    # Without it, it is another call, which waits.
    assert (await gated.hold(contract_call())).id != approval.id
    handle = {"x-mcpax-approval": approval.id}
    going = gated.start(contract_call({**TENANT, "own": "something", **handle}))
    (await gated.reached()).answer(**SENT)
    assert await going == SENT
    assert sent_meta(gated) == TENANT
    gated.close()


async def test_invalid_context_is_rejected_before_approval(tmp_path: Path) -> None:
    def check(context: Any) -> None:
        if "tenant" not in context:
            raise InterlockError(INVALID_ARGUMENTS, "The context does not fit.")

    gated = ContractGated(tmp_path, contracts(check))
    meta: Any
    for meta in (None, {CONTEXT: None}, {CONTEXT: {}}):
        error = await gated.ask(contract_call(meta))
        assert isinstance(error, InterlockError)
        assert error.failure is INVALID_ARGUMENTS
    assert gated.approvals.pending() == []
    await gated.hold(contract_call(TENANT))
    gated.close()


@pytest.mark.parametrize(
    "raw",
    [b'{"tenant":"blue","tenant":"green"}', b'{"x":1e999}', b'"%b"' % (b"x" * 70_000)],
    ids=["twice", "too-large-a-number", "too-long"],
)
async def test_rejects_ambiguous_context(tmp_path: Path, raw: bytes) -> None:
    gated = ContractGated(tmp_path, contracts())
    call = contract_call()
    call.meta = {CONTEXT: Raw(raw)}
    error = await gated.ask(call)
    assert isinstance(error, InterlockError)
    assert error.failure is INVALID_ARGUMENTS
    assert gated.approvals.pending() == []
    gated.close()


async def test_meta_of_other_tools_is_not_sent(tmp_path: Path) -> None:
    """What a server of the config makes of its callers' `_meta` is nobody's business here."""

    gated = Gated(tmp_path, wipe_offering())
    approval = await gated.hold(wipe(meta=TENANT))
    assert (approval.meta, approval.meta_shown) == (b"", b"")
    assert "meta" not in view(approval)
    assert (await gated.hold(wipe())).id == approval.id
    await gated.confirm(approval)
    assert sent_meta(gated) is None
    gated.close()


async def _hold_call(folder: Path) -> Approval:
    gated = ContractGated(folder, contracts())
    approval = await gated.hold(contract_call(TENANT))
    gated.close()
    return approval


def test_context_is_removed_with_arguments(tmp_path: Path) -> None:
    approval = asyncio.run(_hold_call(tmp_path))
    bare = msgspec.structs.replace(approval, meta=b"", meta_shown=b"")
    assert record_size(approval) == record_size(bare) + len(approval.meta) + len(
        approval.meta_shown
    )
    gone = approval.with_state("expired")
    assert (gone.meta, gone.meta_shown) == (b"", b"")
    assert approval.without_bulk().meta_shown == b""


def test_list_truncates_context_with_arguments(tmp_path: Path) -> None:
    approval = asyncio.run(_hold_call(tmp_path))
    assert to_summary(approval, 0.0)["arguments_cut"] is False
    assert json.loads(to_summary(approval, 0.0)["meta_text"]) == TENANT
    long = msgspec.structs.replace(approval, meta_shown=b'{"x":"%b"}' % (b"y" * 50_000))
    listing = to_summary(long, 0.0)
    assert listing["arguments_cut"] is True
    assert "meta_text" not in listing
    assert "meta" not in listing


async def test_parent_node_shows_context(tmp_path: Path) -> None:
    gated = ContractGated(tmp_path, contracts())
    answer = await gated.ask(contract_call(TENANT))
    [approval] = gated.approvals.pending()

    def said(content: dict[str, Any]) -> Approval | None:
        return read_report(
            json.dumps({**answer, "structuredContent": content}).encode(),
            upstream="low",
            tool="low.disk.wipe",
            caller=approval.caller,
            effect="irreversible",
            now=gated.wall,
        )

    shown = said(answer["structuredContent"])
    assert shown is not None
    assert view(shown)["meta"] == TENANT
    assert said({**answer["structuredContent"], "meta": {"x": "y" * 50_000}}) is None
    gated.close()


def test_approval_with_context_teaches_no_rule(tmp_path: Path) -> None:
    """A rule looks at arguments only, and would let every other tenant through as well."""
    approval = asyncio.run(_hold_call(tmp_path))
    yes = approval.with_state(APPROVED, by="clerk", proof="operator", decided=1.0)
    assert not is_decision(yes)
    assert is_decision(msgspec.structs.replace(yes, meta=b"", meta_shown=b""))
