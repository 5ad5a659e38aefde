"""driver.py in a live node: run only if the operator allows it, and its errors affect only its own
calls."""

from __future__ import annotations

import asyncio
import logging
import textwrap
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import InterlockError
from tests.drivers.driver_workspace import ANY, TEXT_IN, Running, Workspace, running
from tests.support.upstreams import run

pytestmark = pytest.mark.usefixtures("no_leaks")

SECRET = "sk-live-0123456789abcdef"


def code_workspace(folder: Path, code: str, *contracts: str, **fields: Any) -> Workspace:
    """A driver with a driver.py, for `text.echo` if nothing else is said."""
    workspace = Workspace(folder)
    ids = contracts or ("text.echo",)
    entries = [workspace.echoes(workspace.contract(id)) for id in ids]
    file = workspace.driver("echo-mcp", *entries, **fields)
    write(file.parent, code)
    return workspace


def write(folder: Path, code: str) -> None:
    whole = "from interlock.drivers.sdk import *\n" + textwrap.dedent(code)
    (folder / "driver.py").write_text(whole, encoding="utf-8")


def trust_config(workspace: Workspace, **more: Any) -> Any:
    return workspace.config(allow_code=["echo-mcp"], **more)


HOOKS = """
def build_arguments(args):
    return {"message": f"{args.tool_id}|{args.tool_name}|{args.user}|{args.input['text']}"}

def parse_tool_result(args):
    import json
    return {"said": json.loads(args.result["content"][0]["text"])["said"].upper()}

driver = define_driver(build_arguments=build_arguments, parse_tool_result=parse_tool_result)
"""


CHOOSES = """
def parse_tool_result(args):
    blocks = args.result["content"]
    return {"content": blocks if args.tool_id == "all" else blocks[:1]}

driver = define_driver(parse_tool_result=parse_tool_result)
"""


