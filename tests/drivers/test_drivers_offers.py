"""Prompts and resources of driver servers in a live node: only declared ones are offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import InterlockError
from interlock.protocol.mcp import Era
from tests.drivers.driver_workspace import Running, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

SUMMARY = {
    "name": "summarize-document",
    "description": "Makes it short.",
    "integrate_as": "raw",
}
FILES = {
    "uri_template": "file:///{path}",
    "description": "Files.",
    "integrate_as": "ref_kind",
    "ref_kind_id": "mcp_filesystem",
}


def offers_workspace(folder: Path, **fields: Any) -> Workspace:
    """A driver whose server has prompts and resources, and may see the folder `files`."""
    workspace = Workspace(folder)
    files = folder / "files"
    files.mkdir()
    (files / "note.txt").write_text("buy milk", encoding="utf-8")
    (folder / "outside.txt").write_text("nobody's business", encoding="utf-8")
    workspace.driver(
        "echo-mcp",
        workspace.echoes(workspace.contract()),
        server=workspace.server("--offers", "tools,prompts,resources", files),
        **fields,
    )
    return workspace


async def ask(node: Running, verb: str, name: str = "", **more: Any) -> Any:
    return await node.run(node.request(verb, name, **more))


async def wait_until_verified(node: Running) -> None:
    await node.until(lambda: node.driver().verified, "the look at the server")


@pytest.mark.spec("DR-32.prompts-1", "DR-32.prompts-2")
async def test_declared_prompt_is_offered_unchanged(tmp_path: Path) -> None:
    workspace = offers_workspace(tmp_path, prompts=[SUMMARY])

    async with running(workspace, workspace.config(verify="start")) as node:
        await wait_until_verified(node)
        await node.until(lambda: node.pid() is None, "the end of the look")
        (prompt,) = (await ask(node, "prompts/list"))["prompts"]
        # The server's `another` is not declared.
        assert prompt["name"] == "echo-mcp__summarize-document"
        assert prompt["description"] == "Makes it short."
        # The server sleeps: it is woken for this.
        got = await ask(
            node, "prompts/get", "echo-mcp.summarize-document", arguments={"about": "it"}
        )
        assert got["messages"][0]["content"]["text"] == "Summarize it."
        (asked,) = workspace.heard("prompts/get")
        assert asked["params"]["name"] == "summarize-document"


@pytest.mark.spec("DR-32.prompts-2")
async def test_skill_block_is_named_after_skill(tmp_path: Path) -> None:
    skill = "./skills/summarize/SKILL.md"
    block = {**SUMMARY, "integrate_as": "skill_block", "skill_ref": skill}
    workspace = offers_workspace(tmp_path, prompts=[block])

    async with running(workspace, workspace.config(verify="start")) as node:
        await wait_until_verified(node)
        assert node.status().skills == {skill: ["summarize-document"]}
        (prompt,) = (await ask(node, "prompts/list"))["prompts"]
        assert prompt["_meta"]["dev.interlock/skill"] == skill
        got = await ask(node, "prompts/get", prompt["name"], arguments={"about": "x"})
        assert got["messages"]


@pytest.mark.spec("DR-32.resources-1", "DR-32.resources-2")
async def test_reference_reads_resource_of_server(tmp_path: Path) -> None:
    workspace = offers_workspace(tmp_path, resources=[FILES])
    uri = f"file://{tmp_path}/files/note.txt"

    async with running(workspace, workspace.config(verify="start")) as node:
        await wait_until_verified(node)
        response = await ask(node, "resources/templates/list")
        templates = {template["uriTemplate"] for template in response["resourceTemplates"]}
        assert templates == {"file:///{path}", "mcp_filesystem:file:///{+path}"}
        for name in (f"mcp_filesystem:{uri}", uri):
            got = await ask(node, "resources/read", name)
            assert got["contents"][0]["text"] == "buy milk"
        assert [message["params"]["uri"] for message in workspace.heard("resources/read")] == [
            uri,
            uri,
        ]


@pytest.mark.spec("DR-32.resources-1")
async def test_only_declared_resources_can_be_read(tmp_path: Path) -> None:
    memo = {"uri_template": "memo://{day}", "integrate_as": "raw"}
    workspace = offers_workspace(tmp_path, resources=[memo])
    uri = f"file://{tmp_path}/files/note.txt"

    async with running(workspace, workspace.config(verify="start")) as node:
        await wait_until_verified(node)
        (resource,) = (await ask(node, "resources/list"))["resources"]
        assert resource["uri"] == "memo://today"
        got = await ask(node, "resources/read", "memo://today")
        assert got["contents"][0]["text"] == "nothing to do"
        with pytest.raises(InterlockError) as error:
            await ask(node, "resources/read", uri)
        assert error.value.failure.name == "unknown_resource"
        assert len(workspace.heard("resources/read")) == 1


@pytest.mark.spec("DR-32.security-3")
@pytest.mark.parametrize(
    "route", ["outside.txt", "files/../outside.txt", "files/%2e%2e/outside.txt"]
)
async def test_resource_uri_cannot_leave_declared_folders(tmp_path: Path, route: str) -> None:
    workspace = offers_workspace(tmp_path, resources=[FILES])

    async with running(workspace, workspace.config(verify="start")) as node:
        await wait_until_verified(node)
        for name in (f"mcp_filesystem:file://{tmp_path}/{route}", f"file://{tmp_path}/{route}"):
            with pytest.raises(InterlockError) as error:
                await ask(node, "resources/read", name)
            assert error.value.failure.name == "policy_violation"
        assert workspace.heard("resources/read") == []


@pytest.mark.spec("DR-32.resources-4")
async def test_missing_prompts_and_resources_are_warned(tmp_path: Path) -> None:
    prompt = {**SUMMARY, "name": "nowhere"}
    resource = {"uri_template": "gone://{x}", "integrate_as": "raw"}
    workspace = offers_workspace(tmp_path, prompts=[prompt], resources=[resource])

    async with running(workspace, workspace.config(verify="start")) as node:
        await wait_until_verified(node)
        warnings = "\n".join(node.status().warnings)
        assert "'nowhere'" in warnings
        assert "'gone://{x}'" in warnings
        assert (await node.call("text.echo", text="x"))["said"] == "x"


@pytest.mark.spec("DR-32.open-1")
async def test_preview_can_be_disabled(tmp_path: Path) -> None:
    workspace = offers_workspace(tmp_path, prompts=[SUMMARY], resources=[FILES])

    config = workspace.config(verify="start", preview=False)
    async with running(workspace, config) as node:
        await wait_until_verified(node)
        assert node.node.catalog.current.prompts == ()
        with pytest.raises(InterlockError):
            await ask(node, "prompts/get", "echo-mcp.summarize-document")
        assert (await node.call("text.echo", text="x"))["said"] == "x"


async def test_two_driver_majors_have_separate_prompts(tmp_path: Path) -> None:
    workspace = offers_workspace(tmp_path, prompts=[SUMMARY])
    workspace.driver(
        "echo-mcp",
        workspace.echoes("./tools/text.echo-1/TOOL.md"),
        folder="second",
        version="2.0.0",
        server=workspace.server("--offers", "tools,prompts"),
        prompts=[SUMMARY],
    )

    async with running(workspace, workspace.config(verify="start")) as node:
        lifecycle = node.drivers.lifecycle
        await node.until(
            lambda: all(driver.verified for driver in lifecycle.drivers.values()), "both"
        )
        names = {prompt["name"] for prompt in (await ask(node, "prompts/list"))["prompts"]}
        assert names == {
            "echo-mcp__summarize-document",
            "echo-mcp-v2__summarize-document",
        }


async def test_driver_capabilities_are_announced(tmp_path: Path) -> None:
    workspace = offers_workspace(tmp_path, prompts=[SUMMARY])

    events: list[bool] = []
    async with running(workspace, workspace.config(verify="start")) as node:
        node.drivers.on_capabilities_changed = lambda: events.append(True)
        await wait_until_verified(node)
        await node.until(lambda: events, "the word")
        (voice,) = node.drivers.introductions()
        assert "prompts" in voice.capabilities
        assert "resources" not in voice.capabilities
        page = node.node.catalog.current.page("prompts/list", Era.SESSION, "dotted")
        assert json.loads(page)["prompts"]
