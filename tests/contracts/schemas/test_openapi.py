"""Tests of generated OpenAPI documents, and of the check of documents."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.contracts.schemas.openapi import document, find_problems, has_api
from interlock.contracts.schemas.protobuf_compiler import compile_protos
from interlock.contracts.schemas.reader import SchemaError, read_yaml
from tests.contracts.schemas.schema_folders import ORDERS, STORE

API = """
    // Everything about plants.
    syntax = "proto3";
    package plants.v2;
    import "google/api/annotations.proto";
    import "google/protobuf/empty.proto";
    import "interlock/schema/options.proto";
    option (interlock.schema.json) = JSON_STYLE_PLAIN;
    option (interlock.schema.api) = {
      title: "Plants" version: "2.1.0" error: "plants.v2.Wrong" session_header: "Plant-Session"
    };
    message Wrong { string why = 1; }
    message Plant { string name = 1; string bed = 2; }
    message Move { string name = 1; string to = 2; repeated string by = 3; }
    message Beds { map<string, Plant> beds = 1; }
    service Garden {
      // All.
      rpc List(google.protobuf.Empty) returns (Beds) {
        option (google.api.http) = {get: "/beds" response_body: "beds"};
        option (interlock.schema.access) = ACCESS_ANYBODY;
      }
      // Follow.
      rpc Follow(google.protobuf.Empty) returns (stream Plant) {
        option (google.api.http) = {get: "/beds/events"};
        option (interlock.schema.access) = ACCESS_OPERATOR;
      }
      // Move one.
      rpc Move(plants.v2.Move) returns (google.protobuf.Empty) {
        option deprecated = true;
        option (google.api.http) = {
          post: "/plants/{name=plants/*}" body: "*"
          additional_bindings {patch: "/plants/{name}" body: "to"}
        };
        option (interlock.schema.access) = ACCESS_SIGNED_IN;
      }
      // Only over gRPC.
      rpc Dig(google.protobuf.Empty) returns (google.protobuf.Empty);
    }
