"""Files of schemas: any bytes are read or refused with a place, and what was read is written so
that it is read again as it was."""

from __future__ import annotations

import math
from typing import Any

from interlock.contracts.schemas.artefacts import PROVENANCE_KEY, json_text, read_header, yaml_text
from interlock.contracts.schemas.reader import SchemaError, read_json, read_yaml

SEEDS = [
    b'{"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}',
    b'{"a": [1, 2.5, null, true, "\\u00e9"], "b": {}}',
    b"openapi: 3.1.0\ninfo: {title: A, version: '1'}\npaths:\n  /a: {}\n",
    b"a: |\n  text\n  more\nb: >-\n  folded\n200: x\n",
    b"a: &x 1\nb: *x\n",
    b"a: 0x1f\nb: 010\nc: 1e3\nd: .inf\n",
    b'x-generated-from: {source: a, generator: b 1, sha256: c}\n"": ""\n',
    b"- a\n- b\n",
]


def TestOneInput(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for name, read in (("a.json", read_json), ("a.yaml", read_yaml)):
        wrong = None
        try:
            document = read(name, text)
        except SchemaError as told:
            wrong = told
        if wrong is not None:
            assert all(one.file == name and one.message for one in wrong.problems)
            continue
        read_header(name, text)
        document.pop(PROVENANCE_KEY, None)
        if not _can_be_written(document):
            continue
        assert _again("b.json", json_text(document, "x")) == document
        assert _again("b.yaml", yaml_text(document, "x")) == document


def _again(name: str, text: str) -> dict[str, Any]:
    about = read_header(name, text)
    assert about is not None
    assert not about.is_edited
    document = read_json(name, text) if name.endswith("json") else read_yaml(name, text)
    del document[PROVENANCE_KEY]
    return document


def _can_be_written(value: Any) -> bool:
    """Half a surrogate pair is no text, and YAML has not all control characters."""
    if isinstance(value, str):
        return value.isprintable()
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_can_be_written(one) for pair in value.items() for one in pair)
    return not isinstance(value, list) or all(_can_be_written(one) for one in value)
