"""The tree as text: shape, rates, and limited space."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from interlock.tree.commands.tree import LinkRates, TreeRows, format_summary, layout_tree
from interlock.tree.overview import TreeNode

pytestmark = pytest.mark.feature("tree")


def leaf(name: str, **facts: Any) -> TreeNode:
    return TreeNode(name=name, **({"link": "http", "tools": 1} | facts))  # type: ignore[arg-type]


def draw_tree(
    top: TreeNode, width: int = 80, room: int | None = None, paces: Any = None
) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(TreeRows(layout_tree(top, room), paces), end="")
    return [line.rstrip() for line in out.getvalue().splitlines()]


def small_tree() -> TreeNode:
    edge = TreeNode(
        name="edge", role="gateway", link="ax", tools=2, calls=4, busy_us=4_800, failed=1,
        children=[leaf("m1"), leaf("m2", state="degraded", problem="m2: it is silent")],
    )  # fmt: skip
    return TreeNode(name="root", role="root", tools=3, calls=4, children=[edge, leaf("local")])


def test_draws_shape_and_totals() -> None:
    assert draw_tree(small_tree()) == [
        "          state     role     link  tools  calls  failed  latency",
        "root      ready     root     -         3      4       0   0.0 ms",
        "├ edge    ready     gateway  ax        2      4       1   1.2 ms",
        "│ ├ m1    ready     leaf     http      1      0       0        -",
        "│ └ m2    degraded  leaf     http      1      0       0        -",
        "│     m2: it is silent",
        "└ local   ready     leaf     http      1      0       0        -",
    ]
    assert format_summary(small_tree()) == "2 nodes · 3 servers · 3 tools · 1 with problems"
    assert (
        format_summary(TreeNode(name="root", role="root"))
        == "1 node · 0 servers · 0 tools · no problems"
    )


def test_rates_are_per_interval() -> None:
    paces = LinkRates()
    first = small_tree()
    before = paces.update(first, 100.0)
    assert draw_tree(first, paces=before)[2].split()[-4:] == ["-", "1", "1.2", "ms"]
    assert "calls/s" in draw_tree(first, paces=before)[0]
    second = small_tree()
    second.children[0].calls += 50
    second.children[0].busy_us += 50 * 2_500
    now = paces.update(second, 102.0)
    assert draw_tree(second, paces=now)[2].split() == [
        "├", "edge", "ready", "gateway", "ax", "2", "25", "1", "2.5", "ms",
    ]  # fmt: skip
    # Started anew: its counts are smaller than before, so nothing can be said yet.
    third = paces.update(small_tree(), 103.0)
    assert all(pace.per_second in (None, 0.0) for pace in third.values())


@pytest.mark.parametrize("room", [10, 24, 40])
def test_large_tree_shows_problems_first(room: int) -> None:
    children = [leaf(f"s{number:03}") for number in range(200)]
    children[150].state = "failed"
    children[150].problem = "s150: it is gone"
    lines = draw_tree(TreeNode(name="root", role="root", children=children), room=room)
    # The heads are not a part of the tree.
    assert room - 2 <= len(lines) - 1 <= room
    assert lines[2].startswith("├ s150")
    assert lines[3].endswith("s150: it is gone")
    hidden = 200 - sum(" leaf " in line for line in lines)
    assert lines[-1] == f"└ … and {hidden} more, all ready"


def test_nested_problem_moves_branch_to_front() -> None:
    calm = [
        TreeNode(name=f"n{number}", role="aggregator", children=[leaf("x")]) for number in "123"
    ]
    sick = TreeNode(
        name="sick", role="aggregator", children=[*map(leaf, "abc"), leaf("z", state="failed")]
    )
    lines = draw_tree(TreeNode(name="root", role="root", children=[*calm, sick]), room=6)
    assert [line.split("  ")[0].strip() for line in lines[1:]] == [
        "root", "├ sick", "│ ├ z", "│ └ … and 3 more, all ready", "└ … and 3 more, all ready",
    ]  # fmt: skip


def test_unreported_children_are_counted() -> None:
    top = TreeNode(name="root", role="root", children=[leaf("a")], left_out=7)
    assert draw_tree(top)[-1] == "└ … and 7 more that were not reported"
    top.children.append(leaf("b", state="failed"))
    assert draw_tree(top, room=3)[-1] == "└ … and 8 more, all ready"


def test_too_deep_tree_is_cut() -> None:
    top = TreeNode(name="end")
    for number in range(60):
        top = TreeNode(name=f"level{number}", role="aggregator", children=[top])
    lines = draw_tree(top, room=10)
    assert len(lines) == 11
    assert lines[-1] == "… and more; see --json"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_fit_width(width: int) -> None:
    top = TreeNode(
        name="x" * 70, state="failed", problem="a long sentence about what is wrong " * 5
    )
    for number in range(20):
        top = TreeNode(
            name=f"segment-number-{number}", role="aggregator", link="ax", children=[top]
        )
    lines = draw_tree(top, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 23
    # The names stay where there is room for any; the branches before them are shortened.
    assert width < 60 or sum("segment-number-" in line for line in lines) == 20


def test_names_and_problems_are_sanitized() -> None:
    top = leaf("a\x1b[2Jb\nc", problem="a\x1b]0;title\x07 token=s3cret-s3cret")
    text = "\n".join(draw_tree(top))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "s3cret-s3cret" not in text
    assert len(draw_tree(top)) == 3


def test_formats_slow_latency() -> None:
    slow = leaf("a", calls=1, busy_us=250_000)
    top = TreeNode(name="root", role="root", calls=1, busy_us=2_340_000, children=[slow])
    assert [line.split()[-2:] for line in draw_tree(top)[1:]] == [["2.3", "s"], ["250", "ms"]]
