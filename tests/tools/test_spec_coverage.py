"""Spec coverage: the page and the exit code for registers, states and markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import spec_coverage
from tools.spec_register import SPECS, chapter, covers, read_items

ROOT = Path(__file__).resolve().parents[2]

ITEMS = """\
- {id: AX-1-1, level: MUST, says: one, check: c}
- {id: AX-1-2, level: MUST, says: two, check: c}
- {id: AX-1.1-1, level: SHOULD, says: three, check: c}
- {id: AX-12-1, level: MAY, says: four, check: c}
"""


class Tree:
    """A small project: a register, states and one test file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("spec", "tests", "docs"):
            (root / folder).mkdir()
        for spec in SPECS:
            (root / "spec" / spec.file).write_text("[]\n")
        (root / "spec" / "ax.yaml").write_text(ITEMS)
        self.status("{}")

    def status(self, text: str) -> None:
        (self.root / "spec" / "status.yaml").write_text(text + "\n")

    def tests(self, *ids: str) -> None:
        lines = [f'@pytest.mark.spec("{name}")\ndef test_{n}(): ...' for n, name in enumerate(ids)]
        (self.root / "tests" / "test_x.py").write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str) -> int:
        return spec_coverage.main([*arguments, "--root", str(self.root)])

    def page(self) -> str:
        return (self.root / "docs" / "spec-coverage.md").read_text(encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_register_is_complete() -> None:
    items = read_items(ROOT / "spec")
    counts = {
        spec.prefix: sum(name.startswith(f"{spec.prefix}-") for name in items) for spec in SPECS
    }
    assert counts == {"AX": 235, "MX": 179, "DR": 206, "ST": 256, "AQ": 350}


def test_shows_proven_and_missing_items(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.tests("AX-1-1", "AX-1-1")
    assert tree.run() == 0
    page = tree.page()
    assert "| AX-1-1 | MUST | proven | `test_x.py::test_0`<br>`test_x.py::test_1` |" in page
    assert "Not yet (2 of 3): AX-1-2, AX-1.1-1." in page
    assert "- AX-12 (1): AX-12-1" in page
    assert "| AX | 4 | 1 | 1 of 2 | 0 of 1 | 0 of 1 |" in page
    assert "1 of 2" in capsys.readouterr().out


def test_check_rejects_outdated_page(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert tree.run("--check") == 1
    assert tree.run() == 0
    assert tree.run("--check") == 0
    before = tree.page()
    tree.tests("AX-1-2")
    capsys.readouterr()
    assert tree.run("--check") == 1
    assert "outdated" in capsys.readouterr().err
    assert tree.page() == before


def test_page_is_deterministic(tree: Tree) -> None:
    tree.tests("AX-12-1", "AX-1-2")
    tree.run()
    first = tree.page()
    tree.run()
    assert tree.page() == first


def test_rejects_unknown_id(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.tests("AX-9-9")
    assert tree.run() == 1
    assert "test_x.py::test_0 is marked with AX-9-9" in capsys.readouterr().err


def test_finished_must_needs_test(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.status("done: [AX-1]")
    tree.tests("AX-1-1")
    assert tree.run() == 1
    assert capsys.readouterr().err == "AX-1-2 is a MUST that is claimed as done without a test\n"
    tree.tests("AX-1-1", "AX-1-2")
    assert tree.run() == 0
    assert "| AX-1.1-1 | SHOULD | done, no test |  |" in tree.page()


def test_divergence_shows_reason_and_tests(tree: Tree) -> None:
    tree.status("done: [AX-1]\ndiverges: {AX-1-2: 'better a | b'}")
    tree.tests("AX-1-1", "AX-1-2")
    assert tree.run() == 0
    line = "| AX-1-2 | MUST | diverges: better a \\| b | `test_x.py::test_1` |"
    assert line in tree.page()


def test_limited_item_shows_limit(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.status("done: [AX-1]\nlimits: {AX-1-2: not at night}")
    tree.tests("AX-1-1")
    assert tree.run() == 1
    assert capsys.readouterr().err == "AX-1-2 has a limit in spec/status.yaml, and no test\n"
    tree.tests("AX-1-1", "AX-1-2")
    assert tree.run() == 0
    assert "| AX-1-2 | MUST | proven: not at night | `test_x.py::test_1` |" in tree.page()


def test_divergence_needs_test(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.status("diverges: {AX-1-2: better}")
    assert tree.run() == 1
    assert "AX-1-2 is a divergence" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "state"), [("left_out", "left out"), ("later", "later")])
def test_marked_item_cannot_be_unbuilt(
    tree: Tree, key: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.status(f"{key}: {{AX-12: nobody has one}}")
    assert tree.run() == 0
    assert f"| AX-12-1 | MAY | {state}: nobody has one |  |" in tree.page()
    tree.tests("AX-12-1")
    assert tree.run() == 1
    message = f"AX-12-1 has the state {state} in spec/status.yaml, but test_x.py::test_0 is marked"
    assert message in capsys.readouterr().err
    assert f"| AX-12-1 | MAY | {state}: nobody has one | `test_x.py::test_0` |" in tree.page()
    assert tree.run("--check") == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("done: [AX-99]", "AX-99 names no item"),
        ("finished: [AX-1]", "unknown field"),
        ("left_out: {AX-1-1: ' '}", "has no reason"),
        ("left_out: {AX-1: a}\ndiverges: {AX-1-1: b}", "has two reasons"),
        ("limits: {AX-1-1: a}\nlater: {AX-1-1: b}", "has two reasons"),
    ],
)
def test_rejects_invalid_status_file(
    tree: Tree, status: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree.status(status)
    assert tree.run() == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("- {id: MX-1-1, level: MUST, says: s, check: c}", "does not start with AX-"),
        ("- {id: AX-1-1, level: WILL, says: s, check: c}", "Invalid enum value"),
        (f"{ITEMS}- {{id: AX-1-1, level: MUST, says: s, check: c}}", "occurs twice"),
    ],
)
def test_rejects_invalid_register(
    tree: Tree, items: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree.root / "spec" / "ax.yaml").write_text(items + "\n")
    assert tree.run() == 1
    assert message in capsys.readouterr().err


def test_missing_lists_unproven_items(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.tests("AX-1-1")
    assert tree.run("--missing", "AX-1") == 0
    assert capsys.readouterr().out == "AX-1-2 MUST: two\nAX-1.1-1 SHOULD: three\n"


def test_section_covers_subsections() -> None:
    assert covers("AX-4", "AX-4.1-2")
    assert covers("AX-4.1", "AX-4.1-2")
    assert covers("AX-4.1-2", "AX-4.1-2")
    assert not covers("AX-4.1-2", "AX-4.1-21")
    assert not covers("AX-1", "AX-11.3-1")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("AX-4.1-1", "AX-4"),
        ("AX-B.1-8", "AX-B"),
        ("MX-6.2a-7", "MX-6"),
        ("DR-32.pertool-6", "DR-32"),
        ("ST-4.2.5-14", "ST-4.2"),
        ("AQ-8.7.2-9", "AQ-8"),
        ("AQ-INT-3.4.1-1", "AQ-INT"),
    ],
)
def test_splits_chapters(item: str, expected: str) -> None:
    assert chapter(item) == expected


@pytest.mark.spec("MX-0-2")
def test_register_uses_known_levels() -> None:
    known = {"MUST", "SHOULD", "MAY", "FACT", "DECIDE"}
    assert {item.level for item in read_items(ROOT / "spec").values()} == known


@pytest.mark.spec("MX-0-3")
def test_distinguishes_sections_with_equal_numbers() -> None:
    says = {id: item.says for id, item in read_items(ROOT / "spec").items()}
    alike = {id for id in says if id.replace("a-", "b-") in says and "a-" in id}
    assert {"MX-6.2a-1", "MX-6.3a-1"} <= alike
    assert all(says[id] != says[id.replace("a-", "b-")] for id in alike)
    assert not any(id.startswith(("MX-6.2-", "MX-6.3-")) for id in says)


@pytest.mark.spec("MX-6.1b-1")
@pytest.mark.spec("MX-6.3b-1")
def test_documentation_states_stability_of_topics() -> None:
    page = " ".join((ROOT / "docs" / "topics.md").read_text(encoding="utf-8").split())
    assert "Its authors expect to break it with every minor version" in page
    assert "v0.1 is incompatible with v0.0" in page
    assert "there is no stable v1.0 yet" in page
    assert "Pin the versions of Interlock" in page
