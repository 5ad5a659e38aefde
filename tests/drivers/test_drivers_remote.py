"""Remote drivers: their secret headers reach the server only, and TLS is verified."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import error
from tests.core.upstreams.test_http_connections import self_signed
from tests.drivers.driver_workspace import ANY, Workspace, running
from tests.support.upstreams import run

pytestmark = pytest.mark.usefixtures("no_leaks")

KEY = "the-key-0123456789-abcdef"


def remote_shop(folder: Path, server: Streamable, auth: dict[str, str], **more: Any) -> Workspace:
    """A driver whose server is elsewhere and is shown a secret."""
    workspace = Workspace(folder)
    workspace.secrets(
        {"slug": "shop-key", "name": "shop-key", "description": "A key."}, driver="shop-mcp"
    )
    contract = workspace.contract("shop.look", inputs=ANY, outputs=ANY)
    workspace.driver(
        "shop-mcp",
        workspace.serves(contract, "echo"),
        server={"kind": "remote", "url": server.url(), "auth": auth},
        transport="http",
        network={"egress": [f"127.0.0.1:{server.port}"]},
        auth={"ref": "./SECRETS.md", "state": {"env": ["SHOP_KEY"]}},
        connection_options={"max_retries": 0},
        **more,
    )
    return workspace


def assert_nowhere(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "journal.db" for path in files)
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.spec("DR-31.security-2")
@pytest.mark.parametrize(
    ("auth", "header", "expected"),
    [
        ({"type": "bearer", "secret": "${secrets.SHOP_KEY}"}, "authorization", f"Bearer {KEY}"),
        (
            {"type": "header", "header": "X-API-Key", "secret": "${secrets.SHOP_KEY}"},
            "x-api-key",
            KEY,
        ),
    ],
    ids=["bearer", "header"],
)
def test_secret_header_is_in_no_log_journal_or_file(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    auth: dict[str, str],
    header: str,
    expected: str,
) -> None:
    """Neither when the server is called nor when it repeats the header in its own words."""
    caplog.set_level(logging.DEBUG, logger="interlock")
    server = Streamable("stateless")
    events: list[str] = []
    failing: list[Any] = []

    async def override(request: Request, answer: ResponseWriter) -> bool:
        events.append(request.headers.get(header, ""))
        if request.rpc != "tools/call" or not failing:
            return False
        how, echoed = failing.pop(), dict(request.headers)
        if how == "error":
            answer.json(error(request.message["id"], -32000, f"I was sent {echoed}", echoed))
        else:
            answer.respond(str(echoed).encode(), f"{how} {echoed[header]}", x_echo=echoed[header])
        return True

    server.override = override

    async def body() -> None:
        async with server:
            workspace = remote_shop(tmp_path, server, auth)
            config = workspace.config(env_secrets=["SHOP_KEY"])
            async with running(workspace, config, environ={"SHOP_KEY": KEY}) as node:
                await node.call("shop.look")
                for how in ("error", "500", "403"):
                    failing.append(how)
                    response = await told_of_failure(node)
                    assert KEY not in response, how
                assert failing == []
                status = node.status("shop-mcp")
                assert KEY not in str(status)
                rows = await node.rows("driver.invoked", "tool.invoked")
                assert rows
                assert KEY not in str(rows)
                assert_nowhere(tmp_path)
            assert_nowhere(tmp_path)

    async def told_of_failure(node: Any) -> str:
        caught = await node.refused("shop.look")
        raw_data = bytes(getattr(caught, "raw_data", None) or b"")
        return f"{caught.message} {caught.data} {raw_data!r}"

    run(body)
    # The server itself was shown it, with every request.
    assert set(events) == {expected}
    assert any("shop-mcp" in record.getMessage() for record in caplog.records)
    assert KEY not in caplog.text


@pytest.mark.spec("DR-31.security-2")
def test_echoed_secret_header_is_masked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="interlock")
    server = Streamable("stateless")

    async def override(request: Request, answer: ResponseWriter) -> bool:
        answer.json(error(request.message.get("id"), -32000, str(request.headers)))
        return True

    server.override = override

    async def body() -> None:
        async with server:
            auth = {"type": "bearer", "secret": "${secrets.SHOP_KEY}"}
            workspace = remote_shop(tmp_path, server, auth)
            config = workspace.config(env_secrets=["SHOP_KEY"])
            async with running(workspace, config, environ={"SHOP_KEY": KEY}) as node:
                refused = await node.refused("shop.look")
                assert refused.failure.name == "upstream_unavailable"
                assert KEY not in f"{refused.message} {refused.data}"
                assert "Bearer ***" in node.status("shop-mcp").problem
            assert_nowhere(tmp_path)

    run(body)
    assert "Bearer ***" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.spec("DR-32.security-5")
async def test_rejects_remote_server_with_self_signed_certificate(tmp_path: Path) -> None:
    _, context = self_signed(tmp_path)
    server = Streamable("stateless")

    await server.start(tls=context)
    try:
        here = tmp_path / "here"
        here.mkdir()
        auth = {"type": "bearer", "secret": "${secrets.SHOP_KEY}"}
        workspace = remote_shop(here, server, auth)
        config = workspace.config(env_secrets=["SHOP_KEY"])
        async with running(workspace, config, environ={"SHOP_KEY": KEY}) as node:
            refused = await node.refused("shop.look")
            assert refused.failure.name == "upstream_unavailable"
            assert "certificate is not trusted" in node.status("shop-mcp").problem
        assert server.requests == []
    finally:
        await server.stop()


@pytest.mark.spec("DR-32.security-5")
@pytest.mark.parametrize(
    ("settings", "failure"),
    [
        ({"region": "eu"}, "no_route_in_region"),
        ({"policy": {"forbid": ["self-hosted"]}}, "no_route"),
        ({"region": "moon", "policy": {"require": ["self-hosted"]}}, None),
    ],
    ids=["another region", "a forbidden tag", "both fit"],
)
async def test_region_and_tags_apply_to_remote_drivers(
    tmp_path: Path, settings: dict[str, Any], failure: str | None
) -> None:
    server = Streamable("stateless")

    async with server:
        auth = {"type": "bearer", "secret": "${secrets.SHOP_KEY}"}
        workspace = remote_shop(
            tmp_path, server, auth, region=["moon"], policy_tags=["self-hosted"]
        )
        config = workspace.config(env_secrets=["SHOP_KEY"], **settings)
        async with running(workspace, config, environ={"SHOP_KEY": KEY}) as node:
            if failure is None:
                await node.call("shop.look")
                return
            refused = await node.refused("shop.look")
            assert refused.failure.name == failure
        assert server.requests == []
