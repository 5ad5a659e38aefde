"""JSONPath: what the subset finds, and which paths it rejects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import ProtocolError
from interlock.protocol.jsonpath import (
    MAX_PATH,
    MAX_STEPS,
    FilterStep,
    IndexStep,
    JsonPath,
    MemberStep,
    PathNotFoundError,
    WildcardStep,
    compile_path,
)
from tests.protocol import json_values

ROWS = {
    "rows": [
        {"id": 1, "kind": "a", "on": True, "none": None},
        {"id": 2, "kind": "b", "on": False},
        {"id": 1.0, "kind": "a", "tags": ["x", "y"]},
        "stray",
    ],
    "contents": "text",
    "odd name": {"it's": [10, 20, 30]},
    "größe": 5,
    "nothing": None,
}


@pytest.mark.spec("DR-31.jsonpath-1", "DR-32.pertool-3")
@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("$", ROWS),
        ("$.contents", "text"),
        ("$['contents']", "text"),
        ('$["contents"]', "text"),
        ("$.größe", 5),
        ("$.nothing", None),
        ("$.rows[0].id", 1),
        ("$.rows[-2].kind", "a"),
        ("$['odd name']['it\\'s'][-1]", 30),
        ('$["odd name"]["it\'s"][1]', 20),
        ("$.rows[*]", ROWS["rows"]),
        ("$.rows[*].id", [1, 2, 1.0]),
        ("$.rows[*].tags[*]", ["x", "y"]),
        ("$.rows[?(@.kind=='b')].id", [2]),
        ("$.rows[?@.kind=='b'].id", [2]),
        ('$.rows[?@["kind"] == "b"]', [ROWS["rows"][1]]),  # type: ignore[index]
        ("$.rows[?@.id==1].kind", ["a", "a"]),
        ("$.rows[?@.id==1.0].kind", ["a", "a"]),
        ("$.rows[?@.id==10e-1].kind", ["a", "a"]),
        ("$.rows[?@.on==true].id", [1]),
        ("$.rows[?@.on==false].id", [2]),
        ("$.rows[?@.none==null].id", [1]),
        ("$.rows[?@.kind=='none']", []),
        ("$.rows[?@.id=='1']", []),
        ("$['odd name'][*]", [[10, 20, 30]]),
        ("$ .rows [ 0 ] ['id']", 1),
        ("$.rows[? ( @.kind == 'b' ) ].id", [2]),
    ],
)
def test_finds_values(path: str, result: Any) -> None:
    value = compile_path(path).find(ROWS)
    assert value == result
    assert type(value) is type(result)


def test_distinguishes_true_from_one() -> None:
    rows = [{"v": 1}, {"v": True}, {"v": "1"}, {"v": None}]
    assert compile_path("$[?@.v==1]").find(rows) == [{"v": 1}]
    assert compile_path("$[?@.v==true]").find(rows)[0]["v"] is True
    assert compile_path("$[?@.v==null]").find(rows) == [{"v": None}]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("$.missing", "no member 'missing'"),
        ("$.rows[9]", "4 items and no index 9"),
        ("$.rows[-5]", "no index -5"),
        ("$.contents.x", "a string, not an object"),
        ("$.contents[0]", "a string, not an array"),
        ("$.größe[*]", "a number, which has no items"),
        ("$.nothing.x", "null, not an object"),
        ("$.rows[0].on.x", "a boolean, not an object"),
        ("$.rows.x", "an array, not an object"),
        ("$['odd name'][0]", "an object, not an array"),
        ("$.contents[?@.k=='v']", "a string, which has no items"),
    ],
)
def test_reports_how_far_path_matched(path: str, message: str) -> None:
    with pytest.raises(PathNotFoundError) as caught:
        compile_path(path).find(ROWS)
    assert message in str(caught.value)
    assert path in str(caught.value)


def test_error_contains_no_values() -> None:
    with pytest.raises(PathNotFoundError) as caught:
        compile_path("$.a.b").find({"a": "hunter2", "hunter2": 1})
    assert "hunter2" not in str(caught.value)


@pytest.mark.spec("DR-31.jsonpath-1")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with `$`"),
        ("contents", "begins with `$`"),
        ("$..x", "`..` is not supported"),
        ("$[0:2]", "slices are not supported"),
        ("$[:2]", "slices are not supported"),
        ("$[0,1]", "one selector"),
        ("$['a','b']", "one selector"),
        ("$.*", "write `[*]`"),
        ("$.", "expected a name"),
        ("$.0", "expected a name"),
        ("$.a-b", "a name with a dash"),
        ("$x", "expected `.name` or `[`"),
        ("$[", "expected a quoted name"),
        ("$[]", "expected a quoted name"),
        ("$[a]", "expected a quoted name"),
        ("$[01]", "leading zeros"),
        ("$[-0]", "expected a quoted name"),
        ("$[0", "expected `]`"),
        ("$['a", "has no end"),
        ("$['a\\x']", "unknown escape"),
        ("$['\\u12']", "four hexadecimal digits"),
        ("$['\\ud800']", "surrogate"),
        ("$['\\ud800\\u0041']", "surrogate"),
        ("$['\\udc00']", "surrogate"),
        ("$['a\nb']", "control character"),
        ("$[9007199254740992]", "too large"),
        ("$[?@.k]", "the only comparison"),
        ("$[?@.k>1]", "the only comparison"),
        ("$[?@.k!='v']", "the only comparison"),
        ("$[?@.k=='v' && @.l=='w']", "expected `]`"),
        ("$[?(@.k=='v']", "expected `)`"),
        ("$[?@=='v']", "compares a member"),
        ("$[?'v'==@.k]", "compares a member"),
        ("$[?@..k=='v']", "expected a name"),
        ("$[?@.k==v]", "expected a quoted string"),
        ("$[?@.k==01]", "leading zeros"),
        ("$[?@.k==1e999]", "too large"),
        ("$[?length(@.k)==1]", "compares a member"),
        ("$.a ", "remove the blanks"),
        (" $.a", "begins with `$`"),
        ("$" + ".a" * (MAX_STEPS + 1), "at most"),
        ("$" + " " * MAX_PATH, "at most"),
    ],
)
def test_rejects_invalid_path(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        compile_path(text)
    assert message in caught.value.message
    assert caught.value.message.endswith(".")


def test_reads_escapes_in_names() -> None:
    path = compile_path("$['\\u0041\\n\\t\\b\\f\\r\\/\\\\\\'\\ud83d\\ude00']")
    assert path.steps == (MemberStep("A\n\t\b\f\r/\\'😀"),)
    assert compile_path('$["\\""]').steps == (MemberStep('"'),)
    # The other quote needs no escape, and has none.
    with pytest.raises(ProtocolError):
        compile_path("$['\\\"']")


# --- what is written is read again ---

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = (
    names
    | st.booleans()
    | st.none()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
steps = (
    st.builds(MemberStep, names)
    | st.builds(IndexStep, st.integers(-(2**53) + 1, 2**53 - 1))
    | st.just(WildcardStep())
    | st.builds(FilterStep, names, scalars)
)


@given(st.lists(steps, max_size=8))
def test_path_survives_round_trip(made: list[Any]) -> None:
    path = JsonPath("made", tuple(made))
    again = compile_path(str(path))
    assert again == path
    assert again.steps == path.steps
    assert str(again) == str(path)


@given(json_values.values, st.lists(steps, max_size=4))
def test_any_path_finds_value_or_nothing(value: Any, made: list[Any]) -> None:
    path = JsonPath("made", tuple(made))
    try:
        result = path.find(value)
    except PathNotFoundError:
        return
    if path.is_multiple:
        assert isinstance(result, list)


@given(json_values.values)
def test_finds_every_value(value: Any) -> None:
    def walk(here: Any, at: tuple[Any, ...]) -> None:
        path = compile_path(str(JsonPath("", at)))
        assert path.find(value) is here
        if isinstance(here, dict):
            for name, item in here.items():
                walk(item, (*at, MemberStep(name)))
            assert compile_path(str(JsonPath("", (*at, WildcardStep())))).find(value) == list(
                here.values()
            )
        elif isinstance(here, list):
            for place, item in enumerate(here):
                walk(item, (*at, IndexStep(place)))
                assert (
                    compile_path(str(JsonPath("", (*at, IndexStep(place - len(here)))))).find(value)
                    is item
                )

    walk(value, ())


@given(st.text(st.sampled_from("$.[]*?@='\"()\\ab01- :,u") | st.characters(), max_size=20))
def test_reads_or_rejects_any_text(text: str) -> None:
    for item in (text, "$" + text):
        try:
            path = compile_path(item)
        except ProtocolError:
            continue
        assert compile_path(str(path)) == path
