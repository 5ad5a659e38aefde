"""What a DRIVER.md (AIP-30, AIP-32), a TOOL.md (AIP-14) and a SECRETS.md (AIP-19) say, as structs.

The structs come first. `fields.py` derives the JSON Schemas from them (`schemas.py` puts them
together) and builds them from values that are valid. Of a type, `title` says what a value is ("a
version") and `description` what to write: problems quote both, editors show them. `writeOnly` marks
what must not be shown again: somebody could put a secret there by mistake.

Durations are milliseconds where the field's own name says so, else seconds. Paths are as written;
`folder` of the manifest tells where they start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field

from interlock.manifests.fields import (
    EVERY,
    OWN,
    ManifestBlock,
    at,
    items,
    length,
    number,
    patched,
    read,
    schema,
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
"""How long an unused server of a driver is kept."""

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
        "a range of versions",
        'write one as npm has them, such as "^1.0.0"',
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
UNIQUE: Final = patched({"uniqueItems": True})
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
        "a host to reach",
        "write api.example.com or *.example.com, with :port if it matters; "
        "no address range, no URL",
        pattern=EGRESS_PATTERN,
        max_length=260,
    ),
]
ExpirySignText = Annotated[
    str, text("a sign of expiry", "write it as http_status:401", min_length=3, max_length=300)
]
Milliseconds = Annotated[int, number(100)]
NonNegativeInt = Annotated[int, number(0)]
ExitCode = Annotated[int, number(0, 255)]
FreeObject = dict[str, Any]


def _one_or_many(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _bare_secret(text: str) -> str:
    return text.removeprefix("${secrets.").removesuffix("}")


# -- DRIVER.md


class RemoteAuth(ManifestBlock, frozen=True):
    """How a remote server is shown who calls."""

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
        read(_bare_secret),
    ]
    """The NAME of `${secrets.NAME}`."""
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
    """Where the MCP server lives. Which fields are set depends on `kind`."""

    kind: ServerKind
    path: FilePath = ""
    package: Annotated[
        str,
        text(
            "the name of an npm package",
            "write it as npm has it, such as @scope/name or name@1.2.3",
            pattern=r"^(@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*(@[^\s@/]+)?$",
            max_length=300,
        ),
    ] = ""
    image: Annotated[
        str,
        text(
            "the name of an image",
            "write it as docker has it, such as name:tag",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$",
            max_length=300,
        ),
    ] = ""
    url: Url = ""
    args: Annotated[tuple[Annotated[str, length(most=8000)], ...], items(most=500)] = ()
    env: dict[Variable, Annotated[str, length(most=32_000)]] = field(default_factory=dict)
    """May hold `${secrets.NAME}`."""
    auth: RemoteAuth | None = None
    port: Annotated[int, number(1, 65535)] | None = None
    """Of a docker server that is spoken to over HTTP."""


SERVER_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "binary": ("path", "args", "env"),
    "npm": ("package", "args", "env"),
    "docker": ("image", "port", "args", "env"),
    "remote": ("url", "auth"),
}
"""The fields of each kind of server; the first one is required."""


class HttpProbe(ManifestBlock, frozen=True):
    """A request, and the status that means success."""

    url: Url
    method: Literal["GET", "POST", "HEAD"] = "GET"
    expect_status: Annotated[int, number(100, 599)] = 200


class Completion(ManifestBlock, frozen=True):
    """When a login has succeeded: a command's exit code, or an answer over HTTP."""

    cmd: Command = ""
    exit_code: ExitCode = 0
    http: HttpProbe | None = None


class Login(ManifestBlock, frozen=True):
    """How a person signs in."""

    cmd: Command = ""
    url: Url = ""
    interactive: bool = False
    requires_callback_url: bool = False
    completes_when: Completion | None = None


class Refresh(ManifestBlock, frozen=True):
    """How a sign-in is kept fresh. An empty `cmd` means the hook of driver.py."""

    cmd: Command = ""
    url: Url = ""
    every: Annotated[float, EVERY] | None = None


class Auth(ManifestBlock, frozen=True):
    """What a driver needs to be signed in."""

    ref: FilePath = ""
    """The SECRETS.md."""
    state_paths: Annotated[tuple[FilePath, ...], at("state", "paths")] = ()
    state_env: Annotated[tuple[SecretName, ...], UNIQUE, at("state", "env")] = ()
    """Names of the secrets that it needs."""
    login: Login | None = None
    refresh: Refresh | None = None
    expiry_detect: Annotated[
        tuple[ExpirySignText, ...],
        schema({"anyOf": [ExpirySignText, Annotated[tuple[ExpirySignText, ...], items(1)]]}),
        at("expiry", "detect"),
        read(_one_or_many),
    ] = ()


