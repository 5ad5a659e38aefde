"""Our schemas of a DRIVER.md: what AIP-30 says of every driver, and AIP-32 of one that is an MCP
server. The top level takes other keys (the kinds of drivers have their own); everything below that
is named here takes only what is named."""

from __future__ import annotations

from typing import Final

from interlock.manifests.schema_parts import (
    COMMAND,
    COST_CLASS,
    DESCRIPTION,
    DIALECT,
    DRIVER_ID,
    EGRESS_PATTERN,
    EVERY,
    FREE,
    NAME,
    PATH,
    RANGE,
    SECRET_NAME,
    SECRET_NAME_PATTERN,
    TAGS,
    VERSION,
    Schema,
    choice,
    closed,
    items,
    opened,
    retry,
    text,
    whole,
)

_URL: Final = text(
    "a URL",
    "write http(s)://host/path",
    pattern=r"^https?://[^\s/]",
    maxLength=2000,
    writeOnly=True,
)
_HTTP_PROBE: Final = closed(
    {"url": _URL, "method": choice("GET", "POST", "HEAD"), "expect_status": whole(100, 599)}, "url"
)
_COST: Final = closed(
    {
        "cost_class": COST_CLASS,
        "cost_units_per_call": {"type": "number", "minimum": 0},
        "currency": text("a currency", "write three letters, such as EUR", pattern="^[A-Z]{3}$"),
    }
)
_EGRESS: Final = text(
    "a host to reach",
    "write api.example.com or *.example.com, with :port if it matters; no address range, no URL",
    pattern=EGRESS_PATTERN,
    maxLength=260,
)
_DETECT: Final = text("a sign of expiry", "write it as http_status:401", minLength=3, maxLength=300)

_AUTH: Final = closed(
    {
        "ref": PATH,
        "state": closed({"paths": items(PATH), "env": items(SECRET_NAME, uniqueItems=True)}),
        "login": closed(
            {
                "cmd": COMMAND,
                "url": _URL,
                "interactive": {"type": "boolean"},
                "requires_callback_url": {"type": "boolean"},
                "completes_when": closed(
                    {"cmd": COMMAND, "exit_code": whole(0, 255), "http": _HTTP_PROBE}
                ),
            }
        ),
        "refresh": closed({"cmd": COMMAND, "url": _URL, "every": EVERY}),
        "expiry": closed({"detect": {"anyOf": [_DETECT, items(_DETECT, minItems=1)]}}),
    }
)

_MAPPED: Final[Schema] = {
    "anyOf": [
        text("the name of an input", "write its name", minLength=1, maxLength=200),
        closed({"from": text(minLength=1), "transform": text(minLength=1)}, "from"),
    ]
}

_IMPLEMENTS: Final = closed(
    {
        "tool": text(
            "a contract", "write the path of a TOOL.md, or a contract's id", minLength=1,
            maxLength=1000,
        ),
        "version": RANGE,
        "schema_narrowing": closed(
            {
                "drop_inputs": items(text(minLength=1), uniqueItems=True),
                "drop_outputs": items(text(minLength=1), uniqueItems=True),
            }
        ),
        "mapping": {"type": "object", "additionalProperties": _MAPPED},
        "cost_override": _COST,
        "timeout_override_ms": whole(100),
        "retry_override": retry(10),
        "metadata": FREE,
    },
    "tool",
    "version",
)  # fmt: skip

DRIVER: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-30:driver",
    "title": "The front matter of a DRIVER.md (AIP-30)",
    **opened(
        {
            "name": NAME,
            "id": DRIVER_ID,
            "description": DESCRIPTION,
            "version": VERSION,
            "kind": choice("cli", "http", "mcp", "sdk", "builtin"),
            "implements": items(_IMPLEMENTS, minItems=1, maxItems=1000),
            "install": items(
                opened(
                    {
                        "method": text(minLength=1, maxLength=40),
                        "sha256": text(
                            "a SHA-256", "write 64 hexadecimal digits", pattern="^[0-9a-fA-F]{64}$"
                        ),
                    },
                    "method",
                )
            ),
            "version_check": closed(
                {
                    "cmd": text(minLength=1, maxLength=4000),
                    "parse": text(minLength=1, maxLength=1000),
                    "range": RANGE,
                    "timeout_ms": whole(100),
                },
                "cmd",
                "parse",
                "range",
            ),
            "auth": _AUTH,
            "runner": {
                "anyOf": [PATH, opened({"engine": text("an engine", minLength=1, maxLength=80)})]
            },
            "network": closed({"egress": items(_EGRESS), "ingress": items(text(minLength=1))}),
            "region": items(text("a region", minLength=1, maxLength=80), minItems=1),
            "policy_tags": TAGS,
            "tags": TAGS,
            "cost_override": _COST,
            "timeout_override_ms": whole(100),
            "retry_override": retry(10),
            "health_check": closed(
                {
                    "method": choice("ping", "exec", "noop", "http"),
                    "cmd": COMMAND,
                    "http": _HTTP_PROBE,
                    "expect_exit": whole(0, 255),
                    "every": EVERY,
                    "timeout_ms": whole(100),
                },
                "method",
            ),
            "requires": closed(
                {
                    "os": items(choice("darwin", "linux", "windows")),
                    "arch": items(choice("x64", "arm64", "x86", "arm")),
                    "min_disk_mb": whole(0),
                    "min_memory_mb": whole(0),
                }
            ),
            "examples": items(opened({"goal": text(), "note": text()}, "goal")),
            "metadata": FREE,
        },
        "name",
        "id",
        "description",
        "version",
        "kind",
        "implements",
    ),
}

