"""define_driver: fields as in front matter, hooks, and the merged driver."""

from __future__ import annotations

import builtins
import runpy
import socket
from pathlib import Path
from typing import Any

import pytest

from interlock.core.config.problems import ConfigError
from interlock.errors import InterlockError
from interlock.manifests import definitions
from interlock.manifests.definitions import (
    build_manifest,
    check_execute,
    define_driver,
    define_mcp_driver,
    merge,
)
from interlock.manifests.model import ConnectionOptions
from tests.manifests.texts import driver, driver_values, entry, write


def no_op(*_: Any) -> None:
    return None


def problems_of(**fields: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        define_driver(**fields)
    return [problem.path for problem in caught.value.problems]


# -- fields


@pytest.mark.spec("DR-32.define-1")
def test_reads_fields_of_mcp_driver() -> None:
    result = define_driver(
        kind="mcp",
        server={"kind": "npm", "package": "@scope/files"},
        transport="stdio",
        protocol_version="2025-03",
        prompts=[{"name": "x", "integrate_as": "raw"}],
        resources=[{"uri_template": "x", "integrate_as": "raw"}],
        connection_options={"timeout_ms": 100, "max_retries": 0, "keepalive": False},
    )
    assert result.values["protocol_version"] == "2025-03"
    assert result.hooks == frozenset()
    assert problems_of(kind="mcp", transport="ws") == ["transport"]
    assert problems_of(kind="mcp", connection_options={"timeout_ms": 99}) == [
        "connection_options.timeout_ms"
    ]
    assert problems_of(kind="mcp", server={"kind": "pip"}) == ["server.kind"]
    assert problems_of(tags=["Upper"]) == ["tags[0]"]
    assert problems_of(colour="red") == ["colour"]


@pytest.mark.spec("DR-32.define-1")
def test_validates_complete_definition_like_front_matter() -> None:
    result = build_manifest(define_driver(driver_values()))
    expected = driver()
    assert (result.id, result.server, result.transport) == (
        expected.id, expected.server, expected.transport,
    )  # fmt: skip
    assert problems_of(**driver_values(implements=[entry(version="^^1")])) == [
        "implements[0].version"
    ]
    remote = {"kind": "remote", "url": "https://a.example/"}
    assert problems_of(**driver_values(server=remote)) == ["transport"]
    with pytest.raises(ConfigError, match="is missing"):
        build_manifest(define_driver(id="x-mcp"))


@pytest.mark.spec("DR-32.define-4")
def test_accepts_both_names_and_spellings() -> None:
    assert definitions.defineDriver is definitions.define_driver
    assert definitions.defineMcpDriver is definitions.define_mcp_driver
    assert definitions.defineTool is definitions.define_tool
    assert definitions.defineIO is definitions.define_io
    assert definitions.defineSecret is definitions.define_secret
    camel = define_mcp_driver(
        {
            "policyTags": ["a"],
            "versionCheck": {"cmd": "x", "parse": "(x)", "range": "*", "timeoutMs": 100},
            "connectionOptions": {"timeoutMs": 100, "maxRetries": 1},
            "costOverride": {"costUnitsPerCall": 1},
            "prompts": [{"name": "x", "integrateAs": "skill_block", "skillRef": "y"}],
            "auth": {"login": {"requiresCallbackUrl": True, "completesWhen": {"exitCode": 1}}},
            "server": {"kind": "npm", "package": "x", "env": {"camelCase": "stays"}},
            "implements": [
                {
                    "tool": "a.b",
                    "version": "1.x",
                    "schemaNarrowing": {"dropInputs": ["someInput"]},
                    "mapping": {"someInput": "otherInput"},
                    "metadata": {"myHost": {"someKey": 1}},
                }
            ],
            "metadata": {"someKey": 1},
            "buildArguments": no_op,
            "parseToolResult": no_op,
            "detectExpiry": no_op,
        }
    )
    values = camel.values
    assert values["kind"] == "mcp"
    assert values["policy_tags"] == ["a"]
    assert values["version_check"]["timeout_ms"] == 100
    assert values["connection_options"] == {"timeout_ms": 100, "max_retries": 1}
    assert values["cost_override"] == {"cost_units_per_call": 1}
    assert values["prompts"][0]["skill_ref"] == "y"
    assert values["auth"]["login"]["completes_when"] == {"exit_code": 1}
    # What authors name themselves stays as it is.
    assert values["server"]["env"] == {"camelCase": "stays"}
    one = values["implements"][0]
    assert one["schema_narrowing"] == {"drop_inputs": ["someInput"]}
    assert one["mapping"] == {"someInput": "otherInput"}
    assert one["metadata"] == {"myHost": {"someKey": 1}}
    assert values["metadata"] == {"someKey": 1}
    assert camel.hooks == {"build_arguments", "parse_tool_result", "detect_expiry"}
    with pytest.raises(ConfigError, match="passed twice"):
        define_driver(connection_options={"timeoutMs": 1, "timeout_ms": 1})


def test_rejects_values_that_are_not_data() -> None:
    for invalid in (object(), {"a": no_op}, {1: "x"}):
        with pytest.raises(ConfigError):
            define_driver(metadata=invalid)
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="too deeply"):
        define_driver(metadata=deep)
    assert problems_of(build_arguments=5) == ["build_arguments"]
    assert problems_of(execute={"a": 5}) == ["execute"]
    assert problems_of(transforms=[no_op]) == ["transforms"]


