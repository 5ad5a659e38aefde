"""Output for people: aligned rows, and text without control characters."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console

from interlock.cli.foreground import url_for_others
from interlock.cli.upstream_table import UpstreamTable
from interlock.terminal import output
from interlock.terminal.clients import client_lines, program_command
from interlock.terminal.log_lines import LineBuffer, RepeatFilter

READY = ("api", "ready", "stateless", "12", "34567", "8", "1.2 ms")
FAILED = ("名前", "failed, circuit open", "-", "0", "0", "0", "-")


def print_table(rows: UpstreamTable) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=100).print(rows, end="")
    return out.getvalue().splitlines()


def test_rows_have_aligned_columns() -> None:
    assert print_table(UpstreamTable([READY, FAILED], 5)) == [
        "upstream  state                 era        tools  calls  failed  latency",
        "api       ready                 stateless     12  34567       8   1.2 ms",
        "名前      failed, circuit open  -              0      0       0        -",
    ]


def test_problems_come_first_in_little_space() -> None:
    lines = print_table(UpstreamTable([READY, READY, FAILED, READY], 2))
    assert len(lines) == 4
    assert lines[1].startswith("名前")
    assert lines[2].startswith("api")
    assert lines[3] == "… and 2 more"


def test_empty_table_is_heading() -> None:
    assert len(print_table(UpstreamTable([], 3))) == 1


def test_sanitize_replaces_control_characters() -> None:
    assert output.sanitize("plain, grün, 名前") == "plain, grün, 名前"
    assert output.sanitize("a\tb\nc") == "a\tb\nc"
    assert output.sanitize("\x1b[2Jgone\x07\r") == "\ufffd[2Jgone\ufffd\ufffd"


def test_printed_messages_are_sanitized(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "closed: \x1b[2J\x1b]0;pwned\x07\x9b31m"
    output.print_problem(reason)
    output.print_note(f"Note: {reason}\n  go on")
    harmless = "closed: \ufffd[2J\ufffd]0;pwned\ufffd\ufffd31m"
    assert capsys.readouterr().err == f"interlock: {harmless}\nNote: {harmless}\n  go on\n"


def test_json_on_terminal_is_sanitized(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.print_json({"id": "\x9b2J"})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_json({"id": "\x9b2J"})
    assert capsys.readouterr().out == '{\n  "id": "\x9b2J"\n}\n{\n  "id": "\ufffd2J"\n}\n'


def test_buffered_lines_are_redacted_and_unrepeated() -> None:
    buffer = LineBuffer()

    def log(text: str) -> None:
        buffer.handle(logging.LogRecord("x", logging.WARNING, "", 0, text, None, None))

    for text in ("a: no", "b: no", "a: no", "token=abcdefghijklmnop \x1b[31m"):
        log(text)
    assert buffer.count == 4
    assert [text for _, _, text in buffer.lines] == ["b: no", "a: no", "token=*** \ufffd[31m"]


def test_server_name_is_not_redacted_as_key() -> None:
    buffer = LineBuffer()
    arguments = ("needkey", "needkey did not get ready; it said: API_KEY=hunter2")
    buffer.handle(
        logging.LogRecord("x", logging.WARNING, "", 0, "upstream %s: %s", arguments, None)
    )
    assert buffer.lines[0][2] == "upstream needkey: needkey did not get ready; it said: API_KEY=***"
    buffer.handle(
        logging.LogRecord("x", logging.INFO, "", 0, "upstream %s: failed: %s", arguments, None)
    )
    assert (
        buffer.lines[1][2]
        == "upstream needkey: failed: needkey did not get ready; it said: API_KEY=***"
    )


def test_repeated_upstream_problem_is_logged_once() -> None:
    buffer = LineBuffer()
    buffer.addFilter(RepeatFilter())

    def log(at: float, name: str, said: str, level: int = logging.WARNING) -> None:
        record = logging.LogRecord("x", level, "", 0, "upstream %s: %s", (name, said), None)
        record.created = at
        buffer.handle(record)

    for second in range(0, 301, 10):
        log(float(second), "a", "it ended")
    assert [text for _, _, text in buffer.lines] == [
        "upstream a: it ended",
        "upstream a: it ended (still, tried 31 times)",
    ]
    log(302.0, "a", "it ended")
    log(303.0, "b", "it ended")
    log(304.0, "a", "it is not there")
    log(305.0, "a", "it is not there")
    log(306.0, "a", "it ended")
    assert buffer.count == 5
    for _ in range(3):
        log(307.0, "a", "is ready", logging.INFO)
    assert buffer.count == 8


def test_client_lines_name_token_variable() -> None:
    lines = dict(client_lines("http://127.0.0.1:1/mcp", "NODE_TOKEN"))
    assert '--header "Authorization: Bearer $NODE_TOKEN"' in lines["Claude Code"]
    assert "--bearer-token-env-var NODE_TOKEN" in lines["Codex"]
    assert "Bearer ${env:NODE_TOKEN}" in lines["Cursor"]
    assert "Bearer ${env:NODE_TOKEN}" in lines["VS Code"]


def test_program_command_is_absolute(tmp_path: Path) -> None:
    program = tmp_path / "interlock"
    program.touch()
    assert program_command(str(program)) == [str(program)]
    assert program_command("/x/interlock/__main__.py") == [sys.executable, "-m", "interlock"]
    assert program_command("interlock") == ["interlock"]


def test_url_for_others_names_machine() -> None:
    assert url_for_others("http://127.0.0.1:1/mcp") == "http://127.0.0.1:1/mcp"
    for listened in ("http://0.0.0.0:1/mcp", "http://[::]:1/mcp"):
        named = url_for_others(listened)
        assert named.endswith(":1/mcp")
        assert "0.0.0.0" not in named
        assert "[::]" not in named
