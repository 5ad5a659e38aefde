"""Our schemas of a TOOL.md (AIP-14), of the inputs and outputs in it (AIP-16), and of a SECRETS.md
(AIP-19). All are closed: what they do not name is refused."""

from __future__ import annotations

from typing import Final

from interlock.manifests.schema_parts import (
    COST_CLASS,
    DESCRIPTION,
    DIALECT,
    DRIVER_ID,
    FREE,
    NAME,
    RETENTION_PATTERN,
    TAGS,
    TOOL_ID,
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
