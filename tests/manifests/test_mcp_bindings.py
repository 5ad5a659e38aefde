"""DRIVER.md: bindings of tools, and secrets of the server (AIP-32, AIP-19)."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.config.problems import ConfigError
from interlock.manifests.driver_reader import read_driver
from tests.manifests.texts import (
    GONE,
    REMOTE,
    SERVERS,
    driver,
    driver_text,
    entry,
    find_problem,
    read,
)
from tests.manifests.texts import problem_paths as paths

# -- bindings


@pytest.mark.spec("DR-32.pertool-4")
@pytest.mark.parametrize(
    ("binding", "path"),
    [
        ({"tool_name": "x", "foo": 1}, "foo"),
        ({"tool_name": "x", "argument_mapping": {"a": 1}}, "argument_mapping.a"),
        ({"tool_name": "x", "argument_mapping": []}, "argument_mapping"),
        ({"tool_name": ""}, "tool_name"),
        ({"tool_name": "x", "result_extract": "rows"}, "result_extract"),
        ({"tool_name": "x", "result_extract": 1}, "result_extract"),
    ],
)
def test_rejects_unknown_binding_keys(binding: dict[str, Any], path: str) -> None:
    result = paths(implements=[entry(metadata={"mcp": binding})])
    assert result == {f"implements[0].metadata.mcp.{path}"}


@pytest.mark.spec("DR-32.pertool-1")
@pytest.mark.parametrize("binding", [{}, {"result_extract": "$.rows"}, {"tool_name": None}])
def test_rejects_binding_without_tool_name(binding: dict[str, Any]) -> None:
    result = paths(implements=[entry(metadata={"mcp": binding})])
    assert any(path.startswith("implements[0].metadata.mcp") for path in result), result


@pytest.mark.spec("DR-32.pertool-4")
def test_applies_binding_defaults() -> None:
    short = driver().implements[0].mcp
    assert short is not None
    assert (short.argument_mapping, short.result_extract) == ({}, "$")
    binding = {
        "tool_name": "q",
        "argument_mapping": {"sql": "query"},
        "result_extract": "$.rows",
    }
    whole = driver(implements=[entry(metadata={"mcp": binding})]).implements[0].mcp
    assert whole is not None
    assert whole.argument_mapping == {"sql": "query"}
    assert whole.result_extract == "$.rows"


@pytest.mark.spec("DR-32.pertool-5")
@pytest.mark.parametrize("metadata", [GONE, {}, {"http": {}}])
def test_every_entry_names_tool(metadata: Any) -> None:
    entries = [entry("a.b"), entry("c.d", metadata=metadata)]
    (problem,) = read(implements=entries).problems
    assert problem.path == "implements[1]"
    assert '"c.d"' in problem.message
    assert read(implements=entries, has_code=True).value is not None


@pytest.mark.spec("DR-32.compat-1")
def test_reports_general_and_mcp_problems() -> None:
    result = read(transport="ws", tags=["A"]).problems
    assert [problem.path for problem in result] == ["tags[0]", "transport"]
    assert result[0].line > result[1].line
    # The same when one of the two is only wrong in what its fields mean together.
    result = read(server=REMOTE, transport="stdio", id="X").problems
    assert [problem.path for problem in result] == ["id", "transport"]
    with pytest.raises(ConfigError) as caught:
        read_driver(driver_text(transport="ws", tags=["A"]))
    assert [problem.path for problem in caught.value.problems] == ["tags[0]", "transport"]


# -- secrets


@pytest.mark.spec("DR-19.binding-3")
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"server": {**SERVERS["npm"], "args": ["--key", "${secrets.K}"]}}, "server.args[1]"),
        ({"server": {**REMOTE, "url": "https://x.example/${secrets.K}"}}, "server.url"),
        ({"description": "Uses ${secrets.K}."}, "description"),
        ({"metadata": {"a": [{"b": "${secrets.K}"}]}}, "metadata.a[0].b"),
        (
            {"version_check": {"cmd": "x ${secrets.K}", "parse": "(x)", "range": "*"}},
            "version_check.cmd",
        ),
    ],
)
def test_rejects_secret_outside_environment_and_auth(changes: dict[str, Any], path: str) -> None:
    transport = "sse" if changes.get("server", {}).get("kind") == "remote" else "stdio"
    auth = {"state": {"env": ["K"]}}
    assert paths(auth=auth, transport=transport, **changes) == {path}


@pytest.mark.spec("DR-19.binding-3")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${secrets.K}", ""),
        ("a${secrets.K}b${secrets.L_2}", ""),
        ("$${secrets.whatever}", ""),
        ("${secrets.k}", "not the name of a secret"),
        ("${secrets.}", "not the name of a secret"),
        ("${secrets.1A}", "not the name of a secret"),
        ("${secrets.K", "not closed"),
        ("${secrets.UNLISTED}", "UNLISTED is not listed"),
    ],
)
def test_checks_placeholders(text: str, message: str) -> None:
    server = {**SERVERS["npm"], "env": {"A": text}}
    reading = read(server=server, auth={"state": {"env": ["K", "L_2"]}})
    if message:
        assert message in find_problem(reading.problems, "server.env.A").message
    else:
        assert reading.value is not None