class HealthCheck(ManifestBlock, frozen=True):
    """How to tell that a driver works."""

    method: HealthMethod
    cmd: Command = ""
    http: HttpProbe | None = None
    expect_exit: ExitCode = 0
    every: Annotated[float, EVERY] = 300.0
    timeout_ms: Milliseconds = 5000


class InstallStep(Struct, frozen=True):
    """One way to install what a driver needs. `settings` is everything else that the entry says."""

    method: Annotated[str, length(1, 40)]
    settings: Annotated[FreeObject, OWN] = field(default_factory=dict)


class VersionCheck(ManifestBlock, frozen=True):
    """Which version is installed, and which will do."""

    cmd: Annotated[str, length(1, 4000)]
    parse: Annotated[str, length(1, 1000)]
    range: Range
    timeout_ms: Milliseconds = 5000


class MachineRequirements(ManifestBlock, frozen=True):
    """The machines that a driver runs on. Empty: any."""

    os: tuple[Literal["darwin", "linux", "windows"], ...] = ()
    arch: tuple[Literal["x64", "arm64", "x86", "arm"], ...] = ()
    min_disk_mb: NonNegativeInt = 0
    min_memory_mb: NonNegativeInt = 0


class Cost(ManifestBlock, frozen=True):
    """What a call costs. None: not said."""

    cost_class: CostClass | None = None
    units_per_call: Annotated[float, number(0), at("cost_units_per_call")] | None = None
    """Millicents, or thousandths of the smallest unit of `currency`."""
    currency: Annotated[
        str, text("a currency", "write three letters, such as EUR", pattern="^[A-Z]{3}$")
    ] = ""


class Retry(ManifestBlock, frozen=True):
    """How often a call is tried, all in all, and the pause before the next try."""

    max_attempts: Annotated[int, number(1, 10), patched({}, required=True)] = 1
    backoff: Backoff = "fixed"
    initial_ms: NonNegativeInt = 0


class ArgumentMapping(ManifestBlock, frozen=True):
    """The long form of a mapping: another name, and a transformer of driver.py."""

    source: Annotated[NonEmptyText, at("from")]
    """`from`, as written."""
    transform: NonEmptyText = ""


class McpBinding(ManifestBlock, frozen=True):
    """Which tool of the server serves the contract, and how the two are translated."""

    tool_name: Annotated[str, length(1, 200)]
    argument_mapping: dict[
        str,
        Annotated[
            str,
            text(
                "the name of an argument", "write the name that the server's tool has", min_length=1
            ),
        ],
    ] = field(default_factory=dict)
    """Contract input (after `mapping`) → the tool's argument."""
    result_extract: Annotated[
        str, text("a path into the result", 'write "$" or "$.name"', pattern=r"^\$", max_length=500)
    ] = "$"


class ImplementedContract(ManifestBlock, frozen=True):
    """One contract that the driver serves."""

    tool: Annotated[
        str,
        text(
            "a contract",
            "write the path of a TOOL.md, or a contract's id",
            min_length=1,
            max_length=1000,
        ),
    ]
    """The path of a TOOL.md, or the id of a contract that is known otherwise."""
    version: Range
    """An npm range that the contract's version must be in."""
    line: Annotated[int, OWN] = 0
    """Where the entry stands in the file."""
    drop_inputs: Annotated[
        tuple[NonEmptyText, ...], UNIQUE, at("schema_narrowing", "drop_inputs")
    ] = ()
    drop_outputs: Annotated[
        tuple[NonEmptyText, ...], UNIQUE, at("schema_narrowing", "drop_outputs")
    ] = ()
    mapping: dict[
        str,
        Annotated[str, text("the name of an input", "write its name", min_length=1, max_length=200)]
        | ArgumentMapping,
    ] = field(default_factory=dict)
    cost: Annotated[Cost, at("cost_override")] | None = None
    timeout_override_ms: Milliseconds | None = None
    retry: Annotated[Retry, at("retry_override")] | None = None
    mcp: Annotated[McpBinding | None, OWN] = None
    """`metadata.mcp`, of an MCP driver."""
    metadata: FreeObject = field(default_factory=dict)


class DeclaredPrompt(ManifestBlock, frozen=True):
    """A prompt of the server that is to be offered."""

    name: Annotated[str, length(1, 200)]
    integrate_as: Literal["skill_block", "raw"]
    description: Annotated[str, length(most=2000)] = ""
    skill_ref: FilePath = ""


class DeclaredResource(ManifestBlock, frozen=True):
    """Resources of the server that are to be offered."""

    uri_template: Annotated[str, length(1, 2000)]
    integrate_as: Literal["ref_kind", "raw"]
    description: Annotated[str, length(most=2000)] = ""
    ref_kind_id: Annotated[
        str,
        text(
            "the name of a kind of reference",
            "write small letters, digits and _, a letter first",
            pattern="^[a-z][a-z0-9_]*$",
            max_length=80,
        ),
    ] = ""


