"""Tests of the readers of JSON and YAML files, and of the headers of generated files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.schemas.artefacts import (
    GENERATOR,
    PROVENANCE_KEY,
    commented_text,
    json_text,
    read_header,
    yaml_text,
)
from interlock.contracts.schemas.reader import SchemaError, read_json, read_yaml


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('{"a": 1,\n "b" 2}', "a.json:2:6:", "invalid JSON: Expecting ':'"),
        ("", "a.json:1:1:", "invalid JSON"),
        ('{"a": 1, "a": 2}', "a.json:", "the key 'a' occurs twice"),
        ('{"a": NaN}', "a.json:", "NaN is not a JSON value"),
        ("[]", "a.json:", "must contain an object"),
        ("[" * 100_000, "a.json:", "too deeply"),
        ('{"a": 1} x', "a.json:1:10:", "Extra data"),
    ],
)
def test_rejects_invalid_json(text: str, place: str, words: str) -> None:
    with pytest.raises(SchemaError) as wrong:
        read_json("a.json", text)
    assert wrong.value.message.startswith(place)
    assert words in wrong.value.message


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 1\nb: [1\n", "a.yaml:3:1:", "invalid YAML"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3:1:", "duplicate key 'a'"),
        ("a: &x 1\nb: *x\n", "a.yaml:2:4:", "aliases (*) are not supported"),
        ("a: !!python/object:os.system x\n", "a.yaml:1:4:", "invalid YAML"),
        ("- a\n", "a.yaml:", "must contain an object"),
        ("? [1]\n: 2\n", "a.yaml:1:3:", "a key must be text"),
        ("true: 1\n", "a.yaml:1:1:", "a key must be text"),
        ("a: " + "[" * 500, "a.yaml:1:", "too deeply"),
        ("a: \x07", "a.yaml:", "characters that YAML does not allow"),
        ("a: .inf\n", "a.yaml:1:4:", "JSON does not have this number"),
        ("a: 1e999\n", "a.yaml:1:4:", "JSON does not have this number"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1:", "invalid YAML"),
    ],
)
def test_rejects_invalid_yaml(text: str, place: str, words: str) -> None:
    with pytest.raises(SchemaError) as wrong:
        read_yaml("a.yaml", text)
    assert wrong.value.message.startswith(place), wrong.value.message
    assert words in wrong.value.message


def test_reads_plain_yaml_scalars() -> None:
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
_documents = st.dictionaries(_texts, _values, max_size=4).filter(
    lambda one: PROVENANCE_KEY not in one
)


@given(_documents)
def test_written_document_is_read_unchanged(document: dict[str, Any]) -> None:
    json_file, yaml_file = json_text(document, "x.proto"), yaml_text(document, "x.proto")
    for path, text in (("a.json", json_file), ("a.yaml", yaml_file)):
        read = read_json(path, text) if path.endswith("json") else read_yaml(path, text)
        mark = read.pop(PROVENANCE_KEY)
        assert read == document
        assert (mark["source"], mark["generator"]) == ("x.proto", GENERATOR)
        about = read_header(path, text)
        assert about is not None
        assert not about.is_edited


@pytest.mark.parametrize("path", ["a.json", "a.yaml", "a.py", "a.proto"])
def test_detects_edits(path: str) -> None:
    document = {"title": "A", "type": "object"}
    texts = {
        "a.json": json_text(document, "x.proto"),
        "a.yaml": yaml_text(document, "x.proto"),
        "a.py": commented_text('"""A."""\n', "\nx = 1  # object\n", "x.proto", "#"),
        "a.proto": commented_text("", "\nmessage object {}\n", "x.proto", "//"),
    }
    text = texts[path]
    before = read_header(path, text)
    assert before is not None
    assert not before.is_edited
    assert before.provenance.source == "x.proto"
    after = read_header(path, text.replace("object", "objects"))
    assert after is not None
    assert after.is_edited
    # Without the mark it is a file as any other.
    assert read_header(path, text.replace("enerated", "")) is None
