"""The soak of topics on a real node, in its short form."""

from __future__ import annotations

from typing import Any

from bench import topic_soak


def test_finds_no_errors_or_leaks() -> None:
    # On a busy machine nobody falls behind within seconds: then once more, for longer.
    for seconds in (16.0, 60.0, 180.0):
        result = topic_soak.measure(topic_soak.SoakSettings(seconds=seconds))
        if result["count"].get("messages_lost"):
            break
    missed = [(bar.what, bar.figure, bar.note) for bar in topic_soak.judge(result) if not bar.met]
    assert missed == []


def test_leaks_miss_bars() -> None:
    held = {"objects": 1_000, "files": 10, "resident": 0}
    good: dict[str, Any] = {
        "count": {"joins": 300, "capability_violation": 1, "closed 4009": 1, "messages_lost": 1},
        "seconds": 10.0,
        "wrong": {}, "base": held, "warm": held, "end": held, "died": None, "log": "",
        "resident_mib": [50.0, 50.0, 51.0, 51.0],
    }  # fmt: skip
    assert all(bar.met for bar in topic_soak.judge(good))
    worse: Any
    for worse in (
        {"wrong": {"room-1 was heard in room-2": 1}},
        {"end": {**held, "objects": 1_501}},
        {"end": {**held, "files": 11}},
        {"resident_mib": [50.0, 50.0, 70.0, 70.0]},
        {"died": 1},
        {"log": "Traceback"},
        {"count": {}},
        {"count": {**good["count"], "joins": 299}},
    ):
        assert not all(bar.met for bar in topic_soak.judge({**good, **worse}))
