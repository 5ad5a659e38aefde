"""Stored decisions for tests."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
from hypothesis import strategies

from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision, encode_arguments
from interlock.trust.approvals.record import encode_canonical

NOW = 1_800_000_000.0
SETTINGS = AutomationConfig(decisions=6, agreement=0.9)
_numbers = count(1)


def make_decision_record(
    arguments: Any = None, verdict: str = "approve", **fields: Any
) -> HumanDecision:
    """Return a decision about a new approval, one minute after the previous decision."""
    number = next(_numbers)
    made = {
        "time": NOW + 60.0 * number,
        "source": "approval",
        "caller": "agent",
        "tool": "files.write",
        "effect": "mutating",
        "arguments": encode_arguments(encode_canonical({} if arguments is None else arguments)),
        "verdict": verdict,
        "by": "clerk",
        "proof": "operator",
        "approval": f"a{number}",
        "rule": "writes",
        **fields,
    }
    return HumanDecision(**made)


def make_decisions(
    many: Iterable[Any], verdict: str = "approve", **fields: Any
) -> list[HumanDecision]:
    return [make_decision_record(one, verdict, **fields) for one in many]


def note_arguments(count: int = 8, folder: str = "/srv/notes/") -> list[dict[str, Any]]:
    """Return arguments of writes, each with its own file and text."""
    return [
        {"path": f"{folder}{one}.md", "content": f"This is text {one}."} for one in range(count)
    ]


def any_decision() -> strategies.SearchStrategy[HumanDecision]:
    """Return a strategy of decisions of few tools and values, so that patterns occur."""
    paths = strategies.sampled_from(
        ["/a/x", "/a/y", "/a/b/x", "/a/b/y", "/a/../x", "/c/x", "x", "", "https://h/a", "a\\b"]
    )
    values = (
        paths
        | strategies.integers(-3, 40)
        | strategies.booleans()
        | strategies.none()
        | strategies.text(max_size=3)
        | strategies.lists(strategies.integers(0, 2), max_size=2)
        | strategies.just("Bearer abcdefghijklmnopqrstuvwxyz0123456789")
    )
    arguments = strategies.dictionaries(
        strategies.sampled_from(["path", "n", "force", "token", 'a"]\n']), values, max_size=4
    )
    return strategies.builds(
        make_decision_record,
        arguments,
        strategies.sampled_from(["approve", "approve", "approve", "refuse"]),
        caller=strategies.sampled_from(["agent", "robot"]),
        tool=strategies.sampled_from(["files.write", "files.send"]),
        by=strategies.sampled_from(["clerk", "chief"]),
        effect=strategies.sampled_from(["mutating", "mutating", "additive", "irreversible", ""]),
    )


def histories() -> strategies.SearchStrategy[list[HumanDecision]]:
    """Return a strategy of histories with repeated decisions."""

    def repeated(some: list[tuple[HumanDecision, int]]) -> list[HumanDecision]:
        fresh = (make_decision_record() for _ in iter(int, 1))
        return [
            msgspec.structs.replace(one, time=new.time, approval=new.approval)
            for one, times in some
            for _, new in zip(range(times), fresh, strict=False)
        ]

    return strategies.lists(
        strategies.tuples(any_decision(), strategies.integers(1, 9)), max_size=8
    ).map(repeated)
