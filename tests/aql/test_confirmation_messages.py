"""Tests of the messages that describe a pending call to an operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, OperationConfig
from tests.aql.test_confirmation_tokens import ConfirmationNode
from tests.aql.view_pipeline import DELETES
from tests.support.offerings import definition, offer


@pytest.mark.spec("AQ-DNG-3.2-1")
async def test_shows_confirmation_message_of_config(tmp_path: Path) -> None:
    said = OperationConfig(confirmation_message="Really drop {owner}/{repo} ({nothing})?")
    desk = ConfirmationNode(tmp_path, AqlConfig(operations={"hub.delete_*": said}))
    details = await desk.create_pending_call(params={"owner": "o\n`x`", "repo": "r" * 200})
    shown = details["confirmation_message"]
    assert shown.startswith('Really drop "o\\n`x`"/"rrr')
    assert "{nothing}" in shown
    assert "\n" not in shown
    assert len(shown) < 150
    desk.gate.close()


async def test_messages_of_different_calls_differ(tmp_path: Path) -> None:
    desk = ConfirmationNode(tmp_path)

    async def said(repo: str) -> str:
        details = await desk.create_pending_call(params={"owner": "o", "repo": repo})
        return str(details["confirmation_message"])

    assert await said("my file") == 'Confirm hub_delete_repo with owner "o", repo "my file"?'
    long = "what is " * 50
    texts = ["my file", "my_file", "my\tfile", 'my "file', "my 'file", long, f"{long}x", "1"]
    assert len({await said(text) for text in texts}) == len(texts)
    assert len(await said(long)) < 200
    desk.gate.close()


async def test_message_counts_and_marks_omitted_parameters(tmp_path: Path) -> None:
    schema = {"type": "object", "additionalProperties": True}
    definitions = [definition("delete_it", inputSchema=schema, _meta=DELETES)]
    desk = ConfirmationNode(tmp_path, offerings=(offer("hub", definitions),))
    params = {"list": [1, "a b"], **{f"p{number}": number for number in range(8)}}

    async def said(**more: Any) -> str:
        held = await desk.create_pending_call(operation="hub_delete_it", params={**params, **more})
        return str(held["confirmation_message"])

    first = await said()
    assert 'list [1, "a b"], p0 0,' in first
    assert "and 4 more (#" in first
    assert await said(p7=70) != first
    assert "s3cr3t" not in await said(p0="x", api_token="s3cr3t")
    desk.gate.close()


async def test_message_keeps_quotes_of_template(tmp_path: Path) -> None:
    said = OperationConfig(confirmation_message="Drop '{owner}' and {repo}?")
    desk = ConfirmationNode(tmp_path, AqlConfig(operations={"hub.delete_*": said}))
    details = await desk.create_pending_call(params={"owner": "o' or all", "repo": "r"})
    message = details["confirmation_message"]
    assert message == "Drop 'o\\u0027 or all' and \"r\"?"
    desk.gate.close()
