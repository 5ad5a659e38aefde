"""Secrets of drivers reach only the server that needs them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from interlock.core.config import Config, redact
from interlock.drivers.folders import DriverFolders
from interlock.drivers.lifecycle import NODE_USER, workspace_id
from interlock.drivers.paths import driver_states_path
from interlock.drivers.sign_in_store import SqliteSignInStore
from interlock.protocol.jsonrpc import encode_value
from tests.drivers.driver_workspace import ANY, Running, Workspace, running, use_clock
from tests.support.clock import ManualClock
from tests.support.upstreams import run

pytestmark = pytest.mark.usefixtures("no_leaks")

KEY = "the-key-0123456789-abcdef"
NEWER = "a-newer-key-9876543210-fedcba"


def entry(slug: str = "shop-key", **more: Any) -> dict[str, Any]:
    return {"slug": slug, "name": slug, "description": "A key.", **more}


def shop_workspace(folder: Path, **more: Any) -> Workspace:
    """A driver whose server is given a secret and says what it was given."""
    workspace = Workspace(folder)
    contract = workspace.contract("shop.look", inputs=ANY, outputs=ANY)
    workspace.secrets(entry(), driver="shop-mcp")
    workspace.driver(
        "shop-mcp",
        workspace.serves(contract, "environ"),
        server=workspace.server(env={"KEY": "key ${secrets.SHOP_KEY}", "MODE": "$${plain}"}),
        auth={"ref": "./SECRETS.md", "state": {"env": ["SHOP_KEY"]}},
        **more,
    )
    return workspace


def secret_config(workspace: Workspace) -> Config:
    """A config that lets drivers have the variable."""
    return workspace.config(env_secrets=["SHOP_*"])


@pytest.mark.spec("DR-32.server-6", "DR-32.adapter-6", "DR-19.reveal-1")
def test_secret_reaches_its_server_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("FOO", "1")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    here = tmp_path / "here"
    here.mkdir()
    workspace = shop_workspace(here)
    # It is looked for in the rest, so it must not be written by the server itself.
    workspace.heard_file.symlink_to("/dev/null")

    async def body() -> None:
        async with running(workspace, secret_config(workspace), environ={"SHOP_KEY": KEY}) as node:
            environ = (await node.call("shop.look"))["environ"]
            assert environ["KEY"] == f"key {KEY}"
            assert environ["MODE"] == "${plain}"
            # What the node has is not the server's: only what nobody can do without.
            assert "FOO" not in environ
            assert "SHOP_KEY" not in environ
            assert set(environ) <= {"KEY", "MODE", "PATH", "HOME", "LANG", "TMPDIR", "LC_CTYPE"}
            assert KEY not in str(node.drivers.status())
            assert KEY.encode() not in encode_value(_plain(node.node.status()))
            (row,) = [row for _, row in await node.rows("secret.reveal")]
            assert row["slug"] == "shop-key"
            # While it runs, and afterwards.
            _assert_absent(KEY, here, temporary)
        _assert_absent(KEY, here, temporary)

    run(body)
    assert KEY not in caplog.text


async def test_passthrough_variables_reach_every_server_without_secrets(
    tmp_path: Path,
) -> None:
    workspace = shop_workspace(tmp_path)
    environ = {
        "SHOP_KEY": KEY, "OTHER_KEY": NEWER, "TZ": "Europe/London", "MODE": "node's", "FOO": "1",
        "SHOP_PLACE": "here",
    }  # fmt: skip
    config = workspace.config(
        env_secrets=["SHOP_KEY"],
        secrets={"other-key": "${env:OTHER_KEY}"},
        env_passthrough=["TZ", "MODE", "*_KEY", "SHOP_*", "ABSENT"],
    )

    async with running(workspace, config, environ=environ) as node:
        seen = (await node.call("shop.look"))["environ"]
        assert (seen["TZ"], seen["SHOP_PLACE"]) == ("Europe/London", "here")
        # What its driver says of a variable is what counts.
        assert seen["MODE"] == "${plain}"
        assert seen["KEY"] == f"key {KEY}"
        assert seen.keys().isdisjoint({"SHOP_KEY", "OTHER_KEY", "FOO", "ABSENT"})


async def test_passthrough_pattern_excludes_config_secrets(tmp_path: Path) -> None:
    """The token of a server under `servers:` is no secret of drivers, and no business of theirs."""
    workspace = Workspace(tmp_path)
    look = workspace.contract("shop.look", inputs=ANY, outputs=ANY)
    workspace.driver("shop-mcp", workspace.serves(look, "environ"))
    environ = {"HUB_TOKEN": KEY, "HUB_PLACE": "here", "HUB_NAME": "ours"}
    hub = "url: 'https://${env:HUB_PLACE}.example/', headers: {A: '${env:HUB_TOKEN}'}"
    config = workspace.config(
        env_passthrough=["HUB_*", "HUB_PLACE"],
        more=f"servers:\n  hub: {{enabled: false, {hub}}}\n",
    )

    async with running(workspace, config, environ=environ) as node:
        seen = (await node.call("shop.look"))["environ"]
        assert (seen["HUB_NAME"], seen["HUB_PLACE"]) == ("ours", "here")
        assert "HUB_TOKEN" not in seen


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def _assert_absent(secret: str, *folders: Path) -> None:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.spec("DR-19.reveal-1")
def test_echoed_secret_is_masked_in_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    workspace = shop_workspace(tmp_path)
    noisy = "import os, sys; sys.exit(os.environ['KEY'])"
    contract = "./tools/shop.look-1/TOOL.md"
    workspace.driver(
        "shop-mcp",
        workspace.serves(contract, "environ"),
        server={
            "kind": "binary",
            "path": "python3",
            "args": ["-c", noisy],
            "env": {"KEY": "${secrets.SHOP_KEY}"},
        },
        auth={"ref": "./SECRETS.md", "state": {"env": ["SHOP_KEY"]}},
        connection_options={"max_retries": 0},
    )

    async def body() -> None:
        async with running(workspace, secret_config(workspace), environ={"SHOP_KEY": KEY}) as node:
            error = await node.refused("shop.look")
            assert error.failure.name == "upstream_unavailable"
            assert KEY not in error.message
            assert KEY not in str(error.data)
            assert KEY not in node.status("shop-mcp").problem

    run(body)
    assert KEY not in caplog.text


@pytest.mark.spec("DR-32.security-4")
async def test_caller_context_is_in_arguments_not_in_process(tmp_path: Path) -> None:
    """One server for two tenants: what is theirs travels with the call."""
    workspace = Workspace(tmp_path)
    schema = {
        "type": "object",
        "properties": {"tenant": {"type": "string"}},
        "required": ["tenant"],
    }
    show = workspace.contract(
        "tenant.show", inputs=ANY, outputs=ANY, metadata={"contextSchema": schema}
    )
    look = workspace.contract("tenant.look", inputs=ANY, outputs=ANY)
    file = workspace.driver(
        "tenant-mcp", workspace.serves(show, "show"), workspace.serves(look, "environ")
    )
    (file.parent / "driver.py").write_text(
        "from interlock.drivers.sdk import define_driver\n"
        "def build_arguments(args):\n"
        "    return {**args.input, 'tenant_id': args.context.get('tenant')}\n"
        "driver = define_driver(build_arguments=build_arguments)\n",
        encoding="utf-8",
    )

    async with running(workspace, workspace.config(allow_code=["tenant-mcp"])) as node:
        births = set()
        for tenant in ("acme", "globex"):
            context = {"dev.interlock/context": {"tenant": tenant}}
            response = await node.call("tenant.show", context, x=1)
            assert response["arguments"] == {"x": 1, "tenant_id": tenant}
            births.add(response["birth"])
        assert len(births) == 1
        seen = json.dumps(await node.call("tenant.look"))
        assert "acme" not in seen
        assert "globex" not in seen


@pytest.mark.spec("DR-14.define-3", "DR-30.conformance-2")
async def test_invalid_context_is_rejected_before_server_starts(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    schema = {
        "type": "object",
        "properties": {"tenant_id": {"type": "string"}},
        "required": ["tenant_id"],
    }
    show = workspace.contract(
        "tenant.show", inputs=ANY, outputs=ANY, metadata={"contextSchema": schema}
    )
    workspace.driver("tenant-mcp", workspace.serves(show, "show"))

    async with running(workspace) as node:
        for meta in (None, {"dev.interlock/context": {"tenant_id": 5}}):
            error = await node.refused("tenant.show", meta)
            assert error.failure.name == "invalid_arguments"
            (problem,) = (error.data or {})["problems"]
            assert problem["field"].startswith("context")
        assert workspace.heard() == []


@pytest.mark.spec("DR-19.binding-3")
async def test_replaced_secret_reaches_next_server(tmp_path: Path) -> None:
    workspace = shop_workspace(tmp_path)
    place = tmp_path / "key.txt"
    place.write_text(KEY)
    os.chmod(place, 0o600)
    config = workspace.config(secrets={"shop-key": "${file:key.txt}"})
    clock = ManualClock()

    async with running(workspace, config, before=lambda node: use_clock(node, clock)) as node:
        first = await node.call("shop.look")
        assert first["environ"]["KEY"] == f"key {KEY}"
        clock.advance(2)
        same = await node.call("shop.look")
        assert same["birth"] == first["birth"]
        place.write_text(NEWER)
        clock.advance(2)
        second = await node.call("shop.look")
        assert second["environ"]["KEY"] == f"key {NEWER}"
        assert second["birth"] != first["birth"]
        assert len(await node.rows("secret.reveal")) == 2


async def test_missing_secret_is_named_and_can_be_added_later(tmp_path: Path) -> None:
    workspace = shop_workspace(tmp_path)
    place = tmp_path / "key.txt"
    config = workspace.config(secrets={"shop-key": "${file:key.txt}"})

    async with running(workspace, config) as node:
        for _ in range(2):
            error = await node.refused("shop.look")
            assert error.failure.name == "auth_required"
            assert "SHOP_KEY" in error.message
            assert (error.data or {})["driver"] == "shop-mcp"
        assert node.status("shop-mcp").state == "unauthed"
        assert workspace.heard() == []
        place.write_text(KEY)
        os.chmod(place, 0o600)
        assert (await node.call("shop.look"))["environ"]["KEY"] == f"key {KEY}"
        assert node.status("shop-mcp").state == "running"


@pytest.mark.spec("DR-19.reveal-3", "DR-19.access-2")
async def test_unauthorized_tool_gets_no_secret(tmp_path: Path) -> None:
    workspace = shop_workspace(tmp_path)
    workspace.secrets(entry(access={"bind": [{"tool": "shop.other"}]}), driver="shop-mcp")

    async with running(workspace, secret_config(workspace), environ={"SHOP_KEY": KEY}) as node:
        error = await node.refused("shop.look")
        assert error.failure.name == "auth_required"
        assert KEY not in error.message
        assert workspace.heard() == []
        workspace.secrets(entry(access={"bind": [{"tool": "shop.look"}]}), driver="shop-mcp")
        await node.until(
            lambda: (
                node.node.component(DriverFolders)
                .drivers.lifecycle.inventory.entries["shop-key"]
                .access["bind"][0]
                .value
                == "shop.look"
            ),
            "the new inventory",
        )
        assert (await node.call("shop.look"))["environ"]["KEY"] == f"key {KEY}"


async def test_unlisted_variable_is_not_available_as_secret(tmp_path: Path) -> None:
    """An inventory is the driver's own file: it could list whatever the node was started with."""
    workspace = shop_workspace(tmp_path)

    for allowed in ([], ["SHOP", "KEY", "shop_*"]):
        config = workspace.config(env_secrets=allowed)
        async with running(workspace, config, environ={"SHOP_KEY": KEY}) as node:
            error = await node.refused("shop.look")
            assert error.failure.name == "auth_required"
            assert "in the list drivers.env_secrets" in error.message
            assert redact(error.message) == error.message
            assert KEY not in error.message
            assert workspace.heard() == []


