"""Tests of the schema build of a folder: sources, artefacts and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from interlock.contracts.schemas.artefacts import GENERATOR, Artefact, read_header
from interlock.contracts.schemas.build import BuildResult, build_all
from interlock.contracts.schemas.reader import MAX_FILE_BYTES, SchemaError
from tests.contracts.schemas.schema_folders import ORDERS, SEARCH, STORE, write_folder, write_shop

ORDER = "json/shop/v1/Order.schema.json"


def write_artefacts(path: Path, artefacts: Iterable[Artefact]) -> None:
    for one in artefacts:
        file = path / one.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(one.text, encoding="utf-8")


def build_folder(path: Path) -> BuildResult:
    """Build a folder and return a second build."""
    write_artefacts(path, build_all(path).artefacts)
    return build_all(path)


def edit_file(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.spec("ST-4.6.3-1")
def test_finds_files_in_each_tree(tmp_path: Path) -> None:
    write_shop(tmp_path)
    (tmp_path / "proto" / "readme.txt").write_text("not looked at")
    before = {one.path for one in build_all(tmp_path).files if not one.source}
    assert before == {
        "proto/shop/v1/orders.proto",
        "json/tools/search.schema.json",
        "openapi/store.yaml",
    }
    more = {
        "proto/deep/er/new.proto": 'syntax = "proto3";\npackage deep.er;\nmessage New {}\n',
        "json/new/new.schema.json": {"title": "Newest", "type": "object"},
        "openapi/sub/new.yaml": STORE.replace("title: Store", "title: New"),
    }
    write_folder(tmp_path, more)
    after = {one.path for one in build_all(tmp_path).files if not one.source}
    assert after - before == set(more)


@pytest.mark.spec("ST-4.6.1-1", "ST-4.6.2-1", "ST-4.6.3-4")
def test_builds_every_artefact_from_its_source(tmp_path: Path) -> None:
    made = {one.path: one for one in build_all(write_shop(tmp_path)).artefacts}
    assert {path: one.source for path, one in made.items()} == {
        # Protobuf gives JSON Schema and OpenAPI,
        ORDER: "proto/shop/v1/orders.proto",
        "json/shop/v1/Item.schema.json": "proto/shop/v1/orders.proto",
        "json/shop/v1/GetOrderRequest.schema.json": "proto/shop/v1/orders.proto",
        "openapi/shop.v1.yaml": "proto/shop/v1/orders.proto",
        "python/shop_v1_client.py": "proto/shop/v1/orders.proto",
        # the schema of a tool a message around a Struct,
        "proto/wrappers/tools/search.proto": "json/tools/search.schema.json",
        # and OpenAPI the schemas of its parameters and Protobuf for gateways.
        "json/store/GetItemParams.schema.json": "openapi/store.yaml",
        "proto/transcoding/store.proto": "openapi/store.yaml",
        "python/store_client.py": "openapi/store.yaml",
    }
    for path, one in made.items():
        about = read_header(path, one.text)
        assert about is not None
        assert (about.provenance.source, about.provenance.generator) == (one.source, GENERATOR)
        assert not about.is_edited
    assert "google.protobuf.Struct value = 1;" in made["proto/wrappers/tools/search.proto"].text
    assert 'get: "/items/{id}"' in made["proto/transcoding/store.proto"].text


def test_second_build_changes_nothing(tmp_path: Path) -> None:
    first = build_all(write_shop(tmp_path))
    assert sorted(first.changed) == sorted(one.path for one in first.artefacts)
    write_artefacts(tmp_path, first.artefacts)
    second = build_all(tmp_path)
    assert (second.changed, second.obsolete, second.problems) == ([], [], [])
    assert second.find_outdated() == []
    assert [one.text for one in second.artefacts] == [one.text for one in first.artefacts]
    # What was generated is not taken for a source the next time.
    assert second.files == first.files


def test_changed_source_is_no_drift(tmp_path: Path) -> None:
    build_folder(write_shop(tmp_path))
    edit_file(tmp_path / "proto/shop/v1/orders.proto", "int32 count = 2;", "int32 pieces = 2;")
    again = build_all(tmp_path)
    assert again.problems == []
    assert set(again.changed) == {ORDER, "openapi/shop.v1.yaml", "python/shop_v1_client.py"}
    told = [str(one) for one in again.find_outdated()]
    assert (
        f"{ORDER}: it differs from its source proto/shop/v1/orders.proto. "
        "Run `interlock contracts build`" in told
    )


def test_reports_obsolete_artefacts(tmp_path: Path) -> None:
    build_folder(write_shop(tmp_path))
    (tmp_path / "json/tools/search.schema.json").unlink()
    again = build_all(tmp_path)
    assert again.obsolete == ["proto/wrappers/tools/search.proto"]
    (told,) = again.find_outdated()
    assert "json/tools/search.schema.json no longer generates it" in told.message


# -- drift


@pytest.mark.spec("ST-4.6.3-5", "ST-4.6.2-1")
@pytest.mark.parametrize(
    ("file", "type"), [(ORDER, "shop.v1.Order"), ("openapi/shop.v1.yaml", "Order")]
)
def test_reports_renamed_member_as_drift(tmp_path: Path, file: str, type: str) -> None:
    build_folder(write_shop(tmp_path))
    before, after = ('"count"', '"number"') if file == ORDER else (" count:", " number:")
    edit_file(tmp_path / file, before, after)
    again = build_all(tmp_path)
    assert again.drift_violations >= 1
    told = next(one for one in again.problems if one.message.startswith("Schema drift"))
    assert told.file == file
    assert told.message.startswith(
        f"Schema drift detected for type {type}: "
        f"count is in proto/shop/v1/orders.proto only; number is in {file} only"
    )
    assert "make the change in proto/shop/v1/orders.proto" in told.message


@pytest.mark.parametrize(
    "file",
    [
        ORDER,
        "openapi/shop.v1.yaml",
        "python/shop_v1_client.py",
        "proto/wrappers/tools/search.proto",
        "proto/transcoding/store.proto",
        "json/store/GetItemParams.schema.json",
    ],
)
@pytest.mark.spec("ST-4.6.2-1")
def test_detects_every_edit_of_generated_file(tmp_path: Path, file: str) -> None:
    build_folder(write_shop(tmp_path))
    edit_description(tmp_path / file)
    again = build_all(tmp_path)
    assert [one.file for one in again.problems] == [file]
    assert again.problems[0].drift
    # A source that moved on as well does not hide it.
    edit_file(tmp_path / "proto/shop/v1/orders.proto", "int32 count = 2;", "int32 pieces = 2;")
    assert file in [one.file for one in build_all(tmp_path).problems]


_TEXTS = ("escription", '"""', "// ")


