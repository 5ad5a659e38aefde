"""What a DRIVER.md says (AIP-30, and AIP-32 for MCP servers), as frozen structs.

Durations are milliseconds where the field's own name says so, else seconds. Paths are as written;
`folder` of the manifest tells where they start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

DriverKind = Literal["cli", "http", "mcp", "sdk", "builtin"]
ServerKind = Literal["binary", "npm", "docker", "remote"]
DriverTransport = Literal["stdio", "sse", "http"]
CostClass = Literal["trivial", "metered", "expensive"]
Backoff = Literal["fixed", "exponential"]
HealthMethod = Literal["ping", "exec", "noop", "http"]

UNIVERSAL_REGION = "global"
IDLE_SECONDS = 300.0
"""How long an unused server of a driver is kept."""


class RemoteAuth(Struct, frozen=True):
    """How a remote server is shown who calls."""

    type: Literal["bearer", "header"]
    secret: str
    """The NAME of `${secrets.NAME}`."""
    header: str = "Authorization"


class ServerBlock(Struct, frozen=True):
    """Where the MCP server lives. Which fields are set depends on `kind`."""

    kind: ServerKind
    path: str = ""
    package: str = ""
    image: str = ""
    url: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    """May hold `${secrets.NAME}`."""
    auth: RemoteAuth | None = None
    port: int | None = None
    """Of a docker server that is spoken to over HTTP."""


class HttpProbe(Struct, frozen=True):
    """A request, and the status that means success."""

    url: str
    method: Literal["GET", "POST", "HEAD"] = "GET"
    expect_status: int = 200


class Completion(Struct, frozen=True):
    """When a login has succeeded: a command's exit code, or an answer over HTTP."""

    cmd: str = ""
    exit_code: int = 0
    http: HttpProbe | None = None


class Login(Struct, frozen=True):
    """How a person signs in."""

    cmd: str = ""
    url: str = ""
    interactive: bool = False
    requires_callback_url: bool = False
    completes_when: Completion | None = None


class Refresh(Struct, frozen=True):
    """How a sign-in is kept fresh. An empty `cmd` means the hook of driver.py."""

    cmd: str = ""
    url: str = ""
    every: float | None = None


class Auth(Struct, frozen=True):
    """What a driver needs to be signed in."""

    ref: str = ""
    """The SECRETS.md."""
    state_paths: tuple[str, ...] = ()
    state_env: tuple[str, ...] = ()
    """Names of the secrets that it needs."""
    login: Login | None = None
    refresh: Refresh | None = None
    expiry_detect: tuple[str, ...] = ()


class HealthCheck(Struct, frozen=True):
    """How to tell that a driver works."""

    method: HealthMethod
    cmd: str = ""
    http: HttpProbe | None = None
    expect_exit: int = 0
    every: float = 300.0
    timeout_ms: int = 5000


class InstallStep(Struct, frozen=True):
    """One way to install what a driver needs. `settings` is everything else that the entry says."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)


class VersionCheck(Struct, frozen=True):
    """Which version is installed, and which will do."""

    cmd: str
    parse: str
    range: str
    timeout_ms: int = 5000


class Requires(Struct, frozen=True):
    """The machines that a driver runs on. Empty: any."""

    os: tuple[str, ...] = ()
    arch: tuple[str, ...] = ()
    min_disk_mb: int = 0
    min_memory_mb: int = 0


class Cost(Struct, frozen=True):
    """What a call costs. None: not said."""

    cost_class: CostClass | None = None
    units_per_call: float | None = None
    """Millicents, or thousandths of the smallest unit of `currency`."""
    currency: str = ""


class Retry(Struct, frozen=True):
    """How often a call is tried, all in all, and the pause before the next try."""

    max_attempts: int = 1
    backoff: Backoff = "fixed"
    initial_ms: int = 0


class MappedFrom(Struct, frozen=True):
    """The long form of a mapping: another name, and a transformer of driver.py."""

    source: str
    """`from`, as written."""
    transform: str = ""


class McpBinding(Struct, frozen=True):
    """Which tool of the server serves the contract, and how the two are translated."""

    tool_name: str
    argument_mapping: dict[str, str] = field(default_factory=dict)
    """Contract input (after `mapping`) → the tool's argument."""
    result_extract: str = "$"


class Implements(Struct, frozen=True):
    """One contract that the driver serves."""

    tool: str
    """The path of a TOOL.md, or the id of a contract that is known otherwise."""
    version: str
    """An npm range that the contract's version must be in."""
    line: int = 0
    """Where the entry stands in the file."""
    drop_inputs: tuple[str, ...] = ()
    drop_outputs: tuple[str, ...] = ()
    mapping: dict[str, str | MappedFrom] = field(default_factory=dict)
    cost: Cost | None = None
    timeout_override_ms: int | None = None
    retry: Retry | None = None
    mcp: McpBinding | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class DeclaredPrompt(Struct, frozen=True):
    """A prompt of the server that is to be offered."""

    name: str
    integrate_as: Literal["skill_block", "raw"]
    description: str = ""
    skill_ref: str = ""


class DeclaredResource(Struct, frozen=True):
    """Resources of the server that are to be offered."""

    uri_template: str
    integrate_as: Literal["ref_kind", "raw"]
    description: str = ""
    ref_kind_id: str = ""


class ConnectionOptions(Struct, frozen=True):
    """How patient the connection is."""

    timeout_ms: int = 30_000
    max_retries: int = 3
    keepalive: bool = True


class DriverManifest(Struct, frozen=True):
    """A whole DRIVER.md."""

    file: Path
    id: str
    name: str
    description: str
    version: str
    kind: DriverKind
    implements: tuple[Implements, ...]
    server: ServerBlock | None = None
    """None: a driver of another kind than mcp, which is known but not run here."""
    transport: DriverTransport = "stdio"
    protocol_version: str = ""
    """One that MCP has; empty: the newest."""
    prompts: tuple[DeclaredPrompt, ...] = ()
    resources: tuple[DeclaredResource, ...] = ()
    connection: ConnectionOptions = ConnectionOptions()
    auth: Auth | None = None
    install: tuple[InstallStep, ...] = ()
    version_check: VersionCheck | None = None
    health_check: HealthCheck | None = None
    egress: tuple[str, ...] = ()
    """Hosts that the server may reach, as `host`, `*.suffix`, each with `:port` or without. Empty:
    no network."""
    region: tuple[str, ...] = (UNIVERSAL_REGION,)
    policy_tags: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    requires: Requires = Requires()
    cost: Cost | None = None
    timeout_override_ms: int | None = None
    retry: Retry | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    runner: dict[str, Any] | str = field(default_factory=dict)
    """AIP-17's block, or the path of a RUNNER.md that was not read yet. Empty: a subprocess."""
    source: dict[str, Any] = field(default_factory=dict)
    """The front matter as it was read, deprecated fields translated."""
    digest: str = ""
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
