"""`interlock call`: typed arguments in, plain text out, an exit code that tells."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import DEMO, INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until_gone


@pytest.fixture
def demo(world: CommandLine) -> CommandLine:
    """A world whose config has the demo, and something that cannot start."""
    world.config({"demo": DEMO, "gone": "no-such-program-anywhere"})
    return world


def test_call_starts_only_needed_server(demo: CommandLine) -> None:
    result = demo.run("call", "demo.text_stats", "text=one two")
    assert result.returncode == 0
    assert result.stderr == "No node is running. Starting demo for this command\n"
    assert result.stdout != ""


def test_values_are_converted_by_schema(demo: CommandLine) -> None:
    result = demo.run("call", "demo__roll_dice", "sides=2", "count=4", "--json-output")
    assert result.returncode == 0, result.stderr
    rolled = json.loads(result.stdout)
    assert len(rolled["rolls"]) == 4
    assert set(rolled["rolls"]) <= {1, 2}
    result = demo.run_here("call", "demo.roll_dice", "sides=many")
    assert result.returncode == 2
    assert "sides must be an integer. Found 'many'" in result.stderr


def test_reads_all_arguments_from_json_object(demo: CommandLine) -> None:
    (demo.cwd / "a.json").write_text('{"text": "drei kleine Wörter"}', encoding="utf-8")
    result = demo.run_here("call", "demo.text_stats", "--json", "@a.json", "--json-output")
    assert json.loads(result.stdout)["words"] == 3
    result = demo.run_here("call", "demo.text_stats", "--json", "[1]")
    assert result.returncode == 2
    assert "--json takes a JSON object" in result.stderr


def test_progress_goes_to_stderr(demo: CommandLine) -> None:
    result = demo.run("call", "demo.count_slowly", "to=2", "delay_ms=0")
    assert result.returncode == 0
    assert result.stdout == "Counted to 2.\n"
    assert "1/2 Counted to 1 of 2\n2/2 Counted to 2 of 2\n" in result.stderr


def test_calls_through_running_node(demo: CommandLine) -> None:
    node = demo.up()
    node.wait_for_line("upstream demo: ready")
    assert demo.run_here("call", "demo.notes_add", "title=Milk", "text=two litres").returncode == 0
    # Another process, the same node: its server still has the note.
    result = demo.run("call", "demo.notes_list")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Milk" in result.stdout
    assert node.status()["calls"] == 2
    unknown = demo.run_here("call", "xyzzy")
    assert unknown.returncode == 1
    assert "'xyzzy'. List the names: `interlock tools`\n" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demo.fail"], 1, "This tool fails on purpose"),
        (["demo.rol_dice"], 1, "Did you mean demo.roll_dice"),
        (["demo.roll_dice", "sides=1"], 1, "sides"),
        (["demo.roll_dice", "sides"], 2, "'sides' is not an argument"),
        (["demo.roll_dice", "sides=2", "--json", "{}"], 2, "not both"),
        (["demo.text_stats", "text=@nowhere.txt"], 2, "cannot read the file 'nowhere.txt'"),
        (["demo.roll_dice", "--timeout", "soon"], 2, "is not a duration"),
        (
            ["demo.count_slowly", "delay_ms=500", "--timeout", "50ms"],
            1,
            "No response within 0.05 s",
        ),
        (["gone.anything"], 4, "'no-such-program-anywhere' was not found"),
        ([], 2, "Missing argument"),
    ],
)
def test_call_errors_have_message_and_exit_code(
    demo: CommandLine, arguments: list[str], code: int, message: str
) -> None:
    result = demo.run_here("call", *arguments)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_call_without_config_and_node_fails(world: CommandLine) -> None:
    result = world.run("call", "demo.roll_dice")
    assert result.returncode == 3
    assert "No config file" in result.stderr


def test_interrupted_call_is_cancelled(demo: CommandLine) -> None:
    process = subprocess.Popen(
        [*INTERLOCK, "call", "demo.count_slowly", "to=100", "delay_ms=1000"],
        cwd=demo.cwd,
        env=demo.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stderr is not None
        while "1/100" not in process.stderr.readline():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        started = [int(item) for item in children.read_text().split()]
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_TIMEOUT) == 130
        assert "Traceback" not in process.stderr.read()
        wait_until_gone(started)
    finally:
        process.kill()
        process.communicate()
    newest = demo.run_here("journal", "tail", "-n", "1")
    assert "cancelled" in newest.stdout
