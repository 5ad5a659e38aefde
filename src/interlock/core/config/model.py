"""The structs of `interlock.yaml`, with all defaults of a node.

The reader (`reader.py`) and the JSON Schema (`schema.py`) are derived from the types and
descriptions of the fields: a field that is added here is read, checked and documented.

The sections about trust are in `trust.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

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
    help_text,
    kind,
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
"""Transports that need `command`."""
URL_TRANSPORTS: Final = ("http", "sse")
"""Transports that need `url`."""
Exposure = Literal["prefixed", "transparent"]
Sharing = Literal["auto", "shared", "private"]
Protocol = Literal["auto", "session", "stateless"]
AllowDeny = Literal["allow", "deny"]
LatencyClass = Literal["realtime", "fast", "standard", "slow", "batch"]
GrantName = Literal["authorization_code", "client_credentials"]


class Limits(Section, frozen=True):
    """Limits of requests, sessions and calls."""

    body_bytes: Annotated[Size, help_text("Maximum size of a request body, such as 4MiB.")] = (
        4 * MEBIBYTE
    )
    header_bytes: Annotated[Size, help_text("Maximum size of all request headers.")] = 16 * 1024
    header_count: Annotated[Count, help_text("Maximum number of request headers.")] = 100
    sessions: Annotated[Count, help_text("Maximum number of open MCP sessions.")] = 10_000
    session_idle: Annotated[
        Duration, help_text("Time after which an unused session is closed.")
    ] = 3600.0
    concurrent_calls: Annotated[Count, help_text("Maximum number of concurrent calls.")] = 10_000


class BreakerConfig(Section, frozen=True):
    """The circuit breaker of each upstream."""

    failures: Annotated[Count, help_text("Consecutive failures that open the breaker.")] = 5
    cooldown: Annotated[
        Duration, help_text("Time before an open breaker lets one call through.")
    ] = 10.0


class OAuthConfig(Section, frozen=True):
    """The sign-in of the node to a server that requires it."""

    enabled: Annotated[bool, help_text("false: never sign in to this server.")] = True
    grant: Annotated[
        GrantName,
        help_text(
            "authorization_code: a person signs in (interlock login). "
            "client_credentials: the node signs in."
        ),
    ] = "authorization_code"
    scopes: Annotated[
        list[Text], help_text("Scopes to request. Default: those that the server requires.")
    ] = field(default_factory=list)
    issuer: Annotated[
        Annotated[str, kind("url")] | None,
        help_text(
            "The only authorization server that may be used. Set it together with client_id."
        ),
    ] = None
    client_id: Annotated[
        Annotated[Reference, Meta(min_length=1)] | None,
        help_text("The client id of a client that was registered manually."),
    ] = None
    client_secret: Annotated[
        SecretReference | None, help_text("The client's secret, by reference: ${env:NAME}.")
    ] = None
    private_key: Annotated[
        SecretReference | None,
        help_text(
            "Instead of a secret: the client's signing key (PEM), by reference: ${file:path}."
        ),
    ] = None
    client_metadata_url: Annotated[
        Annotated[str, kind("url")] | None,
        help_text("URL of your client id metadata document. It becomes the client id."),
    ] = None
    redirect_port: Annotated[
        Annotated[int, Meta(ge=0)],
        help_text("Local port of the redirect URL. 0: any free port."),
    ] = 0

    def __repr__(self) -> str:
        # With resolved references it contains secrets.
        return f"OAuthConfig({self.grant})"


class AskConfig(Section, frozen=True):
    """Client requests that a server may send to its callers."""

    sampling: Annotated[
        AllowDeny, help_text("Whether it may request samples of its callers' models.")
    ] = "allow"
    elicitation: Annotated[
        AllowDeny, help_text("Whether it may request input of its callers' users.")
    ] = "allow"
    roots: Annotated[AllowDeny, help_text("Whether it may request its callers' roots.")] = "allow"
    max_tokens: Annotated[
        Count | None, help_text("Maximum number of tokens of one sample. Default: no limit.")
    ] = None


class ServerConfig(Section, frozen=True):
    """One upstream. Exactly one of `url` and `command` is set."""

    url: Annotated[Annotated[str, kind("url")] | None, help_text("URL of a remote MCP server.")] = (
        None
    )
    command: Annotated[
        Annotated[Reference, Meta(min_length=1)] | None,
        help_text("Program to start. Without args it is split like a command line."),
    ] = None
    args: Annotated[list[ScalarReference], help_text("Arguments of the program.")] = field(
        default_factory=list
    )
    env: Annotated[
        dict[VariableName, ScalarReference], help_text("Environment variables of the program.")
    ] = field(default_factory=dict)
    cwd: Annotated[
        Annotated[Reference, Meta(min_length=1)] | None,
        help_text("Working folder of the program. Default: the folder of the config file."),
    ] = None
    transport: Annotated[Transport, help_text("Transport of the server. auto: detect it.")] = "auto"
    segment: Annotated[
        Segment, help_text("Its name in the catalog. Default: derived from its key.")
    ] = ""
    description: Annotated[str | None, help_text("A note for people, shown in listings.")] = None
    enabled: Annotated[bool, help_text("false: do not use the server.")] = True
    expose: Annotated[
        Exposure,
        help_text("transparent: show the tools without a prefix. Only for a single server."),
    ] = "prefixed"
    allow: Annotated[list[Glob], help_text("Globs of tools to offer. Default: all.")] = field(
        default_factory=list
    )
    deny: Annotated[list[Glob], help_text("Globs of tools to exclude. Overrides allow.")] = field(
        default_factory=list
    )
    rename: Annotated[
        dict[str, ToolName], help_text("New names of tools: the server's name → the shown name.")
    ] = field(default_factory=dict)
    descriptions: Annotated[
        dict[str, str], help_text("Descriptions that replace the server's own, by tool name.")
    ] = field(default_factory=dict)
    effects: Annotated[
        dict[str, EffectName],
        help_text("Effects of tools, by glob. Override the server's annotations."),
    ] = field(default_factory=dict)
    trust_annotations: Annotated[
        bool, help_text("Whether annotations that lower the effect of a tool are trusted.")
    ] = True
    unannotated: Annotated[
        UnannotatedName | None,
        help_text("`unannotated` for this server. Default: the node's setting."),
    ] = None
    headers: Annotated[
        dict[HeaderName, ScalarReference], help_text("HTTP headers of every request to url.")
    ] = field(default_factory=dict)
    oauth: OAuthConfig = field(default_factory=OAuthConfig)
    minted_tokens: Annotated[
        bool,
        help_text(
            "Whether the node sends a token that it issues for the caller with each call, instead "
            "of its own credentials. For servers that trust the keys of this node."
        ),
    ] = False
    timeout: Annotated[
        Duration | None, help_text("Timeout of a call. Default: the node's timeout.")
    ] = None
    start_timeout: Annotated[Duration, help_text("Maximum time until it is ready.")] = 30.0
    grace: Annotated[
        DurationOrZero, help_text("How long its tools stay listed after the connection is lost.")
    ] = 300.0
    connections: Annotated[Count, help_text("Maximum number of HTTP connections to url.")] = 16
    sessions: Annotated[
        Sharing,
        help_text(
            "private: each client has a session (or process) of its own. shared: all clients share "
            "one. auto: private if the server issues session ids."
        ),
    ] = "auto"
    protocol: Annotated[
        Protocol,
        help_text(
            "The protocol generation to speak with it: session (until 2025-11-25) or stateless "
            "(from 2026-07-28). auto: detect it, and use that of the client if possible."
        ),
    ] = "auto"
    ask: AskConfig = field(default_factory=AskConfig)
    min_latency_class: Annotated[
        LatencyClass | None, help_text("No tool is shown with a faster latency class.")
    ] = None


class TlsConfig(Section, frozen=True):
    """TLS of the HTTP listener, version 1.3 only."""

    certificate: Annotated[Text, help_text("Certificate file (PEM) with its chain.")]
    key: Annotated[Text, help_text("File with the private key (PEM).")]
    client_ca: Annotated[
        Text | None,
        help_text("CA that verifies client certificates."),
    ] = None


class Config(Section, frozen=True):
    """The config of a node. An empty file is valid."""

    RENAMED: ClassVar[Mapping[str, str]] = {"wakeful": "busy_poll"}

    listen: Annotated[
        Annotated[str, kind("listen")],
        help_text("host:port to listen on. Loopback needs no token."),
    ] = "127.0.0.1:8420"
    path: Annotated[
        Annotated[str, Meta(pattern=PATH_PATTERN, extra={"kind": "path"})],
        help_text("Path of the MCP endpoint."),
    ] = "/mcp"
    servers: Annotated[
        dict[ServerKey, Annotated[ServerConfig, kind("server")]],
        help_text("Upstreams by key: a URL, a command line, or keys."),
    ] = field(default_factory=dict)
    names: Annotated[
        NameStyle,
        help_text(
            "Tool names that clients see: jira.create (dotted), jira__create (safe), or auto: safe "
            "unless the client is known to accept dots."
        ),
    ] = "auto"
    root_segment: Annotated[Segment | None, help_text("A segment before every canonical name.")] = (
        None
    )
    page_size: Annotated[
        Annotated[int, Meta(ge=0)], help_text("Tools per page of a list. 0: a single page.")
    ] = 0
    tokens: Annotated[
        list[TokenConfig],
        help_text("Tokens of callers. Required unless listen is a loopback address."),
    ] = field(default_factory=list)
    allowed_hosts: Annotated[
        list[Host], help_text("Accepted Host headers in addition to the listen address.")
    ] = field(default_factory=list)
    allowed_origins: Annotated[
        list[Origin],
        help_text("Browser origins that may send requests, such as https://app.example.com."),
    ] = field(default_factory=list)
    tls: Annotated[TlsConfig | None, help_text("TLS of the listener. Default: plain HTTP.")] = None
    unannotated: Annotated[
        UnannotatedName,
        help_text(
            "Classification of tools without conclusive annotations. infer: by name, description "
            "and parameters. confirm: all need approval unless they are inferred to read. "
            "allow: all run."
        ),
    ] = "infer"
    latency_in_results: Annotated[
        bool, help_text("Whether results contain their duration: _meta x-mcpax-latency-ms.")
    ] = False
    busy_poll: Annotated[
        bool,
        help_text(
            "Poll briefly for the response when only one call is in flight. Lowers latency, costs "
            "some CPU."
        ),
    ] = True
    timeout: Annotated[Duration, help_text("Timeout of calls that specify none.")] = 60.0
    input_timeout: Annotated[
        Duration, help_text("How long a caller may take to respond to a client request.")
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
        help_text("Folder of the files of the node. Default: ~/.local/state/interlock/ADDRESS."),
    ] = None
    sections: list[FeatureSection] = field(default_factory=list)
    """Sections of features that differ from their defaults. Each has its own key in the file."""

    def __post_init__(self) -> None:
        # A server without a segment gets one derived from its key.
        if any(not server.segment for server in self.servers.values()):
            named: dict[str, Any] = {
                key: server if server.segment else replace(server, segment=default_segment(key))
                for key, server in self.servers.items()
            }
            force_setattr(self, "servers", named)
        if self.sections:
            # Equal configs have equal sections, even if the file spells out defaults.
            last = {section.KEY: section for section in self.sections}
            sections = (last[name] for name in sorted(last))
            differing = [
                section for section in sections if section != default_section(type(section))
            ]
            force_setattr(self, "sections", differing)

    def section(self, struct: type[AnySection]) -> AnySection:
        """Return a feature's section or its default. Not for use in every call."""
        section = self.optional_section(struct)
        return struct() if section is None else section

    def optional_section(self, struct: type[AnySection]) -> AnySection | None:
        """Return a feature's section. None: there is none, and no default."""
        for section in self.sections:
            if isinstance(section, struct):
                return section
        return default_section(struct)

    def with_sections(self, *sections: FeatureSection) -> Config:
        """Return the config with these sections in place of those of the same kind."""
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
        """The enabled servers by key, in the order of the file."""
        return {key: server for key, server in self.servers.items() if server.enabled}
