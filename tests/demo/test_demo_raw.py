"""The demo upstream byte by byte: what no well-behaved client would send, and how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REVISION = "io.modelcontextprotocol/protocolVersion"
STATELESS = {REVISION: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


class Demo:
    """The process and its pipes. Reads block: pytest's timeout is the only clock."""

    def __init__(self, **streams: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "interlock.demo"],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **streams},
        )

    def send(self, data: bytes | dict[str, Any] | list[Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(
            data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n"
        )
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, params: Any = None, id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        self.send(message if params is None else {**message, "params": params})
        return self.receive()

    def open_session(self, revision: str = "2025-11-25") -> Any:
        answer = self.ask("initialize", {"protocolVersion": revision, "capabilities": {}}, "open")
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    def rest(self) -> bytes:
        """End the input; everything that still comes out."""
        rest, _ = self.process.communicate()
        assert isinstance(rest, bytes)
        return rest


@pytest.fixture
def demo() -> Iterator[Demo]:
    opened = Demo()
    yield opened
    if opened.process.poll() is None:
        opened.process.kill()
    opened.process.communicate()


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        (b"garbage\n", None, -32700),
        (b'{"jsonrpc":"2.0","id":1,\n', None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"} trailing\n', None, -32700),
        (b"\xff\xfe\n", None, -32700),
        (b"[" * 5000 + b"\n", None, -32700),
        (b"42\n", None, -32600),
        (b'"hello"\n', None, -32600),
        (b"{}\n", None, -32600),
        (b'{"jsonrpc":"1.0","id":7,"method":"ping"}\n', 7, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":9}\n', 7, -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}\n', None, -32600),
        (b'{"jsonrpc":"2.0","id":"x","method":"no/such"}\n', "x", -32601),
        (b'{"jsonrpc":"2.0","id":7,"method":"no/such","params":{"name":5}}\n', 7, -32601),
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/list"}\n', 7, -32600),
        (b'{"jsonrpc":"2.0","id":7,"method":"initialize"}\n', 7, -32602),
        (b'{"jsonrpc":"2.0","id":7,"method":"initialize","params":[]}\n', 7, -32602),
        (b'{"jsonrpc":"2.0","id":7,"method":"server/discover"}\n', 7, -32602),
        (b'[{"jsonrpc":"2.0","id":7,"method":"ping"}]\n', None, -32600),
    ],
)
def test_invalid_line_gets_error_without_affecting_others(
    demo: Demo, line: bytes, id: object, code: int
) -> None:
    demo.send(line)
    answer = demo.receive()
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] == id
    assert answer["error"]["code"] == code
    assert answer["error"]["message"]
    assert demo.ask("ping", id="after") == {"jsonrpc": "2.0", "id": "after", "result": {}}


def test_oversized_line_is_rejected_and_skipped(demo: Demo) -> None:
    demo.send(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 5_000_000 + b'"}\n')
    assert demo.receive()["error"]["code"] == -32600
    assert demo.ask("ping")["result"] == {}


def test_ids_are_returned_unchanged(demo: Demo) -> None:
    demo.open_session()
    assert demo.process.stdin is not None
    assert demo.process.stdout is not None
    for id in (b"0", b"-1", b'""', b'"1"', b'"\\u00e4"', b"123456789012345678901234567890"):
        demo.send(b'{"jsonrpc":"2.0","id":' + id + b',"method":"ping"}\n')
        assert demo.process.stdout.readline() == (
            b'{"jsonrpc":"2.0","id":' + id + b',"result":{}}\n'
        )


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_supports_every_session_revision(demo: Demo, revision: str) -> None:
    assert demo.open_session(revision)["protocolVersion"] == revision
    result = demo.ask("tools/list")["result"]
    assert set(result) == {"tools"}
    called = demo.ask("tools/call", {"name": "notes_list"})["result"]
    assert set(called) == {"content", "structuredContent"}


def test_unknown_revision_falls_back_to_latest(demo: Demo) -> None:
    assert demo.open_session("1999-01-01")["protocolVersion"] == "2025-11-25"


def test_supports_stateless_protocol(demo: Demo) -> None:
    found = demo.ask("server/discover", {"_meta": STATELESS})["result"]
    assert found["supportedVersions"] == ["2026-07-28"]
    listed = demo.ask("tools/list", {"_meta": STATELESS})["result"]
    for result in (found, listed):
        assert result["resultType"] == "complete"
        assert result["ttlMs"] > 0
        assert result["cacheScope"] == "public"
    called = demo.ask("tools/call", {"_meta": STATELESS, "name": "notes_list"})["result"]
    assert called["resultType"] == "complete"
    assert "ttlMs" not in called
    for result in (found, listed, called):
        info = result["_meta"]["io.modelcontextprotocol/serverInfo"]
        assert info["name"] == "interlock-demo"


@pytest.mark.parametrize(
    ("method", "meta", "code"),
    [
        ("ping", STATELESS, -32601),
        ("initialize", STATELESS, -32601),
        ("tools/list", {**STATELESS, REVISION: "2030-01-01"}, -32022),
        ("tools/list", {**STATELESS, REVISION: "2025-11-25"}, -32022),
        ("tools/list", {**STATELESS, REVISION: 1}, -32602),
        ("tools/list", {REVISION: "2026-07-28"}, -32602),
        ("tools/list", {**STATELESS, "progressToken": {}}, -32602),
    ],
)
def test_rejects_bad_stateless_requests(
    demo: Demo, method: str, meta: dict[str, Any], code: int
) -> None:
    answer = demo.ask(method, {"_meta": meta})
    assert answer["error"]["code"] == code
    if code == -32022:
        assert "2026-07-28" in answer["error"]["data"]["supported"]
    assert "result" in demo.ask("tools/list", {"_meta": STATELESS})


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("tools/call", {}, "needs the `name`"),
        ("tools/call", {"name": 5}, "Invalid params"),
        ("tools/call", {"name": "nope"}, "Unknown tool 'nope'"),
        ("tools/call", "text", "Invalid params"),
        ("tools/list", {"cursor": "somewhere"}, "Unknown cursor"),
    ],
)
def test_rejects_bad_params(demo: Demo, method: str, params: Any, message: str) -> None:
    demo.open_session()
    answer = demo.ask(method, params)
    assert answer["error"]["code"] == -32602
    assert message in answer["error"]["message"]


