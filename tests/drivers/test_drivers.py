"""Contracts in a live node: listed as one tool, called through the driver's server, translated in
both directions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.errors import tool_result
from tests.drivers.driver_workspace import ANY, SAID, TEXT_IN, Workspace, running, use_clock
from tests.support.clock import ManualClock
from tests.support.upstreams import is_running, wait_for_exit

pytestmark = pytest.mark.usefixtures("no_leaks")

PAIR = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
    "required": ["a", "b"],
}
SUM_IN = {
    "type": "object",
    "properties": {"first": {"type": "number"}, "second": {"type": "number"}},
    "required": ["first", "second"],
}


@pytest.mark.spec(
    "DR-32.principles-2", "DR-32.principles-3", "DR-32.mapping-1", "DR-32.mapping-3",
    "DR-32.pertool-2", "DR-32.define-3",
)  # fmt: skip
async def test_contract_call_is_translated_in_both_directions(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("echo-mcp", workspace.echoes(contract))

    async with running(workspace) as node:
        assert node.tools == ["text.echo"]
        listing = node.listed("text.echo")
        assert listing["inputSchema"] == TEXT_IN
        assert listing["outputSchema"] == SAID
        # Nothing was started yet.
        assert node.pid() is None
        assert workspace.heard() == []
        result = await node.result("text.echo", {"text": "hello"})
        assert result["structuredContent"]["said"] == "hello"
        assert json.loads(result["content"][0]["text"])["said"] == "hello"
        assert result["isError"] is False
    (called,) = workspace.heard("tools/call")
    assert called["params"]["name"] == "echo"
    assert called["params"]["arguments"] == {"message": "hello"}


@pytest.mark.spec("DR-32.pertool-2", "DR-32.pertool-3")
async def test_arguments_keep_names_and_path_extracts_value(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    total = {"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}
    same = workspace.contract("sum.same", inputs=PAIR, outputs=total)
    parts = {"type": "array", "items": {"type": "object"}}
    other = workspace.contract("sum.parts", inputs=SUM_IN, outputs=parts)
    workspace.driver(
        "sum-mcp",
        workspace.serves(same, "add"),
        workspace.serves(
            other,
            "add",
            mapping={"first": "a"},
            argument_mapping={"second": "b"},
            result_extract="$.parts",
        ),
    )

    async with running(workspace) as node:
        assert await node.call("sum.same", a=1, b=2) == {"sum": 3, "parts": [{"a": 1, "b": 2}]}
        result = await node.result("sum.parts", {"first": 3, "second": 4})
        assert json.loads(result["content"][0]["text"]) == [{"a": 3, "b": 4}]


@pytest.mark.spec("DR-32.pertool-7", "DR-32.pertool-8")
@pytest.mark.parametrize(
    ("tool", "outputs", "extract", "value"),
    [
        ("add", {"type": "object", "required": ["sum"]}, "$", {"sum": 3, "parts": [ANY]}),
        ("plain", {"type": "string"}, "$", "as it is"),
        ("plain", {"type": "object"}, "$", {"content": [{"type": "text", "text": "as it is"}]}),
        ("add", {"type": "object", "required": ["sum"]}, "$.sum", {"sum": 3}),
    ],
    ids=["structured", "text", "content", "wrapped"],
)
async def test_tool_result_becomes_contract_output(
    tmp_path: Path, tool: str, outputs: dict[str, Any], extract: str, value: Any
) -> None:
    workspace = Workspace(tmp_path)
    inputs = PAIR if tool == "add" else TEXT_IN
    contract = workspace.contract("the.tool", inputs=inputs, outputs=outputs)
    workspace.driver("the-mcp", workspace.serves(contract, tool, result_extract=extract))
    given = {"a": 1, "b": 2} if tool == "add" else {"text": "as it is"}
    if tool == "add" and extract == "$":
        value = {"sum": 3, "parts": [given]}

    async with running(workspace) as node:
        result = await node.result("the.tool", given)
        response = result.get("structuredContent")
        assert (result["content"][0]["text"] if response is None else response) == value


@pytest.mark.spec("DR-32.pertool-7")
async def test_image_stays_image(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract("the.picture", inputs=ANY, outputs=ANY)
    workspace.driver("picture-mcp", workspace.serves(contract, "image"))

    async with running(workspace) as node:
        result = await node.result("the.picture", {})
        (content,) = result["content"]
        assert content["type"] == "image"
        assert content["mimeType"] == "image/png"


LINK = {"type": "resource_link", "uri": "file:///drawing.png", "name": "drawing"}


async def test_images_and_links_are_kept_beside_text(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    fields = {"type": "object", "properties": {"said": {"type": "string"}}}
    of_text = workspace.contract("a.text", inputs=ANY, outputs={"type": "string"})
    of_object = workspace.contract("an.object", inputs=fields, outputs=SAID)
    workspace.driver(
        "mixed-mcp", workspace.serves(of_text, "mixed"), workspace.serves(of_object, "mixed")
    )

    async with running(workspace) as node:
        result = await node.result("a.text", {})
        words, picture, link = result["content"]
        assert words == {"type": "text", "text": "A drawing."}
        assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
        assert link == LINK
        result = await node.result("an.object", {"said": "hi"})
        assert result["structuredContent"] == {"said": "hi"}
        words, picture, link = result["content"]
        assert json.loads(words["text"]) == {"said": "hi"}
        assert (picture["type"], link) == ("image", LINK)


@pytest.mark.spec("DR-16.io-2")
async def test_invalid_output_is_error(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    outputs = {
        "type": "object",
        "properties": {"said": {"type": "number"}},
        "required": ["said", "birth"],
    }
    contract = workspace.contract(outputs=outputs)
    deep = workspace.contract("text.deep")
    workspace.driver(
        "echo-mcp",
        workspace.echoes(contract),
        workspace.serves(
            deep, "plain", argument_mapping={"text": "text"}, result_extract="$.not.there"
        ),
    )

    async with running(workspace) as node:
        error = await node.refused("text.echo", text="seven")
        assert error.failure.name == "output_parse_failed"
        assert "seven" not in error.message
        error = await node.refused("text.deep", text="{}")
        assert error.failure.name == "output_parse_failed"


@pytest.mark.spec("DR-32.compat-2", "DR-30.conformance-2", "DR-16.io-1")
async def test_input_is_validated_before_dispatch(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    inputs = {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 3}},
        "required": ["text"],
    }
    contract = workspace.contract(inputs=inputs)
    workspace.driver("echo-mcp", workspace.echoes(contract))

    async with running(workspace) as node:
        # The server's own tool would take it.
        error = await node.refused("text.echo", text="much too long")
        assert error.failure.name == "invalid_arguments"
        (problem,) = (error.data or {})["problems"]
        assert "text" in json.dumps(problem)
        assert workspace.heard() == []


@pytest.mark.spec("DR-32.transport-1")
async def test_server_starts_on_demand_and_stops_when_idle(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))
    clock = ManualClock()

    async with running(
        workspace, workspace.config(idle="5m"), before=lambda node: use_clock(node, clock)
    ) as node:
        first = await node.call("text.echo", text="one")
        pid = node.pid()
        assert pid is not None
        clock.advance(290)
        second = await node.call("text.echo", text="two")
        assert (node.pid(), second["birth"]) == (pid, first["birth"])
        clock.advance(290)
        assert is_running(pid)
        clock.advance(11)
        assert node.pid() is None
        await wait_for_exit(pid)
        assert node.status().state == "ready"
        third = await node.call("text.echo", text="three")
        assert third["birth"] != first["birth"]
        assert node.pid() not in (None, pid)
        last = node.pid()
    assert last is not None
    assert not is_running(last)


async def test_busy_server_is_not_stopped(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    slow = workspace.contract("text.slow", inputs=ANY, timeout_ms=60_000)
    other = workspace.contract("text.release", inputs=ANY, outputs={"type": "string"})
    workspace.driver("echo-mcp", workspace.serves(slow, "slow"), workspace.serves(other, "release"))
    clock = ManualClock()

    async with running(workspace, before=lambda node: use_clock(node, clock)) as node:
        waiting = asyncio.create_task(node.call("text.slow"))
        await node.until(lambda: workspace.heard("tools/call"), "the slow call")
        pid = node.pid()
        clock.advance(1_000)
        assert node.pid() == pid
        await node.result("text.release", {})
        assert await waiting == {"said": "at last"}
        clock.advance(1_000)
        await node.until(lambda: node.pid() is None, "the end of the server")


@pytest.mark.spec("DR-32.optional-4")
async def test_server_without_keepalive_stops_after_call(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver(
        "echo-mcp",
        workspace.echoes(workspace.contract()),
        connection_options={"keepalive": False},
    )
    clock = ManualClock()

    async with running(workspace, before=lambda node: use_clock(node, clock)) as node:
        first = await node.call("text.echo", text="one")
        clock.advance(2)
        assert node.pid() is None
        second = await node.call("text.echo", text="two")
        assert first["birth"] != second["birth"]


@pytest.mark.spec("DR-32.transport-6")
async def test_omitted_settings_have_defaults(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))

    async with running(workspace) as node:
        driver = node.driver()
        connection = driver.manifest.connection
        assert connection.timeout_ms == 30_000
        assert connection.max_retries == 3
        assert connection.keepalive
        assert node.drivers.lifecycle.idle == 300.0


@pytest.mark.spec("DR-32.motive-2", "DR-30.resolver-7")
async def test_one_of_two_drivers_is_selected_despite_broken_file(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("b-mcp", workspace.echoes(contract))
    workspace.driver("a-mcp", workspace.echoes(contract))
    broken = workspace.driver("c-mcp", workspace.echoes(contract))
    broken.write_text("---\nname: [", encoding="utf-8")

    async with running(workspace) as node:
        for _ in range(3):
            await node.call("text.echo", text="hello")
        assert node.status("a-mcp").calls == 3
        assert node.status("b-mcp").calls == 0
        status = node.status("c-mcp")
        assert status.state == "refused"
        assert "DRIVER.md" in status.problem


async def test_node_without_drivers_starts_nothing(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    async with running(workspace, workspace.config(enabled=False)) as node:
        assert node.tools == []


@pytest.mark.spec("DR-32.adapter-2", "DR-32.optional-1", "DR-32.optional-5")
@pytest.mark.parametrize(
    ("configured", "expected"),
    [("2025-03", "2025-03-26"), ("2025-06-18", "2025-06-18"), ("", "2025-11-25")],
)
async def test_handshake_uses_configured_protocol_version(
    tmp_path: Path, configured: str, expected: str
) -> None:
    workspace = Workspace(tmp_path)
    more = {"protocol_version": configured} if configured else {}
    workspace.driver(
        "echo-mcp",
        workspace.echoes(workspace.contract()),
        server=workspace.server("--offers", "tools,prompts,resources"),
        prompts=[{"name": "summarize-document", "integrate_as": "raw"}],
        **more,
    )

    async with running(workspace) as node:
        await node.call("text.echo", text="hello")
        assert node.status().revision == expected
    methods = workspace.methods()
    # Without a revision of its own a server may be one of the stateless wire: it is asked.
    methods = methods if configured else methods[1:]
    assert methods[:2] == ["initialize", "notifications/initialized"]
    lists = methods[2:-1]
    assert "tools/list" in lists
    assert set(lists) <= {
        "tools/list", "prompts/list", "resources/list", "resources/templates/list",
    }  # fmt: skip
    assert methods[-1] == "tools/call"
    (hello,) = workspace.heard("initialize")
    assert hello["params"]["protocolVersion"] == expected
    assert hello["params"]["clientInfo"]["name"] == "interlock"
    assert "capabilities" in hello["params"]


@pytest.mark.spec("DR-32.adapter-3")
async def test_failed_tool_is_upstream_error(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    inputs = {
        "type": "object",
        "properties": {"why": {"type": "string"}},
        "required": ["why"],
    }
    wrong = workspace.contract("text.wrong", inputs=inputs)
    refuse = workspace.contract("text.refuse", inputs=inputs)
    workspace.driver(
        "echo-mcp", workspace.serves(wrong, "wrong"), workspace.serves(refuse, "refuse")
    )

    async with running(workspace) as node:
        for why, message in (("the disk is full", "the disk is full"), ("", "unknown")):
            call = node.request("tools/call", "text.wrong", {"why": why})
            outcome = await node.node.pipeline.run(call)
            envelope = tool_result(outcome, 1.0)
            assert envelope["ok"] is False
            assert envelope["error"]["code"] == "upstream_error"
            assert envelope["error"]["message"] == message
            # A model reads it as what the tool said.
            result = json.loads(outcome.result)
            assert result["isError"] is True
            assert result["_meta"]["dev.interlock/error"]["code"] == "upstream_error"
        rows = [row for _, row in await node.rows("driver.invoked", "tool.invoked")]
        assert {row["ok"] for row in rows} == {False}
        error = await node.refused("text.refuse", why="not today")
        assert error.failure.name == "upstream_error"
        assert "not today" in error.message
