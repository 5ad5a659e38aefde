"""Tests of Protobuf that is generated from JSON Schema and OpenAPI."""

from __future__ import annotations

import textwrap
from importlib import import_module
from typing import Any

import pytest

from interlock.contracts.schemas.openapi import document
from interlock.contracts.schemas.protobuf_compiler import compile_protos, descriptor_set
from interlock.contracts.schemas.reader import read_yaml
from interlock.contracts.schemas.wrappers import (
    format_transcoding,
    format_wrapper,
    to_camel_case,
    transcoding_path,
    wrapper_path,
)
from tests.contracts.schemas.schema_folders import SEARCH, STORE

ODD = """
    openapi: 3.1.0
    info: {title: 2 odd-things, version: '1'}
    paths:
      /a/{some-id}/{class}:
        parameters:
          - {name: some-id, in: path, required: true, schema: {type: string}}
          - {name: class, in: path, required: true, schema: {type: integer}}
        get:
          parameters:
            - {name: 'filter[by]', in: query, schema: {type: array, items: {type: boolean}}}
            - {name: X-Trace, in: header, schema: {type: string}}
            - {name: any, in: query, schema: {}}
          responses: {default: {description: Whatever.}}
        head:
          responses: {default: {description: Whatever.}}
"""


def read_document(text: str) -> dict[str, Any]:
    return read_yaml("x.yaml", textwrap.dedent(text).lstrip())


@pytest.mark.spec("ST-4.6.3-3")
def test_tool_schema_becomes_struct_message() -> None:
    file = "json/tools/search.schema.json"
    assert wrapper_path(file) == "wrappers/tools/search.proto"
    text = format_wrapper(file, SEARCH)
    data = descriptor_set({wrapper_path(file): text})
    whole = import_module("google.protobuf.descriptor_pb2").FileDescriptorSet.FromString(data)
    pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    for one in whole.file:
        pool.Add(one)
    factory = import_module("google.protobuf.message_factory")
    made = factory.GetMessageClass(pool.FindMessageTypeByName("wrappers.tools.Search"))
    json_format = import_module("google.protobuf.json_format")
    sent = {"value": {"query": "x", "limit": 5.0}}
    received = made.FromString(json_format.ParseDict(sent, made()).SerializeToString())
    assert json_format.MessageToDict(received) == sent
    about = compile_protos({wrapper_path(file): text}).messages["wrappers.tools.Search"]
    assert about.description == "What the search tool takes."
    assert about.fields[0].type == "google.protobuf.Struct"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "object"}, "Struct"),
        ({"properties": {}}, "Struct"),
        ({"type": ["object", "null"]}, "Value"),
        ({"type": "array"}, "Value"),
        ({}, "Value"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, "Struct"),
    ],
)
def test_non_object_schema_becomes_value(schema: dict[str, Any], kind: str) -> None:
    assert f"google.protobuf.{kind} value = 1;" in format_wrapper("json/a.schema.json", schema)


@pytest.mark.parametrize(
    ("file", "title", "path", "name"),
    [
        ("json/a b/1 c.schema.json", None, "wrappers/a_b/n1_c.proto", "T1C"),
        ("json/class.schema.json", "my tool!", "wrappers/class_.proto", "MyTool"),
        ("json/é.schema.json", "é", "wrappers/it.proto", "Type"),
    ],
)
def test_any_file_name_becomes_message_name(file: str, title: Any, path: str, name: str) -> None:
    assert wrapper_path(file) == path
    schema = {"type": "object", **({"title": title} if title else {})}
    protos = compile_protos({path: format_wrapper(file, schema)})
    assert [one.name for one in protos.messages.values() if one.file == path] == [name]


def test_api_becomes_service_and_back() -> None:
    text = format_transcoding("openapi/store.yaml", read_document(STORE))
    path = transcoding_path("openapi/store.yaml")
    protos = compile_protos({path: text})
    told = document(protos, "transcoding.store")
    assert set(told["paths"]) == {"/items/{id}", "/items"}
    parameters = told["paths"]["/items/{id}"]["get"]["parameters"]
    assert [(one["name"], one["in"]) for one in parameters] == [("id", "path"), ("limit", "query")]
    assert told["paths"]["/items"]["post"]["requestBody"]["required"] is True


def test_unusual_names_compile() -> None:
    text = format_transcoding("openapi/v1/2 odd.yaml", read_document(ODD))
    path = transcoding_path("openapi/v1/2 odd.yaml")
    assert path == "transcoding/v1/n2_odd.proto"
    protos = compile_protos({path: text})
    (service,) = protos.files[path].services
    (method,) = service.methods
    assert method.http[0].path == "/a/{some_id}/{class_}"
    fields = protos.messages["transcoding.v1.n2_odd.GetASomeIdClassRequest"].fields
    assert [(one.name, one.kind, one.repeated) for one in fields] == [
        ("some_id", "string", False),
        ("class_", "int64", False),
        ("filter_by", "bool", True),
        ("any", "string", False),
    ]
    assert [one.json_name for one in fields] == ["some-id", "class", "filter[by]", "any"]


def test_converts_to_camel_case() -> None:
    assert to_camel_case("get order-v2") == "GetOrderV2"
    assert to_camel_case("...") == ""