async def test_code_can_remove_content_from_result(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    outputs = {"type": "object", "properties": {"content": {"type": "array"}}}
    entries = [
        workspace.serves(workspace.contract(id, inputs=ANY, outputs=outputs), "mixed")
        for id in ("all", "first")
    ]
    write(workspace.driver("echo-mcp", *entries).parent, CHOOSES)

    async with running(workspace, trust_config(workspace)) as node:
        content = (await node.result("all", {}))["content"]
        assert [item["type"] for item in content] == ["image", "text", "resource_link"]
        (chosen,) = (await node.result("first", {}))["content"]
        assert chosen["type"] == "text"
        assert "drawing" not in chosen["text"]


@pytest.mark.spec("DR-32.define-2", "DR-32.location-3")
async def test_hooks_replace_mapping(tmp_path: Path) -> None:
    workspace = code_workspace(tmp_path, HOOKS)

    async with running(workspace, trust_config(workspace)) as node:
        assert await node.call("text.echo", text="hi") == {"said": "TEXT.ECHO|ECHO|LOCAL|HI"}


@pytest.mark.spec("DR-32.location-3", "DR-30.conformance-5")
async def test_untrusted_code_is_not_run(tmp_path: Path) -> None:
    workspace = code_workspace(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{HOOKS}")

    async with running(workspace) as node:
        assert (await node.call("text.echo", text="hi"))["said"] == "hi"
        assert any("drivers.allow_code" in warning for warning in node.status().warnings)
    assert not (tmp_path / "ran").exists()


@pytest.mark.spec("DR-32.location-3")
async def test_code_for_other_runtime_is_ignored_with_warning(tmp_path: Path) -> None:
    workspace = code_workspace(tmp_path, HOOKS)
    place = tmp_path / ".drivers" / "echo-mcp"
    (place / "driver.py").rename(place / "driver.ts")

    async with running(workspace, trust_config(workspace)) as node:
        assert (await node.call("text.echo", text="hi"))["said"] == "hi"
        assert any("driver.ts" in warning for warning in node.status().warnings)


@pytest.mark.spec("DR-30.conformance-1")
async def test_front_matter_overrides_code(tmp_path: Path) -> None:
    workspace = code_workspace(
        tmp_path,
        """
        driver = define_driver(
            version="9.0.0", protocol_version="2025-06-18",
            connection_options={"timeout_ms": 4321},
        )
        """,
    )

    async with running(workspace, trust_config(workspace)) as node:
        await node.call("text.echo", text="hi")
        status = node.status()
        assert status.version == "1.0.0"
        (told,) = [warning for warning in status.warnings if "version" in warning]
        assert "front matter" in told
        assert status.revision == "2025-06-18"
        assert node.driver().manifest.connection.timeout_ms == 4321


@pytest.mark.spec("DR-30.implements-5")
async def test_mapping_uses_transformer_of_code(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    entry = workspace.serves(
        contract, "echo", mapping={"text": {"from": "message", "transform": "shout"}}
    )
    file = workspace.driver("echo-mcp", entry)
    write(file.parent, "driver = define_driver(transforms={'shout': str.upper})\n")

    async with running(workspace, trust_config(workspace)) as node:
        assert (await node.call("text.echo", text="hi"))["said"] == "HI"
    # Without the code there is no such transformer: the entry cannot be used.
    async with running(workspace) as node:
        assert node.tools == []
        assert node.status().state == "refused"
        assert "'shout'" in node.status().bindings[0].problems[0]


@pytest.mark.spec("DR-32.define-5", "DR-32.pertool-5")
async def test_code_serves_contracts_without_server_tool(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    waits = workspace.contract("text.waits", inputs=ANY)
    plain = workspace.contract("text.plain")
    entries = [{"tool": item, "version": "^1.0.0"} for item in (waits, plain)]
    file = workspace.driver("echo-mcp", *entries)
    write(
        file.parent,
        """
        import asyncio

        async def waits(args):
            await asyncio.Event().wait()

        def plain(args):
            return HookResult(value={"said": args.input["text"] + "!"})

        driver = define_driver(execute={"text.waits": waits, "text.plain": plain})
        """,
    )

    async with running(workspace, trust_config(workspace)) as node:
        assert (await node.call("text.plain", text="hi")) == {"said": "hi!"}
        # Nothing of it needs a server.
        assert node.pid() is None
        ((_, row),) = await node.rows("driver.invoked")
        assert (row["ok"], row["mcp_tool_name"]) == (True, "")
        call = node.request("tools/call", "text.waits", {})
        waiting = asyncio.create_task(node.run(call))
        await node.until(lambda: call.upstream_request is not None, "its way")
        node.node.pipeline.cancel(call)
        with pytest.raises(InterlockError) as error:
            await waiting
        assert error.value.failure.name == "cancelled"
        assert workspace.heard() == []


@pytest.mark.spec("DR-30.conformance-6", "DR-32.define-5")
@pytest.mark.parametrize(
    ("execute", "named"),
    [("{'text.echo': f}", "text.other"), ("{'text.echo': f, 'text.other': f, 'x.y': f}", "x.y")],
    ids=["missing", "surplus"],
)
async def test_execute_functions_must_match_contracts(
    tmp_path: Path, execute: str, named: str
) -> None:
    code = f"def f(args): return {{'said': 'x'}}\ndriver = define_driver(execute={execute})\n"
    workspace = code_workspace(tmp_path, code, "text.echo", "text.other")

    async with running(workspace, trust_config(workspace)) as node:
        assert node.status().state == "refused"
        assert named in node.status().problem
        assert node.tools == []


@pytest.mark.spec("DR-30.errors-3")
async def test_own_error_code_passes_unchanged(tmp_path: Path) -> None:
    workspace = code_workspace(
        tmp_path,
        """
        def parse_tool_result(args):
            return HookResult(ok=False, code="stripe:card_declined", message="Try another card.")

        driver = define_driver(parse_tool_result=parse_tool_result)
        """,
    )

    async with running(workspace, trust_config(workspace)) as node:
        response = await node.failed("text.echo", text="hi")
        assert response == ("stripe:card_declined", "Try another card.")
        ((entry, _),) = await node.rows("driver.invoked")
        assert entry.outcome == "stripe:card_declined"


@pytest.mark.spec("DR-30.errors-3")
async def test_hook_may_raise_driver_error(tmp_path: Path) -> None:
    workspace = code_workspace(
        tmp_path,
        """
        def build_arguments(args):
            if args.input["text"] == "own":
                raise ToolFault("x:y", "Not like this.")
            return HookResult(ok=False)

        def parse_tool_result(args):
            return HookResult(ok=False, code="input_unsupported", message="Not that.")

        driver = define_driver(build_arguments=build_arguments, parse_tool_result=parse_tool_result)
        """,
    )

    async with running(workspace, trust_config(workspace)) as node:
        assert await node.failed("text.echo", text="own") == ("x:y", "Not like this.")
        error = await node.refused("text.echo", text="other")
        assert error.failure.name == "internal_error"
        assert "build_arguments" in error.message


BUGS = {
    "build_arguments": "def build_arguments(args): {bug}\n"
    "driver = define_driver(build_arguments=build_arguments)\n",
    "parse_tool_result": "def parse_tool_result(args): {bug}\n"
    "driver = define_driver(parse_tool_result=parse_tool_result)\n",
    "execute": "async def f(args): {bug}\ndriver = define_driver(execute={{'text.echo': f}})\n",
    "plain execute": "def f(args): {bug}\ndriver = define_driver(execute={{'text.echo': f}})\n",
}


@pytest.mark.parametrize("hook", BUGS)
@pytest.mark.parametrize(
    "bug", [f"raise ValueError({SECRET!r})", f"raise SystemExit({SECRET!r})"], ids=["bug", "exit"]
)
def test_hook_exception_is_call_error_without_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hook: str, bug: str
) -> None:
    caplog.set_level(logging.DEBUG)
    workspace = code_workspace(tmp_path, BUGS[hook].format(bug=bug))

    async def body() -> None:
        async with running(workspace, trust_config(workspace)) as node:
            error = await node.refused("text.echo", text="hi")
            assert error.failure.name == "internal_error"
            assert SECRET not in error.message
            assert "Traceback" not in error.message
            # The node is as well as before.
            error = await node.refused("text.echo", text="hi")
            assert error.failure.name == "internal_error"
            await _journal_without(node, SECRET)

    run(body)
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (f"raise RuntimeError({SECRET!r})\n", "RuntimeError in line 2"),
        (f"key = {SECRET!r}; def\n", "SyntaxError in line 2"),
        ("import sys; sys.exit(1)\n", "SystemExit"),
        ("driver = 5\n", "define_driver"),
        ("driver = define_driver(version='soon')\n", "version"),
    ],
    ids=["raises", "no python", "exits", "no driver", "no version"],
)
def test_unusable_code_disables_its_driver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str, message: str
) -> None:
    caplog.set_level(logging.DEBUG)
    workspace = code_workspace(tmp_path, code)
    workspace.driver("other-mcp", workspace.echoes(workspace.contract("text.other")))

    async def body() -> None:
        async with running(workspace, trust_config(workspace)) as node:
            assert node.status().state == "refused"
            assert message in node.status().problem
            assert node.tools == ["text.other"]
            assert (await node.call("text.other", text="hi"))["said"] == "hi"

    run(body)
    assert SECRET not in caplog.text


