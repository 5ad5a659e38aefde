"""The drivers of `examples/drivers` at a node of a test's own, used as a person would use them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client

from tests.support.command_line import INTERLOCK, CommandLine, NodeProcess
from tests.support.programs import NPM
from tests.support.timeouts import HANG_TIMEOUT

EXAMPLES = Path(__file__).parents[2] / "examples" / "drivers"
PATTERNS = EXAMPLES / "patterns"
FETCH_SECONDS = 100


def names(node: NodeProcess) -> set[str]:
    async def ask() -> set[str]:
        async with Client(node.url) as client:
            return {tool.name.replace("__", ".") for tool in (await client.list_tools()).tools}

    return asyncio.run(ask())


def call(world: CommandLine, tool: str, *words: str) -> subprocess.CompletedProcess[str]:
    return world.run_here("call", tool, *words)


def result(world: CommandLine, tool: str, *words: str) -> Any:
    response = call(world, tool, *words)
    assert response.returncode == 0, response.stdout + response.stderr
    try:
        return json.loads(response.stdout)
    except json.JSONDecodeError:
        return response.stdout.rstrip("\n")


def confirm_call(world: CommandLine, tool: str, *words: str) -> Any:
    """The result of a call that a human has to confirm first."""
    waits = call(world, tool, *words)
    assert waits.returncode == 1
    assert "approval required" in waits.stdout + waits.stderr
    if not (world.home / ".config/interlock/keys/duty.pem").exists():
        made = world.run_here("keys", "new", "duty", "--no-passphrase")
        assert made.returncode == 0, made.stderr
    [waiting] = json.loads(world.run_here("approvals", "--json").stdout)["approvals"]
    outcome = world.run_here("approve", waiting["id"], "--key", "duty", "--yes")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return result(world, tool, *words, "--approval", waiting["id"])


def read_journal(world: CommandLine) -> list[dict[str, Any]]:
    outcome = world.run_here("audit", "search", "--json", "fs-*")
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def copy_examples(world: CommandLine, source: Path, **drivers: Any) -> Path:
    """A copy of an example is the world's folder, and its config listens where it may."""
    shutil.copytree(source, world.cwd, dirs_exist_ok=True)
    path = world.cwd / "interlock.yaml"
    document = yaml.safe_load(path.read_text())
    document["listen"] = f"127.0.0.1:{world.port}"
    document["drivers"] |= drivers
    path.write_text(yaml.safe_dump(document))
    return path


def install_drivers(world: CommandLine, *ids: str) -> None:
    """Have drivers installed for real; skips where their packages cannot be had."""
    for id in ids:
        outcome = with_npm(world, "drivers", "install", id, "--yes")
        assert outcome.returncode == 0, outcome.stderr
        assert f"{id} is installed" in outcome.stdout


def with_npm(world: CommandLine, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that installs: where packages come from is a matter of the machine, so npm is
    set up as it is here, and what was fetched before is not fetched again."""
    assert NPM is not None
    environ = {**os.environ, **world.environ}
    for name in ("userconfig", "cache"):
        asked = subprocess.run(
            [NPM, "config", "get", name],
            capture_output=True,
            text=True,
            timeout=HANG_TIMEOUT,
            check=True,
        )
        environ.setdefault(f"npm_config_{name}", asked.stdout.strip())
    try:
        outcome = subprocess.run(
            [*INTERLOCK, *arguments],
            cwd=world.cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install within {FETCH_SECONDS} s")
    if "Cannot install" in outcome.stderr:
        pytest.skip(outcome.stderr.strip().splitlines()[-1])
    return outcome
