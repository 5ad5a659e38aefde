"""YAML documents: values, places, problems, and both parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.config.problems import ConfigError, Problem
from interlock.manifests import document
from interlock.manifests.document import read_document, read_yaml


@contextmanager
def slow_parser() -> Iterator[None]:
    quick, document._compose_fast = document._compose_fast, None
    try:
        yield
    finally:
        document._compose_fast = quick


def problems_of(matter: str) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        read_document(f"---\n{matter}\n---\n", "DRIVER.md")
    return caught.value.problems


def test_fast_parser_is_available() -> None:
    assert document._compose_fast is not None


def test_reads_only_core_types() -> None:
    result = read_document(
        "---\na: yes\nb: 12:30\nc: 0o17\nd: 0x1F\ne: true\nf: ~\ng: 1e3\nh: '5'\n"
        "i: 2024-01-01\n---\n",
        "x",
    ).value
    assert result == {
        "a": "yes", "b": "12:30", "c": 15, "d": 31, "e": True, "f": None, "g": 1000.0, "h": "5",
        "i": "2024-01-01",
    }  # fmt: skip


def test_keeps_places_of_file() -> None:
    result = read_document("---\na: 1\nb:\n  - x\n  - c: [1, 2]\n---\n", "x")
    assert result.position(("a",)) == (2, 1)
    assert result.position(("b", 1, "c")) == (5, 5)
    assert result.position(("b", 1, "c", 1)) == (5, 12)
    assert result.position(("b", 1, "nothing")) == (5, 5)
    assert result.position(("nothing", "at", "all")) == (1, 1)


@pytest.mark.parametrize(
    ("matter", "line", "message"),
    [
        ("a: [1, 2", 2, "not closed"),
        ("a: {b", 2, "not closed"),
        ("a: b: c", 2, "colon too many"),
        ("a: b\n  c: d", 3, "colon too many"),
        ("a: 'x", 2, "quote"),
        ("a: b\na: c", 3, "already set on line 2"),
        ("a: *x", 2, "alias"),
        ("a: !!python/object x", 2, "tag"),
        ("a: !!int x", 2, "tag"),
        ("[a]: b", 2, "key is not text"),
        ("? {a: b}\n: c", 2, "key is not text"),
        ("a: .inf", 2, "finite"),
        ("a: 1e999", 2, "finite"),
        ("a: " + "9" * 30, 2, "too long"),
        ("- a\n- b", 2, "not fields"),
        ("text", 2, "not fields"),
        ("a: " + "[" * 40 + "]" * 40, 2, "too deeply"),
        ("a: " + "[" * 2000 + "]" * 2000, 2, "too deeply"),
        ("a: " + "- " * 2000, 2, ""),
        ("a: &x [*x]", 2, "too deeply"),
        ("a:\tb\n\tc: d", 0, ""),
        ("a: \x07", 2, "U+0007"),
    ],
)
def test_reports_problem_with_line(matter: str, line: int, message: str) -> None:
    problems = problems_of(matter)
    assert any(message in problem.message for problem in problems), problems
    if line:
        assert problems[0].line == line


def test_reports_all_problems() -> None:
    result = problems_of("a: 1\na: 2\nb: .nan\nc: {d: 1, d: 2}\n")
    assert [problem.path for problem in result] == ["a", "b", "c.d"]


def test_resolves_aliases() -> None:
    assert read_document("---\n&a b: *a\nc: &d {e: 1}\nf: *d\n---\n", "x").value == {
        "b": "b", "c": {"e": 1}, "f": {"e": 1},
    }  # fmt: skip


def test_limits_alias_expansion() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "more than 200000 values" in problems_of("\n".join(rows))[0].message


@pytest.mark.parametrize("route", ["quick", "slow"])
def test_limits_nesting(route: str) -> None:
    """libyaml's composer recurses in C: a deep text must never get that far."""
    for deep in ("[" * 200_000, "{a: " * 60_000, "- " * 200_000, "? " * 200_000):
        text = f"---\na: {deep}\n---\n"
        if route == "slow":
            text = text[:30_000] + "\n---\n"
            with slow_parser(), pytest.raises(ConfigError):
                read_document(text, "x")
        else:
            with pytest.raises(ConfigError):
                read_document(text, "x")


def test_rejects_long_invalid_yaml_quickly() -> None:
    rows = "".join(f"k{n}: [a, b]\n" for n in range(20_000))
    problems = problems_of(f"{rows}x: [a\ny: b")
    assert problems[0].line > 20_000
    assert "not valid YAML" in problems[0].message


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
mappings = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8),
    json_values,
    min_size=1,
    max_size=5,
)


@given(mappings, st.booleans())
def test_fast_and_slow_parser_agree(values: dict[str, Any], flow: bool) -> None:
    matter = yaml.safe_dump(values, default_flow_style=flow, allow_unicode=True, sort_keys=False)
    # The library writes YAML 1.1, where other words are numbers, dates and truth.
    expected = yaml.safe_load(matter)
    text = f"---\n{matter}---\n"
    if expected != values or "\n---" in matter:
        return
    quick = _outcome(text)
    with slow_parser():
        assert _outcome(text) == quick


@given(mappings)
def test_reads_json_front_matter(values: dict[str, Any]) -> None:
    text = f"---\n{json.dumps(values, indent=1)}\n---\n"
    quick = _outcome(text)
    with slow_parser():
        assert _outcome(text) == quick
    if isinstance(quick, tuple):
        assert quick[0] == values


_PIECES = [
    "a", "b: ", ": ", ":", "- ", "-", "\n", "\n  ", "[", "]", "{", "}", ", ", "'", '"', "#", " #",
    "|", ">", "|-\n", "? ", "?", "!", "&x ", "*x", "%", "@", "`", "~", "1", "0x1", ".5", "true",
    "null", "...", "---", "<<: ", "é", "\u2028", "\x85", "\t", "\\n", "\\u0041", " ", "=",
]  # fmt: skip


@settings(max_examples=500)
@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=25))
def test_parsers_agree_on_odd_texts(pieces: list[str]) -> None:
    text = "---\nk: v\n" + "".join(pieces) + "\n---\n"
    quick = _outcome(text)
    with slow_parser():
        assert _outcome(text) == quick


def _outcome(text: str) -> object:
    try:
        result = read_document(text, "x")
    except ConfigError:
        return None
    return result.value, [result.position((key,)) for key in result.value]


def test_reads_yaml_without_separators() -> None:
    assert read_yaml("a: 1\n", "x").value == {"a": 1}
