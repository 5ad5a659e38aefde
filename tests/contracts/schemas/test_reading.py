"""Files that people write: read strictly, and written so that they are read as they were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.schemas.artefacts import (
    GENERATOR,
    MARK,
    commented_text,
    json_text,
    known,
    yaml_text,
)
from interlock.contracts.schemas.reader import SchemaError, read_json, read_yaml


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"a": 1,\n "b" 2}', "a.json:2:6:", "no JSON: Expecting ':'"),
        ("", "a.json:1:1:", "no JSON"),
        ('{"a": 1, "a": 2}', "a.json:", "the key 'a' stands twice"),
        ('{"a": NaN}', "a.json:", "NaN is no JSON"),
        ("[]", "a.json:", "an object is expected"),
        ("[" * 100_000, "a.json:", "too deeply"),
        ('{"a": 1} x', "a.json:1:10:", "Extra data"),
    ],
)
def test_json_that_is_not(text: str, place: str, words: str) -> None:
    with pytest.raises(SchemaError) as wrong:
        read_json("a.json", text)
    assert wrong.value.message.startswith(place)
    assert words in wrong.value.message


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb: [1\n", "a.yaml:3:1:", "no YAML"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3:1:", "the key 'a' stands twice"),
        ("a: &x 1\nb: *x\n", "a.yaml:2:4:", "an alias (*) is not read here"),
        ("a: !!python/object:os.system x\n", "a.yaml:1:4:", "no YAML"),
        ("- a\n", "a.yaml:", "an object is expected"),
        ("? [1]\n: 2\n", "a.yaml:1:3:", "a key is text"),
        ("true: 1\n", "a.yaml:1:1:", "a key is text"),
        ("a: " + "[" * 500, "a.yaml:1:", "too deeply"),
        ("a: \x07", "a.yaml:", "characters that YAML does not have"),
        ("a: .inf\n", "a.yaml:1:4:", "JSON has no such number"),
        ("a: 1e999\n", "a.yaml:1:4:", "JSON has no such number"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1:", "no YAML"),
    ],
)
def test_yaml_that_is_not(text: str, place: str, words: str) -> None:
    with pytest.raises(SchemaError) as wrong:
        read_yaml("a.yaml", text)
    assert wrong.value.message.startswith(place), wrong.value.message
    assert words in wrong.value.message


def test_what_yaml_makes_of_plain_words() -> None:
    told = read_yaml(
        "a.yaml", "200: {x: 2026-05-01, y: 1.5, z: null, no: yes, n: [010, 0x1f, 1e3]}\n"
    )
    inside = {"x": "2026-05-01", "y": 1.5, "z": None, "no": "yes", "n": [10, 31, 1000.0]}
    assert told == {"200": inside}


_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
_numbers = st.floats(allow_nan=False, allow_infinity=False)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _texts | _numbers,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=10,
)
_documents = st.dictionaries(_texts, _values, max_size=4).filter(lambda one: MARK not in one)


@given(_documents)
def test_what_is_written_is_read_as_it_was(document: dict[str, Any]) -> None:
    json_file, yaml_file = json_text(document, "x.proto"), yaml_text(document, "x.proto")
    for path, text in (("a.json", json_file), ("a.yaml", yaml_file)):
        read = read_json(path, text) if path.endswith("json") else read_yaml(path, text)
        mark = read.pop(MARK)
        assert read == document
        assert (mark["source"], mark["generator"]) == ("x.proto", GENERATOR)
        about = known(path, text)
        assert about is not None
        assert not about.edited


@pytest.mark.parametrize("path", ["a.json", "a.yaml", "a.py", "a.proto"])
def test_an_edit_is_noticed(path: str) -> None:
    document = {"title": "A", "type": "object"}
    texts = {
        "a.json": json_text(document, "x.proto"),
        "a.yaml": yaml_text(document, "x.proto"),
        "a.py": commented_text('"""A."""\n', "\nx = 1  # object\n", "x.proto", "#"),
        "a.proto": commented_text("", "\nmessage object {}\n", "x.proto", "//"),
    }
    text = texts[path]
    before = known(path, text)
    assert before is not None
    assert not before.edited
    assert before.provenance.source == "x.proto"
    after = known(path, text.replace("object", "objects"))
    assert after is not None
    assert after.edited
    # Without the mark it is a file as any other.
    assert known(path, text.replace("enerated", "")) is None
