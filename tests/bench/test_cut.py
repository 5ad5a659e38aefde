"""The cut benchmark: the steady load finds calls that reached the wrong server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.cut import judge
from bench.steady import Client, Steady

Answering = Callable[[str, str], dict[str, Any] | None]


def text_result(text: str) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": text}]}}


def run_steady_load(folder: Path, answer: Answering, calls: int = 6) -> Steady:
    """Run calls to a made-up node with these results. None closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            request = msgspec.json.decode(line)
            if request["method"] != "tools/call":
                body: dict[str, Any] | None = {"result": {}}
            else:
                params = request["params"]
                body = answer(params["name"], params["arguments"]["text"])
            if body is None:
                break
            if "id" in request:
                whole = {"jsonrpc": "2.0", "id": request["id"], **body}
                writer.write(msgspec.json.encode(whole) + b"\n")
        writer.close()

    async def run() -> Steady:
        server = await asyncio.start_unix_server(serve, str(folder / "s"))
        client = await Client.connect(folder / "s")
        steady = Steady(client, {"a.echo": "a", "b.echo": "b"}, callers=1)
        for _ in range(calls // 2):
            await steady.one("a.echo")
            await steady.one("b.echo")
        await client.close()
        server.close()
        return steady

    return asyncio.run(run())


def test_counts_right_results(tmp_path: Path) -> None:
    steady = run_steady_load(tmp_path, lambda tool, text: text_result(f"{tool[0]}: {text}"))
    assert steady.right == {"a.echo": 3, "b.echo": 3}
    assert (steady.wrong, steady.failed.total(), steady.lost) == ([], 0, 0)


@pytest.mark.parametrize(
    "response",
    [
        lambda tool, text: text_result(f"a: {text}"),
        lambda tool, text: text_result(f"{tool[0]}: {text}" if tool == "a.echo" else "b: call 1"),
        lambda tool, text: (
            text_result(f"{tool[0]}: {text}") if tool == "a.echo" else {"result": {}}
        ),
    ],
)
def test_result_of_other_server_or_call_is_wrong(tmp_path: Path, response: Answering) -> None:
    steady = run_steady_load(tmp_path, response)
    assert steady.right == {"a.echo": 3}
    assert len(steady.wrong) == 3
    assert steady.wrong[0].startswith("b.echo was sent 'call 2' and answered ")


def test_errors_are_failures_not_wrong_results(tmp_path: Path) -> None:
    def answer(tool: str, text: str) -> dict[str, Any]:
        if tool == "a.echo":
            return {"error": {"code": -31020, "message": "it is gone"}}
        return {"result": {"isError": True, "content": []}}

    steady = run_steady_load(tmp_path, answer)
    assert steady.failed == {"a.echo": 3, "b.echo": 3}
    assert steady.wrong == []


def test_disconnect_loses_calls(tmp_path: Path) -> None:
    steady = run_steady_load(tmp_path, lambda tool, text: None, calls=2)
    assert steady.lost == 2


def result(converged: float, **answers: int) -> dict[str, Any]:
    cut = {"cable": "a-b", "noticed": 1.5, "converged": converged, "back": 1.0}
    counted = {"right": 9, "reported as failed": 3, "wrong": 0, "lost": 0} | answers
    return {"interval_s": 0.5, "cuts": [cut, {**cut, "converged": 0.1}], "answers": counted}


def test_judges_cut() -> None:
    assert [bar.met for bar in judge(result(1.4))] == [True, True, True]
    assert [bar.met for bar in judge(result(1.6))] == [False, True, True]
    assert [bar.met for bar in judge(result(0.1, wrong=1))] == [True, False, True]
    assert [bar.met for bar in judge(result(0.1, lost=1))] == [True, True, False]