_ARGS: Final = items(text(maxLength=8000), maxItems=500)
_ENV: Final[Schema] = {
    "type": "object",
    "propertyNames": text(
        "the name of a variable", "write letters, digits and _", pattern="^[A-Za-z_][A-Za-z0-9_]*$"
    ),
    "additionalProperties": text(maxLength=32_000),
}
_STARTED: Final = {"args": _ARGS, "env": _ENV}
_SECRET_OF_AUTH: Final = text(
    "the name of a secret",
    "write a name such as ACME_API_KEY, or ${secrets.ACME_API_KEY}",
    pattern=SECRET_NAME_PATTERN[:-1] + r"$|^\$\{secrets\.[A-Z][A-Z0-9_]*\}$",
    maxLength=120,
    writeOnly=True,
)
SERVER_FIELDS: Final[dict[str, dict[str, Schema]]] = {
    "binary": {"path": PATH, **_STARTED},
    "npm": {
        "package": text(
            "the name of an npm package",
            "write it as npm has it, such as @scope/name or name@1.2.3",
            pattern=r"^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\s@/]+)?$",
            maxLength=300,
        ),
        **_STARTED,
    },
    "docker": {
        "image": text(
            "the name of an image",
            "write it as docker has it, such as name:tag",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$",
            maxLength=300,
        ),
        "port": whole(1, 65535),
        **_STARTED,
    },
    "remote": {
        "url": _URL,
        "auth": closed(
            {
                "type": choice("bearer", "header"),
                "secret": _SECRET_OF_AUTH,
                "header": text(
                    "the name of a header",
                    "write letters, digits and -",
                    pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
                    maxLength=100,
                ),
            },
            "type",
            "secret",
        ),
    },
}
_PRIMARY: Final = {"binary": "path", "npm": "package", "docker": "image", "remote": "url"}

_SERVER: Final[Schema] = {
    **opened({"kind": choice(*SERVER_FIELDS)}, "kind"),
    "allOf": [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"properties": fields, "required": [_PRIMARY[kind]]},
        }
        for kind, fields in SERVER_FIELDS.items()
    ],
}

MCP_BINDING: Final = closed(
    {
        "tool_name": text(minLength=1, maxLength=200),
        "argument_mapping": {
            "type": "object",
            "additionalProperties": text(
                "the name of an argument", "write the name that the server's tool has", minLength=1
            ),
        },
        "result_extract": text(
            "a path into the result", 'write "$" or "$.name"', pattern=r"^\$", maxLength=500
        ),
    },
    "tool_name",
)

MCP: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-32:mcp",
    "title": "The front matter of a DRIVER.md whose kind is mcp (AIP-32)",
    **opened(
        {
            "kind": {"const": "mcp"},
            "server": _SERVER,
            "transport": choice("stdio", "sse", "http"),
            "protocol_version": text(
                "a revision of MCP", 'write one such as "2025-06-18"', minLength=4, maxLength=20
            ),
            "prompts": items(
                closed(
                    {
                        "name": text(minLength=1, maxLength=200),
                        "description": text(maxLength=2000),
                        "integrate_as": choice("skill_block", "raw"),
                        "skill_ref": PATH,
                    },
                    "name",
                    "integrate_as",
                )
            ),
            "resources": items(
                closed(
                    {
                        "uri_template": text(minLength=1, maxLength=2000),
                        "description": text(maxLength=2000),
                        "integrate_as": choice("ref_kind", "raw"),
                        "ref_kind_id": text(
                            "the name of a kind of reference",
                            "write small letters, digits and _, a letter first",
                            pattern="^[a-z][a-z0-9_]*$",
                            maxLength=80,
                        ),
                    },
                    "uri_template",
                    "integrate_as",
                )
            ),
            "connection_options": closed(
                {
                    "timeout_ms": whole(100),
                    "max_retries": whole(0, 10),
                    "keepalive": {"type": "boolean"},
                }
            ),
            "implements": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"metadata": opened({"mcp": MCP_BINDING})},
                },
            },
        },
        "kind",
        "server",
        "transport",
    ),
}
