"""TOOL.md: the fields of a contract (AIP-14), and its schemas (AIP-16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.problems import ConfigError
from interlock.manifests.model import DriverConstraints, HostRequirements, Retry, ToolContract
from interlock.manifests.schemas import find_schema
from interlock.manifests.tool_reader import parse_contract, read_contract
from tests.manifests.texts import GONE, contract, text_of, tool_text, tool_values, write

FILE = Path("tools/fs-read/TOOL.md")


def paths(**changes: Any) -> set[str]:
    reading = parse_contract(tool_text(**changes), FILE)
    assert (reading.value is None) == bool(reading.problems)
    assert all(problem.line >= 1 for problem in reading.problems)
    return {problem.path for problem in reading.problems}


@pytest.mark.spec("DR-14.fields-1")
@pytest.mark.parametrize("name", ["name", "id", "description", "version", "inputs", "outputs"])
def test_names_missing_required_field(name: str) -> None:
    (problem,) = parse_contract(tool_text(**{name: GONE}), FILE).problems
    assert problem.message == f"{name} is missing"


@pytest.mark.spec("DR-14.fields-1")
def test_rejects_unknown_key_with_suggestion() -> None:
    (problem,) = parse_contract(tool_text(foo=1), FILE).problems
    assert (problem.path, problem.message) == ("foo", "unknown key")
    (problem,) = parse_contract(tool_text(idempotnet=True), FILE).problems
    assert problem.hint == 'did you mean "idempotent"?'
    (problem,) = parse_contract(tool_text(default_driver="x-mcp"), FILE).problems
    assert problem.message == "unknown key"


@pytest.mark.spec("DR-14.fields-2", "DR-30.auth-6")
@pytest.mark.parametrize("key", ["code", "run", "runner", "secrets", "network", "entry"])
def test_rejects_implementation_keys(key: str) -> None:
    (problem,) = parse_contract(tool_text(**{key: "x"}), FILE).problems
    assert problem.path == key
    assert "driver" in problem.message
    assert "DRIVER.md" in problem.hint
    assert "AIP-30" in problem.hint


@pytest.mark.spec("DR-14.fields-13")
def test_rejects_implements_and_reads_context_schema() -> None:
    (problem,) = parse_contract(tool_text(implements="storage:commit"), FILE).problems
    assert problem.path == "implements"
    assert "AIP-39" in problem.message
    (problem,) = parse_contract(tool_text(contextSchema={"type": "object"}), FILE).problems
    assert "metadata.contextSchema" in problem.hint
    schema = {"type": "object", "properties": {"tenant_id": {"type": "string"}}}
    result = contract(metadata={"contextSchema": schema, "host": {"x": 1}})
    assert result.context_schema == schema
    assert result.metadata["host"] == {"x": 1}
    assert paths(metadata={"contextSchema": {"type": "objekt"}}) == {"metadata.contextSchema.type"}
    assert paths(metadata={"contextSchema": 5}) == {"metadata.contextSchema"}


@pytest.mark.spec("DR-16.io-4")
@pytest.mark.parametrize("key", ["inputsFiles", "outputsFiles"])
def test_rejects_file_fields(key: str) -> None:
    (problem,) = parse_contract(tool_text(**{key: {}}), FILE).problems
    assert problem.path == key


@pytest.mark.spec("DR-14.fields-3")
def test_applies_defaults() -> None:
    result = contract()
    assert result.idempotent is False
    assert result.mutates == ()
    assert result.requires == HostRequirements()
    assert result.approval == "auto"
    assert result.risk_level == 0
    assert result.cost_class == "trivial"
    assert result.timeout_ms == 30_000
    assert result.default_implementation == ""
    assert result.driver_constraints == DriverConstraints()
    assert result.retry is None
    assert result.examples == ()
    assert contract(default_implementation=None).default_implementation == ""


def test_reads_every_field() -> None:
    result = contract(
        idempotent=True,
        mutates=["workspace:/notes/*"],
        requires={"network": ["*"], "secrets": ["a.b"], "tools": ["c.d"]},
        approval="policy:governance/sign",
        risk_level=3,
        cost_class="expensive",
        timeout_ms=1,
        retry={"max_attempts": 20, "backoff": "exponential", "initial_ms": 5},
        default_implementation="files-mcp",
        driver_constraints={"forbid": ["http", "bad-mcp"], "require_kind": ["mcp", "sdk"]},
        examples=[
            {"name": "One", "input": {"path": "a"}, "output": {"contents": ""}, "note": "empty"},
            {"input": {"path": "b"}},
        ],
        tags=["files"],
    )
    assert result.retry == Retry(20, "exponential", 5)
    assert result.requires == HostRequirements(("*",), ("a.b",), ("c.d",))
    assert result.driver_constraints.forbid == ("http", "bad-mcp")
    first, second = result.examples
    assert (first.name, first.has_output, first.note) == ("One", True, "empty")
    assert (second.has_output, second.output) == (False, None)


@pytest.mark.spec("DR-14.fields-4")
@pytest.mark.parametrize(
    ("id", "fine"),
    [
        ("image.create", True),
        ("a1", True),
        ("github.pr.merge-now", True),
        ("x" * 80, True),
        ("x-", False),
        (".x", False),
        ("x", False),
        ("Image.create", False),
        ("a_b", False),
        ("x" * 81, False),
    ],
)
def test_checks_contract_id(id: str, fine: bool) -> None:
    assert (paths(id=id) == set()) is fine


@pytest.mark.spec("DR-14.fields-5")
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"mutates": ["network"], "approval": "always"}, "mutates[0]"),
        ({"mutates": ["Network:*"], "approval": "always"}, "mutates[0]"),
        ({"mutates": ["a: b"], "approval": "always"}, "mutates[0]"),
        ({"approval": "never"}, "approval"),
        ({"approval": "policy:"}, "approval"),
        ({"risk_level": 4}, "risk_level"),
        ({"risk_level": -1}, "risk_level"),
        ({"retry": {"max_attempts": 21}}, "retry.max_attempts"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {"backoff": "fixed"}}, "retry"),
        ({"retry": {"max_attempts": 1, "jitter": 1}}, "retry.jitter"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"cost_class": "free"}, "cost_class"),
        ({"requires": {"gpu": []}}, "requires.gpu"),
        ({"driver_constraints": {"require_kind": ["grpc"]}}, "driver_constraints.require_kind[0]"),
        ({"examples": [{"output": {}}]}, "examples[0]"),
    ],
)
def test_rejects_invalid_fields(changes: dict[str, Any], path: str) -> None:
    assert paths(**changes) == {path}


@pytest.mark.spec("DR-14.fields-5")
@pytest.mark.parametrize("approval", ["auto", "always", "on-mutate", "policy:a/b.c-d_e"])
def test_accepts_approval_modes(approval: str) -> None:
    assert contract(approval=approval).approval == approval


@pytest.mark.spec("DR-14.fields-12")
@pytest.mark.parametrize("approval", [GONE, "auto"])
def test_mutating_contract_cannot_be_auto_approved(approval: Any) -> None:
    (problem,) = parse_contract(tool_text(mutates=["network:*"], approval=approval), FILE).problems
    assert "on-mutate" in problem.hint
    assert "always" in problem.hint
    assert contract(mutates=["network:*"], approval="on-mutate").mutates == ("network:*",)
    assert contract(mutates=[], approval="auto").mutates == ()


@pytest.mark.spec("DR-14.fields-8")
def test_major_versions_have_different_keys() -> None:
    assert contract(id="image.create", version="1.9.0").key == "image.create@1"
    assert contract(id="image.create", version="2.0.0-rc.1").key == "image.create@2"


# -- schemas


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "objekt"}, "inputs.type"),
        (
            {"type": "object", "properties": {"a": {"minLength": -1}}},
            "inputs.properties.a.minLength",
        ),
        ({"type": "object", "required": "path"}, "inputs.required"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "inputs.properties.a.pattern"),
        ({"type": "array"}, "inputs"),
        ({"properties": {}}, "inputs"),
        (True, "inputs"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
            'inputs."$schema"',
        ),
    ],
)
def test_rejects_invalid_inputs_schema(schema: Any, path: str) -> None:
    result = paths(inputs=schema)
    assert path in result
    assert all(item.startswith("inputs") for item in result)


def test_empty_inputs_are_object() -> None:
    assert contract(inputs={}).inputs == {"type": "object"}
    assert contract(outputs={}).outputs == {"type": "object"}
    assert contract(outputs={"type": "string"}).outputs == {"type": "string"}


@pytest.mark.spec("DR-16.io-5")
def test_resolves_io_schema_without_network() -> None:
    for address in (
        "https://agentproto.sh/docs/aip-16/IO.schema.json",
        "https://agentproto.sh/schemas/aip-16/IO.schema.json",
    ):
        assert find_schema(address) is not None
        result = contract(
            inputs={
                "type": "object",
                "properties": {"schema": {"$ref": f"{address}#/$defs/inputs"}},
            }
        )
        # What comes out needs nobody: a validator that may fetch nothing can use it.
        validator = jsonschema_rs.Draft202012Validator(result.inputs, retriever=_refuse)
        assert validator.is_valid({"schema": {"type": "object"}})
        assert not validator.is_valid({"schema": 5})


def test_resolves_reference_schema_without_network() -> None:
    result = contract(
        inputs={
            "type": "object",
            "properties": {"ref": {"$ref": "https://agentproto.sh/docs/aip-27/REF.schema.json"}},
        }
    )
    validator = jsonschema_rs.Draft202012Validator(result.inputs, retriever=_refuse)
    assert validator.is_valid({"ref": "local:a/b.md"})
    assert not validator.is_valid({"ref": 5})


def _refuse(address: str) -> Any:
    raise AssertionError(f"{address} was asked for")


def test_reads_file_and_text_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "TOOL.md", tool_text() + "# Read\n")
    result = read_contract(path)
    assert len(result.digest) == 64
    assert result.inputs == read_contract(tool_text()).inputs
    with pytest.raises(ConfigError, match="unknown key"):
        read_contract(tool_text(foo=1))
    with pytest.raises(ConfigError, match="no such file"):
        read_contract(tmp_path / "none" / "TOOL.md")


@given(
    st.dictionaries(
        st.text("abcdefgh", min_size=1, max_size=5),
        st.sampled_from([{"type": "string"}, {"type": "integer", "minimum": 0}, {}]),
        max_size=4,
    ),
    st.integers(0, 3),
    st.booleans(),
)
def test_contract_survives_round_trip(
    properties: dict[str, Any], risk_level: int, idempotent: bool
) -> None:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    values = tool_values(inputs=schema, risk_level=risk_level, idempotent=idempotent)
    result = parse_contract(text_of(values), FILE).unwrap()
    assert isinstance(result, ToolContract)
    assert result.inputs == schema
    assert (result.risk_level, result.idempotent) == (risk_level, idempotent)
