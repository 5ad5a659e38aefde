"""Results of earlier calls are marked as such."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interlock.core.call import Outcome
from interlock.primitives.timestamps import format_utc
from interlock.protocol.mcp import Era, summarize_result
from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT
from interlock.terminal.results import print_result
from interlock.trust.approvals.response import mark_as_earlier
from tests.trust.approvals.gated import Gated, a_session_client, stateless_client, wipe
from tests.trust.approvals.test_proofs import approval


@pytest.mark.parametrize("client", [a_session_client, stateless_client])
async def test_collected_result_is_marked(tmp_path: Path, client: object) -> None:
    gated = Gated(tmp_path)
    assert callable(client)
    held = await gated.hold(wipe(client=client()))
    at = format_utc(gated.wall)
    # Whoever confirms hears it first-hand.
    assert "_meta" not in await gated.confirm(held)
    gated.pass_time(60)
    assert (await gated.ask(wipe(client=client())))["content"][0]["text"] == "wiped"
    assert gated.marks == [(held.id, at)]
    gated.close()


@pytest.mark.parametrize("era", Era)
def test_marking_keeps_other_bytes(era: Era) -> None:
    raw = b'{"content":[ {"n":1.10} ],"_meta":{"a":1},"structuredContent":{"x": 1e2}}'
    marked = mark_as_earlier(Outcome(raw, era, summarize_result(raw)), approval())
    assert b'[{"n":1.10},' in marked.result
    assert b'{"x": 1e2}' in marked.result
    assert json.loads(marked.result)["_meta"] == {
        "a": 1,
        APPROVAL: approval().id,
        EXECUTED_AT: format_utc(approval().ended),
    }
    [_, message] = json.loads(marked.result)["content"]
    assert format_utc(approval().ended) in message["text"]
    unsaid = mark_as_earlier(Outcome(raw, era), approval(), in_text=False)
    assert b'[ {"n":1.10} ]' in unsaid.result
    # A node below has said it.
    assert len(json.loads(mark_as_earlier(marked, approval()).result)["content"]) == 2
    strange = Outcome(b'{"_meta":7}', era)
    assert mark_as_earlier(strange, approval()) is strange


def test_command_line_reports_time_of_collected_result(capsys: pytest.CaptureFixture[str]) -> None:
    raw = mark_as_earlier(
        Outcome(b'{"content":[{"type":"text","text":"x"}]}', Era.SESSION), approval()
    )
    assert print_result(raw.result) == 0
    out, err = capsys.readouterr()
    assert out == "x\n"
    made = format_utc(approval().ended)
    assert f"which ran at {made}" in err
