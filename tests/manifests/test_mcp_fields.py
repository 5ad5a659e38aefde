"""DRIVER.md: the fields of MCP drivers (AIP-32), and secrets in them (AIP-19)."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from interlock.manifests.model import (
    IDLE_SECONDS,
    ConnectionOptions,
    DeclaredPrompt,
    DeclaredResource,
    DriverManifest,
    RemoteAuth,
)
from interlock.manifests.schemas import DRIVER, MCP
from tests.manifests.texts import GONE, REMOTE, SERVERS, codes, driver, find_problem, read
from tests.manifests.texts import problem_paths as paths

# -- required


@pytest.mark.spec("DR-32.required-1")
def test_only_mcp_kind_needs_server() -> None:
    assert driver(kind="http").server is None
    for nothing_else in ({}, {"server": GONE, "transport": GONE}):
        problems = read(kind=GONE, **nothing_else).problems
        assert "kind is missing" in {problem.message for problem in problems}


@pytest.mark.spec("DR-32.required-2")
def test_requires_server() -> None:
    (problem,) = read(server=GONE).problems
    assert problem.message == "server is missing"
    assert paths(server="npx x") == {"server"}


@pytest.mark.spec("DR-32.required-3")
@pytest.mark.parametrize("transport", ["ws", "STDIO", 1, ["stdio"]])
def test_requires_known_transport(transport: Any) -> None:
    problem = find_problem(read(transport=transport).problems, "transport")
    assert problem.hint in ("write stdio, sse or http", 'did you mean "stdio"?')
    assert "transport is missing" in {problem.message for problem in read(transport=GONE).problems}


@pytest.mark.spec("DR-32.principles-1")
def test_separates_mcp_fields_from_driver_fields() -> None:
    own = set(MCP["properties"]) - set(DRIVER["properties"])
    assert own == {
        "server", "transport", "protocol_version", "prompts", "resources", "connection_options",
    }  # fmt: skip
    of_every_driver = {"auth", "install", "network", "policy_tags", "region", "id", "version"}
    assert of_every_driver <= set(DRIVER["properties"])
    assert not of_every_driver & set(MCP["properties"])
    assert {"server", "transport", "prompts", "resources", "connection"} <= set(
        DriverManifest.__struct_fields__
    )


# -- optional


@pytest.mark.spec("DR-32.optional-2", "DR-32.prompts-1", "DR-32.prompts-3")
def test_reads_prompts() -> None:
    assert driver().prompts == ()
    whole = {
        "name": "summarize-document",
        "description": "Sums up.",
        "integrate_as": "skill_block",
        "skill_ref": "./skills/summarize/SKILL.md",
    }
    result = driver(prompts=[whole, {"name": "x", "integrate_as": "raw"}]).prompts
    assert result == (
        DeclaredPrompt(
            "summarize-document", "skill_block", "Sums up.", "./skills/summarize/SKILL.md"
        ),
        DeclaredPrompt("x", "raw"),
    )
    assert paths(prompts=[{"name": "x"}]) == {"prompts[0]"}
    assert paths(prompts=[{"integrate_as": "raw"}]) == {"prompts[0]"}
    assert paths(prompts=[{**whole, "integrate_as": "tool"}]) == {"prompts[0].integrate_as"}
    assert paths(prompts=[{**whole, "title": "x"}]) == {"prompts[0].title"}


@pytest.mark.spec("DR-32.optional-3", "DR-32.resources-1", "DR-32.resources-3")
def test_reads_resources() -> None:
    assert driver().resources == ()
    whole = {
        "uri_template": "file:///{path}",
        "description": "Files.",
        "integrate_as": "ref_kind",
        "ref_kind_id": "mcp_filesystem",
    }
    raw = {"uri_template": "db://{table}", "integrate_as": "raw"}
    assert driver(resources=[whole, raw]).resources == (
        DeclaredResource("file:///{path}", "ref_kind", "Files.", "mcp_filesystem"),
        DeclaredResource("db://{table}", "raw"),
    )
    assert paths(resources=[{"integrate_as": "raw"}]) == {"resources[0]"}
    assert paths(resources=[{"uri_template": "x"}]) == {"resources[0]"}
    assert paths(resources=[{**whole, "ref_kind_id": "MCP-fs"}]) == {"resources[0].ref_kind_id"}
    assert paths(resources=[{**whole, "integrate_as": "skill_block"}]) == {
        "resources[0].integrate_as"
    }
    assert paths(resources=[{**whole, "mime": "x"}]) == {"resources[0].mime"}


def test_checks_integration_fields() -> None:
    prompt = {"name": "x", "integrate_as": "skill_block"}
    assert "skill_ref" in find_problem(read(prompts=[prompt]).problems, "prompts[0]").message
    resource = {"uri_template": "x", "integrate_as": "ref_kind"}
    assert (
        "ref_kind_id" in find_problem(read(resources=[resource]).problems, "resources[0]").message
    )
    named = {**resource, "ref_kind_id": "files"}
    assert "ref_kind_prefix" in codes(read(resources=[named]).cautions)
    assert "ref_kind_prefix" not in codes(
        read(resources=[{**resource, "ref_kind_id": "mcp_files"}]).cautions
    )


@pytest.mark.spec("DR-32.optional-4", "DR-32.schema-1")
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"timeout_ms": 99}, "timeout_ms"),
        ({"timeout_ms": 100.5}, "timeout_ms"),
        ({"max_retries": 11}, "max_retries"),
        ({"max_retries": -1}, "max_retries"),
        ({"keepalive": "yes"}, "keepalive"),
        ({"timeout": 5}, "timeout"),
    ],
)
def test_rejects_invalid_connection_options(options: dict[str, Any], path: str) -> None:
    assert paths(connection_options=options) == {f"connection_options.{path}"}


@pytest.mark.spec("DR-32.optional-4", "DR-32.schema-1", "DR-32.transport-6")
def test_applies_connection_defaults() -> None:
    assert driver().connection == driver(connection_options={}).connection == ConnectionOptions()
    assert driver().connection == ConnectionOptions(30_000, 3, True)
    assert IDLE_SECONDS == 300.0
    limits = {"timeout_ms": 100, "max_retries": 10, "keepalive": False}
    assert driver(connection_options=limits).connection == ConnectionOptions(100, 10, False)


@pytest.mark.spec("DR-32.optional-5", "DR-32.open-2")
@pytest.mark.parametrize(
    ("requested", "result"),
    [
        ("2025-03", "2025-03-26"),
        ("2025-03-26", "2025-03-26"),
        ("2024", "2024-11-05"),
        ("2025", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2026-07-28", "2026-07-28"),
        (GONE, ""),
    ],
)
def test_completes_protocol_version(requested: Any, result: str) -> None:
    assert driver(protocol_version=requested).protocol_version == result


@pytest.mark.spec("DR-32.optional-5", "DR-32.open-2")
@pytest.mark.parametrize("requested", ["2023-01", "2025-07", "1.0.0", "20255", ["2025-03"], 2025])
def test_rejects_unknown_protocol_version(requested: Any) -> None:
    assert paths(protocol_version=requested) == {"protocol_version"}


# -- the server


@pytest.mark.spec("DR-32.server-1")
def test_accepts_four_server_kinds() -> None:
    assert paths(server={"kind": "pip", "package": "x"}) == {"server.kind"}
    assert paths(server={"package": "x"}) == {"server"}
    for kind, server in SERVERS.items():
        transport = "sse" if kind == "remote" else "stdio"
        assert driver(server=server, transport=transport).server.kind == kind  # type: ignore[union-attr]


@pytest.mark.spec("DR-32.server-2", "DR-32.server-3", "DR-32.server-4")
@pytest.mark.parametrize(
    ("kind", "key"), [("binary", "path"), ("npm", "package"), ("docker", "image")]
)
def test_local_server_needs_program(kind: str, key: str) -> None:
    server = SERVERS[kind]
    whole = {**server, "args": ["/workspace", "-v"], "env": {"A_B": "c"}}
    result = driver(server=whole).server
    assert result is not None
    assert getattr(result, key) == server[key]
    assert result.args == ("/workspace", "-v")
    assert result.env == {"A_B": "c"}
    assert driver(server=server).server.args == ()  # type: ignore[union-attr]
    (problem,) = read(server={"kind": kind}).problems
    assert problem.message == f"{key} is missing"
    assert paths(server={**server, "args": "x"}) == {"server.args"}
    assert paths(server={**server, "args": [1]}) == {"server.args[0]"}
    assert paths(server={**server, key: 5}) == {f"server.{key}"}


@pytest.mark.spec("DR-32.server-5")
def test_remote_server_needs_url() -> None:
    (problem,) = read(server={"kind": "remote"}, transport="sse").problems
    assert problem.message == "url is missing"
    assert paths(server={"kind": "remote", "url": "mcp.example.com"}, transport="sse") == {
        "server.url"
    }
    install = [{"method": "npm", "package": "x"}]
    reading = read(server=REMOTE, transport="sse", install=install)
    assert reading.value is not None
    assert "install_of_remote" in codes(reading.cautions)


@pytest.mark.spec("DR-32.server-6")
def test_reads_environment_with_secrets() -> None:
    env = {"DATABASE_URL": "${secrets.POSTGRES_URL}", "MODE": "a$${b}"}
    auth = {"state": {"env": ["POSTGRES_URL"]}}
    result = driver(server={**SERVERS["docker"], "env": env}, auth=auth).server
    assert result is not None
    assert result.env == env
    assert paths(server={**SERVERS["npm"], "env": {"A": 1}}) == {"server.env.A"}
    assert paths(server={**SERVERS["npm"], "env": {"A B": "x"}}) == {'server.env."A B"'}
    assert paths(server={**SERVERS["npm"], "env": ["A=b"]}) == {"server.env"}


@pytest.mark.spec("DR-32.server-7", "DR-32.server-8")
def test_only_remote_server_has_auth() -> None:
    auth = {"state": {"env": ["ACME_API_KEY"]}}
    bearer = {"type": "bearer", "secret": "ACME_API_KEY"}
    header = {"type": "header", "secret": "${secrets.ACME_API_KEY}", "header": "X-Api-Key"}

    def found(how: dict[str, str]) -> RemoteAuth | None:
        server = driver(server={**REMOTE, "auth": how}, transport="sse", auth=auth).server
        assert server is not None
        return server.auth

    assert found(bearer) == RemoteAuth("bearer", "ACME_API_KEY", "Authorization")
    assert found(header) == RemoteAuth("header", "ACME_API_KEY", "X-Api-Key")
    for kind in ("binary", "npm", "docker"):
        assert "server.auth" in paths(server={**SERVERS[kind], "auth": bearer}, auth=auth)
    for invalid, path in (
        ({"type": "basic", "secret": "A"}, "server.auth.type"),
        ({"type": "bearer"}, "server.auth"),
        ({"type": "bearer", "secret": "lower"}, "server.auth.secret"),
        ({**bearer, "token": "x"}, "server.auth.token"),
        ({**header, "header": "a b"}, "server.auth.header"),
        ({"type": "bearer", "secret": "OTHER"}, "server.auth.secret"),
    ):
        assert path in paths(server={**REMOTE, "auth": invalid}, transport="sse", auth=auth)


@pytest.mark.spec("DR-32.server-9")
@pytest.mark.parametrize(("kind", "transport"), list(product(SERVERS, ("stdio", "sse", "http"))))
def test_checks_transport_of_server_kind(kind: str, transport: str) -> None:
    lawful = {
        ("binary", "stdio"), ("npm", "stdio"), ("docker", "stdio"), ("docker", "sse"),
        ("docker", "http"), ("remote", "sse"), ("remote", "http"),
    }  # fmt: skip
    server = SERVERS[kind]
    if (kind, transport) in lawful:
        if kind == "docker" and transport != "stdio":
            assert paths(server=server, transport=transport) == {"server"}
            server = {**server, "port": 8080}
        result = driver(server=server, transport=transport)
        assert result.transport == transport
        assert result.server is not None
        assert result.server.port == server.get("port")
    else:
        problem = find_problem(read(server=server, transport=transport).problems, "transport")
        assert kind in problem.message
        assert problem.hint.startswith("write ")


@pytest.mark.parametrize("port", [0, 65536, "80", 1.5])
def test_rejects_invalid_port(port: Any) -> None:
    server = {**SERVERS["docker"], "port": port}
    assert paths(server=server, transport="http") == {"server.port"}


def test_warns_about_unknown_server_keys() -> None:
    reading = read(server={**SERVERS["npm"], "arg": ["x"]})
    assert reading.value is not None
    (sentence,) = [c.sentence for c in reading.cautions if c.code == "unknown_field"]
    assert 'did you mean "args"?' in sentence


@pytest.mark.spec("DR-31.security-1")
@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://mcp.example.com/v1", True),
        ("http://127.0.0.1:8000/mcp", True),
        ("http://localhost/mcp", True),
        ("http://[::1]:80/mcp", True),
        ("http://mcp.example.com/v1", False),
        ("http://127.0.0.1.example.com/", False),
        ("http://10.0.0.1/", False),
    ],
)
def test_remote_url_requires_tls(url: str, fine: bool) -> None:
    server = {"kind": "remote", "url": url}
    reading = read(server=server, transport="http")
    assert (reading.value is not None) is fine
    if not fine:
        assert find_problem(reading.problems, "server.url").hint.startswith("write https://")
        allowed = read(server=server, transport="http", plain_http=True)
        assert allowed.value is not None
        assert "remote_without_tls" in codes(allowed.cautions)
    for key in ("verify", "insecure", "tls_verify"):
        # Nobody reads such a key, so nobody obeys it.
        requested = read(server={**REMOTE, key: False}, transport="http")
        assert requested.value is not None
        assert "unknown_field" in codes(requested.cautions)


@pytest.mark.parametrize(
    "url", ["https://", "https://user:pw@x.example/", "https://x:99999/", "ftp://x"]
)
def test_rejects_url_with_credentials(url: str) -> None:
    reading = read(server={"kind": "remote", "url": url}, transport="sse")
    assert {problem.path for problem in reading.problems} == {"server.url"}
    assert "pw" not in str(reading.problems)
