"""What `interlock.yaml` says, as frozen structs. Every default of a node is here.

The fields' types and descriptions drive the reader (`reader.py`) and the JSON Schema
(`schema.py`); a field added here is read, checked and documented without another line.

What a node is told about trust is in `trust.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field
from msgspec.structs import force_setattr, replace

from interlock.core.config.quantities import PATH_PATTERN, Address, default_segment, parse_listen
from interlock.core.config.section import (
    AnySection,
    Count,
    Duration,
    DurationOrZero,
    FeatureSection,
    Glob,
    HeaderName,
    Host,
    Origin,
    Reference,
    ScalarReference,
    SecretReference,
    Section,
    Segment,
    ServerKey,
    Size,
    Text,
    ToolName,
    VariableName,
    default_section,
    kind,
    says,
)
from interlock.core.config.trust import (
    ApprovalsConfig,
    BudgetsConfig,
    EffectName,
    IdentityConfig,
    JournalConfig,
    PinsConfig,
    PolicyConfig,
    TokenConfig,
    UnannotatedName,
)

MEBIBYTE: Final = 1024 * 1024

NameStyle = Literal["auto", "dotted", "safe"]
Transport = Literal["auto", "stdio", "http", "sse", "ax"]
COMMAND_TRANSPORTS: Final = ("stdio", "ax")
"""Those that need `command`."""
URL_TRANSPORTS: Final = ("http", "sse")
"""Those that need `url`."""
Exposure = Literal["prefixed", "transparent"]
Sharing = Literal["auto", "shared", "private"]
Protocol = Literal["auto", "session", "stateless"]
AllowDeny = Literal["allow", "deny"]
LatencyClass = Literal["realtime", "fast", "standard", "slow", "batch"]
GrantName = Literal["authorization_code", "client_credentials"]


class Limits(Section, frozen=True):
    """How much a caller may send or hold open."""

    body_bytes: Annotated[Size, says("The largest request body, such as 4MiB.")] = 4 * MEBIBYTE
    header_bytes: Annotated[Size, says("The most bytes of request headers.")] = 16 * 1024
    header_count: Annotated[Count, says("The most request headers.")] = 100
    sessions: Annotated[Count, says("The most MCP sessions at once.")] = 10_000
    session_idle: Annotated[Duration, says("How long an unused session is kept.")] = 3600.0
    concurrent_calls: Annotated[Count, says("The most calls under way at once.")] = 10_000


class BreakerConfig(Section, frozen=True):
    """When calls to a failing upstream stop being tried."""

    failures: Annotated[Count, says("Failures in a row that open the breaker.")] = 5
    cooldown: Annotated[Duration, says("How long it stays open before one call is tried.")] = 10.0


class OAuthConfig(Section, frozen=True):
    """How the node signs in to a server that asks for it."""

    enabled: Annotated[bool, says("false: the node never signs in to this server.")] = True
    grant: Annotated[
        GrantName,
        says("Whether a human signs in (interlock login), or the node with its own credentials."),
    ] = "authorization_code"
    scopes: Annotated[
        list[Text], says("The scopes to ask for. Default: those that the server asks for.")
    ] = field(default_factory=list)
    issuer: Annotated[
        Annotated[str, kind("url")] | None,
        says("The only authorization server that may be used; name it when you have a client_id."),
    ] = None
    client_id: Annotated[
        Annotated[Reference, Meta(min_length=1)] | None,
        says("The node's client there, when it was registered by hand."),
    ] = None
    client_secret: Annotated[
        SecretReference | None, says("The client's secret, by reference: ${env:NAME}.")
    ] = None
    private_key: Annotated[
        SecretReference | None,
        says("Instead of a secret: the key (PEM) it signs with, by reference: ${file:path}."),
    ] = None
    client_metadata_url: Annotated[
        Annotated[str, kind("url")] | None,
        says("Where a client id metadata document of yours is published; it becomes the id."),
    ] = None
    redirect_port: Annotated[
        Annotated[int, Meta(ge=0)],
        says("The port of this machine to which the browser comes back; 0 takes a free one."),
    ] = 0

    def __repr__(self) -> str:
        # Once its references are resolved it holds secrets.
        return f"OAuthConfig({self.grant})"


class AskConfig(Section, frozen=True):
    """What a server may ask of those who call it."""

    sampling: Annotated[
        AllowDeny, says("Whether it may have its callers' models write something for it.")
    ] = "allow"
    elicitation: Annotated[AllowDeny, says("Whether it may ask its callers' users.")] = "allow"
    roots: Annotated[AllowDeny, says("Whether it may ask for its callers' roots.")] = "allow"
    max_tokens: Annotated[
        Count | None, says("The most tokens it may have sampled at once. Default: no limit.")
    ] = None


class ServerConfig(Section, frozen=True):
    """One upstream. Exactly one of `url` and `command` is set."""

    url: Annotated[
        Annotated[str, kind("url")] | None, says("Where a remote MCP server answers.")
    ] = None
    command: Annotated[
        Annotated[Reference, Meta(min_length=1)] | None,
        says("The program to start. Without args it is split as a command line."),
    ] = None
    args: Annotated[list[ScalarReference], says("The program's arguments.")] = field(
        default_factory=list
    )
    env: Annotated[
        dict[VariableName, ScalarReference], says("Environment variables set for the program.")
    ] = field(default_factory=dict)
    cwd: Annotated[
        Annotated[Reference, Meta(min_length=1)] | None,
        says("The folder the program starts in. Default: the config file's folder."),
    ] = None
    transport: Annotated[
        Transport, says("How to speak to it; auto finds out by asking the server.")
    ] = "auto"
    segment: Annotated[Segment, says("Its name in the catalog. Default: made from its key.")] = ""
    description: Annotated[str | None, says("A note for people; shown in listings.")] = None
    enabled: Annotated[bool, says("false leaves the server out without removing it.")] = True
    expose: Annotated[
        Exposure,
        says("transparent shows the tools without a prefix; only for a single server."),
    ] = "prefixed"
    allow: Annotated[list[Glob], says("Globs of tool names to offer. Default: every tool.")] = (
        field(default_factory=list)
    )
    deny: Annotated[list[Glob], says("Globs of tool names to leave out; wins over allow.")] = field(
        default_factory=list
    )
    rename: Annotated[
        dict[str, ToolName], says("New names for tools: the server's name → the name shown.")
    ] = field(default_factory=dict)
    descriptions: Annotated[
        dict[str, str], says("Descriptions that replace the server's own, by tool name.")
    ] = field(default_factory=dict)
    effects: Annotated[
        dict[str, EffectName],
        says("What tools do to the world, by glob; wins over the server's annotations."),
    ] = field(default_factory=dict)
    trust_annotations: Annotated[
        bool, says("Whether the server's own hints about its tools are believed.")
    ] = True
    unannotated: Annotated[
        UnannotatedName | None,
        says("The same as the node's `unannotated`, for this server. Default: the node's."),
    ] = None
    headers: Annotated[
        dict[HeaderName, ScalarReference], says("HTTP headers sent with every request to url.")
    ] = field(default_factory=dict)
    oauth: OAuthConfig = field(default_factory=OAuthConfig)
    minted_tokens: Annotated[
        bool,
        says(
            "Whether calls to url carry a token that this node made for their caller, instead of "
            "credentials of its own. For servers that trust this node's keys."
        ),
    ] = False
    timeout: Annotated[
        Duration | None, says("Deadline of a call to it. Default: the node's timeout.")
    ] = None
    start_timeout: Annotated[Duration, says("How long it may take to get ready.")] = 30.0
    grace: Annotated[DurationOrZero, says("How long its tools stay listed after it is lost.")] = (
        300.0
    )
    connections: Annotated[Count, says("The most pooled HTTP connections to url.")] = 16
    sessions: Annotated[
        Sharing,
        says(
            "private gives every client a session (or process) of its own, shared gives all the "
            "same; auto does what the server's own sessions ask for."
        ),
    ] = "auto"
    protocol: Annotated[
        Protocol,
        says(
            "The protocol generation to speak with it: session (until 2025-11-25) or stateless "
            "(from 2026-07-28). auto asks the server, and speaks the client's own where it can."
        ),
    ] = "auto"
    ask: AskConfig = field(default_factory=AskConfig)
    min_latency_class: Annotated[
        LatencyClass | None, says("None of its tools is shown as quicker than this.")
    ] = None


class TlsConfig(Section, frozen=True):
    """TLS on the HTTP listener, 1.3 only."""

    certificate: Annotated[Text, says("The certificate file (PEM), with its chain.")]
    key: Annotated[Text, says("The file with its private key (PEM).")]
    client_ca: Annotated[
        Text | None,
        says("The CA by which clients' certificates are checked, when they show one."),
    ] = None


class Config(Section, frozen=True):
    """A node's whole config. An empty file is a valid one."""

    listen: Annotated[
        Annotated[str, kind("listen")], says("host:port to listen on; loopback needs no token.")
    ] = "127.0.0.1:8420"
    path: Annotated[
        Annotated[str, Meta(pattern=PATH_PATTERN, extra={"kind": "path"})],
        says("Where the MCP face answers."),
    ] = "/mcp"
    servers: Annotated[
        dict[ServerKey, Annotated[ServerConfig, kind("server")]],
        says("The upstreams by key: a URL, a command line, or the long form."),
    ] = field(default_factory=dict)
    names: Annotated[
        NameStyle,
        says(
            "How clients see tool names: jira.create (dotted), jira__create (safe), or auto: safe "
            "unless the client is known to take dots."
        ),
    ] = "auto"
    root_segment: Annotated[Segment | None, says("A segment in front of every canonical name.")] = (
        None
    )
    page_size: Annotated[
        Annotated[int, Meta(ge=0)], says("Tools on one page of a listing; 0 is one page.")
    ] = 0
    tokens: Annotated[list[TokenConfig], says("Who may call; needed beyond loopback.")] = field(
        default_factory=list
    )
    allowed_hosts: Annotated[
        list[Host], says("Host headers accepted besides the address listened on.")
    ] = field(default_factory=list)
    allowed_origins: Annotated[
        list[Origin], says("Browser origins that may call, such as https://app.example.com.")
    ] = field(default_factory=list)
    tls: Annotated[TlsConfig | None, says("TLS on the listener. Default: plain HTTP.")] = None
    unannotated: Annotated[
        UnannotatedName,
        says(
            "What is assumed of tools whose annotations do not say what they do. infer: judged by "
            "name, description and parameters. confirm: all wait for approval that are not "
            "inferred to read. allow: all run."
        ),
    ] = "infer"
    latency_in_results: Annotated[
        bool, says("Whether results say how long they took: _meta x-mcpax-latency-ms.")
    ] = False
    wakeful: Annotated[
        bool,
        says("Whether the node looks out for a lonely call's answer a moment before it sleeps."),
    ] = True
    timeout: Annotated[Duration, says("Deadline of a call that names none.")] = 60.0
    input_timeout: Annotated[
        Duration, says("How long a caller may take to answer what a server asks it.")
    ] = 600.0
    limits: Limits = field(default_factory=Limits)
    breaker: BreakerConfig = field(default_factory=BreakerConfig)
    identity: IdentityConfig = field(default_factory=IdentityConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    approvals: ApprovalsConfig = field(default_factory=ApprovalsConfig)
    budgets: BudgetsConfig = field(default_factory=BudgetsConfig)
    pins: PinsConfig = field(default_factory=PinsConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    state_dir: Annotated[
        Text | None,
        says("Where the node keeps its files. Default: ~/.local/state/interlock/ADDRESS."),
    ] = None
    sections: list[FeatureSection] = field(default_factory=list)
    """The sections of features that differ from their defaults. The file has each by its own key.
    """

    def __post_init__(self) -> None:
        # A server without a segment takes one from its key, however the config was made.
        if any(not server.segment for server in self.servers.values()):
            named: dict[str, Any] = {
                key: server if server.segment else replace(server, segment=default_segment(key))
                for key, server in self.servers.items()
            }
            force_setattr(self, "servers", named)
        if self.sections:
            # Equal configs have equal sections, whether the file says what is the default or not.
            last = {section.KEY: section for section in self.sections}
            kept = (last[name] for name in sorted(last))
            differing = [one for one in kept if one != default_section(type(one))]
            force_setattr(self, "sections", differing)

    def section(self, struct: type[AnySection]) -> AnySection:
        """A feature's section, or its default. Read it when a config is applied, not per call."""
        found = self.optional_section(struct)
        return struct() if found is None else found

    def optional_section(self, struct: type[AnySection]) -> AnySection | None:
        """A feature's section. None: the config has none, and there is no default."""
        for section in self.sections:
            if isinstance(section, struct):
                return section
        return default_section(struct)

    def with_sections(self, *sections: FeatureSection) -> Config:
        """The config with these sections instead of those of the same kind."""
        return replace(self, sections=[*self.sections, *sections])

    @property
    def address(self) -> Address:
        return parse_listen(self.listen)

    @property
    def host(self) -> str:
        return self.address.host

    @property
    def port(self) -> int:
        return self.address.port

    @property
    def enabled_servers(self) -> dict[str, ServerConfig]:
        """The servers that are to run, by key, in the order of the file."""
        return {key: server for key, server in self.servers.items() if server.enabled}
