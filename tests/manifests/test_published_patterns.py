"""The driver patterns of AIP-32, which must load."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from interlock.manifests.document import ReadResult
from interlock.manifests.driver_reader import parse_driver
from interlock.manifests.lint import lint_bindings
from interlock.manifests.model import DriverManifest, HttpProbe
from tests.manifests.texts import codes

FILES = """\
---
name: Files over MCP
id: filesystem-mcp
description:
  The reference server for files. Reads, writes and lists
  what is in the workspace.
version: 1.0.0
kind: mcp

server:
  kind: npm
  package: "@modelcontextprotocol/server-filesystem"
  args: ["/workspace"]
transport: stdio
protocol_version: "2025-03"

install:
  - { method: npm, package: "@modelcontextprotocol/server-filesystem", global: false }
version_check:
  cmd: "npx @modelcontextprotocol/server-filesystem --version"
  parse: 'v(\\S+)'
  range: ">=0.5"

network:
  egress: []                # it reaches nobody
region: ["self-hosted"]
policy_tags: ["self-hosted", "pii-safe"]

implements:
  - tool: ./tools/fs-read/TOOL.md
    version: "^1.0.0"
    metadata:
      mcp:
        tool_name: read_file
        argument_mapping: { path: path }
        result_extract: "$.contents"
  - tool: ./tools/fs-write/TOOL.md
    version: "^1.0.0"
    metadata:
      mcp:
        tool_name: write_file
        argument_mapping: { path: path, content: content }
        result_extract: "$"
  - tool: ./tools/fs-list/TOOL.md
    version: "^1.0.0"
    metadata:
      mcp:
        tool_name: list_directory
        argument_mapping: { path: path }
        result_extract: "$.entries"

resources:
  - uri_template: "file:///{path}"
    description: "What the server can read."
    integrate_as: ref_kind
    ref_kind_id: mcp_filesystem

tags: [mcp, filesystem, pii-safe]
---

# Files
"""

POSTGRES = """\
---
name: Postgres in a container
id: postgres-mcp
description: Asks a database, in a container of its own.
version: 1.0.0
kind: mcp
server:
  kind: docker
  image: "example/server-postgres:latest"
  env:
    DATABASE_URL: "${secrets.POSTGRES_DATABASE_URL}"
transport: stdio
install:
  - { method: download, url: "docker://example/server-postgres:latest", extract_bin: "" }
auth:
  ref: ./SECRETS.md
  state: { env: ["POSTGRES_DATABASE_URL"] }
  expiry: { detect: "exception:ConnectionRefused" }
network: { egress: [] }
implements:
  - tool: ./tools/db-query/TOOL.md
    version: "^1.0.0"
    metadata:
      mcp: { tool_name: query, argument_mapping: { sql: query }, result_extract: "$.rows" }
  - tool: ./tools/db-schema/TOOL.md
    version: "^1.0.0"
    metadata:
      mcp: { tool_name: list_tables, result_extract: "$.tables" }
---
"""

ACME = """\
---
name: Acme, far away
id: acme-remote-mcp
description: A server that Acme runs, over SSE.
version: 1.0.0
kind: mcp
server: { kind: remote, url: "https://mcp.acme.com/v1" }
transport: sse
protocol_version: "2025-03"
auth:
  ref: ./SECRETS.md
  state: { env: ["ACME_API_KEY"] }
  expiry: { detect: "http_status:401" }
network: { egress: ["mcp.acme.com"] }
region: ["us-east-1"]
policy_tags: ["third-party-api"]
implements:
  - tool: ./tools/search/TOOL.md
    version: "^1.0.0"
    cost_override: { cost_units_per_call: 0.5 }
    metadata: { mcp: { tool_name: search, argument_mapping: { query: q, limit: limit } } }
  - tool: ./tools/document-fetch/TOOL.md
    version: "^1.0.0"
    cost_override: { cost_units_per_call: 1 }
    metadata:
      mcp:
        tool_name: fetch_document
        argument_mapping: { id: doc_id }
        result_extract: "$.content"
connection_options: { timeout_ms: 30000, max_retries: 3, keepalive: true }
---
"""

GITHUB = """\
---
name: GitHub, signed in
id: github-mcp
description: Issues and pull requests, by the account that signed in.
version: 1.0.0
kind: mcp
server:
  kind: npm
  package: "@modelcontextprotocol/server-github"
  env:
    GITHUB_PERSONAL_ACCESS_TOKEN: "${secrets.GITHUB_OAUTH_ACCESS_TOKEN}"
