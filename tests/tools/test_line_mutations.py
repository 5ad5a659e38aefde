"""The changes that the line mutation tool makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.line_mutations import find_edits, sample


def mutate(source: str) -> set[str]:
    """Return every version of a source of one line."""
    data = source.encode()
    return {
        (data[: edit.start] + edit.text.encode() + data[edit.end :]).decode()
        for edit in find_edits(source)
    }


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("x = a == b", {"x = a != b"}),
        ("x = a < 2", {"x = a <= 2", "x = a < 3"}),
        ("x = é and b", {"x = é or b"}),
        ("x = a + b", {"x = a - b"}),
        ("x = True", {"x = False"}),
        ("x = 30.0", {"x = 300.0"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("call(a)", {"pass"}),
        ("if a: x = b", {"if not (a): x = b"}),
    ],
)
def test_changes_one_part_of_line(source: str, changed: set[str]) -> None:
    assert mutate(source) == changed


@pytest.mark.parametrize(
    "source",
    [
        "import a",
        "raise ValueError(a + b)",
        "_log.warning('text', a == b)",
        "x: Literal[1]",
        "x = f'{a == b}'",
        "assert a == b",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "x = 'a' + b",
        "class C(Struct, frozen=True): ...",
    ],
)
def test_leaves_out_messages_and_types(source: str) -> None:
    assert mutate(source) == set()


def test_sample_depends_only_on_seed(tmp_path: Path) -> None:
    source = tmp_path / "src" / "interlock" / "limits.py"
    source.parent.mkdir(parents=True)
    source.write_text("".join(f"x{number} = {number}\n" for number in range(40)))
    assert sample(tmp_path, 20, 1) == sample(tmp_path, 20, 1)
    assert sample(tmp_path, 20, 1) != sample(tmp_path, 20, 2)
