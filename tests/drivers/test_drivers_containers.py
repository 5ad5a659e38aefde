"""Servers in containers: the engine's client runs with the environment of the node."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.drivers.driver_workspace import SERVER, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")


def engine(folder: Path, notes: Path) -> Path:
    """An engine whose containers are the drivers' test server; where its client is."""
    folder.mkdir(parents=True)
    client = folder / "docker"
    client.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"with open({str(notes)!r}, 'a') as file:\n"
        "    file.write(json.dumps([sys.argv, dict(os.environ)]) + '\\n')\n"
        f"os.execv(sys.executable, [sys.executable, {str(SERVER)!r}])\n",
        encoding="utf-8",
    )
    client.chmod(0o755)
    return folder


def box(workspace: Workspace, env: dict[str, str]) -> None:
    server = {"kind": "docker", "image": "mcp/echo:1", "env": env}
    workspace.driver("echo-mcp", workspace.echoes(workspace.contract()), server=server)


async def test_client_runs_with_environment_of_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    own = engine(tmp_path / "own", notes)
    path = os.pathsep.join([".", str(own), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("DOCKER_CONFIG", "/of/the/node")
    workspace = Workspace(tmp_path)
    # Nobody looks for it where the driver is.
    engine(tmp_path / ".drivers" / "echo-mcp", tmp_path / "planted")
    box(workspace, {"MODE": "fast"})

    async with running(workspace) as node:
        assert (await node.call("text.echo", text="x"))["said"] == "x"
    argv, environ = json.loads(notes.read_text().splitlines()[0])
    assert argv[0] == str(own / "docker")
    assert argv[1:] == [
        "run", "-i", "--rm", "--network", "none", "-e", "MODE", "mcp/echo:1",
    ]  # fmt: skip
    assert environ["PATH"] == path
    assert environ["MODE"] == "fast"
    assert set(environ) <= {"PATH", "HOME", "LANG", "TMPDIR", "MODE", "LC_CTYPE"}
    assert not (tmp_path / "planted").exists()


async def test_operator_configures_client_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    own = engine(tmp_path / "own", notes)
    monkeypatch.setenv("PATH", os.pathsep.join([str(own), os.environ["PATH"]]))
    workspace = Workspace(tmp_path)
    box(workspace, {})
    config = workspace.config(env_passthrough=["DOCKER_*"])
    arguments = {"DOCKER_HOST": "tcp://engine:2375", "OTHER": "x"}

    async with running(workspace, config, environ=arguments) as node:
        assert (await node.call("text.echo", text="x"))["said"] == "x"
    argv, environ = json.loads(notes.read_text().splitlines()[0])
    assert environ["DOCKER_HOST"] == "tcp://engine:2375"
    assert "OTHER" not in environ
    # The client's, not the container's.
    assert "-e" not in argv


@pytest.mark.parametrize("name", ["PATH", "LD_PRELOAD", "DOCKER_HOST", "https_proxy"])
async def test_driver_cannot_change_client_environment(tmp_path: Path, name: str) -> None:
    workspace = Workspace(tmp_path)
    planted = tmp_path / "planted"
    box(workspace, {name: str(engine(tmp_path / ".drivers" / "echo-mcp" / "bin", planted))})

    async with running(workspace, workspace.config(verify="start")) as node:
        status = node.status()
        assert status.state == "refused"
        assert f"server.env contains {name}, which the client" in status.problem
        assert node.tools == []
        assert not await node.driver().wait_until_ready(10)
    assert not planted.exists()


async def test_missing_engine_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path)
    box(workspace, {})

    monkeypatch.setenv("PATH", str(tmp_path))
    async with running(workspace) as node:
        assert not await node.driver().wait_until_ready(10)
        assert "docker is not on the node's PATH" in node.status().problem