def edit_description(path: Path) -> None:
    """Change a description."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = max(
        n for n, line in enumerate(lines) if any(one in line for one in _TEXTS) and "." in line
    )
    lines[number] = lines[number].replace(".", "!")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_generated_file_without_header_blocks_build(tmp_path: Path) -> None:
    build_folder(write_shop(tmp_path))
    schema = json.loads((tmp_path / ORDER).read_text())
    del schema["x-generated-from"]
    schema["properties"]["amount"] = schema["properties"].pop("count")
    (tmp_path / ORDER).write_text(json.dumps(schema))
    told = [one.message for one in build_all(tmp_path).problems]
    assert any(
        "it has the path of a file that is generated from proto/shop/v1/orders.proto" in one
        for one in told
    )
    assert any(one.startswith("Schema drift detected for type Order: count is in") for one in told)


@pytest.mark.spec("ST-4.6.3-5")
def test_sources_of_one_type_must_agree(tmp_path: Path) -> None:
    write_shop(tmp_path)
    item: dict[str, Any] = {
        "title": "Item",
        "type": "object",
        "properties": {"articleNumber": {"type": "string"}},
    }
    write_folder(tmp_path, {"json/item.schema.json": item})
    assert build_all(tmp_path).problems == []
    item["properties"]["articleNumber"]["type"] = "integer"
    write_folder(tmp_path, {"json/item.schema.json": item})
    (told,) = build_all(tmp_path).problems
    assert str(told) == (
        "json/item.schema.json: Schema drift detected for type Item: articleNumber is string in "
        "proto/shop/v1/orders.proto and integer in json/item.schema.json"
    )
    write_folder(
        tmp_path,
        {
            "json/item.schema.json": {**item, "title": "Other"},
            "openapi/store.yaml": STORE.replace("StoreItem", "Item"),
        },
    )
    (told,) = build_all(tmp_path).problems
    assert told.file == "openapi/store.yaml"
    assert "for type Item: articleNumber is in proto/shop/v1/orders.proto only" in told.message


@pytest.mark.spec("ST-4.6.3-4")
def test_parameters_must_match_schema(tmp_path: Path) -> None:
    write_shop(tmp_path)
    schema = {
        "title": "GetItemParams",
        "type": "object",
        "properties": {"id": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["id"],
    }
    write_folder(tmp_path, {"json/params.schema.json": schema})
    assert build_all(tmp_path).problems == []
    write_folder(
        tmp_path,
        {"openapi/store.yaml": STORE.replace("schema: {type: integer}", "schema: {type: string}")},
    )
    (told,) = build_all(tmp_path).problems
    assert told.drift
    assert str(told) == (
        "openapi/store.yaml: Schema drift detected for type GetItemParams: limit is string in "
        "openapi/store.yaml (GET /items/{id}) and integer in json/params.schema.json"
    )


# -- what is wrong with a source


@pytest.mark.spec("ST-4.6.3-2")
def test_reports_syntax_error_with_file_and_line(tmp_path: Path) -> None:
    write_shop(tmp_path)
    edit_file(tmp_path / "proto/shop/v1/orders.proto", "int32 count = 2;", "int32 count = ;")
    number = next(
        number
        for number, line in enumerate(
            (tmp_path / "proto/shop/v1/orders.proto").read_text().splitlines(), 1
        )
        if "int32 count = ;" in line
    )
    with pytest.raises(SchemaError) as wrong:
        build_all(tmp_path)
    assert f"proto/shop/v1/orders.proto:{number}:" in wrong.value.message


@pytest.mark.spec("ST-4.6.3-3")
@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": 5}, "type: "),
        ({"properties": []}, "properties: "),
        ({"minimum": "1"}, "minimum: "),
        ({"pattern": "("}, "pattern"),
        ({"$ref": "#/$defs/nowhere"}, "nowhere"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "external schemas are not fetched"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "must be https://json-schema.org"),
    ],
)
def test_names_invalid_json_schema(tmp_path: Path, schema: dict[str, Any], words: str) -> None:
    write_folder(tmp_path, {"json/tools/bad.schema.json": schema})
    with pytest.raises(SchemaError) as wrong:
        build_all(tmp_path)
    (told,) = wrong.value.problems
    assert told.file == "json/tools/bad.schema.json"
    assert words in told.message


def test_builds_cyclic_reference(tmp_path: Path) -> None:
    write_folder(
        tmp_path,
        {
            "json/tree.schema.json": {
                "title": "Tree",
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
            },
            "proto/tree.proto": """
                syntax = "proto3";
                message Tree { repeated Tree children = 1; }
            """,
        },
    )
    assert build_all(tmp_path).problems == []


@pytest.mark.spec("ST-4.6.3-4")
def test_reports_all_errors(tmp_path: Path) -> None:
    write_folder(
        tmp_path,
        {
            "json/a.schema.json": "{",
            "json/b.schema.json": {"type": 1},
            "openapi/c.yaml": "openapi: 3.1.0\n",
        },
    )
    with pytest.raises(SchemaError) as wrong:
        build_all(tmp_path)
    assert {one.file for one in wrong.value.problems} == {
        "json/a.schema.json",
        "json/b.schema.json",
        "openapi/c.yaml",
    }


def test_reports_unreadable_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("{}")
    root = tmp_path / "schemas"
    write_folder(root, {"json/a.schema.json": SEARCH})
    (root / "json/out.schema.json").symlink_to(outside)
    (root / "json/gone.schema.json").symlink_to(tmp_path / "nowhere")
    (root / "json/latin.schema.json").write_bytes(b'{"title": "\xe9"}')
    with (root / "json/huge.schema.json").open("wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(SchemaError) as wrong:
        build_all(root)
    assert [str(one) for one in wrong.value.problems] == [
        "json/gone.schema.json: the file cannot be read: No such file or directory",
        "json/huge.schema.json: the file has more than 10 MB",
        "json/latin.schema.json: the file is not UTF-8 text",
        "json/out.schema.json: the file is a link to a place outside the folder",
    ]
    with pytest.raises(SchemaError, match="the folder does not exist"):
        build_all(tmp_path / "nowhere")


def test_rejects_two_sources_of_one_file(tmp_path: Path) -> None:
    write_shop(tmp_path)
    write_folder(tmp_path, {"openapi/other/store.yaml": STORE})
    with pytest.raises(SchemaError, match=r"python/store_client\.py would be generated from"):
        build_all(tmp_path)


def test_builds_into_other_folder(tmp_path: Path) -> None:
    root, out = write_shop(tmp_path / "schemas"), tmp_path / "out"
    first = build_all(root, out)
    assert len(first.changed) == len(first.artefacts)
    write_artefacts(out, first.artefacts)
    assert build_all(root, out).changed == []
    edit_file(out / ORDER, '"count"', '"number"')
    assert build_all(root, out).drift_violations == 1


@pytest.mark.spec("ST-4.6.3-6")
def test_measures_build(tmp_path: Path) -> None:
    moments = iter((10.0, 12.5))
    made = build_all(write_shop(tmp_path), clock=lambda: next(moments))
    assert made.generation_duration == 2.5
    assert made.drift_violations == 0
    # Three sources, four JSON Schemas, two of Protobuf and one of OpenAPI.
    assert made.schema_count == 10


def test_empty_folder_builds_nothing(tmp_path: Path) -> None:
    made = build_all(tmp_path)
    assert (made.artefacts, made.files, made.problems) == ([], [], [])


def test_separates_packages_with_same_names(tmp_path: Path) -> None:
    text = 'syntax = "proto3";\npackage {0};\nmessage Same {{ {1} a = 1; }}\n'
    write_folder(
        tmp_path,
        {
            "proto/a.proto": text.format("one.v1", "string"),
            "proto/b.proto": text.format("two.v1", "bool"),
        },
    )
    made = {one.path for one in build_all(tmp_path).artefacts}
    assert made == {"json/one/v1/Same.schema.json", "json/two/v1/Same.schema.json"}


def test_uses_http_options_of_project(tmp_path: Path) -> None:
    options = """
        syntax = "proto3";
        package google.api;
        import "google/protobuf/descriptor.proto";
        extend google.protobuf.MethodOptions { HttpRule http = 72295728; }
        message HttpRule {
          oneof pattern { string get = 2; string put = 3; string post = 4; string custom = 8; }
          string selector = 1;
          string body = 7;
          string response_body = 12;
          repeated HttpRule additional_bindings = 11;
        }
    """
    write_folder(
        tmp_path,
        {"proto/google/api/annotations.proto": options, "proto/shop/v1/orders.proto": ORDERS},
    )
    made = {one.path for one in build_all(tmp_path).artefacts}
    assert "openapi/shop.v1.yaml" in made
