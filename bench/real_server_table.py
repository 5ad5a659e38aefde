"""Which public MCP servers the benchmarks list: names and versions, arguments, made-up credentials.

Pure data. The versions are pinned so that a figure can be had again. The order is that in which
they are taken: the usual ones first, the very large ones last.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec


class RealServer(msgspec.Struct, frozen=True):
    """How a server is installed and started. ``HOME`` in arguments and values is its own folder."""

    name: str
    source: Literal["npm", "pypi"]
    package: str
    program: str = ""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = {}


SERVERS: Final = (
    RealServer(
        "filesystem",
        "npm",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        arguments=("HOME",),
    ),
    RealServer("memory", "npm", "@modelcontextprotocol/server-memory@2026.8.31"),
    RealServer(
        "github",
        "npm",
        "@modelcontextprotocol/server-github@2025.4.8",
        environment={"GITHUB_PERSONAL_ACCESS_TOKEN": "none"},
    ),
    RealServer(
        "slack",
        "npm",
        "@modelcontextprotocol/server-slack@2025.4.25",
        environment={"SLACK_BOT_TOKEN": "none", "SLACK_TEAM_ID": "T0"},
    ),
    RealServer("playwright", "npm", "@playwright/mcp@0.0.83"),
    RealServer(
        "notion",
        "npm",
        "@notionhq/notion-mcp-server@2.5.2",
        environment={"NOTION_TOKEN": "ntn_none"},
    ),
    RealServer("everything", "npm", "@modelcontextprotocol/server-everything@2026.8.31"),
    RealServer(
        "sequential-thinking", "npm", "@modelcontextprotocol/server-sequential-thinking@2026.8.31"
    ),
    RealServer(
        "google-maps",
        "npm",
        "@modelcontextprotocol/server-google-maps@0.6.2",
        environment={"GOOGLE_MAPS_API_KEY": "none"},
    ),
    RealServer("context7", "npm", "@upstash/context7-mcp@4.1.1"),
    RealServer("tavily", "npm", "tavily-mcp@0.2.22", environment={"TAVILY_API_KEY": "none"}),
    RealServer(
        "firecrawl", "npm", "firecrawl-mcp@3.26.0", environment={"FIRECRAWL_API_KEY": "none"}
    ),
    RealServer("chrome-devtools", "npm", "chrome-devtools-mcp@1.11.0"),
    RealServer("fetch", "pypi", "mcp-server-fetch==2026.10.24", "mcp-server-fetch"),
    RealServer("git-reference", "pypi", "mcp-server-git==2026.10.19", "mcp-server-git"),
    RealServer(
        "time",
        "pypi",
        "mcp-server-time==2026.10.19",
        "mcp-server-time",
        arguments=("--local-timezone", "UTC"),
    ),
    RealServer(
        "atlassian",
        "pypi",
        "mcp-atlassian==0.23.1",
        "mcp-atlassian",
        environment={
            "JIRA_URL": "http://127.0.0.1:1",
            "JIRA_USERNAME": "a",
            "JIRA_API_TOKEN": "none",
            "CONFLUENCE_URL": "http://127.0.0.1:1",
            "CONFLUENCE_USERNAME": "a",
            "CONFLUENCE_API_TOKEN": "none",
        },
    ),
    RealServer(
        "google-workspace",
        "pypi",
        "workspace-mcp==2.2.1",
        "workspace-mcp",
        arguments=("--single-user",),
        environment={"GOOGLE_OAUTH_CLIENT_ID": "none", "GOOGLE_OAUTH_CLIENT_SECRET": "none"},
    ),
    RealServer("meilisearch", "pypi", "meilisearch-mcp==0.7.0", "meilisearch-mcp"),
    RealServer(
        "gitlab",
        "npm",
        "@zereight/mcp-gitlab@2.1.64",
        environment={"GITLAB_PERSONAL_ACCESS_TOKEN": "none"},
    ),
    RealServer("kubernetes", "npm", "mcp-server-kubernetes@4.1.7"),
    RealServer(
        "mongodb",
        "npm",
        "mongodb-mcp-server@3.0.4",
        environment={
            "MDB_MCP_CONNECTION_STRING": "mongodb://127.0.0.1:1",
            "MDB_MCP_TELEMETRY": "disabled",
        },
    ),
    RealServer("sentry", "npm", "@sentry/mcp-server@0.39.0", arguments=("--access-token=none",)),
    RealServer(
        "hubspot",
        "npm",
        "@hubspot/mcp-server@0.4.0",
        environment={"PRIVATE_APP_ACCESS_TOKEN": "pat-none"},
    ),
    RealServer(
        "elasticsearch",
        "npm",
        "@elastic/mcp-server-elasticsearch@0.3.1",
        environment={"ES_URL": "http://127.0.0.1:1", "ES_API_KEY": "none"},
    ),
    RealServer(
        "figma", "npm", "figma-developer-mcp@0.13.2", arguments=("--figma-api-key=none", "--stdio")
    ),
    RealServer(
        "n8n",
        "npm",
        "n8n-mcp@2.87.0",
        environment={
            "MCP_MODE": "stdio",
            "LOG_LEVEL": "error",
            "N8N_API_URL": "http://127.0.0.1:1",
            "N8N_API_KEY": "none",
        },
    ),
    RealServer(
        "browserstack",
        "npm",
        "@browserstack/mcp-server@1.4.2",
        environment={"BROWSERSTACK_USERNAME": "none", "BROWSERSTACK_ACCESS_KEY": "none"},
    ),
    RealServer(
        "circleci",
        "npm",
        "@circleci/mcp-server-circleci@0.20.0",
        environment={"CIRCLECI_TOKEN": "none"},
    ),
    RealServer(
        "line",
        "npm",
        "@line/line-bot-mcp-server@0.5.0",
        environment={"CHANNEL_ACCESS_TOKEN": "none", "DESTINATION_USER_ID": "U0"},
    ),
    RealServer(
        "asana",
        "npm",
        "@roychri/mcp-server-asana@1.8.0",
        environment={"ASANA_ACCESS_TOKEN": "none"},
    ),
    RealServer(
        "git",
        "npm",
        "@cyanheads/git-mcp-server@2.15.3",
        environment={"MCP_TRANSPORT_TYPE": "stdio", "MCP_LOG_LEVEL": "error"},
    ),
    RealServer(
        "xero",
        "npm",
        "@xeroapi/xero-mcp-server@0.0.17",
        environment={"XERO_CLIENT_ID": "none", "XERO_CLIENT_SECRET": "none"},
    ),
    RealServer(
        "bitwarden", "npm", "@bitwarden/mcp-server@2026.7.0", environment={"BW_SESSION": "none"}
    ),
    RealServer("netlify", "npm", "@netlify/mcp@1.15.1"),
    RealServer(
        "mapbox",
        "npm",
        "@mapbox/mcp-server@0.14.0",
        environment={"MAPBOX_ACCESS_TOKEN": "pk.eyJ1Ijoibm9uZSJ9.none"},
    ),
    RealServer(
        "postman",
        "npm",
        "@postman/postman-mcp-server@2.13.0",
        arguments=("--full",),
        environment={"POSTMAN_API_KEY": "PMAK-none"},
    ),
    RealServer(
        "datadog",
        "npm",
        "@winor30/mcp-server-datadog@1.8.0",
        environment={"DATADOG_API_KEY": "none", "DATADOG_APP_KEY": "none"},
    ),
    RealServer(
        "shopify", "npm", "@shopify/dev-mcp@1.16.0", environment={"OPT_OUT_INSTRUMENTATION": "true"}
    ),
    RealServer(
        "launchdarkly",
        "npm",
        "@launchdarkly/mcp-server@0.6.2",
        arguments=("start", "--api-key", "api-none"),
    ),
    RealServer(
        "bitbucket",
        "npm",
        "@aashari/mcp-server-atlassian-bitbucket@3.1.0",
        environment={"ATLASSIAN_USER_EMAIL": "a@example.com", "ATLASSIAN_API_TOKEN": "none"},
    ),
    RealServer(
        "linear", "npm", "@tacticlaunch/mcp-linear@1.4.3", environment={"LINEAR_API_TOKEN": "none"}
    ),
    RealServer(
        "digitalocean",
        "npm",
        "@digitalocean/mcp@1.0.70",
        arguments=(
            "--services",
            "apps,droplets,databases,networking,spaces,accounts,insights,doks,marketplace",
        ),
        environment={"DIGITALOCEAN_API_TOKEN": "none"},
    ),
    RealServer("ms-365", "npm", "@softeria/ms-365-mcp-server@0.155.0", arguments=("--org-mode",)),
    RealServer(
        "azure",
        "npm",
        "@azure/mcp@2.0.5",
        arguments=("server", "start", "--mode", "all"),
        environment={"AZURE_MCP_COLLECT_TELEMETRY": "false"},
    ),
    RealServer(
        "twilio",
        "npm",
        "@twilio-alpha/mcp@0.7.0",
        arguments=("AC00000000000000000000000000000000/SK00000000000000000000000000000000:none",),
    ),
)
