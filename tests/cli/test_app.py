"""The app knows every command and imports only the requested one."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from interlock.cli.app import create_app, list_commands
from tests.support.command_line import CommandLine
from tests.support.timeouts import HANG_TIMEOUT

NAMES = sorted(command.name for command in list_commands())


def commands_of(*arguments: str) -> list[str]:
    group = typer.main.get_command(create_app(arguments))
    return sorted(group.commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("no-such",), ("--version", "up")])
def test_missing_command_loads_all_commands(arguments: tuple[str, ...]) -> None:
    assert commands_of(*arguments) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_named_command_loads_alone(name: str) -> None:
    assert commands_of(name, "--help") == [name]


def test_shell_completion_loads_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_INTERLOCK_COMPLETE", "complete_bash")
    assert commands_of("call") == NAMES


def test_other_command_modules_are_not_imported() -> None:
    asks = (
        "import sys, interlock.cli.app as it; it.create_app(['status']);"
        "print(*sorted(name for name in sys.modules if name.startswith('interlock.cli.')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", asks],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_TIMEOUT,
    )
    read = result.stdout.split()
    assert "interlock.cli.status" in read
    assert not {
        "interlock.cli.up",
        "interlock.topics.commands.topic",
        "interlock.drivers.commands.drivers",
    } & set(read)


def test_shell_completion_lists_commands(world: CommandLine) -> None:
    asks = {"_INTERLOCK_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    result = world.run(COMP_WORDS="interlock to", **asks)
    assert result.returncode == 0, result.stderr
    assert [item for item in result.stdout.split() if item != "topic"] == ["tools", "token"]


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (["--node", "8555", "tools"], "tools --node 8555"),
        (["-c", "my team.yaml", "drivers", "list", "--json"],
         "drivers list -c 'my team.yaml' --json"),
        (["--config=a.yaml", "add", "files", "npx", "-c", "b"],
         "add --config=a.yaml files npx -c b"),
    ],
    ids=["a command", "one of a group", "one before another program"],
)  # fmt: skip
@pytest.mark.feature("drivers")
def test_rejects_option_before_command(
    world: CommandLine, written: list[str], instead: str
) -> None:
    result = world.run_here(*written)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"interlock: {written[0]} must come after the command. Write: interlock {instead}\n"
    )


@pytest.mark.parametrize("option", ["--nod", "--segment"])
def test_rejects_unknown_option_before_command(world: CommandLine, option: str) -> None:
    result = world.run_here(option, "x", "tools")
    assert result.returncode == 2
    assert f"No such option: {option}" in result.stderr


def groups_in(command: Any) -> Iterator[Any]:
    for item in getattr(command, "commands", {}).values():
        if hasattr(item, "commands"):
            yield item
            yield from groups_in(item)


@pytest.mark.feature("automation")
@pytest.mark.feature("drivers")
def test_command_group_acts_or_shows_help() -> None:
    groups = list(groups_in(typer.main.get_command(create_app(()))))
    assert {"keys", "node", "drivers", "automation"} <= {group.name for group in groups}
    silent = [
        group.name
        for group in groups
        if not group.no_args_is_help and not group.invoke_without_command
    ]
    assert silent == []


def test_group_docstring_is_its_help() -> None:
    app = create_app(())
    built = {item.name: item for item in groups_in(typer.main.get_command(app))}
    written = 0
    for group in app.registered_groups:
        assert group.typer_instance is not None
        callback = group.typer_instance.registered_callback
        if callback is not None and callback.callback is not None:
            written += 1
            output = " ".join((inspect.getdoc(callback.callback) or "").split())
            assert " ".join(built[group.name].help.split()) == output
    assert written > 5


def test_help_wraps_at_terminal_width(world: CommandLine) -> None:
    result = world.run("tools", "--help", COLUMNS="60")
    lines = [line.strip() for line in result.stdout.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("The list"))
    paragraph = lines[begin : lines.index("", begin)]
    # A line ends only where the next word has no room any more.
    for line, following in itertools.pairwise(paragraph):
        assert len(line) + 1 + len(following.split()[0]) > 58
    # And examples stay as they are.
    assert "interlock tools --server jira" in lines


def test_help_shows_no_value_for_flags(world: CommandLine) -> None:
    output = world.run_here("tools", "--help").stdout
    assert "--json" in output
    assert "--help" in output
    assert "bool" not in output.lower()
    assert "ADDR" in output