"""


def make_document(text: str, package: str) -> dict[str, Any]:
    return document(compile_protos({"a.proto": text}), package)


@pytest.mark.spec("ST-4.6.1-1")
def test_builds_document_from_service() -> None:
    told = make_document(ORDERS, "shop.v1")
    assert told["openapi"] == "3.1.0"
    assert told["info"] == {"title": "shop.v1", "version": "1.0.0"}
    assert find_problems(told) == []
    get = told["paths"]["/orders/{id}"]["get"]
    assert get["operationId"] == "getOrder"
    assert (get["summary"], get["description"]) == ("One order", "One order. All of it.")
    assert get["parameters"] == [
        {
            "name": "id",
            "in": "path",
            "description": "By what it is known.",
            "required": True,
            "schema": {"type": "string"},
        },
        {
            "name": "depth",
            "in": "query",
            "description": "How much is told of it.",
            "schema": {"type": "integer", "format": "int32"},
        },
    ]
    answer = get["responses"]["200"]
    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Order"}
    put = told["paths"]["/orders/{id}"]["put"]
    body = put["requestBody"]["content"]["application/json"]["schema"]
    # What stands in the path does not stand in the body.
    assert list(body["properties"]) == ["count", "state", "note", "items"]
    assert set(told["components"]["schemas"]) == {"Item", "Order", "OrderState"}


def test_applies_options() -> None:
    protos = compile_protos({"a.proto": API})
    assert has_api(protos, "plants.v2")
    told = document(protos, "plants.v2")
    assert find_problems(told) == []
    assert told["info"] == {
        "title": "Plants",
        "version": "2.1.0",
        "description": "Everything about plants.",
    }
    beds = told["paths"]["/beds"]["get"]
    assert beds["security"] == []
    assert beds["responses"]["200"]["content"]["application/json"]["schema"] == {
        "type": "object",
        "additionalProperties": {"$ref": "#/components/schemas/Plant"},
    }
    assert beds["responses"]["default"] == {"$ref": "#/components/responses/Error"}
    follow = told["paths"]["/beds/events"]["get"]
    assert follow["security"] == [{"token": []}, {"session": []}]
    (media,) = follow["responses"]["200"]["content"].items()
    assert media == (
        "text/event-stream",
        {"schema": {"type": "string"}, "x-event": {"$ref": "#/components/schemas/Plant"}},
    )
    moved = told["paths"]["/plants/{name}"]
    assert moved["post"]["deprecated"] is True
    assert moved["post"]["security"] == [{"session": []}]
    assert moved["post"]["responses"]["200"] == {"description": "Success."}
    assert moved["patch"]["operationId"] == "move2"
    assert moved["patch"]["requestBody"]["content"]["application/json"]["schema"] == {
        "type": "string"
    }
    assert [one["name"] for one in moved["patch"]["parameters"]] == ["name", "by"]
    schemes = told["components"]["securitySchemes"]
    assert schemes["session"] == {"type": "apiKey", "in": "header", "name": "Plant-Session"}
    assert "Dig" not in str(told)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ('get: "/a/{nowhere}"', "{nowhere} in the path is not a field of A"),
        ('post: "/a" body: "nowhere"', "the body nowhere is not a field of A"),
        ('get: "/a" response_body: "nowhere"', "the body nowhere is not a field of A"),
        ('get: "/a"', "deep cannot be a query parameter: it has no text form"),
        ('get: "/b" additional_bindings {get: "/b"}', "another method has the route GET /b"),
    ],
)
def test_reports_unsupported_http_rules(rule: str, words: str) -> None:
    text = f"""
        syntax = "proto3";
        import "google/api/annotations.proto";
        message A {{ A deep = 1; string b = 2; }}
        service S {{ rpc Do(A) returns (A) {{ option (google.api.http) = {{ {rule} }}; }} }}
    """
    with pytest.raises(SchemaError) as wrong:
        make_document(text, "")
    assert any(one.message == f"S.Do: {words}" for one in wrong.value.problems)
    assert wrong.value.problems[0].file == "proto/a.proto"


# -- documents that people write


def store_document(**changes: Any) -> dict[str, Any]:
    """Return the valid document with replaced members. `a|b` is the member b of a."""
    whole = read_yaml("store.yaml", _dedented(STORE))
    for path, value in changes.items():
        *above, last = path.split("|")
        at = whole
        for one in above:
            at = at[one]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return whole


def _dedented(text: str) -> str:
    import textwrap

    return textwrap.dedent(text).lstrip()


GET = "paths|/items/{id}|get"


def test_valid_document_has_no_problems() -> None:
    assert find_problems(store_document()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"openapi": "3.0.3"}, "must be 3.1, such as 3.1.0. Found '3.0.3'"),
        ({"openapi": 3.1}, "must be 3.1, such as 3.1.0. Found 3.1"),
        ({"info": None}, "info: required"),
        ({"info|version": None}, "info.version: required"),
        ({"definitions": {}}, "definitions: unknown member"),
        ({"paths": []}, "paths: must be an object"),
        ({"paths|items": {}}, "paths.items: a path must begin with /"),
        ({"paths|/items/{other}": {}}, "same path as /items/{id}"),
        ({f"{GET}|responses": {}}, "GET /items/{id}: responses must have at least one member"),
        ({f"{GET}|responses": {"20": {"description": "x"}}}, "invalid status '20'"),
        ({f"{GET}|responses": {"200": {}}}, "the response 200 needs a description"),
        ({f"{GET}|operationId": "addItem"}, "also has the operationId addItem"),
        ({f"{GET}|parameters": []}, "{id} is in the path, but not declared as a parameter"),
        (
            {f"{GET}|parameters": [{"name": "id", "in": "path", "schema": {}}]},
            "the path parameter id must have required: true",
        ),
        (
            {f"{GET}|parameters": [{"name": "id", "in": "path", "required": True}]},
            "the parameter id needs a schema",
        ),
        ({f"{GET}|parameters": [{"name": "id", "in": "body"}]}, "the parameter id needs a name"),
        (
            {f"{GET}|security": [{"nobody": []}]},
            "GET /items/{id}: there is no security scheme nobody",
        ),
        (
            {"components|schemas|StoreItem|type": "text"},
            "components.schemas.StoreItem.type",
        ),
        (
            {"components|schemas|StoreItem|properties|name": {"$ref": "#/nowhere"}},
            "#/nowhere does not exist",
        ),
        (
            {"components|schemas|StoreItem|properties|name": {"$ref": "other.yaml#/Name"}},
            "other.yaml#/Name is in another file, which is not read",
        ),
        ({"components|schemas|a b": {}}, "components.schemas.a b: a name may contain letters"),
        (
            {"components|securitySchemes": {"x": {"type": "magic"}}},
            "components.securitySchemes.x: type must be one of",
        ),
        ({"paths|/items|post|requestBody": {}}, "POST /items: requestBody needs content"),
        (
            {"paths|/items|post|requestBody|content": {"json": {}}},
            "'json' is not a media type",
        ),
    ],
)
def test_names_problem_with_place(changes: dict[str, Any], words: str) -> None:
    told = find_problems(store_document(**changes))
    assert any(words in one for one in told), told