class ConnectionOptions(ManifestBlock, frozen=True):
    """How patient the connection is."""

    timeout_ms: Milliseconds = 30_000
    max_retries: Annotated[int, number(0, 10)] = 3
    keepalive: bool = True


class DriverManifest(Struct, frozen=True):
    """A whole DRIVER.md. The fields of AIP-32 are those that `MCP_FIELDS` names."""

    file: Annotated[Path, OWN]
    id: DriverId
    name: Name
    description: Description
    version: Version
    kind: DriverKind
    implements: Annotated[tuple[ImplementedContract, ...], items(1, 1000)]
    server: ServerBlock | None = None
    """None: a driver of another kind than mcp, which is known but not run here."""
    transport: DriverTransport = "stdio"
    protocol_version: Annotated[
        str,
        text("a revision of MCP", 'write one such as "2025-06-18"', min_length=4, max_length=20),
    ] = ""
    """One that MCP has; empty: the newest."""
    prompts: tuple[DeclaredPrompt, ...] = ()
    resources: tuple[DeclaredResource, ...] = ()
    connection: Annotated[ConnectionOptions, at("connection_options")] = ConnectionOptions()
    auth: Auth | None = None
    install: tuple[InstallStep, ...] = ()
    version_check: VersionCheck | None = None
    health_check: HealthCheck | None = None
    egress: Annotated[tuple[EgressHost, ...], at("network", "egress")] = ()
    """Hosts that the server may reach, as `host`, `*.suffix`, each with `:port` or without. Empty:
    no network."""
    region: Annotated[
        tuple[Annotated[str, text("a region", min_length=1, max_length=80)], ...],
        items(1),
    ] = (UNIVERSAL_REGION,)
    policy_tags: Tags = ()
    tags: Tags = ()
    requires: MachineRequirements = MachineRequirements()
    cost: Annotated[Cost, at("cost_override")] | None = None
    timeout_override_ms: Milliseconds | None = None
    retry: Annotated[Retry, at("retry_override")] | None = None
    metadata: FreeObject = field(default_factory=dict)
    runner: Annotated[
        dict[str, Any] | FilePath,
        schema(
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
    """AIP-17's block, or the path of a RUNNER.md that was not read yet. Empty: a subprocess."""
    source: Annotated[FreeObject, OWN] = field(default_factory=dict)
    """The front matter as it was read, deprecated fields translated."""
    digest: Annotated[str, OWN] = ""
    """SHA-256 of the file, in hex."""

    @property
    def engine(self) -> str:
        """What runs it."""
        if isinstance(self.runner, str):
            return "subprocess"
        return str(self.runner.get("engine", "subprocess"))

    @property
    def folder(self) -> Path:
        """Where it lives."""
        return self.file.parent

    @property
    def major(self) -> int:
        return int(self.version.split(".", 1)[0])

    @property
    def key(self) -> str:
        """`id@major`: two majors are two drivers."""
        return f"{self.id}@{self.major}"


MCP_FIELDS: Final = (
    "server", "transport", "protocol_version", "prompts", "resources", "connection",
)  # fmt: skip
"""The fields of `DriverManifest` that only AIP-32 has."""


# -- TOOL.md


class Example(ManifestBlock, frozen=True):
    """A call and what comes of it, true for every driver."""

    input: FreeObject
    output: Any = None
    has_output: Annotated[bool, OWN] = False
    note: str = ""
    name: str = ""


class HostRequirements(ManifestBlock, frozen=True):
    """What a contract needs of its host, at least: hosts to reach, secrets, other tools."""

    network: tuple[NonEmptyText, ...] = ()
    secrets: tuple[NonEmptyText, ...] = ()
    tools: tuple[NonEmptyText, ...] = ()


class DriverConstraints(ManifestBlock, frozen=True):
    """Which drivers may serve it."""

    forbid: Annotated[tuple[NonEmptyText, ...], UNIQUE] = ()
    """Ids of drivers, or kinds."""
    require_kind: Annotated[tuple[DriverKind, ...], UNIQUE] = ()


IO_ADDRESSES: Final = (
    "https://agentproto.sh/docs/aip-16/IO.schema.json",
    "https://agentproto.sh/schemas/aip-16/IO.schema.json",
)
"""The schema of inputs and outputs. Published manifests refer to both."""


class ToolContract(ManifestBlock, frozen=True):
    """A whole TOOL.md: a contract that drivers serve."""

    file: Annotated[Path, OWN]
    id: ToolId
    name: Name
    description: Description
    version: Version
    inputs: Annotated[FreeObject, schema({"$ref": f"{IO_ADDRESSES[0]}#/$defs/inputs"})]
    """JSON Schema 2020-12."""
    outputs: Annotated[FreeObject, schema({"$ref": f"{IO_ADDRESSES[0]}#/$defs/outputs"})]
    idempotent: bool = False
    mutates: tuple[
        Annotated[
            str,
            text(
                "something that can be changed",
                "write <class>:<scope>, such as workspace:/notes or network:*",
                pattern=r"^[a-z][a-z0-9_-]*:\S+$",
                max_length=500,
            ),
        ],
        ...,
    ] = ()
    """`<class>:<scope>` each. Empty: it changes nothing."""
    requires: HostRequirements = HostRequirements()
    approval: Annotated[
        str,
        text(
            "a way of approving",
            "write auto, always, on-mutate or policy:<name>",
            pattern=r"^(auto|always|on-mutate|policy:[A-Za-z0-9_./-]+)$",
        ),
    ] = "auto"
    """`auto`, `always`, `on-mutate` or `policy:<ref>`."""
    risk_level: Annotated[int, number(0, 3)] = 0
    """0 to 3; 3 cannot be undone."""
    cost_class: CostClass = "trivial"
    timeout_ms: Annotated[int, number(1)] = 30_000
    retry: Annotated[Retry, patched({"properties": {"max_attempts": {"maximum": 20}}})] | None = (
        None
    )
    default_implementation: Annotated[
        str,
        schema({"anyOf": [DriverId, {"type": "null"}]}),
        read(lambda value: value or ""),
    ] = ""
    driver_constraints: DriverConstraints = DriverConstraints()
    examples: tuple[Example, ...] = ()
    tags: Tags = ()
    metadata: Annotated[
        FreeObject,
        patched(
            {"properties": {"contextSchema": {"$ref": f"{IO_ADDRESSES[0]}#/$defs/jsonSchema"}}}
        ),
    ] = field(default_factory=dict)
    context_schema: Annotated[FreeObject | None, OWN] = None
    """`metadata.contextSchema`."""
    digest: Annotated[str, OWN] = ""
    """SHA-256 of the file, in hex."""

    @property
    def major(self) -> int:
        return int(self.version.split(".", 1)[0])

    @property
    def key(self) -> str:
        """`id@major`: two majors are two contracts."""
        return f"{self.id}@{self.major}"


# -- SECRETS.md: which secrets there are and who may have them; never a value


class AccessEntry(Struct, frozen=True):
    """Who may: exactly one of the kinds."""

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
    """One secret: its name, what it is for, and who may have it."""

    slug: Annotated[
        str,
        text(
            "a slug",
            "write 2 to 80 small letters, digits and dashes, with namespace/ if need be",
            pattern=SLUG_PATTERN,
            min_length=2,
            max_length=80,
        ),
    ]
    name: Name
    description: Description
    file: Annotated[Path, OWN]
    kind: SecretKind = "opaque"
    backend: Annotated[
        FreeObject,
        schema(
            {
                "anyOf": [
                    Annotated[
                        str,
                        text(
                            "the address of a vault's entry",
                            "write it as vault://driver/path",
                            pattern="^[a-z][a-z0-9-]*://",
                            max_length=1000,
                        ),
                    ],
                    FreeObject,
                ]
            }
        ),
        read(lambda backend: {"uri": backend} if isinstance(backend, str) else backend),
    ] = field(default_factory=dict)
    access: Annotated[
        dict[AccessOperation, tuple[AccessEntry, ...]],
        schema(
            {
                "type": "object",
                "properties": {"reveal": _GRANTS, "bind": _GRANTS, "rotate": _GRANTS},
                "additionalProperties": False,
            }
        ),
    ] = field(default_factory=dict)
    """An operation that is not named is open to everybody the host lets in."""
    retention: Annotated[
        str,
        text("how long something is kept", "write P7Y, 7y or 90d", pattern=RETENTION_PATTERN),
        at("audit", "retention"),
    ] = ""
    pii: Annotated[bool, at("audit", "pii")] = False
    classification: Annotated[tuple[NonEmptyText, ...], at("audit", "classification")] = ()
    env: Annotated[str, OWN] = ""
    """The variable that it is bound to, where an exposure or metadata.bindings.env says so."""
    env_names: Annotated[tuple[str, ...], OWN] = ()
    """All such variables; `env` is the first."""
    tags: Tags = ()
    metadata: Annotated[
        FreeObject,
        patched(
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
    line: Annotated[int, OWN] = 0
    """Where the entry stands in the file."""


class SecretsInventory(Struct, frozen=True):
    """Everything that the inventories of a workspace list, by slug."""

    entries: dict[str, SecretEntry] = field(default_factory=dict)
