"""`interlock token`: made once, shown once, revoked for good."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from interlock.cli.token import token
from interlock.errors import InterlockError
from interlock.stores.access import AccessStore
from tests.cli.program import World
from tests.cli.waiting import PATIENCE, wait_until

DAY = 86_400.0


class Shell:
    """The commands, run with a config and a state folder of their own."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.store = AccessStore(folder / "state" / "access.db")
        document = {"state_dir": str(folder / "state"), **config}
        (folder / "interlock.yaml").write_text(json.dumps(document))
        self._config = ["--config", str(folder / "interlock.yaml")]
        self._runner = CliRunner()

    def run(self, command: str, *arguments: str) -> Result:
        return self._runner.invoke(token, [command, *arguments, *self._config])

    def create(self, *arguments: str) -> str:
        result = self.run("create", *arguments)
        assert result.exit_code == 0, result.output
        return str(result.stdout.strip())

    def listed(self) -> list[dict[str, Any]]:
        result = self.run("list", "--json")
        found: list[dict[str, Any]] = json.loads(result.stdout)["tokens"]
        return found


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


@pytest.mark.spec("ST-4.8.5-4")
def test_a_token_is_printed_once_and_never_again(shell: Shell) -> None:
    result = shell.run(
        "create", "ci", "-s", "read", "-s", "write:github.*", "-s", "read", "--role", "robots",
        "--may", "call", "--may", "approve", "--expires", "30d",
    )  # fmt: skip
    assert result.exit_code == 0
    assert re.fullmatch(r"ilk_[a-z2-7]{16}_[\w-]{43}\n", result.stdout)
    assert "this one time" in result.stderr
    assert "whoever comes over HTTP needs a token" in result.stderr
    secret = result.stdout.strip().split("_", 2)[2]
    (kept,) = shell.listed()
    assert kept["name"] == "ci"
    assert kept["state"] == "good"
    assert kept["scopes"] == ["read", "write:github.*"]
    assert kept["roles"] == ["robots"]
    assert kept["may"] == ["call", "approve"]
    assert abs(kept["expires"] - kept["created"] - 30 * DAY) < 5
    for command in (["list"], ["list", "--json"], ["show", "ci"], ["show", kept["id"], "--json"]):
        told = shell.run(*command)
        assert told.exit_code == 0
        assert kept["id"] in told.stdout
        assert secret not in told.output
        assert "digest" not in told.output
    assert "roles robots" in shell.run("list").stdout


def test_as_json(shell: Shell) -> None:
    made = json.loads(shell.run("create", "ci", "--json").stdout)
    assert made["token"].startswith(f"ilk_{made['id']}_")
    assert made["scopes"] is None
    assert abs(made["expires"] - time.time() - 90 * DAY) < 5
    assert json.loads(shell.run("show", "ci", "--json").stdout)[0]["id"] == made["id"]
    assert shell.run("create", "ever", "--expires", "never").exit_code == 0
    assert [one["expires"] for one in shell.listed()][1] is None


def test_revoked_by_id_or_by_name(shell: Shell) -> None:
    first = shell.create("agent").split("_")[1]
    result = shell.run("create", "agent")
    assert f"other tokens that still count: {first}" in result.stderr
    assert "whoever comes" not in result.stderr
    assert shell.run("revoke", first).stdout == f"{first} of agent is revoked.\n"
    assert [one["state"] for one in shell.listed()] == ["revoked", "good"]
    again = shell.run("revoke", first)
    assert again.exit_code == 1
    assert "before" in again.stderr
    assert shell.run("revoke", "agent").exit_code == 0
    assert [one["state"] for one in shell.listed()] == ["revoked", "revoked"]


def test_forgotten_only_when_it_does_not_count(shell: Shell) -> None:
    shell.create("agent")
    refused = shell.run("forget", "agent")
    assert refused.exit_code == 1
    assert "revoke it first" in refused.stderr
    shell.run("revoke", "agent")
    assert shell.run("forget", "agent").exit_code == 0
    assert shell.listed() == []
    assert "there are no tokens" in shell.run("list").stderr


def test_what_others_issued(shell: Shell) -> None:
    assert "is revoked" in shell.run("revoke", "--subject", "corp:somebody").stdout
    assert "is revoked" in shell.run("revoke", "--jti", "t-1").stdout
    access = shell.store.read()
    assert set(access.subjects) == {"corp:somebody"}
    assert access.jtis == {"t-1"}
    told = shell.run("list").stdout
    assert "revoked subject corp:somebody since" in told
    assert shell.run("revoke", "--subject", "--jti", "x").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", ""],
        ["create", " a"],
        ["create", "a\x1b[2J"],
        ["create", "local"],
        ["create", "parent"],
        ["create", "config:x"],
        ["create", "x" * 101],
        ["create", "a", "--scope", "everything"],
        ["create", "a", "--scope", "write:a/b"],
        ["create", "a", "--may", "fly"],
        ["create", "a", "--expires", "soon"],
        ["create", "a", "--expires", "0d"],
        ["create", "a", "--expires", "-1d"],
        ["create", "a", "--expires", "90"],
    ],
    ids=str,
)
def test_mistakes_make_no_token(shell: Shell, arguments: list[str]) -> None:
    result = shell.run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert shell.store.tokens() == []


def test_unknown_ones_are_not_found(shell: Shell) -> None:
    for command in ("show", "revoke", "forget"):
        result = shell.run(command, "nobody")
        assert result.exit_code == 1
        assert "there is no token nobody" in result.stderr


def test_a_caller_of_the_config_keeps_its_name(tmp_path: Path) -> None:
    shell = Shell(tmp_path, tokens=[{"name": "ci", "token": "${env:T}"}])
    assert shell.run("create", "ci").exit_code == 2
    result = shell.run("create", "agent")
    assert result.exit_code == 0
    # Everybody needed a token before.
    assert "whoever comes" not in result.stderr


def test_a_store_that_cannot_be_used_is_said(shell: Shell) -> None:
    shell.create("agent")
    shell.store.path.write_bytes(b"broken" * 500)
    result = shell.run("list")
    assert isinstance(result.exception, InterlockError)
    assert "cannot be used" in result.exception.message


@pytest.mark.spec("ST-4.8.5-2", "ST-4.8.5-4")
def test_a_running_node_heeds_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        world.config(identity={"revocation_seconds": "200ms"})
        shown = world.run("token", "create", "ci", "--scope", "read").stdout.strip()
        node = world.up()
        address = node.url.rpartition("/")[0]

        def status(*token: str) -> int:
            request = urllib.request.Request(f"{address}/status")
            for one in token:
                request.add_header("Authorization", f"Bearer {one}")
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                refused.close()
                return refused.code

        assert status() == 401
        assert status(shown) == 200
        other = world.run_here("token", "create", "other").stdout.strip()
        wait_until("the new token counts", lambda: status(other) == 200)
        assert world.run_here("token", "revoke", "ci").returncode == 0
        wait_until("the revoked token is refused", lambda: status(shown) == 401)
        assert status(other) == 200
        # Its own user needs none: the commands of this machine use the socket.
        assert world.run_here("status").returncode == 0

        def on_record() -> bool:
            told = world.run_here("audit", "search", "--json").stdout
            rows = [json.loads(line) for line in told.splitlines()]
            done = {(row["verb"], row["outcome"], row["name"].partition(" ")[0]) for row in rows}
            return {("tokens", "made", "other"), ("tokens", "revoked", "ci")} <= done

        wait_until("what was done is in the journal", on_record)
    finally:
        world.close()