@pytest.mark.parametrize("arguments", [None, {}, {"sides": 6.0, "count": 1e0}])
def test_arguments_may_be_absent_null_or_whole_floats(demo: Demo, arguments: Any) -> None:
    demo.open_session()
    answer = demo.ask("tools/call", {"name": "roll_dice", "arguments": arguments})
    assert 1 <= answer["result"]["structuredContent"]["total"] <= 6


@pytest.mark.parametrize("arguments", [[], "text", 5, {"sides": 6.5}, {"sides": 1e300}])
def test_rejects_invalid_arguments(demo: Demo, arguments: Any) -> None:
    demo.open_session()
    answer = demo.ask("tools/call", {"name": "roll_dice", "arguments": arguments})
    assert answer["result"]["isError"] is True
    assert "roll_dice cannot be used" in answer["result"]["content"][0]["text"]


def test_supports_batches_in_2025_03_26(demo: Demo) -> None:
    demo.open_session("2025-03-26")
    demo.send(
        [
            {"jsonrpc": "2.0", "id": 1, "method": "ping"},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "no/such"},
            {"bad": True},
            {
                "jsonrpc": "2.0",
                "id": 3,
                "method": "tools/call",
                "params": {"name": "count_slowly", "arguments": {"to": 2, "delay_ms": 0}},
            },
        ]
    )
    answers = {answer["id"]: answer for answer in demo.receive()}
    assert answers[1]["result"] == {}
    assert answers[2]["error"]["code"] == -32601
    assert answers[None]["error"]["code"] == -32600
    assert answers[3]["result"]["structuredContent"] == {"counted_to": 2}
    demo.send([{"jsonrpc": "2.0", "method": "notifications/initialized"}])
    assert demo.ask("ping")["result"] == {}


