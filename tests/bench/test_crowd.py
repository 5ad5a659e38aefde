"""The crowd benchmark: names, bars and the named upstream."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.answers import NamedEndpoint
from bench.crowd import CrowdSettings, judge, names
from bench.crowd_process import member


def test_every_tool_has_distinct_name() -> None:
    settings = CrowdSettings(subservers=3, tools=2)
    assert names(settings) == {
        "s000.tool_00", "s000.tool_01", "s001.tool_00", "s001.tool_01", "s002.tool_00",
        "s002.tool_01",
    }  # fmt: skip
    assert len(names(CrowdSettings())) == CrowdSettings().everything == 10_000


def test_member_id_is_deterministic() -> None:
    assert member(7, 1)._id == member(7, 1)._id != member(8, 1)._id


def result(seconds: float, megabytes: float, wrong: int) -> dict[str, Any]:
    one = {"seconds": seconds, "resident_bytes": int(megabytes * 1e6), "processor_seconds": 1.0}
    return {"tools": 10, "first": one, "again": one, "again_start_s": 0.5, "wrong": wrong}


def test_judges_crowd() -> None:
    assert [bar.met for bar in judge(result(1.0, 90.0, 0))] == [True] * 5
    assert [bar.met for bar in judge(result(99.0, 9000.0, 1))] == [False] * 5


def test_named_upstream_returns_its_name() -> None:
    endpoint = NamedEndpoint("a")
    params = {"name": "echo", "arguments": {"text": "hi", "n": 1}}
    request = {"id": 1, "method": "tools/call", "params": params}
    response = msgspec.json.decode(bytes(endpoint.answer(msgspec.json.encode(request))))  # type: ignore[arg-type]
    assert response["result"]["content"][0]["text"] == "a: hi"
