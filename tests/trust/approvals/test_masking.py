"""Masked arguments: declared secrets only, whole values only, each with a pointer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.model import Config, ServerConfig
from interlock.core.config.secrets import digest_of_secret, secret_digests
from interlock.core.redaction import MASK
from interlock.trust.approvals.record import mask_secrets

SECRET = "correct horse battery"
HIDDEN = "*** (hidden: a secret of 21 characters)"
PASSWORD = {"type": "string", "format": "password"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def object_schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    "arguments",
    [
        {"bucket": "prod", "key": "invoices/2026.pdf"},
        {"issueKey": "PAY-1042"},
        {"primaryKey": 17},
        {"keyword": "everyone"},
        {"session": "all"},
        {"apiKey": {"sql": "DROP TABLE users"}},
        {"password": "x", "token": "y", "Authorization": "Bearer z"},
        {"cmd": "rm -rf sk-production-database-2026 ."},
        {"cmd": "curl -s http://build:$(touch${IFS}PWNED)@127.0.0.1/status"},
        {"cmd": f"login --password {SECRET}"},
    ],
)
def test_shows_what_no_schema_declares_secret(arguments: dict[str, Any]) -> None:
    known = frozenset({digest_of_secret(SECRET)})
    schema = object_schema(cmd={"type": "string"}, key={"type": "string"})
    assert mask_secrets(arguments, schema, secrets=known) == (arguments, ())


@pytest.mark.parametrize(
    ("schema", "arguments", "expected", "pointers"),
    [
        (object_schema(p=PASSWORD), {"p": SECRET}, {"p": HIDDEN}, ["/p"]),
        (object_schema(p={"writeOnly": True}), {"p": SECRET}, {"p": HIDDEN}, ["/p"]),
        (object_schema(p={"writeOnly": "yes"}), {"p": SECRET}, {"p": SECRET}, []),
        # Names, structure, true and false stay.
        (
            object_schema(p={"writeOnly": True}),
            {"p": {"a/b": [SECRET, True, None], "~": 7}},
            {"p": {"a/b": [HIDDEN, True, None], "~": "*** (hidden: a secret of 1 character)"}},
            ["/p/a~1b/0", "/p/~0"],
        ),
        (object_schema(l={"items": PASSWORD}), {"l": [SECRET]}, {"l": [HIDDEN]}, ["/l/0"]),
        (
            object_schema(l={"prefixItems": [{}, PASSWORD], "items": {}}),
            {"l": ["a", SECRET, "c"]},
            {"l": ["a", HIDDEN, "c"]},
            ["/l/1"],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": PASSWORD},
            {"a": SECRET, "b": SECRET},
            {"a": SECRET, "b": HIDDEN},
            ["/b"],
        ),
        (
            {"$defs": {"s/t": PASSWORD}, "properties": {"p": {"$ref": "#/$defs/s~1t"}}},
            {"p": SECRET},
            {"p": HIDDEN},
            ["/p"],
        ),
        (
            {"allOf": [object_schema(p=PASSWORD), object_schema(p={})]},
            {"p": SECRET},
            {"p": HIDDEN},
            ["/p"],
        ),
        (object_schema(p={"$ref": "#/nowhere/3"}), {"p": SECRET}, {"p": SECRET}, []),
        (object_schema(p={"$ref": "https://elsewhere"}), {"p": SECRET}, {"p": SECRET}, []),
        (True, {"p": SECRET}, {"p": SECRET}, []),
        (None, {"p": SECRET}, {"p": SECRET}, []),
    ],
)
def test_masks_what_the_schema_declares_secret(
    schema: Any, arguments: Any, expected: Any, pointers: list[str]
) -> None:
    assert mask_secrets(arguments, schema) == (expected, tuple(pointers))


def test_masks_config_secret_only_as_whole_value() -> None:
    known = frozenset({digest_of_secret(SECRET)})
    arguments = {"a": [SECRET], "b": f"echo {SECRET}"}
    shown, pointers = mask_secrets(arguments, None, secrets=known, pointer="/arguments")
    assert shown == {"a": [HIDDEN], "b": f"echo {SECRET}"}
    assert pointers == ("/arguments/a/0",)


def test_reads_repeatedly_referenced_schema_once() -> None:
    levels: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(200)
    }
    schema = {"$defs": {**levels, "d200": PASSWORD}, "$ref": "#/$defs/d0"}
    assert mask_secrets(SECRET, schema) == (HIDDEN, ("",))


def test_shows_rest_when_schema_reading_takes_too_long() -> None:
    schema = {"items": {"anyOf": [*({"title": str(n)} for n in range(12_000)), PASSWORD]}}
    shown, pointers = mask_secrets([SECRET] * 3, schema)
    assert (shown, pointers) == ([HIDDEN, HIDDEN, SECRET], ("/0", "/1"))


@given(JSON, JSON)
def test_pointers_name_every_masked_value(value: Any, schema: Any) -> None:
    shown, pointers = mask_secrets(value, {"additionalProperties": PASSWORD, "not": schema})
    for pointer in pointers:
        inside = shown
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            inside = inside[int(name)] if isinstance(inside, list) else inside[name]
        assert inside.startswith(MASK)
    if not pointers:
        assert json.dumps(shown) == json.dumps(value)


def test_secret_digests_include_referenced_secrets_only(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key in a file\n", encoding="utf-8")
    config = Config(
        servers={
            "a": ServerConfig(
                command="x",
                args=["--url=${env:URL}", "--dir", "${env:HOME}", "literal-of-the-config"],
                env={"K": "${file:key}", "D": "${env:UNSET:-a default value}", "S": "${env:SHORT}"},
            )
        }
    )
    environ = {"URL": "https://a:b@host", "HOME": "/home/somebody", "SHORT": "true"}
    result = secret_digests(config, environ=environ, base_dir=tmp_path)
    assert result == {digest_of_secret(item) for item in ("https://a:b@host", "a key in a file")}
