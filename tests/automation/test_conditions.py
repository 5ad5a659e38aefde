"""Tests of generated conditions: they compile and match only the described values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.automation.conditions import (
    MAX_VALUE_LENGTH,
    FolderPattern,
    any_of,
    equals_any,
    format_literal,
    has_only,
    is_absent,
    is_below,
    is_between,
    is_present,
    is_usable,
    join_parts,
    quote_text,
)
from interlock.core.config.conditions import UndecidableError, compile_condition

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
HOSTILE = WORDS | st.sampled_from(
    ['"', "\\", '\\"', '" || true || "', "\n", "'''", "\u202e", "\u2028", "${env:X}", "\\u0022"]
)
SCALARS = (
    HOSTILE
    | st.booleans()
    | st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HOSTILE, inner, max_size=3),
    max_leaves=6,
)


def evaluate(cel: str, args: dict[str, Any]) -> bool | None:
    try:
        return compile_condition(cel).matches({"args": args})
    except UndecidableError:
        return None


@given(HOSTILE, HOSTILE, HOSTILE)
@example("a", '" || true || "', "b")
def test_text_condition_matches_only_that_text(name: str, value: str, other: str) -> None:
    condition = equals_any(name, [value])
    assert evaluate(condition.cel, {name: value}) is True
    assert evaluate(condition.cel, {name: other}) is (other == value)
    assert evaluate(condition.cel, {}) is False


@given(VALUES)
def test_every_value_equals_itself(value: Any) -> None:
    assert evaluate(f'args["x"] == {format_literal(value)}', {"x": value}) is True


@given(HOSTILE)
def test_quoted_text_is_printable(value: str) -> None:
    assert quote_text(value).isprintable()
    assert equals_any(value, [value]).description.isprintable()


def test_rejects_too_large_values() -> None:
    assert not is_usable("x" * 65_536)
    assert not is_usable(["x" * MAX_VALUE_LENGTH])
    assert not is_usable([[[[[1]]]]])
    assert not is_usable(2**64)
    # Many take these for the numbers beside them.
    for number in (2**53, -(2**53), 2.0**53, 1e22, 2**63 - 1):
        assert not is_usable(number)
    assert is_usable(2**53 - 1)
    assert not is_usable("a\0b")
    # Should it be written all the same, it still means itself.
    endless = '"\\\n' * 21_845 + "é"
    short = endless[: 2 * MAX_VALUE_LENGTH]
    assert evaluate(equals_any("x", [short]).cel, {"x": short}) is True


def test_booleans_differ_from_numbers() -> None:
    assert evaluate(equals_any("x", [True]).cel, {"x": 1}) is False
    assert evaluate(equals_any("x", [1, 2]).cel, {"x": True}) is False


@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("/srv/notes/a.md", True),
        ("/srv/notes/deep/er/a.md", True),
        ("/srv/notes/", False),
        ("/srv/notes/a/", False),
        ("/srv/notes/a//b", False),
        ("/srv/notes/./a", False),
        ("/srv/notes/.ssh/authorized_keys", False),
        ("/srv/notes/a.", False),
        ("/srv/notes/a b", False),
        ("/srv/notes/.\t./a", False),
        ("/srv/notes/.\n./a", False),
        ("/srv/notes/a\n", False),
        ("/srv/notes/\r", False),
        ("/srv/notes/; rm -rf ", False),
        ("/srv/notes/x|sh", False),
        ("/srv/notes/$(id)", False),
        ("/srv/notes/${IFS}x", False),
        ("/srv/notes/`id`", False),
        ("/srv/notes/~/x", False),
        ("/srv/notes/*", False),
        ("/srv/notes/a?u=http://evil", False),
        ("/srv/notes/a#x", False),
        ("/srv/notes/a;b=c", False),
        ("/srv/notes/\u2044etc", False),
        ("/srv/notes/\uff0e\uff0e/x", False),
        ("/srv/notes/\u2024\u2024/x", False),
        ("/srv/notes/\u00e9", False),
        ("/srv/notes/a@b", False),
        ("/srvxnotes/a", False),
        ("/srv/notes", False),
        ("/srv/notes-of-others/a.md", False),
        ("/srv/notes/../../etc/passwd", False),
        ("/srv/notes/..", False),
        ("/srv/notes/%2e%2e/%2e%2e/etc/passwd", False),
        ("/srv/notes/..\\..\\etc", False),
        ("/srv/notes/a\\b", False),
        ("/srv/./notes/a.md", False),
        ("//srv/notes/a.md", False),
        ("/SRV/notes/a.md", False),
        ("srv/notes/a.md", False),
        (" /srv/notes/a.md", False),
        (["/srv/notes/a.md"], None),
        (None, None),
    ],
)
def test_folder_condition_matches_only_paths_below(path: Any, fits: bool | None) -> None:
    assert evaluate(is_below("path", [FolderPattern("/srv/notes/")]).cel, {"path": path}) is fits
    assert (
        evaluate(
            is_below("path", [FolderPattern("/var/x/"), FolderPattern("/srv/notes/")]).cel,
            {"path": path},
        )
        is fits
    )


@given(st.lists(st.sampled_from(["..", ".", "a", "", "%2e%2e", "..\\", "srv", "notes"])))
def test_folder_condition_never_matches_traversal(parts: list[str]) -> None:
    import posixpath
    from urllib.parse import unquote

    path = "/srv/notes/" + "/".join(parts)
    if evaluate(is_below("path", [FolderPattern("/srv/notes/")]).cel, {"path": path}):
        resolved = posixpath.normpath(unquote(path).replace("\\", "/"))
        assert f"{resolved}/".startswith("/srv/notes/")


def test_dots_of_folder_are_literal() -> None:
    cel = is_below("url", [FolderPattern("https://h.example/a+b/")]).cel
    assert evaluate(cel, {"url": "https://h.example/a+b/x"}) is True
    assert evaluate(cel, {"url": "https://hxexample/a+b/x"}) is False
    assert evaluate(cel, {"url": "https://h.example/aab/x"}) is False


def test_folder_condition_allows_observed_characters() -> None:
    cel = is_below(
        "path", [FolderPattern("/srv/", extra_characters="@é", allows_dotfiles=True)]
    ).cel
    fits = {"/srv/a@é": True, "/srv/.git/x": True, "/srv/..": False, "/srv/../x": False}
    fits |= {"/srv/a=b": False, "/srv/.": False, "/srv/a..b": False, "/srv/.a/.b": True}
    assert {one: evaluate(cel, {"path": one}) for one in fits} == fits


@given(HOSTILE)
def test_cel_and_matches_path_agree(rest: str) -> None:
    for one in (FolderPattern("/srv/"), FolderPattern("/srv/", "@é", True)):
        path = f"/srv/{rest}"
        assert evaluate(is_below("path", [one]).cel, {"path": path}) is one.matches_path(path)


def test_integer_range_rejects_fractions() -> None:
    cel = is_between("n", 1, 5, integers_only=True).cel
    fits = {1: True, 5: True, 2.5: False, 0: False, 6: False}
    assert {one: evaluate(cel, {"n": one}) for one in fits} == fits


def test_alternatives_combine_conditions() -> None:
    cel = any_of(
        [[equals_any("a", [1]), is_present("b")], [equals_any("a", [2]), is_absent("b")]]
    ).cel
    assert evaluate(cel, {"a": 1, "b": 0}) is True
    assert evaluate(cel, {"a": 2}) is True
    assert evaluate(cel, {"a": 1}) is False
    assert evaluate(cel, {"a": 2, "b": 0}) is False


def test_range_condition_limits_numbers() -> None:
    cel = is_between("n", 0, 500).cel
    fits = {0: True, 500: True, 499.5: True, 500.5: False, -1: False, 10**30: None, True: None}
    assert {one: evaluate(cel, {"n": one}) for one in fits} == fits
    assert evaluate(cel, {"n": "5"}) is None
    assert evaluate(cel, {}) is False


def test_optional_argument_must_match_if_present() -> None:
    for piece in (
        equals_any("x", [1], optional=True),
        is_between("x", 0, 5, optional=True),
        is_below("x", [FolderPattern("/a/")], optional=True),
    ):
        assert evaluate(piece.cel, {}) is True
        assert evaluate(piece.cel, {"x": 7}) in (False, None)
        assert "if present" in piece.description


def test_has_only_rejects_other_arguments() -> None:
    cel = has_only(["a", 'b"']).cel
    assert evaluate(cel, {"a": 1, 'b"': 2}) is True
    assert evaluate(cel, {"a": 1, "force": True}) is False
    assert evaluate(has_only([]).cel, {}) is True
    assert evaluate(has_only([]).cel, {"a": 1}) is False


def test_join_parts_combines_conditions() -> None:
    pieces = [equals_any("a", [1], optional=True), equals_any("b", [2]), has_only(["a", "b"])]
    cel = join_parts(pieces) or ""
    assert evaluate(cel, {"b": 2}) is True
    assert evaluate(cel, {"b": 3}) is False
    assert evaluate(cel, {"a": 2, "b": 2}) is False
    assert join_parts([]) is None
