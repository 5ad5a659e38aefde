"""Tests of the environment variables of the draft, which override the config."""

from __future__ import annotations

import logging

import pytest

from interlock.aql.config import AqlConfig
from interlock.aql.config_section import with_environment
from interlock.core.config import Config, ConfigError, parse_config

PROFILED = parse_config(
    "aql: {profiles: {mine: {families: {all: {categories: "
    "[CREATE, READ, UPDATE, DELETE, EXECUTE]}}}}}",
    "interlock.yaml",
)


@pytest.mark.parametrize(
    ("said", "view"),
    [
        ({}, "plain"),
        ({"MCP_AQL_ENDPOINT_MODE": "semantic"}, "aql"),
        ({"MCP_AQL_ENDPOINT_MODE": "single"}, "aql-single"),
        ({"MCP_AQL_ENDPOINT_MODE": "all"}, "aql-all"),
        ({"MCP_AQL_ENDPOINT_MODE": "crude"}, "aql"),
        ({"MCP_AQL_ENDPOINT_PROFILE": "semantic"}, "semantic"),
        ({"MCP_AQL_ENDPOINT_MODE": "semantic", "MCP_AQL_ENDPOINT_PROFILE": "mine"}, "mine"),
        ({"MCP_AQL_ENDPOINT_MODE": "single", "MCP_AQL_ENDPOINT_PROFILE": "mine"}, "aql-single"),
        ({"MCP_AQL_ENDPOINT_MODE": "semantic", "MCP_AQL_ENDPOINT_PROFILE": "crude"}, "aql"),
    ],
)
@pytest.mark.spec("AQ-EPM-3.1-1")
def test_variables_select_mode_and_profile(said: dict[str, str], view: str) -> None:
    assert with_environment(PROFILED, said).section(AqlConfig).view == view


@pytest.mark.spec("AQ-EPM-3.1-1")
def test_logs_old_mode_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "interlock.config"):
        with_environment(Config(), {"MCP_AQL_ENDPOINT_MODE": "crude"})
    assert "semantic" in caplog.text


def test_variables_set_prefix_and_safety_mode() -> None:
    found = with_environment(
        Config(), {"MCP_AQL_TOOL_PREFIX": "home_", "MCPAQL_SAFETY_LOOP": "enforcing"}
    ).section(AqlConfig)
    assert (found.prefix, found.safety.mode) == ("home_", "enforcing")


@pytest.mark.spec("AQ-ESL-8.2-1")
@pytest.mark.parametrize("mode", ["enforcing", "monitoring", "logging", "disabled"])
@pytest.mark.parametrize("file", ["enforcing", "disabled"])
def test_safety_variable_overrides_config(file: str, mode: str) -> None:
    config = parse_config(f"aql: {{safety: {{mode: {file}}}}}", "interlock.yaml")
    assert with_environment(config, {}).section(AqlConfig).safety.mode == file
    assert (
        with_environment(config, {"MCPAQL_SAFETY_LOOP": mode}).section(AqlConfig).safety.mode
        == mode
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MCP_AQL_ENDPOINT_MODE", "five"),
        ("MCP_AQL_ENDPOINT_PROFILE", "nobody"),
        ("MCP_AQL_TOOL_PREFIX", "no prefix"),
        ("MCPAQL_SAFETY_LOOP", "on"),
    ],
)
def test_rejects_unknown_values(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        with_environment(Config(), {name: value})


def test_returns_same_config_without_variables() -> None:
    config = Config()
    assert with_environment(config, {"PATH": "/bin"}) is config
