"""The app knows every command, and reads no more of the program than the one it was asked for."""

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
def test_who_asks_for_no_command_gets_them_all(arguments: tuple[str, ...]) -> None:
    assert commands_of(*arguments) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_who_asks_for_one_gets_that_one(name: str) -> None:
    assert commands_of(name, "--help") == [name]


def test_a_shell_that_completes_words_gets_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_INTERLOCK_COMPLETE", "complete_bash")
    assert commands_of("call") == NAMES


def test_other_commands_are_not_even_read() -> None:
    asks = (
        "import sys, interlock.cli.app as it; it.create_app(['status']);"
        "print(*sorted(name for name in sys.modules if name.startswith('interlock.cli.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", asks],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_TIMEOUT,
    )
    read = done.stdout.split()
    assert "interlock.cli.status" in read
    assert not {
        "interlock.cli.up",
        "interlock.topics.commands.topic",
        "interlock.drivers.commands.drivers",
    } & set(read)


def test_the_shell_is_told_what_could_come_next(world: CommandLine) -> None:
    asks = {"_INTERLOCK_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    done = world.run(COMP_WORDS="interlock to", **asks)
    assert done.returncode == 0, done.stderr
    assert [one for one in done.stdout.split() if one != "topic"] == ["tools", "token"]


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
def test_an_option_before_its_command(world: CommandLine, written: list[str], instead: str) -> None:
    done = world.run_here(*written)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"interlock: {written[0]} must come after the command. Write: interlock {instead}\n"
    )


@pytest.mark.parametrize("option", ["--nod", "--segment"])
def test_an_option_that_the_command_has_not_is_unknown(world: CommandLine, option: str) -> None:
    done = world.run_here(option, "x", "tools")
    assert done.returncode == 2
    assert f"No such option: {option}" in done.stderr


def groups_in(command: Any) -> Iterator[Any]:
    for one in getattr(command, "commands", {}).values():
        if hasattr(one, "commands"):
            yield one
            yield from groups_in(one)


@pytest.mark.feature("automation")
@pytest.mark.feature("drivers")
def test_a_group_alone_does_something_or_shows_what_it_has() -> None:
    groups = list(groups_in(typer.main.get_command(create_app(()))))
    assert {"keys", "node", "drivers", "automation"} <= {one.name for one in groups}
    silent = [
        one.name for one in groups if not one.no_args_is_help and not one.invoke_without_command
    ]
    assert silent == []


def test_what_is_written_about_a_group_is_shown() -> None:
    app = create_app(())
    built = {one.name: one for one in groups_in(typer.main.get_command(app))}
    written = 0
    for group in app.registered_groups:
        assert group.typer_instance is not None
        callback = group.typer_instance.registered_callback
        if callback is not None and callback.callback is not None:
            written += 1
            told = " ".join((inspect.getdoc(callback.callback) or "").split())
            assert " ".join(built[group.name].help.split()) == told
    assert written > 5


def test_help_breaks_its_lines_where_the_terminal_ends(world: CommandLine) -> None:
    done = world.run("tools", "--help", COLUMNS="60")
    lines = [line.strip() for line in done.stdout.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("The list"))
    paragraph = lines[begin : lines.index("", begin)]
    # A line ends only where the next word has no room any more.
    for line, following in itertools.pairwise(paragraph):
        assert len(line) + 1 + len(following.split()[0]) > 58
    # And examples stay as they are.
    assert "interlock tools --server jira" in lines


def test_help_gives_no_flag_a_value(world: CommandLine) -> None:
    told = world.run_here("tools", "--help").stdout
    assert "--json" in told
    assert "--help" in told
    assert "bool" not in told.lower()
    assert "ADDR" in told
