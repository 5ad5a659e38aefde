"""`${secrets.NAME}` placeholders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import InvalidValueError
from interlock.manifests.placeholders import fill_placeholders, find_secret_names, has_placeholders


@pytest.mark.spec("DR-19.binding-3")
@pytest.mark.parametrize(
    ("text", "result", "filled"),
    [
        ("plain", (), "plain"),
        ("${secrets.A}", ("A",), "1"),
        ("x${secrets.A}-${secrets.B_2}${secrets.A}", ("A", "B_2"), "x1-21"),
        ("$${secrets.A}", (), "${secrets.A}"),
        ("$$${secrets.A}", (), "$${secrets.A}"),
        ("${input.path} $A ${A}", (), "${input.path} $A ${A}"),
        ("$${x} ${secrets.A}", ("A",), "${x} 1"),
    ],
)
def test_finds_and_fills_placeholders(text: str, result: tuple[str, ...], filled: str) -> None:
    assert find_secret_names(text) == result
    assert fill_placeholders(text, {"A": "1", "B_2": "2"}) == filled
    assert has_placeholders(text) is bool(result)


@pytest.mark.spec("DR-19.binding-3")
@pytest.mark.parametrize("text", ["${secrets.a}", "${secrets.}", "${secrets.A", "${secrets.A-B}"])
def test_rejects_invalid_placeholder(text: str) -> None:
    assert has_placeholders(text)
    with pytest.raises(InvalidValueError):
        find_secret_names(text)
    with pytest.raises(InvalidValueError):
        fill_placeholders(text, {"a": "1", "": "2", "A": "3"})


def test_missing_secret_is_named_without_values() -> None:
    with pytest.raises(InvalidValueError, match="there is no secret B") as caught:
        fill_placeholders("${secrets.A}${secrets.B}", {"A": "hunter2"})
    assert "hunter2" not in f"{caught.value}{caught.value.hint}"


def test_filled_value_is_not_expanded() -> None:
    assert fill_placeholders("${secrets.A}", {"A": "${secrets.B} $${"}) == "${secrets.B} $${"


@given(st.lists(st.sampled_from(["a", "$", "{", "}", "${", "${secrets.A}", "$${"]), max_size=10))
def test_unescapes_escaped_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    escaped = text.replace("${", "$${")
    assert find_secret_names(escaped) == ()
    assert fill_placeholders(escaped, {}) == text
