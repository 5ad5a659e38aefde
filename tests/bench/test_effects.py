"""The benchmark of inferred effects: its labels and counts."""

from __future__ import annotations

from typing import Any

import pytest

from bench.effects import LABELS, UNSEEN, Labels, judge, read_labels
from bench.real_servers import Listed


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": None, "inputSchema": {"type": "object"}}


def test_counts_tools_that_would_run_or_wait_wrongly() -> None:
    names = ["delete_x", "vanish_x", "get_x", "send_ping", "not_labelled"]
    servers = [
        (Listed("s", "package", [tool(name) for name in names]), "npm"),
        (Listed("other", "package", [tool("delete_y")]), "npm"),
    ]
    labels = {"s": Labels("unseen", ["delete_x", "vanish_x"], ["get_x", "send_ping"])}
    report = judge(servers, labels)
    counts = {
        "hold": 2,
        "run": 2,
        "false_run": ["s.vanish_x"],
        "false_hold": ["s.send_ping"],
    }
    assert report == {
        "half": {"unseen": counts},
        "source": {"npm": counts},
        "server": {"s": counts},
    }


@pytest.mark.parametrize(
    ("path", "halves", "least"),
    [(LABELS, {"development", "held-out"}, 800), (UNSEEN, {"unseen"}, 150)],
)
def test_every_labelled_tool_has_one_label(path: Any, halves: set[str], least: int) -> None:
    labels = read_labels(path)
    assert {label.half for label in labels.values()} == halves
    names = [(server, name) for server, label in labels.items() for name in label.hold + label.run]
    assert len(names) == len(set(names)) >= least
