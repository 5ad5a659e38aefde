"""Arguments of a shell, converted to arguments of a tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.terminal.call_arguments import ArgumentError, read_arguments, read_json_object

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "yes": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "thing": {"type": "object"},
        "maybe": {"type": ["integer", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "level": {"enum": [1, 2, "high"]},
        "fixed": {"const": True},
        "far": {"$ref": "#/$defs/far"},
        "round": {"$ref": "#/$defs/round"},
    },
    "$defs": {"far": {"$ref": "#/$defs/further"}, "further": {"type": "integer"}},
}
SCHEMA["$defs"]["round"] = {"$ref": "#/$defs/round"}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["text=5"], {"text": "5"}),
        (["text="], {"text": ""}),
        (["text=a=b:=c"], {"text": "a=b:=c"}),
        (["text=@@home"], {"text": "@home"}),
        (["whole=-5"], {"whole": -5}),
        (["number=5"], {"number": 5}),
        (["number=2.5e3"], {"number": 2500.0}),
        (["yes=true"], {"yes": True}),
        (["yes=False"], {"yes": False}),
        (['words=["a","b"]'], {"words": ["a", "b"]}),
        (["words=a"], {"words": ["a"]}),
        (["words=a", "words=b", 'words=["c"]'], {"words": ["a", "b", "c"]}),
        (["numbers=1", "numbers=2"], {"numbers": [1, 2]}),
        (['thing={"a": [1]}'], {"thing": {"a": [1]}}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=3"], {"maybe": 3}),
        (["either=3"], {"either": 3}),
        (["either=three"], {"either": "three"}),
        (["level=2"], {"level": 2}),
        (["level=high"], {"level": "high"}),
        (["fixed=true"], {"fixed": True}),
        (["far=7"], {"far": 7}),
        (["round=x"], {"round": "x"}),
        (["unknown=7"], {"unknown": "7"}),
        (["unknown:=7"], {"unknown": 7}),
        (['text:={"not": "text"}'], {"text": {"not": "text"}}),
        (["a:b=c"], {"a:b": "c"}),
        ([], {}),
    ],
)
def test_parses_arguments_by_schema(pairs: list[str], expected: dict[str, Any]) -> None:
    assert read_arguments(pairs, SCHEMA) == expected


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["text"], "'text' is not an argument. Write key=value or key:=JSON"),
        (["=x"], "'=x' is not an argument"),
        (["whole=1.5"], "whole must be an integer. Found '1.5'"),
        (["number=nan"], "number must be a number. Found 'nan'"),
        (["yes=yes"], "yes must be a boolean. Found 'yes'"),
        (["numbers=x"], "numbers must be an integer. Found 'x'"),
        (["words=[1"], "words must be an array"),
        (["thing=[1]"], "thing must be an object. Found '[1]'"),
        (["text=a", "text=b"], "text occurs twice"),
        (["x:=nonsense"], "x is not JSON"),
        (["x:=[NaN]"], "x is not JSON: NaN is not a JSON number"),
        (["x:=-1e999"], "x is not JSON: -1e999 is not a JSON number"),
        (["x:=" + "1" * 5_000], "x is not JSON: a number has more than 4000 digits"),
        (["x:=" + "[" * 100_000], "x is nested too deeply"),
        (['x:="\\ud800"'], "x has half of a surrogate pair"),
        (['thing={"a": Infinity}'], "thing must be an object"),
        (["x=@no/such/file"], "x: cannot read the file 'no/such/file': No such file"),
    ],
)
def test_rejects_invalid_arguments(pairs: list[str], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        read_arguments(pairs, SCHEMA)
    assert message in str(error.value)


def test_reads_arguments_from_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Grüße\n", encoding="utf-8")
    (tmp_path / "json").write_text('{"a": 1}', encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert read_arguments([f"text=@{tmp_path}/text"], SCHEMA) == {"text": "Grüße\n"}
    assert read_arguments([f"x:=@{tmp_path}/json"], SCHEMA) == {"x": {"a": 1}}
    assert read_json_object(f"@{tmp_path}/json") == {"a": 1}
    with pytest.raises(ArgumentError, match="it is not UTF-8 text"):
        read_arguments([f"text=@{tmp_path}/binary"], SCHEMA)


CIRCLE = {"anyOf": [{"$ref": "#/$defs/a"} for _ in range(10)]}
ENDLESS = {"type": "array", "items": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": [{}, "text", "", 5]},
        {"type": {"a": 1}},
        {"anyOf": 5},
        {"anyOf": [5, None], "oneOf": {"a": {}}},
        {"enum": 5},
        {"$ref": "#/$defs/a", "$defs": {"a": 5}},
    ],
)
def test_invalid_schema_converts_no_values(schema: dict[str, Any]) -> None:
    assert read_arguments(["x=1"], {"properties": {"x": schema}}) == {"x": "1"}


def test_circular_schema_terminates() -> None:
    known = {"properties": {"x": {"$ref": "#/$defs/a"}}}
    assert read_arguments(["x=1"], {**known, "$defs": {"a": CIRCLE}}) == {"x": "1"}
    result = read_arguments(["x=1"], {**known, "$defs": {"a": ENDLESS}})["x"]
    while isinstance(result, list):
        [result] = result
    assert result == "1"
