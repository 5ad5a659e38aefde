"""`interlock token`: create, list, revoke and remove tokens."""

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
from interlock.trust.identity.token_store import AccessStore
from tests.cli.test_approvals import at_terminal
from tests.support.command_line import CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until

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
        return self._runner.invoke(token, [command, *arguments, *self._config])  # type: ignore[return-value]

    def create(self, *arguments: str) -> str:
        result = self.run("create", *arguments)
        assert result.exit_code == 0, result.output
        return str(result.stdout.strip())

    def listed(self) -> list[dict[str, Any]]:
        result = self.run("list", "--json")
        tokens: list[dict[str, Any]] = json.loads(result.stdout)["tokens"]
        return tokens


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


@pytest.mark.spec("ST-4.8.5-4")
def test_token_is_printed_once(shell: Shell) -> None:
    result = shell.run(
        "create", "ci", "-s", "read", "-s", "write:github.*", "-s", "read", "--role", "robots",
        "--may", "call", "--may", "approve", "--expires", "30d",
    )  # fmt: skip
    assert result.exit_code == 0
    assert re.fullmatch(r"ilk_[a-z2-7]{16}_[\w-]{43}\n", result.stdout)
    assert "only once" in result.stderr
    # Before the token, so that whoever is asked knows what the answer does.
    assert result.stderr.startswith("Warning: ")
    assert "every HTTP client needs a token" in result.stderr
    secret = result.stdout.strip().split("_", 2)[2]
    (kept,) = shell.listed()
    assert kept["name"] == "ci"
    assert kept["state"] == "good"
    assert kept["scopes"] == ["read", "write:github.*"]
    assert kept["roles"] == ["robots"]
    assert kept["may"] == ["call", "approve"]
    assert abs(kept["expires"] - kept["created"] - 30 * DAY) < 5
    for command in (["list"], ["list", "--json"], ["show", "ci"], ["show", kept["id"], "--json"]):
        outcome = shell.run(*command)
        assert outcome.exit_code == 0
        assert kept["id"] in outcome.stdout
        assert secret not in outcome.output
        assert "digest" not in outcome.output
    assert "roles robots" in shell.run("list").stdout


def test_prints_tokens_as_json(shell: Shell) -> None:
    begun = time.time()
    data = json.loads(shell.run("create", "ci", "--json").stdout)
    assert data["token"].startswith(f"ilk_{data['id']}_")
    assert data["scopes"] is None
    assert int(begun) <= data["expires"] - 90 * DAY <= time.time() + 1
    assert json.loads(shell.run("show", "ci", "--json").stdout)[0]["id"] == data["id"]
    assert shell.run("create", "ever", "--expires", "never").exit_code == 0
    assert [tool["expires"] for tool in shell.listed()][1] is None


def test_revokes_token_by_id_or_name(shell: Shell) -> None:
    first = shell.create("agent").split("_")[1]
    result = shell.run("create", "agent")
    assert f"other valid tokens: {first}" in result.stderr
    assert "Warning" not in result.stderr
    revoked = shell.run("revoke", first)
    assert revoked.stdout == f"{first} of agent is revoked.\n"
    # The other one still counts.
    assert revoked.stderr == ""
    assert [tool["state"] for tool in shell.listed()] == ["revoked", "good"]
    again = shell.run("revoke", first)
    assert again.exit_code == 1
    assert "already revoked" in again.stderr
    last = shell.run("revoke", "agent")
    assert last.exit_code == 0
    assert "HTTP clients still need a token" in last.stderr
    assert "interlock token remove" in last.stderr
    assert [tool["state"] for tool in shell.listed()] == ["revoked", "revoked"]


def test_removes_only_inactive_tokens(shell: Shell) -> None:
    shell.create("agent")
    result = shell.run("remove", "agent")
    assert result.exit_code == 1
    assert "Revoke them first" in result.stderr
    shell.run("revoke", "agent")
    shell.create("other")
    shell.run("revoke", "other")
    still = shell.run("remove", "agent")
    assert still.exit_code == 0
    assert "HTTP clients still need a token" in still.stderr
    forgotten = shell.run("remove", "other")
    assert forgotten.exit_code == 0
    assert "need no token after a restart of the node" in forgotten.stderr
    assert shell.listed() == []
    assert "No tokens" in shell.run("list").stderr