async def test_changed_code_is_reloaded(tmp_path: Path) -> None:
    workspace = code_workspace(tmp_path, HOOKS)
    folder = tmp_path / ".drivers" / "echo-mcp"

    async with running(workspace, trust_config(workspace)) as node:
        assert "HI" in (await node.call("text.echo", text="hi"))["said"]
        # As long as before, and in the same second.
        before = node.driver()
        write(folder, HOOKS.replace(".upper()", ".lower()"))
        await node.until(lambda: node.driver() is not before, "the new code")
        assert (await node.call("text.echo", text="HI"))["said"].endswith("|hi")
        (folder / "driver.py").unlink()
        now = node.driver()
        await node.until(lambda: node.driver() is not now, "the driver without code")
        assert (await node.call("text.echo", text="HI"))["said"] == "HI"


async def test_arguments_built_by_code_skip_mapping_check(tmp_path: Path) -> None:
    """What it makes is its own affair: the tool's required argument has no input behind it."""
    workspace = Workspace(tmp_path)
    contract = workspace.contract(inputs=TEXT_IN)
    file = workspace.driver("echo-mcp", workspace.serves(contract, "echo"))
    write(
        file.parent,
        "driver = define_driver(build_arguments=lambda args: {'message': args.input['text']})\n",
    )

    async with running(workspace, trust_config(workspace, verify="start")) as node:
        await node.until(lambda: node.driver().verified, "the look at its tools")
        assert (await node.call("text.echo", text="hi"))["said"] == "hi"


async def _journal_without(node: Running, secret: str) -> None:
    journal = node.node._journal
    assert journal is not None
    assert await journal.flush_async()
    assert all(secret not in row.detail for row in journal.tail(1000))