def test_secret_listed_in_two_inventories_is_unavailable(tmp_path: Path) -> None:
    """Not even with another slug for the same variable, whoever comes first."""
    for slug, more in (("shop-key", {}), ("aaa", {"metadata": {"bindings": {"env": "SHOP_KEY"}}})):
        folder = tmp_path / slug
        folder.mkdir()
        workspace = shop_workspace(folder)
        workspace.secrets(entry(slug, **more), driver="aaa-mcp")
        workspace.driver(
            "aaa-mcp",
            workspace.serves(workspace.contract("loot.look", inputs=ANY, outputs=ANY), "environ"),
            server=workspace.server(env={"LOOT": "${secrets.SHOP_KEY}"}),
            auth={"ref": "./SECRETS.md", "state": {"env": ["SHOP_KEY"]}},
        )

        async def body(workspace: Workspace = workspace) -> None:
            async with running(
                workspace, secret_config(workspace), environ={"SHOP_KEY": KEY}
            ) as node:
                assert node.tools == []
                actual = [item.problem for item in node.drivers.status()]
                assert len(actual) == 4
                for id in ("aaa-mcp", "shop-mcp"):
                    assert sum(f"{id}/SECRETS.md" in item for item in actual) >= 2

        run(body)


async def test_secret_can_be_limited_to_drivers(tmp_path: Path) -> None:
    workspace = shop_workspace(tmp_path)

    for ids in (["other-mcp"], ["other-mcp", "shop-mcp"]):
        config = workspace.config(secrets={"shop-key": "${env:OWN}"}, secrets_for={"shop-key": ids})
        async with running(workspace, config, environ={"OWN": KEY}) as node:
            if "shop-mcp" in ids:
                assert (await node.call("shop.look"))["environ"]["KEY"] == f"key {KEY}"
            else:
                error = await node.refused("shop.look")
                assert error.failure.name == "auth_required"
                assert workspace.heard() == []


