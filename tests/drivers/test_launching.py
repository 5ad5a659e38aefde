"""From a manifest to a start command, its environment, and the headers of remote servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import UpstreamLostError
from interlock.drivers.launch import (
    DriverConnector,
    is_permanent,
    marked,
    server_command,
    server_config,
)
from interlock.errors import (
    AUTH_REQUIRED,
    SANDBOX_UNAVAILABLE,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.manifests.model import Auth, ConnectionOptions, RemoteAuth, ServerBlock
from tests.drivers.driver_parts import manifest
from tests.support.upstreams import OWN_INFO

pytestmark = pytest.mark.usefixtures("no_leaks")

REMOTE = ServerBlock("remote", url="https://mcp.acme.example/sse")


def start_command(folder: Path, server: ServerBlock, **more: Any) -> list[str]:
    driver = manifest(folder / ".drivers" / "x-mcp", server=server)
    return server_command(driver, workspace=folder, installed=more.pop("installed", None), **more)


@pytest.mark.spec("DR-32.server-2")
def test_command_derives_from_server_block(tmp_path: Path) -> None:
    declared = ServerBlock("binary", path="/usr/local/bin/mcp-filesystem", args=("/workspace",))
    assert start_command(tmp_path, declared) == ["/usr/local/bin/mcp-filesystem", "/workspace"]
    named = ServerBlock("binary", path="python3", args=("-m", "x"))
    assert start_command(tmp_path, named) == ["python3", "-m", "x"]


def test_relative_program_is_in_driver_folder_or_workspace(tmp_path: Path) -> None:
    one = ServerBlock("binary", path="./bin/serve")
    assert start_command(tmp_path, one) == [str(tmp_path / "bin/serve")]
    beside = tmp_path / ".drivers" / "x-mcp" / "bin" / "serve"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert start_command(tmp_path, one) == [str(beside)]


@pytest.mark.spec("DR-32.server-3", "DR-32.server-10")
def test_package_starts_from_installed_copy(tmp_path: Path) -> None:
    package = ServerBlock("npm", package="@x/server@1.2.3", args=("/workspace",))
    assert start_command(tmp_path, package) == [
        "npx",
        "--no-install",
        "@x/server@1.2.3",
        "/workspace",
    ]
    copy = tmp_path / "server"
    assert start_command(tmp_path, package, installed=copy) == [str(copy), "/workspace"]


def test_command_with_spaces_is_one_argument(tmp_path: Path) -> None:
    server = ServerBlock("binary", path="/opt/my server/run")
    config = server_config(manifest(server=server), workspace=tmp_path, installed=None)
    connector = DriverConnector(
        "k", manifest(server=server), config, node_info=OWN_INFO, clock=float, secrets=_none,
        confine=_no_walls,
    )  # fmt: skip
    assert connector._split_command(config) == ["/opt/my server/run"]


def test_server_config_has_folder_and_timeout(tmp_path: Path) -> None:
    driver = manifest(connection=ConnectionOptions(timeout_ms=4_500))
    config = server_config(driver, workspace=tmp_path, installed=None)
    assert (config.start_timeout, config.sessions) == (4.5, "shared")
    assert config.cwd == str(tmp_path)
    hasty = manifest(connection=ConnectionOptions(timeout_ms=100))
    assert server_config(hasty, workspace=tmp_path, installed=None).start_timeout == 1.0


def test_rejects_container_over_http(tmp_path: Path) -> None:
    server = ServerBlock("docker", image="x/y:1", port=8080)
    with pytest.raises(InterlockError) as error:
        server_config(manifest(server=server, transport="http"), workspace=tmp_path, installed=None)
    assert "server.kind: remote" in error.value.message


@pytest.mark.spec("DR-32.server-8")
@pytest.mark.parametrize(
    ("auth", "state", "headers"),
    [
        (None, (), {}),
        (None, ("ACME_API_KEY",), {"Authorization": "Bearer ${secrets.ACME_API_KEY}"}),
        (RemoteAuth("bearer", "KEY"), ("OTHER",), {"Authorization": "Bearer ${secrets.KEY}"}),
        (RemoteAuth("header", "KEY", "X-API-Key"), (), {"X-API-Key": "${secrets.KEY}"}),
    ],
    ids=["nothing", "the first secret", "bearer", "header"],
)
def test_remote_server_receives_auth_headers(
    tmp_path: Path,
    auth: RemoteAuth | None,
    state: tuple[str, ...],
    headers: dict[str, str],
) -> None:
    server = ServerBlock("remote", url=REMOTE.url, auth=auth)
    driver = manifest(server=server, transport="sse", auth=Auth(state_env=state))
    config = server_config(driver, workspace=tmp_path, installed=None)
    assert config.headers == headers
    assert (config.url, config.transport) == (REMOTE.url, "sse")
    assert config.command is None


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (InterlockError(AUTH_REQUIRED, ""), True),
        (InterlockError(SANDBOX_UNAVAILABLE, ""), True),
        (InterlockError(UPSTREAM_UNAVAILABLE, ""), False),
        (UpstreamLostError(UPSTREAM_UNAVAILABLE, "", was_sent=False, status=401), True),
        (UpstreamLostError(UPSTREAM_UNAVAILABLE, "", was_sent=False, status=503), False),
    ],
)
def test_permanent_failures_are_not_retried(error: InterlockError, lasting: bool) -> None:
    assert is_permanent(error) is lasting


secrets = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


@given(secrets, secrets)
def test_mark_distinguishes_secrets_without_revealing(
    one: dict[str, str], other: dict[str, str]
) -> None:
    assert (marked(one) == marked(other)) is (one == other)
    assert len(marked(one)) == 32


def test_mark_depends_on_value_boundaries() -> None:
    assert marked({"A": "bc", "D": "e"}) != marked({"A": "b", "D": "ce"})


async def test_connector_keeps_no_secrets(tmp_path: Path) -> None:
    """A connection that fails leaves nothing of them either."""
    server = ServerBlock("binary", path="/does/not/exist", env={"KEY": "${secrets.KEY}"})
    driver = manifest(server=server)

    async def give(names: frozenset[str]) -> dict[str, str]:
        assert names == {"KEY"}
        return {"KEY": "the-secret-0123456789"}

    connector = DriverConnector(
        "k", driver, server_config(driver, workspace=tmp_path, installed=None),
        node_info=OWN_INFO, clock=float, secrets=give, confine=_no_walls,
    )  # fmt: skip
    with pytest.raises(InterlockError):
        await connector.connect()
    assert connector.last_error is not None
    assert connector.mark == marked({"KEY": "the-secret-0123456789"})
    kept = {name: item for name, item in vars(connector).items() if name != "mask"}
    assert "the-secret" not in repr(kept)


async def _none(names: frozenset[str]) -> dict[str, str]:
    return {}


async def _no_walls() -> None:
    return None
