"""What is shown to a person: rows that fit, lines that do no harm."""

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


def shown(rows: UpstreamTable) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=100).print(rows, end="")
    return out.getvalue().splitlines()


def test_rows_stand_in_columns() -> None:
    assert shown(UpstreamTable([READY, FAILED], 5)) == [
        "upstream  state                 era        tools  calls  failed  latency",
        "api       ready                 stateless     12  34567       8   1.2 ms",
        "名前      failed, circuit open  -              0      0       0        -",
    ]


def test_what_is_in_trouble_comes_first_where_there_is_no_room() -> None:
    lines = shown(UpstreamTable([READY, READY, FAILED, READY], 2))
    assert len(lines) == 4
    assert lines[1].startswith("名前")
    assert lines[2].startswith("api")
    assert lines[3] == "… and 2 more"


def test_no_upstreams_are_a_heading() -> None:
    assert len(shown(UpstreamTable([], 3))) == 1


def test_words_of_others_cannot_take_over_a_terminal() -> None:
    assert output.sanitize("plain, grün, 名前") == "plain, grün, 名前"
    assert output.sanitize("a\tb\nc") == "a\tb\nc"
    assert output.sanitize("\x1b[2Jgone\x07\r") == "\ufffd[2Jgone\ufffd\ufffd"


def test_nothing_that_is_told_takes_over_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "closed: \x1b[2J\x1b]0;pwned\x07\x9b31m"
    output.print_problem(reason)
    output.print_note(f"Note: {reason}\n  go on")
    harmless = "closed: \ufffd[2J\ufffd]0;pwned\ufffd\ufffd31m"
    assert capsys.readouterr().err == f"interlock: {harmless}\nNote: {harmless}\n  go on\n"


def test_json_on_a_terminal_takes_over_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.print_json({"id": "\x9b2J"})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_json({"id": "\x9b2J"})
    assert capsys.readouterr().out == '{\n  "id": "\x9b2J"\n}\n{\n  "id": "\ufffd2J"\n}\n'


def test_kept_lines_are_redacted_and_not_repeated() -> None:
    kept = LineBuffer()

    def log(text: str) -> None:
        kept.handle(logging.LogRecord("x", logging.WARNING, "", 0, text, None, None))

    for text in ("a: no", "b: no", "a: no", "token=abcdefghijklmnop \x1b[31m"):
        log(text)
    assert kept.count == 4
    assert [text for _, _, text in kept.lines] == ["b: no", "a: no", "token=*** \ufffd[31m"]


def test_the_name_of_a_server_is_not_taken_for_a_key() -> None:
    kept = LineBuffer()
    arguments = ("needkey", "needkey did not get ready; it said: API_KEY=hunter2")
    kept.handle(logging.LogRecord("x", logging.WARNING, "", 0, "%s: %s", arguments, None))
    assert kept.lines[0][2] == "needkey: needkey did not get ready; it said: API_KEY=***"
    kept.handle(logging.LogRecord("x", logging.INFO, "", 0, "%s failed: %s", arguments, None))
    assert kept.lines[1][2] == "needkey failed: needkey did not get ready; it said: API_KEY=***"


def test_the_same_problem_of_an_upstream_is_shown_once() -> None:
    kept = LineBuffer()
    kept.addFilter(RepeatFilter())

    def log(at: float, name: str, said: str, level: int = logging.WARNING) -> None:
        record = logging.LogRecord("x", level, "", 0, "%s: %s", (name, said), None)
        record.created = at
        kept.handle(record)

    for second in range(0, 301, 10):
        log(float(second), "a", "it ended")
    assert [text for _, _, text in kept.lines] == [
        "a: it ended",
        "a: it ended (still, tried 31 times)",
    ]
    log(302.0, "a", "it ended")
    log(303.0, "b", "it ended")
    log(304.0, "a", "it is not there")
    log(305.0, "a", "it is not there")
    log(306.0, "a", "it ended")
    assert kept.count == 5
    for _ in range(3):
        log(307.0, "a", "is ready", logging.INFO)
    assert kept.count == 8


def test_clients_of_a_node_with_tokens_get_the_variable_not_the_token() -> None:
    lines = dict(client_lines("http://127.0.0.1:1/mcp", "NODE_TOKEN"))
    assert '--header "Authorization: Bearer $NODE_TOKEN"' in lines["Claude Code"]
    assert "--bearer-token-env-var NODE_TOKEN" in lines["Codex"]
    assert "Bearer ${env:NODE_TOKEN}" in lines["Cursor"]
    assert "Bearer ${env:NODE_TOKEN}" in lines["VS Code"]


def test_how_this_program_is_started_from_elsewhere(tmp_path: Path) -> None:
    program = tmp_path / "interlock"
    program.touch()
    assert program_command(str(program)) == [str(program)]
    assert program_command("/x/interlock/__main__.py") == [sys.executable, "-m", "interlock"]
    assert program_command("interlock") == ["interlock"]


def test_a_url_to_paste_names_a_machine() -> None:
    assert url_for_others("http://127.0.0.1:1/mcp") == "http://127.0.0.1:1/mcp"
    for listened in ("http://0.0.0.0:1/mcp", "http://[::]:1/mcp"):
        named = url_for_others(listened)
        assert named.endswith(":1/mcp")
        assert "0.0.0.0" not in named
        assert "[::]" not in named
