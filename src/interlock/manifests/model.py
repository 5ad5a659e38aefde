"""Structs of DRIVER.md (AIP-30, AIP-32), TOOL.md (AIP-14) and SECRETS.md (AIP-19).

`fields.py` derives JSON Schemas from the structs, and builds structs from valid values.
`schemas.py` completes the schemas. In a schema, `title` is a noun for the value ("a version"), and
`description` is the advice for an invalid value. Problems quote both, and editors show them.
`writeOnly` marks values that may be secrets by mistake: no message quotes them.

Durations are seconds, or milliseconds if the name of the field ends with `_ms`. Paths are as
written in the file, relative to `folder` of the manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field

from interlock.manifests.fields import (
    DURATION,
    NOT_IN_FILE,
    ManifestBlock,
    converter,
    explicit_schema,
    items,
    key_path,
    length,
    number,
    schema_patch,
    text,
)

DriverKind = Literal["cli", "http", "mcp", "sdk", "builtin"]
ServerKind = Literal["binary", "npm", "docker", "remote"]
DriverTransport = Literal["stdio", "sse", "http"]
CostClass = Literal["trivial", "metered", "expensive"]
Backoff = Literal["fixed", "exponential"]
HealthMethod = Literal["ping", "exec", "noop", "http"]
SecretKind = Literal["opaque", "oauth", "keypair", "json"]
AccessOperation = Literal["reveal", "bind", "rotate"]

UNIVERSAL_REGION = "global"
IDLE_SECONDS = 300.0
"""The seconds after which an unused server of a driver is stopped."""

# -- kinds of values

SEMVER_PATTERN: Final = (
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
    r"(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
EGRESS_PATTERN: Final = (
    r"^(\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$"
)
SECRET_NAME_PATTERN: Final = r"^[A-Z][A-Z0-9_]*$"
SLUG_PATTERN: Final = r"^([a-z][a-z0-9-]*[a-z0-9]/)?[a-z][a-z0-9-]*[a-z0-9]$"
ISO_PATTERN: Final = (
    r"^P(?=[0-9T])([0-9]+Y)?([0-9]+M)?([0-9]+W)?([0-9]+D)?"
    r"(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?$"
)
RETENTION_PATTERN: Final = ISO_PATTERN[:-1] + r"$|^[0-9]+(y|m|w|d|h)$"

NonEmptyText = Annotated[str, length(1)]
Name = Annotated[str, text("a name", "write 1 to 80 characters", min_length=1, max_length=80)]
Description = Annotated[
    str, text("a description", "write 1 to 2000 characters", min_length=1, max_length=2000)
]
Version = Annotated[
    str,
    text("a version", "write three numbers, such as 1.0.0", pattern=SEMVER_PATTERN, max_length=100),
]
Range = Annotated[
    str,
    text(
        "a version range",
        'write it in npm syntax, such as "^1.0.0"',
        min_length=1,
        max_length=200,
    ),
]
DriverId = Annotated[
    str,
    text(
        "the id of a driver",
        "write 2 to 80 small letters, digits, dots and dashes, a letter or digit first",
        pattern=r"^[a-z0-9][a-z0-9.\-]{1,79}$",
    ),
]
ToolId = Annotated[
    str,
    text(
        "the id of a contract",
        "write 2 to 80 small letters, digits, dots and dashes, with a letter or digit at both ends",
        pattern=r"^[a-z0-9][a-z0-9.\-]*[a-z0-9]$",
        min_length=2,
        max_length=80,
    ),
]
Tag = Annotated[
    str,
    text(
        "a tag",
        "write 1 to 64 small letters, digits and dashes, a letter or digit first",
        pattern=r"^[a-z0-9][a-z0-9\-]{0,63}$",
    ),
]
UNIQUE: Final = schema_patch({"uniqueItems": True})
Tags = Annotated[tuple[Tag, ...], UNIQUE]
FilePath = Annotated[str, text("a path", "write the path of a file", min_length=1, max_length=1000)]
Command = Annotated[str, text("a command line", "write the command", max_length=4000)]
SecretName = Annotated[
    str,
    text(
        "the name of a secret",
        "write capital letters, digits and _, such as ACME_API_KEY",
        pattern=SECRET_NAME_PATTERN,
        max_length=100,
        secret=True,
    ),
]
Url = Annotated[
    str,
    text(
        "a URL",
        "write http(s)://host/path",
        pattern=r"^https?://[^\s/]",
        max_length=2000,
        secret=True,
    ),
]
Variable = Annotated[
    str,
    text(
        "the name of a variable", "write letters, digits and _", pattern="^[A-Za-z_][A-Za-z0-9_]*$"
    ),
]
EgressHost = Annotated[
    str,
    text(
        "a host",
        "write api.example.com or *.example.com, and :port if needed; no address range, no URL",
        pattern=EGRESS_PATTERN,
        max_length=260,
    ),
]
ExpirySignText = Annotated[
    str, text("a sign of expiry", "write one such as http_status:401", min_length=3, max_length=300)
]
Milliseconds = Annotated[int, number(100)]
NonNegativeInt = Annotated[int, number(0)]
ExitCode = Annotated[int, number(0, 255)]
FreeObject = dict[str, Any]


def _as_tuple(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _extract_secret_name(text: str) -> str:
    return text.removeprefix("${secrets.").removesuffix("}")


# -- DRIVER.md


class RemoteAuth(ManifestBlock, frozen=True):
    """Authentication to a remote server."""

    type: Literal["bearer", "header"]
    secret: Annotated[
        str,
        text(
            "the name of a secret",
            "write a name such as ACME_API_KEY, or ${secrets.ACME_API_KEY}",
            pattern=SECRET_NAME_PATTERN[:-1] + r"$|^\$\{secrets\.[A-Z][A-Z0-9_]*\}$",
            max_length=120,
            secret=True,
        ),
        converter(_extract_secret_name),
    ]
    """The name of a secret, without `${secrets.` and `}`."""
    header: Annotated[
        str,
        text(
            "the name of a header",
            "write letters, digits and -",
            pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
            max_length=100,
        ),
    ] = "Authorization"


class ServerBlock(Struct, frozen=True):
    """The program, package, image or URL of the MCP server. `kind` determines the fields that are
    set: see `SERVER_FIELDS`."""

    kind: ServerKind
    path: FilePath = ""
    package: Annotated[
        str,
        text(
            "the name of an npm package",
            "write it in npm syntax, such as @scope/name or name@1.2.3",
            pattern=r"^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\s@/]+)?$",
            max_length=300,
        ),
    ] = ""
    image: Annotated[
        str,
        text(
            "the name of an image",
            "write it in docker syntax, such as name:tag",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$",
            max_length=300,
        ),
    ] = ""
    url: Url = ""
    args: Annotated[tuple[Annotated[str, length(maximum=8000)], ...], items(maximum=500)] = ()
    env: dict[Variable, Annotated[str, length(maximum=32_000)]] = field(default_factory=dict)
    """May contain `${secrets.NAME}`."""
    auth: RemoteAuth | None = None
    port: Annotated[int, number(1, 65535)] | None = None
    """The HTTP port of a docker server."""


SERVER_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "binary": ("path", "args", "env"),
    "npm": ("package", "args", "env"),
    "docker": ("image", "port", "args", "env"),
    "remote": ("url", "auth"),
}
"""The fields of each kind of server; the first one is required."""


class HttpProbe(ManifestBlock, frozen=True):
    """An HTTP request, and the status that means success."""

    url: Url
    method: Literal["GET", "POST", "HEAD"] = "GET"
    expect_status: Annotated[int, number(100, 599)] = 200


class Completion(ManifestBlock, frozen=True):
    """The proof that a login succeeded: the exit code of a command, or the status of an HTTP
    request."""

    cmd: Command = ""
    exit_code: ExitCode = 0
    http: HttpProbe | None = None


class Login(ManifestBlock, frozen=True):
    """The command or the page with which a person signs in."""

    cmd: Command = ""
    url: Url = ""
    interactive: bool = False
    requires_callback_url: bool = False
    completes_when: Completion | None = None


class Refresh(ManifestBlock, frozen=True):
    """The command that renews a sign-in. An empty `cmd` means the `refresh` hook of driver.py."""

    cmd: Command = ""
    url: Url = ""
    every: Annotated[float, DURATION] | None = None


class Auth(ManifestBlock, frozen=True):
    """The secrets, state files and commands of a sign-in."""

    ref: FilePath = ""
    """The path of the SECRETS.md."""
    state_paths: Annotated[tuple[FilePath, ...], key_path("state", "paths")] = ()
    state_env: Annotated[tuple[SecretName, ...], UNIQUE, key_path("state", "env")] = ()
    """The names of the secrets of the driver."""
    login: Login | None = None
    refresh: Refresh | None = None
    expiry_detect: Annotated[
        tuple[ExpirySignText, ...],
        explicit_schema(
            {"anyOf": [ExpirySignText, Annotated[tuple[ExpirySignText, ...], items(1)]]}
        ),
        key_path("expiry", "detect"),
        converter(_as_tuple),
    ] = ()


class HealthCheck(ManifestBlock, frozen=True):
    """A check that the driver works."""

    method: HealthMethod
    cmd: Command = ""
    http: HttpProbe | None = None
    expect_exit: ExitCode = 0
    every: Annotated[float, DURATION] = 300.0
    timeout_ms: Milliseconds = 5000


class InstallStep(Struct, frozen=True):
    """One installation step. `settings` has all keys of the entry except `method`."""

    method: Annotated[str, length(1, 40)]
    settings: Annotated[FreeObject, NOT_IN_FILE] = field(default_factory=dict)


class VersionCheck(ManifestBlock, frozen=True):
    """The command that prints the installed version, and the supported versions."""

    cmd: Annotated[str, length(1, 4000)]
    parse: Annotated[str, length(1, 1000)]
    range: Range
    timeout_ms: Milliseconds = 5000


class MachineRequirements(ManifestBlock, frozen=True):
    """The machines on which a driver can run. An empty list allows all."""

    os: tuple[Literal["darwin", "linux", "windows"], ...] = ()
    arch: tuple[Literal["x64", "arm64", "x86", "arm"], ...] = ()
    min_disk_mb: NonNegativeInt = 0
    min_memory_mb: NonNegativeInt = 0


class Cost(ManifestBlock, frozen=True):
    """The cost of a call. None: not declared."""

    cost_class: CostClass | None = None
    units_per_call: Annotated[float, number(0), key_path("cost_units_per_call")] | None = None
    """Millicents, or thousandths of the smallest unit of `currency`."""
    currency: Annotated[
        str, text("a currency", "write three letters, such as EUR", pattern="^[A-Z]{3}$")
    ] = ""


class Retry(ManifestBlock, frozen=True):
    """The number of attempts of a call, including the first, and the backoff."""

    max_attempts: Annotated[int, number(1, 10), schema_patch({}, required=True)] = 1
    backoff: Backoff = "fixed"
    initial_ms: NonNegativeInt = 0


class ArgumentMapping(ManifestBlock, frozen=True):
    """The long form of a mapping: an input, and a transformer of driver.py."""

    source: Annotated[NonEmptyText, key_path("from")]
    """The value of `from`."""
    transform: NonEmptyText = ""


class McpBinding(ManifestBlock, frozen=True):
    """The tool of the server that serves the contract, and the mapping of its arguments."""

    tool_name: Annotated[str, length(1, 200)]
    argument_mapping: dict[
        str,
        Annotated[
            str,
            text("the name of an argument", "write a name of the server's tool", min_length=1),
        ],
    ] = field(default_factory=dict)
    """Maps an input of the contract (after `mapping`) to the argument of the tool."""
    result_extract: Annotated[
        str, text("a path into the result", 'write "$" or "$.name"', pattern=r"^\$", max_length=500)
    ] = "$"


class ImplementedContract(ManifestBlock, frozen=True):
    """A contract that the driver serves."""

    tool: Annotated[
        str,
        text(
            "a contract",
            "write the path of a TOOL.md, or the id of a contract",
            min_length=1,
            max_length=1000,
        ),
    ]
    """The path of a TOOL.md, or the id of a contract in the workspace."""
    version: Range
    """The npm range of the supported contract versions."""
    line: Annotated[int, NOT_IN_FILE] = 0
    """The line of the entry in the file."""
    drop_inputs: Annotated[
        tuple[NonEmptyText, ...], UNIQUE, key_path("schema_narrowing", "drop_inputs")
    ] = ()
    drop_outputs: Annotated[
        tuple[NonEmptyText, ...], UNIQUE, key_path("schema_narrowing", "drop_outputs")
    ] = ()
    mapping: dict[
        str,
        Annotated[str, text("the name of an input", "write its name", min_length=1, max_length=200)]
        | ArgumentMapping,
    ] = field(default_factory=dict)
    cost: Annotated[Cost, key_path("cost_override")] | None = None
    timeout_override_ms: Milliseconds | None = None
    retry: Annotated[Retry, key_path("retry_override")] | None = None
    mcp: Annotated[McpBinding | None, NOT_IN_FILE] = None
    """The value of `metadata.mcp`, if the kind is mcp."""
    metadata: FreeObject = field(default_factory=dict)


class DeclaredPrompt(ManifestBlock, frozen=True):
    """A prompt of the server that the node offers."""

    name: Annotated[str, length(1, 200)]
    integrate_as: Literal["skill_block", "raw"]
    description: Annotated[str, length(maximum=2000)] = ""
    skill_ref: FilePath = ""


class DeclaredResource(ManifestBlock, frozen=True):
    """Resources of the server that the node offers."""

    uri_template: Annotated[str, length(1, 2000)]
    integrate_as: Literal["ref_kind", "raw"]
    description: Annotated[str, length(maximum=2000)] = ""
    ref_kind_id: Annotated[
        str,
        text(
            "the name of a reference kind",
            "write small letters, digits and _, a letter first",
            pattern="^[a-z][a-z0-9_]*$",
            max_length=80,
        ),
    ] = ""


class ConnectionOptions(ManifestBlock, frozen=True):
    """Timeouts and retries of the connection to the server."""

    timeout_ms: Milliseconds = 30_000
    max_retries: Annotated[int, number(0, 10)] = 3
    keepalive: bool = True


class DriverManifest(Struct, frozen=True):
    """The fields of a DRIVER.md (AIP-30). `MCP_FIELDS` names the fields that AIP-32 adds."""

    file: Annotated[Path, NOT_IN_FILE]
    id: DriverId
    name: Name
    description: Description
    version: Version
    kind: DriverKind
    implements: Annotated[tuple[ImplementedContract, ...], items(1, 1000)]
    server: ServerBlock | None = None
    """None: the kind is not mcp. Interlock lists such a driver and does not run it."""
    transport: DriverTransport = "stdio"
    protocol_version: Annotated[
        str,
        text("a revision of MCP", 'write one such as "2025-06-18"', min_length=4, max_length=20),
    ] = ""
    """A revision of MCP. Empty: the newest."""
    prompts: tuple[DeclaredPrompt, ...] = ()
    resources: tuple[DeclaredResource, ...] = ()
    connection: Annotated[ConnectionOptions, key_path("connection_options")] = ConnectionOptions()
    auth: Auth | None = None
    install: tuple[InstallStep, ...] = ()
    version_check: VersionCheck | None = None
    health_check: HealthCheck | None = None
    egress: Annotated[tuple[EgressHost, ...], key_path("network", "egress")] = ()
    """The hosts that the server may reach: `host` or `*.suffix`, each with or without `:port`.
    Empty: no network."""
    region: Annotated[
        tuple[Annotated[str, text("a region", min_length=1, max_length=80)], ...],
        items(1),
    ] = (UNIVERSAL_REGION,)
    policy_tags: Tags = ()
    tags: Tags = ()
    requires: MachineRequirements = MachineRequirements()
    cost: Annotated[Cost, key_path("cost_override")] | None = None
    timeout_override_ms: Milliseconds | None = None
    retry: Annotated[Retry, key_path("retry_override")] | None = None
    metadata: FreeObject = field(default_factory=dict)
    runner: Annotated[
        dict[str, Any] | FilePath,
        explicit_schema(
            {
                "anyOf": [
                    FilePath,
                    {
                        "type": "object",
                        "properties": {
                            "engine": Annotated[str, text("an engine", min_length=1, max_length=80)]
                        },
                    },
                ]
            }
        ),
    ] = field(default_factory=dict)
    """The block of AIP-17, or the path of a RUNNER.md that has not been read yet. Empty: a
    subprocess."""
    source: Annotated[FreeObject, NOT_IN_FILE] = field(default_factory=dict)
    """The front matter, with deprecated fields replaced by current ones."""
    digest: Annotated[str, NOT_IN_FILE] = ""
    """The SHA-256 of the file, in hexadecimal."""

    @property
    def engine(self) -> str:
        """The engine that runs the server."""
        if isinstance(self.runner, str):
            return "subprocess"
        return str(self.runner.get("engine", "subprocess"))

    @property
    def folder(self) -> Path:
        """The folder of the DRIVER.md."""
        return self.file.parent

    @property
    def major(self) -> int:
        return int(self.version.split(".", 1)[0])

    @property
    def key(self) -> str:
        """`id@major`. Two major versions are two drivers."""
        return f"{self.id}@{self.major}"


MCP_FIELDS: Final = (
    "server", "transport", "protocol_version", "prompts", "resources", "connection",
)  # fmt: skip
"""The fields of `DriverManifest` that AIP-32 adds to AIP-30."""


# -- TOOL.md


class Example(ManifestBlock, frozen=True):
    """An example of a call and its result, valid for every driver."""

    input: FreeObject
    output: Any = None
    has_output: Annotated[bool, NOT_IN_FILE] = False
    note: str = ""
    name: str = ""


class HostRequirements(ManifestBlock, frozen=True):
    """The minimum that a contract requires: hosts, secrets and other tools."""

    network: tuple[NonEmptyText, ...] = ()
    secrets: tuple[NonEmptyText, ...] = ()
    tools: tuple[NonEmptyText, ...] = ()


class DriverConstraints(ManifestBlock, frozen=True):
    """Limits on the drivers that may serve a contract."""

    forbid: Annotated[tuple[NonEmptyText, ...], UNIQUE] = ()
    """Ids or kinds of drivers."""
    require_kind: Annotated[tuple[DriverKind, ...], UNIQUE] = ()


IO_ADDRESSES: Final = (
    "https://agentproto.sh/docs/aip-16/IO.schema.json",
    "https://agentproto.sh/schemas/aip-16/IO.schema.json",
)
"""The addresses of the schema of inputs and outputs. Published manifests use both."""


class ToolContract(ManifestBlock, frozen=True):
    """The fields of a TOOL.md: a contract that drivers serve."""

    file: Annotated[Path, NOT_IN_FILE]
    id: ToolId
    name: Name
    description: Description
    version: Version
    inputs: Annotated[FreeObject, explicit_schema({"$ref": f"{IO_ADDRESSES[0]}#/$defs/inputs"})]
    """A JSON Schema, draft 2020-12."""
    outputs: Annotated[FreeObject, explicit_schema({"$ref": f"{IO_ADDRESSES[0]}#/$defs/outputs"})]
    idempotent: bool = False
    mutates: tuple[
        Annotated[
            str,
            text(
                "a changed resource",
                "write <class>:<scope>, such as workspace:/notes or network:*",
                pattern=r"^[a-z][a-z0-9_-]*:\S+$",
                max_length=500,
            ),
        ],
        ...,
    ] = ()
    """The resources that a call changes, as `<class>:<scope>`. Empty: none."""
    requires: HostRequirements = HostRequirements()
    approval: Annotated[
        str,
        text(
            "an approval mode",
            "write auto, always, on-mutate or policy:<name>",
            pattern=r"^(auto|always|on-mutate|policy:[A-Za-z0-9_./-]+)$",
        ),
    ] = "auto"
    """`auto`, `always`, `on-mutate` or `policy:<ref>`."""
    risk_level: Annotated[int, number(0, 3)] = 0
    """From 0 to 3. A call of level 3 cannot be undone."""
    cost_class: CostClass = "trivial"
    timeout_ms: Annotated[int, number(1)] = 30_000
    retry: (
        Annotated[Retry, schema_patch({"properties": {"max_attempts": {"maximum": 20}}})] | None
    ) = None
    default_implementation: Annotated[
        str,
        explicit_schema({"anyOf": [DriverId, {"type": "null"}]}),
        converter(lambda value: value or ""),
    ] = ""
    driver_constraints: DriverConstraints = DriverConstraints()
    examples: tuple[Example, ...] = ()
    tags: Tags = ()
    metadata: Annotated[
        FreeObject,
        schema_patch(
            {"properties": {"contextSchema": {"$ref": f"{IO_ADDRESSES[0]}#/$defs/jsonSchema"}}}
        ),
    ] = field(default_factory=dict)
    context_schema: Annotated[FreeObject | None, NOT_IN_FILE] = None
    """The value of `metadata.contextSchema`."""
    digest: Annotated[str, NOT_IN_FILE] = ""
    """The SHA-256 of the file, in hexadecimal."""

    @property
    def major(self) -> int:
        return int(self.version.split(".", 1)[0])

    @property
    def key(self) -> str:
        """`id@major`. Two major versions are two contracts."""
        return f"{self.id}@{self.major}"


# -- SECRETS.md: the secrets and their access rules, never a value


class AccessEntry(Struct, frozen=True):
    """A grant of access, to one of the kinds of grantees."""

    kind: Literal["role", "userId", "cap", "tool", "workflow"]
    value: str


_GRANT: Final = {
    "type": "object",
    "properties": {
        "role": NonEmptyText,
        "userId": NonEmptyText,
        "cap": Annotated[str, text("a capability", "write it as cap://…", pattern="^cap://")],
        "tool": NonEmptyText,
        "workflow": NonEmptyText,
    },
    "minProperties": 1,
    "maxProperties": 1,
    "title": "a grant",
    "description": "name exactly one of role, userId, cap, tool and workflow",
}
_GRANTS: Final = {"type": "array", "items": _GRANT}


class SecretEntry(ManifestBlock, frozen=True):
    """A secret: its name, its purpose, and its access rules."""

    slug: Annotated[
        str,
        text(
            "a slug",
            "write 2 to 80 small letters, digits and dashes, after namespace/ if needed",
            pattern=SLUG_PATTERN,
            min_length=2,
            max_length=80,
        ),
    ]
    name: Name
    description: Description
    file: Annotated[Path, NOT_IN_FILE]
    kind: SecretKind = "opaque"
    backend: Annotated[
        FreeObject,
        explicit_schema(
            {
                "anyOf": [
                    Annotated[
                        str,
                        text(
                            "the address of a vault entry",
                            "write it as vault://driver/path",
                            pattern="^[a-z][a-z0-9-]*://",
                            max_length=1000,
                        ),
                    ],
                    FreeObject,
                ]
            }
        ),
        converter(lambda backend: {"uri": backend} if isinstance(backend, str) else backend),
    ] = field(default_factory=dict)
    access: Annotated[
        dict[AccessOperation, tuple[AccessEntry, ...]],
        explicit_schema(
            {
                "type": "object",
                "properties": {"reveal": _GRANTS, "bind": _GRANTS, "rotate": _GRANTS},
                "additionalProperties": False,
            }
        ),
    ] = field(default_factory=dict)
    """An operation that is not in it is allowed to every caller of the node."""
    retention: Annotated[
        str,
        text("a retention period", "write P7Y, 7y or 90d", pattern=RETENTION_PATTERN),
        key_path("audit", "retention"),
    ] = ""
    pii: Annotated[bool, key_path("audit", "pii")] = False
    classification: Annotated[tuple[NonEmptyText, ...], key_path("audit", "classification")] = ()
    env: Annotated[str, NOT_IN_FILE] = ""
    """The environment variable of the secret, from an exposure or `metadata.bindings.env`."""
    env_names: Annotated[tuple[str, ...], NOT_IN_FILE] = ()
    """All such variables. `env` is the first."""
    tags: Tags = ()
    metadata: Annotated[
        FreeObject,
        schema_patch(
            {
                "properties": {
                    "bindings": {
                        "type": "object",
                        "properties": {
                            "env": {
                                "anyOf": [
                                    Variable,
                                    Annotated[tuple[Variable, ...], items(1)],
                                ]
                            }
                        },
                    }
                }
            }
        ),
    ] = field(default_factory=dict)
    line: Annotated[int, NOT_IN_FILE] = 0
    """The line of the entry in the file."""


class SecretsInventory(Struct, frozen=True):
    """The secrets of all inventories of a workspace, by slug."""

    entries: dict[str, SecretEntry] = field(default_factory=dict)
