"""The JSON schema of the config: it accepts the same documents as the node."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given

from interlock.core.config import (
    BreakerConfig,
    Config,
    ConfigError,
    JournalConfig,
    Limits,
    ServerConfig,
    TlsConfig,
    TokenConfig,
    config_json_schema,
    parse_config,
)
from interlock.core.config.feature_sections import fields_of, section_definitions
from interlock.core.config.render import plain_server
from tests.core.config.strategies import server_sets

SCHEMA = config_json_schema()
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)

VALID: list[Any] = [
    {},
    {"listen": 8555},
    {"listen": ":8555"},
    {"servers": None},
    {"servers": {"a": "http://x/mcp", "b": "npx -y thing", "My Server": {"url": "https://x"}}},
    {"servers": {"a": {"url": "HTTP://x"}}},
    {"servers": {"a": {"url": "${env:URL}", "transport": "sse"}}},
    {"servers": {"a": {"command": "run", "args": ["-p", 80], "env": {"A": True}, "cwd": "x"}}},
    {"servers": {"a": {"command": "run", "transport": "stdio", "args": None, "env": None}}},
    {"servers": {"a": {"url": "http://x", "timeout": None, "grace": 0, "start_timeout": "1.5s"}}},
    {"servers": {"a": {"url": "http://x", "effects": {"x*": "read_only"}, "rename": {"a": "b.c"}}}},
    {"listen": "[::1]:0", "path": "/", "names": "dotted", "root_segment": "r", "page_size": 5},
    {"listen": "0.0.0.0:1", "tokens": [{"name": "a", "token": "x ${env:A}"}]},
    {"allowed_hosts": ["a:1", "[::1]"], "allowed_origins": ["https://a:1"]},
    {"timeout": "250ms", "limits": {"body_bytes": "4MiB", "sessions": 1}, "breaker": None},
    {"timeout": 0.5, "limits": {"body_bytes": 1, "session_idle": 5}},
    {"journal": {"enabled": False, "path": None, "max_rows": 1}, "state_dir": "x"},
    {"servers": {"a": {"command": "run", "transport": "ax", "min_latency_class": "slow"}}},
    {"tls": None, "latency_in_results": True},
    {"tls": {"certificate": "c.pem", "key": "k.pem", "client_ca": None}},
]
INVALID: list[Any] = [
    [],
    "text",
    {"listn": "x"},
    {"listen": 84.2},
    {"listen": 99999},
    {"listen": "localhost"},
    {"path": "mcp"},
    {"names": "other"},
    {"root_segment": "A"},
    {"page_size": -1},
    {"page_size": "many"},
    {"page_size": 1.5},
    {"timeout": 0},
    {"timeout": "0s"},
    {"timeout": "5 minutes"},
    {"timeout": True},
    {"timeout": None},
    {"limits": {"body_bytes": 0}},
    {"limits": {"body_bytes": "0MiB"}},
    {"limits": {"body_bytes": "4 megs"}},
    {"limits": {"sessions": 0}},
    {"limits": {"unknown": 1}},
    {"journal": {"enabled": "yes"}},
    {"journal": 5},
    {"tokens": [{"name": "a"}]},
    {"tokens": [{"name": "a", "token": "literal"}]},
    {"tokens": [{"name": "", "token": "${env:A}"}]},
    {"tokens": [None]},
    {"allowed_hosts": "a"},
    {"allowed_hosts": ["http://a"]},
    {"allowed_origins": ["a"]},
    {"servers": []},
    {"servers": {"a": None}},
    {"servers": {"a": 5}},
    {"servers": {"a": ""}},
    {"servers": {"": "http://x"}},
    {"servers": {"a": {}}},
    {"servers": {"a": {"enabled": True}}},
    {"servers": {"a": {"url": "http://x", "command": "run"}}},
    {"servers": {"a": {"url": "ftp://x"}}},
    {"servers": {"a": {"url": "http://x", "args": []}}},
    {"servers": {"a": {"url": "http://x", "env": {}}}},
    {"servers": {"a": {"url": "http://x", "cwd": "y"}}},
    {"servers": {"a": {"url": "http://x", "transport": "stdio"}}},
    {"servers": {"a": {"command": "run", "transport": "http"}}},
    {"servers": {"a": {"command": "run", "headers": {}}}},
    {"servers": {"a": {"command": ""}}},
    {"servers": {"a": {"command": "run", "args": "x"}}},
    {"servers": {"a": {"command": "run", "args": [None]}}},
    {"servers": {"a": {"command": "run", "env": {"A=B": "c"}}}},
    {"servers": {"a": {"command": "run", "env": {"A": ["c"]}}}},
    {"servers": {"a": {"url": "http://x", "headers": {"A b": "c"}}}},
    {"servers": {"a": {"url": "http://x", "segment": "A"}}},
    {"servers": {"a": {"url": "http://x", "segment": ""}}},
    {"servers": {"a": {"url": "http://x", "grace": -1}}},
    {"servers": {"a": {"url": "http://x", "connections": 0}}},
    {"servers": {"a": {"url": "http://x", "deny": [""]}}},
    {"servers": {"a": {"url": "http://x", "rename": {"a": "b c"}}}},
    {"servers": {"a": {"url": "http://x", "effects": {"a": "harmless"}}}},
    {"servers": {"a": {"url": "http://x", "expose": "open"}}},
    {"servers": {"a": {"url": "http://x", "type": "http"}}},
    {"servers": {"a": {"url": "http://x", "transport": "ax"}}},
    {"tls": {"certificate": "c.pem"}},
    {"tls": {"certificate": "", "key": "k"}},
]
# What only the node can tell.
ONLY_NODE_REJECTS: list[Any] = [
    {"listen": "0.0.0.0:1"},
    {"servers": {"a": "http://x", "A": "http://y"}},
    {"servers": {"a": "run 'x"}},
    {"servers": {"a": {"url": "http://x", "expose": "transparent"}, "b": "http://y"}},
]


def parses(document: Any) -> bool:
    try:
        parse_config(json.dumps(document))
    except ConfigError:
        return False
    return True


def test_schema_is_valid() -> None:
    assert jsonschema_rs.meta.is_valid(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    json.dumps(SCHEMA)


@pytest.mark.parametrize("document", VALID, ids=json.dumps)
def test_accepts_valid_documents(document: Any) -> None:
    assert parses(document)
    assert VALIDATOR.is_valid(document), [str(e) for e in VALIDATOR.iter_errors(document)]


@pytest.mark.parametrize("document", INVALID, ids=json.dumps)
def test_rejects_invalid_documents(document: Any) -> None:
    assert not parses(document)
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize("document", ONLY_NODE_REJECTS, ids=json.dumps)
def test_accepts_documents_that_only_the_node_rejects(document: Any) -> None:
    assert not parses(document)
    assert VALIDATOR.is_valid(document)


def test_describes_every_field() -> None:
    structs = [
        ServerConfig, TokenConfig, Limits, BreakerConfig, JournalConfig,
        TlsConfig, *(definition.struct for definition in section_definitions()),
    ]  # fmt: skip
    schemas = {struct: SCHEMA["$defs"][struct.__name__] for struct in structs}  # type: ignore[attr-defined]
    for struct, schema in {Config: SCHEMA, **schemas}.items():
        assert set(schema["properties"]) == set(fields_of(struct))  # type: ignore[arg-type]
        assert schema["additionalProperties"] is False
        for name, field in schema["properties"].items():
            refers = any("$ref" in choice for choice in field.get("anyOf", []))
            assert field.get("description") or refers, f"{struct.__name__}.{name}"  # type: ignore[attr-defined]


def test_shows_defaults_with_units() -> None:
    assert SCHEMA["properties"]["timeout"]["default"] == "1m"
    assert SCHEMA["$defs"]["Limits"]["properties"]["body_bytes"]["default"] == "4MiB"
    assert SCHEMA["properties"]["listen"]["default"] == "127.0.0.1:8420"
    for struct in (Config, ServerConfig, Limits, BreakerConfig, JournalConfig):
        schema = SCHEMA if struct is Config else SCHEMA["$defs"][struct.__name__]
        written = {k: f["default"] for k, f in schema["properties"].items() if "default" in f}
        document: Any = written
        if struct is ServerConfig:
            document = {"servers": {"a": {"url": "http://x", **written}}}
        elif struct is not Config:
            section = {
                Limits: "limits", BreakerConfig: "breaker", JournalConfig: "journal",
            }  # fmt: skip
            document = {section[struct]: written}
        config = parse_config(json.dumps(document))
        plain = Config(servers={"a": ServerConfig(url="http://x")} if config.servers else {})
        assert config == plain


@given(server_sets())
def test_accepts_every_written_server(servers: dict[str, ServerConfig]) -> None:
    document = {"servers": {key: plain_server(key, server) for key, server in servers.items()}}
    assert VALIDATOR.is_valid(document), [str(e) for e in VALIDATOR.iter_errors(document)]
