"""Front matter: how it is split, and invalid files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import ConfigError, Problem
from interlock.manifests.document import MAX_BYTES, read_source, split_front_matter
from interlock.manifests.driver_reader import parse_driver
from interlock.manifests.tool_reader import parse_contract
from tests.manifests.texts import driver_text


def problem_of(text: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        split_front_matter(text, "DRIVER.md")
    (problem,) = caught.value.problems
    assert problem.file == "DRIVER.md"
    assert problem.message
    assert problem.hint
    return problem


def test_keeps_line_numbers_of_file() -> None:
    result = split_front_matter("---\nname: x\nid: y\n---\n\n# Body\n---\nmore\n", "DRIVER.md")
    assert result.text == "---\nname: x\nid: y\n"
    assert result.text.splitlines()[1] == "name: x"
    assert result.body == "# Body\n---\nmore\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 0, "empty"),
        (" \n\n", 0, "empty"),
        ("# Title\nname: x\n", 1, "no front matter"),
        ("\n---\nname: x\n---\n", 2, "not at the start"),
        ("  ---\nname: x\n---\n", 1, "not at the start"),
        ("--- name: x\n---\n", 1, "text after ---"),
        ("---\nname: x\n", 1, "has no end"),
        ("---\nname: x\n --- \n", 1, "has no end"),
        ("---", 1, "has no end"),
        ("---\n---\n", 2, "no fields"),
        ("---\n\n  \n---\nbody", 2, "no fields"),
    ],
)
def test_reports_place_of_problem(text: str, line: int, message: str) -> None:
    problem = problem_of(text)
    assert problem.line == line
    assert message in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff---\nname: x\n---\n",
        "---\r\nname: x\r\n---\r\nbody\r\n",
        "---  \nname: x\n---\t\n",
        "---\nname: x\n---",
    ],
)
def test_accepts_bom_and_other_line_ends(text: str) -> None:
    assert split_front_matter(text, "DRIVER.md").text.split("\n")[1] == "name: x"


@pytest.mark.spec("DR-30.fields-10")
def test_ignores_body() -> None:
    plain = parse_driver(driver_text(), Path("a/DRIVER.md"))
    wordy = parse_driver(driver_text() + "\n# Files\n---\nname: {other\n", Path("a/DRIVER.md"))
    assert plain.value is not None
    assert plain.value == wordy.value
    shouted = parse_driver(driver_text().replace("name:", "Name:"), Path("a/DRIVER.md"))
    assert any("name is missing" in problem.message for problem in shouted.problems)


def test_rejects_large_text() -> None:
    text = "---\nname: " + "x" * (10 * MAX_BYTES) + "\n---\n"
    problem = problem_of(text)
    assert "longer than 1024 KiB" in problem.message


def test_rejects_large_file_before_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "TOOL.md"
    path.write_bytes(b"---\ninputs: " + b" " * MAX_BYTES)
    with pytest.raises(ConfigError, match="longer than 1024 KiB"):
        read_source(path)
    os.truncate(path, 50 * MAX_BYTES)
    with pytest.raises(ConfigError, match="longer than 1024 KiB"):
        read_source(path)


def test_limits_schema_of_maximum_length() -> None:
    rows = "".join(f"    p{n}: {{type: string}}\n" for n in range(35_000))
    head = "---\nname: T\nid: big.one\ndescription: d\nversion: 1.0.0\n"
    text = f"{head}inputs:\n  type: object\n  properties:\n{rows}outputs: {{}}\n---\n"
    assert len(text) < MAX_BYTES
    reading = parse_contract(text, Path("TOOL.md"))
    assert [problem.path for problem in reading.problems] == ["inputs"]
    assert "more than 50000 values" in reading.problems[0].message


def test_reports_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_source(tmp_path / "none.md")
    with pytest.raises(ConfigError, match="folder"):
        read_source(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_source(tmp_path / "a\0b")
    (tmp_path / "bytes.md").write_bytes(b"---\nname: x\ny: \xff\n---\n")
    with pytest.raises(ConfigError) as caught:
        read_source(tmp_path / "bytes.md")
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (3, 4)


def test_reads_pipe_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "DRIVER.md")
    assert read_source(tmp_path / "DRIVER.md").text == ""


def test_follows_links_only_when_allowed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("---\na: b\n---\n")
    (tmp_path / "here.md").symlink_to(tmp_path / "there.md")
    assert read_source(tmp_path / "here.md").digest == read_source(tmp_path / "there.md").digest
    with pytest.raises(ConfigError, match="cannot be read"):
        read_source(tmp_path / "here.md", follow=False)


@given(
    st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=200).filter(  # type: ignore[arg-type]
        lambda text: text.strip() and "---" not in text and "\r" not in text
    ),
    st.text(max_size=50).filter(lambda text: "\r" not in text),
)
def test_split_keeps_any_text(matter: str, body: str) -> None:
    result = split_front_matter(f"---\n{matter}\n---\n{body}", "DRIVER.md")
    assert result.text == f"---\n{matter}\n"
    assert result.body == body.lstrip("\n")


@given(st.text(max_size=300))
def test_splits_or_rejects_any_text(text: str) -> None:
    try:
        result = split_front_matter(text, "DRIVER.md")
    except ConfigError:
        return
    assert result.text.startswith("---")