@pytest.mark.spec("DR-32.mapping-4", "DR-30.auth-5")
async def test_unauthed_error_explains_sign_in(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    login = {"url": "https://shop.example/login", "interactive": True}
    workspace.driver("echo-mcp", workspace.echoes(contract), auth={"login": login})

    async with running(workspace, workspace.config(verify="start")) as node:
        await node.until(lambda: node.status().state == "unauthed", "the look at it")
        assert not node.driver().verified
        for _ in range(2):
            error = await node.refused("text.echo", text="x")
            assert error.failure.name == "auth_required"
            assert "interlock drivers login echo-mcp" in error.message
            data = error.data or {}
            assert data["login"]["url"] == "https://shop.example/login"
            assert data["contract"] == "text.echo"
        assert workspace.heard() == []
        # Somebody signs in, as the command line does: in another process.
        await _signs_in(node)
        assert (await node.call("text.echo", text="x"))["said"] == "x"
        assert node.status().state == "running"


@pytest.mark.spec("DR-30.resolver-9")
async def test_driver_is_used_again_after_sign_in(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver(
        "a-mcp",
        workspace.echoes(contract, cost_override={"cost_units_per_call": 1}),
        auth={"login": {"url": "https://a.example"}},
    )
    workspace.driver("b-mcp", workspace.echoes(contract))
    clock = ManualClock()

    async with running(workspace, before=lambda node: use_clock(node, clock)) as node:
        await node.call("text.echo", text="one")
        assert (node.status("a-mcp").calls, node.status("b-mcp").calls) == (1, 1)
        await node.call("text.echo", text="two")
        assert (node.status("a-mcp").calls, node.status("b-mcp").calls) == (1, 2)
        await _signs_in(node, "a-mcp")
        clock.advance(2)
        await node.call("text.echo", text="three")
        await node.until(lambda: node.driver("a-mcp").condition.authed, "the look at it")
        await node.call("text.echo", text="four")
        assert node.status("a-mcp").calls == 2


async def _signs_in(node: Running, id: str = "echo-mcp") -> None:
    """As somebody else does, in a process of their own."""
    base = node.node.base_dir
    states = SqliteSignInStore(driver_states_path(node.node.config, {}, base))
    await asyncio.to_thread(
        states.save, id, workspace_id(base), NODE_USER, authed=True, refreshed_at=time.time()
    )