def count(id: Any, to: int, delay_ms: int, token: Any = None) -> dict[str, Any]:
    params: dict[str, Any] = {
        "name": "count_slowly",
        "arguments": {"to": to, "delay_ms": delay_ms},
    }
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def cancel(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


def test_cancelled_call_gets_no_response(demo: Demo) -> None:
    demo.open_session()
    demo.send(count("slow", 1000, 5, token="t"))
    progress = demo.receive()
    assert progress["method"] == "notifications/progress"
    assert progress["params"] == {
        "progressToken": "t",
        "progress": 1,
        "total": 1000,
        "message": "Counted to 1 of 1000",
    }
    demo.send(cancel("slow"))
    demo.send({"jsonrpc": "2.0", "id": "fence", "method": "ping"})
    while (answer := demo.receive()).get("id") != "fence":
        assert answer["method"] == "notifications/progress"
    # Longer than the next number would have taken to come.
    demo.send(count("after", 3, 5))
    assert demo.receive()["id"] == "after"
    assert demo.rest() == b""


def test_progress_requires_token(demo: Demo) -> None:
    demo.open_session()
    demo.send(count(1, 3, 0))
    assert demo.receive()["result"]["structuredContent"] == {"counted_to": 3}


def test_unknown_cancellations_are_ignored(demo: Demo) -> None:
    demo.open_session()
    nothing: list[Any] = [{}, {"requestId": 99}, {"requestId": None}, {"requestId": {}}, [], "x"]
    for params in nothing:
        demo.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    demo.send({"jsonrpc": "2.0", "method": "notifications/cancelled"})
    demo.send({"jsonrpc": "2.0", "id": 5, "result": {}})
    assert demo.ask("ping")["result"] == {}


def test_rejects_id_in_use(demo: Demo) -> None:
    demo.open_session()
    demo.send(count(1, 1000, 10_000))
    demo.send(count(1, 1, 0))
    assert demo.receive()["error"]["code"] == -32600


def test_end_of_input_stops_server(demo: Demo) -> None:
    demo.open_session()
    demo.send(count(1, 1000, 10_000))
    assert demo.ask("ping", id=2)["id"] == 2
    # Had it waited for the count, that would have taken three hours.
    assert demo.rest() == b""
    assert demo.process.returncode == 0


def test_unterminated_last_line_is_processed(demo: Demo) -> None:
    demo.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert json.loads(demo.rest())["result"] == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_server(demo: Demo, number: signal.Signals) -> None:
    demo.open_session()
    demo.send(count(1, 1000, 10_000))
    assert demo.ask("ping", id=2)["id"] == 2
    demo.process.send_signal(number)
    assert demo.process.wait() == -number


def test_closed_output_stops_server() -> None:
    demo = Demo(stderr=subprocess.PIPE)
    demo.open_session()
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    demo.send(count(1, 1000, 1, token=1))
    assert demo.process.wait() == 0
    assert demo.process.stderr is not None
    assert demo.process.stderr.read() == b""
    assert demo.process.stdin is not None
    demo.process.stdin.close()
    demo.process.stderr.close()


def test_slow_reader_does_not_grow_memory(demo: Demo) -> None:
    """Answers wait in the pipe; then the server stops reading, which the client can feel."""
    demo.open_session()
    assert demo.process.stdin is not None
    fd = demo.process.stdin.fileno()
    os.set_blocking(fd, False)
    line = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n'
    sent = 0
    while sent < 1_000_000 and select.select([], [fd], [], 0.5)[1]:
        sent += os.write(fd, line * 100)
    assert sent < 400_000
    demo.process.send_signal(signal.SIGTERM)
    assert demo.process.wait() == -signal.SIGTERM
    # What was left of a line in the buffer has nowhere to go.
    os.set_blocking(fd, True)


@pytest.mark.parametrize("source", ["file", "null"])
def test_stdin_may_be_file(tmp_path: Path, source: str) -> None:
    path = tmp_path / "requests"
    path.write_bytes(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 3)
    with open(path if source == "file" else os.devnull, "rb") as stdin:
        demo = Demo(stdin=stdin)
        output, _ = demo.process.communicate()
    assert demo.process.returncode == 0
    assert output.count(b"\n") == (3 if source == "file" else 0)


def test_imports_no_unneeded_modules() -> None:
    """What a start costs is what it imports; every node that shows the demo waits for it."""
    code = (
        "import sys, interlock.demo.server\n"
        "heavy = {'zoneinfo', 'uvloop', 'uvicorn', 'yaml', 'rich', 'typer', 'jsonschema_rs',"
        " 'sqlite3', 'pydantic', 'mcp'}\n"
        "ours = {name for name in sys.modules if name.startswith('interlock.')"
        " and name.split('.')[1] not in ('demo', 'sdk', 'protocol', 'errors')}\n"
        "print(sorted(heavy & set(sys.modules) | ours))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert result.stdout == b"[]\n"
