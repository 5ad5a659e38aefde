"""JSONPath: any text is a path or is refused, and one that is written again means the same."""

from __future__ import annotations

import json

from interlock.errors import ProtocolError
from interlock.protocol.jsonpath import PathNotFoundError, compile_path

SEEDS = [
    b"$\n{}",
    b'$.contents\n{"contents": "x"}',
    b"$['a'][0][-1]\n{\"a\": [[1, 2]]}",
    b'$["a\\"\\u0041"]\n{}',
    b'$.rows[*].id\n{"rows": [{"id": 1}, {}]}',
    b'$[?(@.k==\'v\')].x\n[{"k": "v", "x": 1}]',
    b"$[?@['k'] == -1.5e3]\n[{\"k\": -1500}]",
    b'$[?@.k==true]\n[{"k": 1}]',
    b'$ .a [ 0 ]\n{"a": [null]}',
    b"$..x[0:2]\n[]",
    b"$['\\ud83d\\ude00']\n{}",
]


def TestOneInput(data: bytes) -> None:
    """The first line is a path, the rest a value."""
    text, _, rest = data.decode("utf-8", "surrogateescape").partition("\n")
    try:
        path = compile_path(text)
    except ProtocolError:
        return
    again = compile_path(str(path))
    assert str(again) == str(path)
    try:
        value = json.loads(rest)
    except (ValueError, RecursionError):
        return
    try:
        found = path.find(value)
    except PathNotFoundError:
        found = PathNotFoundError
    try:
        same = again.find(value)
    except PathNotFoundError:
        same = PathNotFoundError
    assert repr(found) == repr(same)