# -- front matter and definition


@pytest.mark.spec("DR-30.conformance-1")
def test_front_matter_overrides_definition_with_caution() -> None:
    manifest = driver(version="1.0.0", tags=["a"])
    merged, cautions = merge(
        manifest,
        define_driver(
            version="2.0.0",
            tags=["a"],
            kind="mcp",
            connection_options={"timeout_ms": 500},
        ),
    )
    assert merged.version == "1.0.0"
    assert merged.connection == ConnectionOptions(500)
    (caution,) = cautions
    assert caution.code == "front_matter_wins"
    assert "version" in caution.sentence
    assert caution.file == str(manifest.file)
    same, cautions = merge(manifest, define_driver(build_arguments=no_op))
    assert same is manifest
    assert cautions == []


def test_validates_merged_definition() -> None:
    with pytest.raises(ConfigError, match="a secret is not allowed here"):
        merge(driver(), define_driver(metadata={"x": "${secrets.A}"}))
    with pytest.raises(ConfigError, match="needs skill_ref"):
        merge(driver(), define_driver(prompts=[{"name": "x", "integrate_as": "skill_block"}]))


# -- hooks


@pytest.mark.spec("DR-32.define-5", "DR-30.conformance-6")
@pytest.mark.parametrize(
    ("execute", "missing", "surplus"),
    [
        ({}, [], []),
        ({"fs.read": no_op, "fs.write": no_op}, [], []),
        ({"fs.read": no_op}, ["fs.write"], []),
        ({"fs.read": no_op, "fs.write": no_op, "fs.list": no_op}, [], ["fs.list"]),
        ({"fs.reed": no_op, "fs.write": no_op}, ["fs.read"], ["fs.reed"]),
    ],
)
def test_execute_must_match_implemented_tools(
    execute: dict[str, Any], missing: list[str], surplus: list[str]
) -> None:
    definition = define_driver(execute=execute)
    if not missing and not surplus:
        check_execute(definition, ["fs.read", "fs.write"])
        return
    with pytest.raises(InterlockError) as caught:
        check_execute(definition, ["fs.read", "fs.write"])
    assert caught.value.failure.name == "execute_binding_mismatch"
    assert caught.value.data == {"missing": missing, "surplus": surplus}
    assert all(name in caught.value.message for name in (*missing, *surplus))


@pytest.mark.spec("DR-30.conformance-4")
def test_definition_has_no_side_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(
        tmp_path / "driver.py",
        "from interlock.manifests.definitions import define_driver\n"
        "def build_arguments(args):\n    return {**args.arguments, 'tenant_id': 'x'}\n"
        "driver = define_driver(kind='mcp', id='files-mcp', build_arguments=build_arguments)\n",
    )
    code = path.read_text(encoding="utf-8")

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a definition must not touch anything")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    names: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), names)
    monkeypatch.undo()
    assert names["driver"].hooks == {"build_arguments"}
    assert runpy.run_path(str(path))["driver"].values["id"] == "files-mcp"