@pytest.mark.parametrize(
    "config",
    [
        {"tokens": [{"name": "bot", "token": "${env:BOT_TOKEN}"}]},
        {"identity": {"issuers": [{"issuer": "https://login.example.com"}]}},
    ],
    ids=["tokens", "issuers"],
)
def test_no_first_token_warning_when_config_requires_tokens(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    shell = Shell(tmp_path, **config)
    assert "Warning" not in shell.run("create", "ci").stderr
    assert "the config requires one" in shell.run("revoke", "ci").stderr


def test_first_token_asks_for_confirmation(world: CommandLine) -> None:
    world.config()
    asked = "Create a token for ci?"
    seen, code = at_terminal(world, ["token", "create", "ci"], {asked: "n\n"})
    assert code == 1
    assert seen.index("every HTTP client needs a token") < seen.index(asked)
    assert "ilk_" not in seen
    assert json.loads(world.run_here("token", "list", "--json").stdout)["tokens"] == []
    seen, code = at_terminal(world, ["token", "create", "ci"], {asked: "y\n"})
    assert code == 0
    assert "ilk_" in seen
    # The second one changes nothing for anybody.
    seen, code = at_terminal(world, ["token", "create", "ci2"], {})
    assert code == 0
    assert "ilk_" in seen


def test_yes_option_skips_first_token_confirmation(world: CommandLine) -> None:
    world.config()
    seen, code = at_terminal(world, ["token", "create", "ci", "--yes"], {})
    assert code == 0
    assert "every HTTP client needs a token" in seen
    assert "ilk_" in seen


def test_revokes_external_tokens_and_subjects(shell: Shell) -> None:
    assert "is revoked" in shell.run("revoke", "--subject", "corp:somebody").stdout
    assert "is revoked" in shell.run("revoke", "--jti", "t-1").stdout
    access = shell.store.read()
    assert set(access.subjects) == {"corp:somebody"}
    assert access.jtis == {"t-1"}
    output = shell.run("list").stdout
    assert "revoked subject corp:somebody since" in output
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
def test_rejected_options_create_no_token(shell: Shell, arguments: list[str]) -> None:
    result = shell.run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert shell.store.tokens() == []


def test_reports_unknown_tokens(shell: Shell) -> None:
    for command in ("show", "revoke", "remove"):
        result = shell.run(command, "nobody")
        assert result.exit_code == 1
        assert "There is no token nobody" in result.stderr


def test_rejects_token_named_like_config_caller(tmp_path: Path) -> None:
    shell = Shell(tmp_path, tokens=[{"name": "ci", "token": "${env:T}"}])
    assert shell.run("create", "ci").exit_code == 2
    result = shell.run("create", "agent")
    assert result.exit_code == 0
    # Everybody needed a token before.
    assert "every HTTP client needs a token" not in result.stderr


def test_reports_unusable_token_store(shell: Shell) -> None:
    shell.create("agent")
    shell.store.path.write_bytes(b"broken" * 500)
    result = shell.run("list")
    assert isinstance(result.exception, InterlockError)
    assert "cannot be used" in result.exception.message


@pytest.mark.spec("ST-4.8.5-2", "ST-4.8.5-4")
def test_running_node_applies_token_changes(tmp_path: Path) -> None:
    world = CommandLine(tmp_path)
    try:
        world.config(identity={"revocation_seconds": "200ms"})
        text = world.run("token", "create", "ci", "--scope", "read").stdout.strip()
        node = world.up()
        address = node.url.rpartition("/")[0]

        def status(*token: str) -> int:
            request = urllib.request.Request(f"{address}/status")
            for item in token:
                request.add_header("Authorization", f"Bearer {item}")
            try:
                with urllib.request.urlopen(request, timeout=HANG_TIMEOUT) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as refused:
                refused.close()
                return refused.code

        assert status() == 401
        assert status(text) == 200
        other = world.run_here("token", "create", "other").stdout.strip()
        wait_until("the new token counts", lambda: status(other) == 200)
        assert world.run_here("token", "revoke", "ci").returncode == 0
        wait_until("the revoked token is refused", lambda: status(text) == 401)
        assert status(other) == 200
        # Its own user needs none: the commands of this machine use the socket.
        assert world.run_here("status").returncode == 0

        def on_record() -> bool:
            output = world.run_here("audit", "search", "--json").stdout
            rows = [json.loads(line) for line in output.splitlines()]
            done = {(row["verb"], row["outcome"], row["name"].partition(" ")[0]) for row in rows}
            return {("tokens", "made", "other"), ("tokens", "revoked", "ci")} <= done

        wait_until("what was done is in the journal", on_record)
    finally:
        world.close()
