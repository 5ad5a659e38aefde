"""define_tool, define_io and define_secret."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pydantic
import pytest

from interlock.core.config.problems import ConfigError
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests.definitions import (
    InputProblem,
    define_io,
    define_secret,
    define_tool,
)
from interlock.manifests.model import AccessEntry
from interlock.manifests.secret_handle import AccessDecision
from interlock.manifests.tool_reader import parse_contract
from tests.manifests.texts import secret_values, text_of, tool_values


class Size(pydantic.BaseModel):
    width: int
    height: int = 1


class Picture(pydantic.BaseModel):
    prompt: str = pydantic.Field(min_length=3)
    size: Size


# -- tools


@pytest.mark.spec("DR-14.define-1")
def test_rejects_contract_with_body() -> None:
    with pytest.raises(ConfigError, match="AIP-30") as caught:
        define_tool(tool_values(), execute=lambda: None)
    assert "define_driver" in str(caught.value)


@pytest.mark.spec("DR-14.define-2")
def test_converts_models_to_json_schema() -> None:
    result = define_tool(
        tool_values(inputs=Picture, outputs=Size), context_schema=Size, tags=["media"]
    )
    assert result.inputs == Picture.model_json_schema()
    assert result.inputs["$defs"]["Size"]["required"] == ["width"]
    assert result.outputs["type"] == "object"
    assert result.context_schema == Size.model_json_schema()
    # It is data: the same as if a TOOL.md had said it.
    values = tool_values(
        inputs=result.inputs,
        outputs=result.outputs,
        metadata={"contextSchema": result.context_schema},
        tags=["media"],
    )
    read = parse_contract(text_of(values), Path("TOOL.md")).unwrap()
    assert (read.inputs, read.outputs, read.context_schema) == (
        result.inputs, result.outputs, result.context_schema,
    )  # fmt: skip


@pytest.mark.spec("DR-14.fields-13")
def test_validates_contract_like_file() -> None:
    camel = define_tool(
        {
            **{key: tool_values()[key] for key in ("id", "name", "description", "version")},
            "inputSchema": {"type": "object"},
            "outputSchema": {"type": "string"},
            "contextSchema": {"type": "object"},
            "riskLevel": 2,
            "timeoutMs": 5,
            "driverConstraints": {"requireKind": ["mcp"]},
        }
    )
    assert (camel.risk_level, camel.timeout_ms) == (2, 5)
    assert camel.driver_constraints.require_kind == ("mcp",)
    assert camel.context_schema == {"type": "object"}
    for invalid, message in (
        ({"id": "Xy"}, "id of a contract"),
        ({"foo": 1}, "unknown key"),
        ({"mutates": ["a:b"]}, "on-mutate"),
        ({"inputs": {"$ref": "https://elsewhere.example/"}}, "nothing is fetched"),
        (
            {"inputs": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}},
            "never end",
        ),
        ({"input_schema": {"type": "object"}}, "passed twice"),
        ({"inputs": object()}, "plain data"),
        ({"implements": "a:b"}, "AIP-39"),
    ):
        with pytest.raises(ConfigError, match=message):
            define_tool(tool_values(**invalid))


# -- inputs and outputs


@pytest.mark.spec("DR-16.io-3")
def test_inputs_and_outputs_default_to_objects() -> None:
    plain = define_io()
    assert plain.inputs == plain.outputs == {"type": "object"}
    assert plain.inputs_files == plain.outputs_files == {}
    assert plain.validate_input({}) == ()
    assert plain.validateInput([]) != ()
    result = define_io(inputs=Picture, outputs={"type": "string"})
    assert result.validate_input({"prompt": "abc", "size": {"width": 1}}) == ()
    problems = result.validate_input({"prompt": "secret!", "size": {"width": "x"}})
    assert [problem.pointer for problem in problems] == ["/size/width"]
    assert isinstance(problems[0], InputProblem)
    assert "secret!" not in str(problems)
    assert (
        define_io(inputs={"properties": {"a/b~c": {"type": "null"}}})
        .validate_input({"a/b~c": 1})[0]
        .pointer
        == "/a~1b~0c"
    )


@pytest.mark.spec("DR-16.io-4")
def test_accepts_files_that_mcp_drivers_ignore() -> None:
    files = {"report": {"path": "reports/a.md", "mode": "ro"}}
    result = define_io(inputsFiles=files, outputs_files={})
    assert result.inputs_files == files
    assert result.has_files
    with pytest.raises(ConfigError, match="files cannot be passed"):
        define_tool(tool_values(), io=result)
    contract = define_tool(
        {key: value for key, value in tool_values().items() if key not in ("inputs", "outputs")},
        io=define_io(inputs=Size),
    )
    assert contract.inputs == Size.model_json_schema()
    with pytest.raises(ConfigError):
        define_io(inputs_files={"a": {}})
    with pytest.raises(ConfigError):
        define_io(inputs={"type": "objekt"})
    with pytest.raises(ConfigError):
        define_io(outputFiles={})


# -- secrets


class MemoryVault:
    def __init__(self, values: dict[str, str], *, later: bool = False) -> None:
        self.values = values
        self.later = later
        self.asked: list[tuple[str, Any]] = []

    def fetch(self, slug: str, backend: Any) -> Any:
        self.asked.append((slug, backend))
        if not self.later:
            return self.values.get(slug)

        async def value() -> str | None:
            return self.values.get(slug)

        return value()


ACCESS = {
    "reveal": [{"role": "admin"}, {"userId": "u1"}],
    "bind": [{"tool": "db-query"}, {"workflow": "w"}, {"cap": "cap://x"}],
}


@pytest.mark.spec("DR-19.access-1")
@pytest.mark.parametrize(
    ("operation", "context", "granted_by"),
    [
        ("reveal", {"role": "admin"}, AccessEntry("role", "admin")),
        ("reveal", {"role": ["user", "admin"]}, AccessEntry("role", "admin")),
        ("reveal", {"userId": "u1"}, AccessEntry("userId", "u1")),
        ("reveal", {"userId": "u2", "tool": "db-query"}, None),
        ("bind", {"tool": ["fs-read", "db-query"]}, AccessEntry("tool", "db-query")),
        ("bind", {"workflow": "w"}, AccessEntry("workflow", "w")),
        ("bind", {"cap": ["cap://x"]}, AccessEntry("cap", "cap://x")),
        ("bind", {}, None),
    ],
)
def test_one_matching_entry_grants_access(
    operation: Any, context: dict[str, Any], granted_by: AccessEntry | None
) -> None:
    handle = define_secret(
        secret_values(access={**ACCESS, "bind": [{"team": "x"}, *ACCESS["bind"]]})
    )
    result = handle.checkAccess(operation, context)
    assert result.granted is bool(result) is (granted_by is not None)
    assert result.granted_by == granted_by
    assert handle.check_access("rotate", {}) == AccessDecision(True)


@pytest.mark.spec("DR-19.binding-4", "DR-19.reveal-2", "DR-19.access-2")
@pytest.mark.parametrize("later", [False, True])
def test_reveals_secret_only_to_authorized_caller(later: bool) -> None:
    vault = MemoryVault({"crm/acme-api-key": "hunter2"}, later=later)
    rows: list[dict[str, Any]] = []
    handle = define_secret(
        secret_values(
            slug="crm/acme-api-key",
            access=ACCESS,
            audit={"retention": "7y"},
            backend={"kind": "kv", "path": "a/b"},
        ),
        vault=vault,
        record=rows.append,
        now=lambda: 0.0,
    )
    assert (handle.slug, handle.namespace, handle.kind) == ("crm/acme-api-key", "crm", "opaque")
    assert handle.audit == {"retention": "7y", "pii": False, "classification": []}
    assert asyncio.run(handle.reveal({"role": "admin", "userId": "u9"})) == "hunter2"
    request = [("crm/acme-api-key", {"kind": "kv", "path": "a/b", "env": "CRM_ACME_API_KEY"})]
    assert vault.asked == request
    with pytest.raises(InterlockError, match="may not use the secret crm/acme-api-key") as caught:
        asyncio.run(handle.reveal({"role": "guest"}))
    assert caught.value.failure is AUTH_REQUIRED
    assert vault.asked == request
    assert [
        (row["type"], row["actor"], row["purpose"], row.get("granted_by"), row["timestamp"])
        for row in rows
    ] == [
        ("secret.reveal", "u9", "reveal", "role:admin", "1970-01-01T00:00:00.000Z"),
        (
            "secret.reveal.denied",
            "unknown caller",
            "reveal",
            None,
            "1970-01-01T00:00:00.000Z",
        ),
    ]
    for shown in (str(caught.value), repr(handle), repr(rows)):
        assert "hunter2" not in shown


def test_reveal_requires_vault_and_value(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "interlock.secrets")
    with pytest.raises(InterlockError, match="No vault"):
        asyncio.run(define_secret(secret_values()).reveal({}))
    with pytest.raises(InterlockError, match=r"env_secrets: \[ACME_API_KEY\]"):
        asyncio.run(define_secret(secret_values(), vault=MemoryVault({})).reveal({}))
    assert not caplog.records
    # Where nothing else is said, the log of the process is where it is written down.
    vault = MemoryVault({"acme-api-key": "hunter2"})
    assert asyncio.run(define_secret(secret_values(), vault=vault).reveal({})) == "hunter2"
    assert "secret.reveal" in caplog.text
    assert "'granted_by': 'open'" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.spec("DR-19.inventory-1")
@pytest.mark.parametrize(
    "key", ["value", "plaintext", "ciphertext", "secret", "data", "key", "token"]
)
def test_rejects_definition_with_secret_value(key: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        define_secret({**secret_values(), key: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_validates_secret_like_file() -> None:
    with pytest.raises(ConfigError, match="slug"):
        define_secret(secret_values(slug="X"))
    with pytest.raises(ConfigError, match="plain data"):
        define_secret(secret_values(metadata=object()))
