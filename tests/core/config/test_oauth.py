"""`oauth` in the config: valid settings, mistakes, and conflicting keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from interlock.core.config import (
    ConfigError,
    OAuthConfig,
    ServerConfig,
    config_json_schema,
    diff,
    parse_config,
    resolve_server,
    to_yaml,
)

VALIDATOR = jsonschema_rs.Draft202012Validator(config_json_schema())
SECRET = {"client_id": "me", "client_secret": "${env:SECRET}"}


def document(oauth: Any, **more: Any) -> dict[str, Any]:
    return {"servers": {"jira": {"url": "https://jira.example.com/mcp", **more, "oauth": oauth}}}


def problems(oauth: Any, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(json.dumps(document(oauth, **more)))
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    "oauth",
    [
        None,
        {},
        {"enabled": False},
        {"scopes": ["a", "b:c"], "redirect_port": 33418},
        {"issuer": "http://localhost:9000", **SECRET},
        {"issuer": "${env:ISSUER}", "client_id": "${env:ID}"},
        {"client_metadata_url": "https://example.com/me.json", "private_key": "${file:k.pem}"},
        {"grant": "client_credentials", **SECRET},
        {"grant": "client_credentials", "client_id": "me", "private_key": "${file:k.pem}"},
    ],
)
def test_accepts_valid_oauth(oauth: Any) -> None:
    config = parse_config(json.dumps(document(oauth)))
    assert VALIDATOR.is_valid(document(oauth))
    server = config.servers["jira"]
    # And written, it reads back as the same.
    assert parse_config(to_yaml({"jira": server})).servers["jira"] == server


@pytest.mark.parametrize(
    ("oauth", "result"),
    [
        ({"secret": "x"}, ["oauth.secret: unknown key"]),
        ("auto", ["oauth: expected keys and values, found text"]),
        ({"grant": "password"}, ['oauth.grant: "password" is not one of the choices']),
        (
            {"client_id": "me", "client_secret": "literal"},
            ["oauth.client_secret: the secret itself is not allowed here"],
        ),
        ({"client_secret": "${env:X}"}, ["oauth.client_secret: client_secret needs client_id"]),
        ({"private_key": "${env:X}"}, ["oauth.private_key: private_key needs client_id"]),
        (
            {**SECRET, "private_key": "${env:X}"},
            ["oauth.private_key: a client has either client_secret or private_key"],
        ),
        ({"grant": "client_credentials"}, ["oauth.grant: client_credentials needs a client"]),
        (
            {"grant": "client_credentials", "client_id": "me"},
            ["oauth.grant: client_credentials needs a client"],
        ),
        ({"redirect_port": 70000}, ["oauth.redirect_port: this is not a port"]),
        ({"redirect_port": -1}, ["oauth.redirect_port: this must be at least 0"]),
        ({"issuer": "http://login.example.com"}, ["oauth.issuer: secrets are sent there"]),
        ({"issuer": "login.example.com"}, ["oauth.issuer: this is not a URL"]),
        (
            {"client_metadata_url": "http://e.com/x"},
            ["oauth.client_metadata_url: the URL of a client id"],
        ),
        (
            {"client_metadata_url": "https://e.com/"},
            ["oauth.client_metadata_url: the URL of a client id"],
        ),
    ],
)
def test_reports_oauth_mistakes(oauth: Any, result: list[str]) -> None:
    received = problems(oauth)
    assert len(received) == len(result), received
    for value, start in zip(received, result, strict=True):
        assert value.startswith(f"servers.jira.{start}")


def test_rejects_conflicting_keys() -> None:
    assert problems({}, headers={"Authorization": "x"}) == [
        "servers.jira.oauth: `headers` of this server already has an Authorization header"
    ]
    spawned = {"servers": {"jira": {"command": "run", "oauth": {}}}}
    assert not VALIDATOR.is_valid(spawned)
    with pytest.raises(ConfigError, match="oauth is for a server with url"):
        parse_config(json.dumps(spawned))


def test_resolves_references_without_showing_values(tmp_path: Path) -> None:
    (tmp_path / "k.pem").write_text("the key\n", encoding="utf-8")
    server = ServerConfig(
        url="https://e.com",
        oauth=OAuthConfig(
            client_id="${env:ID}", client_secret="${env:SECRET}", private_key="${file:k.pem}"
        ),
    )
    environ = {"ID": "me", "SECRET": "hush-hush"}
    resolved = resolve_server(server, environ=environ, base_dir=tmp_path)
    result = resolved.oauth
    assert (result.client_id, result.client_secret, result.private_key) == (
        "me",
        "hush-hush",
        "the key",
    )
    assert "hush-hush" not in repr(resolved)
    with pytest.raises(ConfigError, match="ID is not set"):
        resolve_server(server, environ={}, base_dir=tmp_path)


def test_oauth_change_reconnects() -> None:
    before = parse_config(json.dumps(document({})))
    after = parse_config(json.dumps(document({"scopes": ["more"]})))
    assert diff(before, after).reconnect == ("jira",)