transport: stdio
auth:
  ref: ./SECRETS.md
  state:
    env: ["GITHUB_OAUTH_ACCESS_TOKEN", "GITHUB_OAUTH_REFRESH_TOKEN"]
  login:
    url: "https://github.com/login/oauth/authorize?client_id=…&scope=repo"
    interactive: true
    requires_callback_url: true
    completes_when:
      http: { method: GET, url: "https://api.github.com/user", expect_status: 200 }
  refresh:
    cmd: ""        # in driver.py
    every: "PT1H"
  expiry:
    detect: "http_status:401"
network:
  egress: ["api.github.com", "github.com"]
implements:
  - tool: ./tools/gh-pr-list/TOOL.md
    version: "^1.0.0"
    metadata: { mcp: { tool_name: list_pull_requests } }
---
"""


def load_driver(text: str) -> tuple[DriverManifest, ReadResult[DriverManifest]]:
    name = text.partition("id: ")[2].partition("\n")[0]
    reading = parse_driver(dedent(text), Path(f".drivers/{name}/DRIVER.md"))
    return reading.unwrap(), reading


@pytest.mark.spec("DR-32.example-1")
def test_loads_filesystem_driver() -> None:
    result, reading = load_driver(FILES)
    assert result.protocol_version == "2025-03-26"
    assert result.version_check is not None
    assert (result.version_check.parse, result.version_check.range) == (r"v(\S+)", ">=0.5")
    assert result.egress == ()
    assert result.region == ("self-hosted",)
    assert [entry.mcp.tool_name for entry in result.implements if entry.mcp] == [
        "read_file", "write_file", "list_directory",
    ]  # fmt: skip
    assert [entry.mcp.result_extract for entry in result.implements if entry.mcp] == [
        "$.contents", "$", "$.entries",
    ]  # fmt: skip
    assert result.resources[0].ref_kind_id == "mcp_filesystem"
    assert codes(reading.cautions) == {"hard_coded_path"}


@pytest.mark.spec("DR-32.example-2")
def test_loads_postgres_driver() -> None:
    result, _ = load_driver(POSTGRES)
    assert result.server is not None
    assert result.server.kind == "docker"
    assert result.server.env == {"DATABASE_URL": "${secrets.POSTGRES_DATABASE_URL}"}
    assert result.auth is not None
    assert result.auth.expiry_detect == ("exception:ConnectionRefused",)
    first, second = (entry.mcp for entry in result.implements)
    assert first is not None
    assert second is not None
    assert (first.argument_mapping, first.result_extract) == ({"sql": "query"}, "$.rows")
    assert (second.tool_name, second.result_extract) == ("list_tables", "$.tables")
    assert result.install[0].settings["url"].startswith("docker://")


@pytest.mark.spec("DR-32.example-3")
def test_loads_remote_driver() -> None:
    result, reading = load_driver(ACME)
    assert result.server is not None
    assert (result.server.kind, result.transport) == ("remote", "sse")
    assert result.egress == ("mcp.acme.com",)
    assert [entry.cost.units_per_call for entry in result.implements if entry.cost] == [0.5, 1]
    second = result.implements[1].mcp
    assert second is not None
    assert (second.argument_mapping, second.result_extract) == ({"id": "doc_id"}, "$.content")
    connection = result.connection
    assert (connection.timeout_ms, connection.max_retries, connection.keepalive) == (30000, 3, True)
    assert result.auth is not None
    assert result.auth.expiry_detect == ("http_status:401",)
    assert not reading.cautions


@pytest.mark.spec("DR-32.example-4")
def test_loads_driver_with_sign_in() -> None:
    result, _ = load_driver(GITHUB)
    assert result.auth is not None
    login = result.auth.login
    assert login is not None
    assert login.requires_callback_url
    assert login.interactive
    assert login.completes_when is not None
    assert login.completes_when.http == HttpProbe("https://api.github.com/user", "GET", 200)
    refresh = result.auth.refresh
    assert refresh is not None
    assert (refresh.cmd, refresh.every) == ("", 3600.0)
    # An empty command means the hook; where there is none, somebody should know.
    assert "refresh_without_hook" in codes(lint_bindings(result, (), hooks=()))
    assert not lint_bindings(result, (), hooks=("refresh",))


@pytest.mark.spec("DR-32.motive-1")
def test_published_drivers_have_expected_kinds() -> None:
    kinds = {load_driver(text)[0].server.kind for text in (FILES, POSTGRES, ACME, GITHUB)}  # type: ignore[union-attr]
    assert kinds == {"npm", "docker", "remote"}
