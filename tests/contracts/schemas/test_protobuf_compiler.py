"""Tests of the Protobuf compiler: results and errors."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from interlock.contracts.schemas.protobuf_compiler import (
    compile_protos,
    compiler_problems,
    require_extra,
)
from interlock.contracts.schemas.reader import SchemaError
from interlock.errors import CONFIG, InterlockError
from tests.contracts.schemas.schema_folders import ORDERS


def test_reads_complete_file() -> None:
    protos = compile_protos({"shop/v1/orders.proto": ORDERS})
    assert list(protos.files) == ["shop/v1/orders.proto"]
    order = protos.messages["shop.v1.Order"]
    assert order.description == "One order."
    shown = [
        (one.name, one.json_name, one.kind, one.repeated, one.optional) for one in order.fields
    ]
    assert shown == [
        ("id", "id", "string", False, False),
        ("count", "count", "int32", False, False),
        ("state", "state", "enum", False, False),
        ("note", "note", "string", False, True),
        ("items", "items", "message", True, False),
    ]
    assert order.fields[0].behaviors == ("REQUIRED",)
    assert order.fields[0].description == "By what it is known."
    assert protos.messages["shop.v1.Item"].fields[0].json_name == "articleNumber"
    assert [one.name for one in protos.enums["shop.v1.OrderState"].values][1:] == [
        "ORDER_STATE_OPEN",
        "ORDER_STATE_SENT",
    ]
    (service,) = protos.files["shop/v1/orders.proto"].services
    get, put = service.methods
    assert (get.http[0].method, get.http[0].path) == ("get", "/orders/{id}")
    assert (put.http[0].method, put.http[0].body) == ("put", "*")
    assert get.description == "One order. All of it."


def test_reads_nested_types_maps_and_oneofs() -> None:
    text = """
        syntax = "proto3";
        message Outer {
          message Inner { enum Kind { KIND_UNSPECIFIED = 0; KIND_A = 1; } Kind kind = 1; }
          map<int32, Inner> inner = 1;
          oneof choice { string a = 2; Inner b = 3; }
          reserved 9;
        }
    """
    protos = compile_protos({"a.proto": text})
    assert set(protos.messages) >= {"Outer", "Outer.Inner"}
    assert "Outer.Inner.Kind" in protos.enums
    inner, a, b = protos.messages["Outer"].fields
    assert (inner.key, inner.kind, inner.type, inner.repeated) == (
        "int32",
        "message",
        "Outer.Inner",
        False,
    )
    assert a.oneof == b.oneof == "choice"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('syntax = "proto3";\nmessage A {\n  string a = ;\n}\n', 3, "Expected field number"),
        ('syntax = "proto3";\nmessage A {\n  Missing a = 1;\n}\n', 3, '"Missing" is not defined'),
        ('syntax = "proto3";\nmessage A {\n', 3, "Reached end of input"),
        ('syntax = "proto3";\nimport "nowhere.proto";\n', 2, "nowhere.proto"),
        ('syntax = "proto3";\nmessage A { string a = 1; string b = 1; }\n', 2, "already been used"),
        ("\x00\x01", 1, ""),
    ],
)
def test_names_line_of_syntax_error(text: str, line: int, words: str) -> None:
    with pytest.raises(SchemaError) as wrong:
        compile_protos({"deep/down/a.proto": text})
    told = [one for one in wrong.value.problems if one.line == line]
    assert told, wrong.value.problems
    assert told[0].file == "proto/deep/down/a.proto"
    assert any(words in one.message for one in told)
    assert f"proto/deep/down/a.proto:{line}:" in wrong.value.message


def test_ignores_warnings() -> None:
    text = 'syntax = "proto3";\nimport "google/protobuf/struct.proto";\nmessage A {}\n'
    assert "A" in compile_protos({"a.proto": text}).messages
    assert [one.message for one in compiler_problems("a.proto:2:1: warning: unused\n")] == [
        "the Protobuf compiler failed without a message"
    ]


@pytest.mark.parametrize("name", ["/etc/a.proto", "../a.proto", "a/../../b.proto", "-I.proto"])
def test_rejects_paths_outside_of_folder(name: str) -> None:
    with pytest.raises(SchemaError, match="inside its folder"):
        compile_protos({name: 'syntax = "proto3";'})


def test_names_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def missing(name: str, package: str | None = None) -> Any:
        if name.startswith("grpc_tools"):
            raise ModuleNotFoundError(name)
        return find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(InterlockError, match=r"interlock\[contracts\]") as told:
        require_extra()
    assert told.value.failure is CONFIG
