"""Our own JSON Schemas of manifests, ready to validate with and to be handed out.

They are in this program; nothing is ever fetched. The schema of inputs and outputs is known under
both addresses that published manifests use for it.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final, Literal, get_args

import jsonschema_rs

from interlock.primitives.durations import ISO_DURATION_HINT, ISO_DURATION_PATTERN

# -- The small types that our schemas of manifests are made of.
#
# `title` says what a value is ("a version"), `description` what to write. Both are for people:
# the readers put them into their problems, editors show them. `writeOnly` marks what must not be
# shown again: somebody could put a secret there by mistake.

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

SEMVER_PATTERN: Final = (
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
    r"(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
ISO_PATTERN: Final = (
    r"^P(?=[0-9T])([0-9]+Y)?([0-9]+M)?([0-9]+W)?([0-9]+D)?"
    r"(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?$"
)
RETENTION_PATTERN: Final = ISO_PATTERN[:-1] + r"$|^[0-9]+(y|m|w|d|h)$"
EGRESS_PATTERN: Final = (
    r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"
)
SECRET_NAME_PATTERN: Final = r"^[A-Z][A-Z0-9_]*$"


def text(title: str = "", hint: str = "", **limits: Any) -> Schema:
    """Text, with what it is and what to write."""
    schema: Schema = {"type": "string", **limits}
    if title:
        schema["title"] = title
    if hint:
        schema["description"] = hint
    return schema


def choice(*words: str, title: str = "") -> Schema:
    return {"enum": list(words)} if not title else {"enum": list(words), "title": title}


def whole(least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    schema: Schema = {"type": "integer", **more}
    if least is not None:
        schema["minimum"] = least
    if most is not None:
        schema["maximum"] = most
    return schema


def items(schema: Schema, **limits: Any) -> Schema:
    return {"type": "array", "items": schema, **limits}


def closed(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    """An object that takes these keys and no others."""
    return {**opened(properties, *required, **more), "additionalProperties": False}


def opened(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    """An object that takes any key, and checks these."""
    schema: Schema = {"type": "object", "properties": properties, **more}
    if required:
        schema["required"] = list(required)
    return schema


NAME: Final = text("a name", "write 1 to 80 characters", minLength=1, maxLength=80)
DESCRIPTION: Final = text(
    "a description", "write 1 to 2000 characters", minLength=1, maxLength=2000
)
VERSION: Final = text(
    "a version", "write three numbers, such as 1.0.0", pattern=SEMVER_PATTERN, maxLength=100
)
RANGE: Final = text(
    "a range of versions", 'write one as npm has them, such as "^1.0.0"', minLength=1, maxLength=200
)
DRIVER_ID: Final = text(
    "the id of a driver",
    "write 2 to 80 small letters, digits, dots and dashes, a letter or digit first",
    pattern=r"^[a-z0-9][a-z0-9.\-]{1,79}$",
)
TOOL_ID: Final = text(
    "the id of a contract",
    "write 2 to 80 small letters, digits, dots and dashes, with a letter or digit at both ends",
    pattern=r"^[a-z0-9][a-z0-9.\-]*[a-z0-9]$",
    minLength=2,
    maxLength=80,
)
TAG: Final = text(
    "a tag",
    "write 1 to 64 small letters, digits and dashes, a letter or digit first",
    pattern=r"^[a-z0-9][a-z0-9\-]{0,63}$",
)
TAGS: Final = items(TAG, uniqueItems=True)
PATH: Final = text("a path", "write the path of a file", minLength=1, maxLength=1000)
COMMAND: Final = text("a command line", "write the command", maxLength=4000)
SECRET_NAME: Final = text(
    "the name of a secret",
    "write capital letters, digits and _, such as ACME_API_KEY",
    pattern=SECRET_NAME_PATTERN,
    maxLength=100,
    writeOnly=True,
)
EVERY: Final = text("a duration", ISO_DURATION_HINT, pattern=ISO_DURATION_PATTERN)
COST_CLASS: Final = choice("trivial", "metered", "expensive")
BACKOFF: Final = choice("fixed", "exponential")
FREE: Final[Schema] = {"type": "object"}


def retry(most: int) -> Schema:
    """How often something is tried again."""
    return closed(
        {"max_attempts": whole(1, most), "backoff": BACKOFF, "initial_ms": whole(0)},
        "max_attempts",
    )


# -- Our schemas of a TOOL.md (AIP-14), of the inputs and outputs in it (AIP-16), and of a
# SECRETS.md (AIP-19). All are closed: what they do not name is refused.

IO_ADDRESSES: Final = (
    "https://agentproto.sh/docs/aip-16/IO.schema.json",
    "https://agentproto.sh/schemas/aip-16/IO.schema.json",
)
"""Published manifests refer to both."""

_FILES: Final[Schema] = {
    "type": "object",
    "additionalProperties": closed(
        {"path": text(minLength=1), "mode": choice("ro", "rw"), "contentType": text()}, "path"
    ),
}
IO: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-16:io",
    "title": "What goes in and what comes out (AIP-16)",
    "type": "object",
    "$defs": {
        "jsonSchema": {
            "type": "object",
            "title": "a JSON Schema",
            "description": "write an object such as {type: object, properties: {…}}",
        },
        "inputs": {"$ref": "#/$defs/jsonSchema"},
        "outputs": {"$ref": "#/$defs/jsonSchema"},
        "inputsFiles": _FILES,
        "outputsFiles": _FILES,
    },
}

REF_ADDRESS: Final = "https://agentproto.sh/docs/aip-27/REF.schema.json"
REF: Final[Schema] = {
    "$schema": DIALECT,
    "$id": REF_ADDRESS,
    "title": "A reference (AIP-27)",
    "anyOf": [
        {"type": "string", "pattern": "^[a-z][a-z0-9_]*:.+"},
        {
            "type": "object",
            "properties": {"kind": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"}},
            "required": ["kind"],
        },
    ],
}
"""Published contracts refer to it in their inputs."""

_EXAMPLE: Final = closed({"name": text(), "input": FREE, "output": {}, "note": text()}, "input")

TOOL: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-14:tool",
    "title": "The front matter of a TOOL.md (AIP-14)",
    **closed(
        {
            "name": NAME,
            "id": TOOL_ID,
            "description": DESCRIPTION,
            "version": VERSION,
            "inputs": {"$ref": f"{IO_ADDRESSES[0]}#/$defs/inputs"},
            "outputs": {"$ref": f"{IO_ADDRESSES[0]}#/$defs/outputs"},
            "idempotent": {"type": "boolean"},
            "mutates": items(
                text(
                    "something that can be changed",
                    "write <class>:<scope>, such as workspace:/notes or network:*",
                    pattern=r"^[a-z][a-z0-9_-]*:\S+$",
                    maxLength=500,
                )
            ),
            "requires": closed(
                {
                    "network": items(text(minLength=1)),
                    "secrets": items(text(minLength=1)),
                    "tools": items(text(minLength=1)),
                }
            ),
            "approval": text(
                "a way of approving",
                "write auto, always, on-mutate or policy:<name>",
                pattern=r"^(auto|always|on-mutate|policy:[A-Za-z0-9_./-]+)$",
            ),
            "risk_level": whole(0, 3),
            "cost_class": COST_CLASS,
            "timeout_ms": whole(1),
            "retry": retry(20),
            "default_implementation": {"anyOf": [DRIVER_ID, {"type": "null"}]},
            "driver_constraints": closed(
                {
                    "forbid": items(text(minLength=1), uniqueItems=True),
                    "require_kind": items(
                        choice("cli", "http", "mcp", "sdk", "builtin"), uniqueItems=True
                    ),
                }
            ),
            "examples": items(_EXAMPLE),
            "tags": TAGS,
            "metadata": opened({"contextSchema": {"$ref": f"{IO_ADDRESSES[0]}#/$defs/jsonSchema"}}),
        },
        "name",
        "id",
        "description",
        "version",
        "inputs",
        "outputs",
    ),
}

_GRANT: Final = opened(
    {
        "role": text(minLength=1),
        "userId": text(minLength=1),
        "cap": text("a capability", "write it as cap://…", pattern="^cap://"),
        "tool": text(minLength=1),
        "workflow": text(minLength=1),
    },
    minProperties=1,
    maxProperties=1,
    title="a grant",
    description="name exactly one of role, userId, cap, tool and workflow",
)
_GRANTS: Final = items(_GRANT)
SLUG_PATTERN: Final = r"^([a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]$"
_VARIABLE: Final = text(
    "the name of a variable", "write letters, digits and _", pattern="^[A-Za-z_][A-Za-z0-9_]*$"
)

SECRET: Final = closed(
    {
        "slug": text(
            "a slug",
            "write 2 to 80 small letters, digits and dashes, with namespace/ if need be",
            pattern=SLUG_PATTERN,
            minLength=2,
            maxLength=80,
        ),
        "name": NAME,
        "description": DESCRIPTION,
        "kind": choice("opaque", "oauth", "keypair", "json"),
        "backend": {
            "anyOf": [
                text(
                    "the address of a vault's entry",
                    "write it as vault://driver/path",
                    pattern="^[a-z][a-z0-9-]*://",
                    maxLength=1000,
                ),
                FREE,
            ]
        },
        "access": closed({"reveal": _GRANTS, "bind": _GRANTS, "rotate": _GRANTS}),
        "audit": closed(
            {
                "retention": text(
                    "how long something is kept", "write P7Y, 7y or 90d", pattern=RETENTION_PATTERN
                ),
                "pii": {"type": "boolean"},
                "classification": items(text(minLength=1)),
            }
        ),
        "exposures": items(opened({"kind": text(minLength=1)}, "kind")),
        "tags": TAGS,
        "metadata": opened(
            {"bindings": opened({"env": {"anyOf": [_VARIABLE, items(_VARIABLE, minItems=1)]}})}
        ),
    },
    "slug",
    "name",
    "description",
)

SECRETS: Final[Schema] = {
    "$schema": DIALECT,
    "$id": "urn:interlock:schema:aip-19:secrets",
    "title": "The front matter of a SECRETS.md (AIP-19)",
    **closed({"secrets": items(SECRET, minItems=1, maxItems=10_000)}, "secrets"),
}


# -- Our schemas of a DRIVER.md: what AIP-30 says of every driver, and AIP-32 of one that is an
# MCP server. The top level takes other keys (the kinds of drivers have their own); everything
# below that is named here takes only what is named.

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


ManifestName = Literal["driver", "mcp", "tool", "io", "secrets"]
MANIFEST_NAMES: Final[tuple[ManifestName, ...]] = get_args(ManifestName)

_SCHEMAS: Final[dict[str, Schema]] = {
    "driver": DRIVER,
    "mcp": MCP,
    "tool": TOOL,
    "io": IO,
    "secrets": SECRETS,
    # One secret alone, as define_secret takes it.
    "secret": {"$schema": DIALECT, "$id": "urn:interlock:schema:aip-19:secret", **SECRET},
    # Both parts of a driver in one go, to find out quickly that there is nothing to explain.
    "whole-driver": {
        "$schema": DIALECT,
        "$id": "urn:interlock:schema:aip-32:whole-driver",
        "allOf": [
            {"$ref": DRIVER["$id"]},
            {"if": {"properties": {"kind": {"const": "mcp"}}}, "then": {"$ref": MCP["$id"]}},
        ],
    },
}


def manifest_schema(name: ManifestName) -> dict[str, Any]:
    """A schema of ours, to keep: what an editor or another program validates with."""
    return copy.deepcopy(_SCHEMAS[name])


def schema_of(name: str) -> Schema:
    """A schema of ours, to look into."""
    return _SCHEMAS[name]


def at_address(address: str) -> Schema | None:
    """The schema that is known under an address, with or without a fragment."""
    return _addresses().get(address.partition("#")[0])


@cache
def _addresses() -> dict[str, Schema]:
    known: dict[str, Schema] = {schema["$id"]: schema for schema in _SCHEMAS.values()}
    for address in IO_ADDRESSES:
        # Under an address, a schema must not say that it lives at another one.
        known[address] = {**IO, "$id": address}
    known[REF_ADDRESS] = REF
    return known


@cache
def registry() -> jsonschema_rs.Registry:
    """All of them, by address. Whoever validates with it fetches nothing."""
    return jsonschema_rs.Registry(
        list(_addresses().items()), draft=jsonschema_rs.Draft202012, retriever=no_retrieval
    )


@cache
def validator(name: str) -> jsonschema_rs.Validator:
    """What checks values against one of our schemas."""
    return jsonschema_rs.Draft202012Validator(
        _SCHEMAS[name], registry=registry(), retriever=no_retrieval, mask="the value"
    )


def no_retrieval(address: str) -> Any:
    """A schema from a stranger must not make anybody fetch anything."""
    raise ValueError(f"schemas may not refer to {address}")
