"""The config sections of the tree: `parent` and `subservers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from interlock.core.config.model import LatencyClass
from interlock.core.config.problems import ConfigError, InvalidValueError
from interlock.core.config.quantities import PATH_PATTERN, check_parent_url
from interlock.core.config.secrets import resolve, resolve_files
from interlock.core.config.section import (
    Count,
    Duration,
    DurationOrZero,
    FeatureSection,
    SecretReference,
    Section,
    Segment,
    Text,
    help_text,
    kind,
)
from interlock.core.config.trust import BudgetConfig
from interlock.core.pipeline.authentication import PARENT_KIND

ProofPolicy = Literal["remote", "always", "never"]

PARENT_REFERENCES: Final = ("url", "token", "authority_key")
"""The fields of `parent` that can contain references. Each `backup` can contain references, too."""
PARENT_FILES: Final = ("ca", "certificate", "key")


class SubserverLink(Section, frozen=True):
    """Settings for one subserver, by its segment."""

    min_latency_class: Annotated[
        LatencyClass | None, help_text("Fastest latency class that is shown for its tools.")
    ] = None
    timeout: Annotated[
        Duration | None,
        help_text("Deadline of calls to it. Default: by the latency classes of its tools."),
    ] = None
    budget: Annotated[
        BudgetConfig | None, help_text("Budget of this subserver, instead of `subservers.budget`.")
    ] = None


class SubserversConfig(FeatureSection, frozen=True):
    """Servers and nodes that connect and register (MCP-AX)."""

    KEY = "subservers"
    RENAMED: ClassVar[Mapping[str, str]] = {"most": "max_registrations"}
    RESTART = ("enabled", "path", "store")

    enabled: Annotated[bool, help_text("Accept registrations.")] = True
    path: Annotated[
        Annotated[str, Meta(pattern=PATH_PATTERN, extra={"kind": "path"})],
        help_text(
            "WebSocket path for registrations. The state folder also has a Unix socket, ax.sock."
        ),
    ] = "/ax"
    max_registrations: Annotated[Count, help_text("Maximum number of registrations.")] = 10_000
    grace: Annotated[
        DurationOrZero,
        help_text("Time for which the tools of a lost subserver stay listed, as degraded."),
    ] = 300.0
    list_ttl: Annotated[
        Duration, help_text("Time after which the list of a subserver is fetched again.")
    ] = 60.0
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    notifications_per_second: Annotated[
        Count, help_text("Maximum number of forwarded notifications per second and subserver.")
    ] = 100
    notifications_kept: Annotated[
        Annotated[int, Meta(ge=0)],
        help_text(
            "Maximum number of queued notifications per subserver. Then the oldest are dropped."
        ),
    ] = 1_000
    proof: Annotated[
        ProofPolicy,
        help_text(
            "Which subservers with mutating tools must prove their authority: those on other "
            "machines, all, or none."
        ),
    ] = "remote"
    trust: Annotated[
        list[Text],
        help_text("Files with public keys (PEM, JWK or JWKS) that verify proofs of authority."),
    ] = field(default_factory=list)
    sticky: Annotated[
        bool, help_text("Reserve a segment for its last authority, also after it has disconnected.")
    ] = True
    store: Annotated[
        Text | None,
        help_text("SQLite file for registrations that several nodes of a tree share."),
    ] = None
    links: Annotated[
        dict[Segment, SubserverLink], help_text("Settings of single subservers, by segment.")
    ] = field(default_factory=dict)

    def paths(self) -> Iterable[str]:
        return (self.path,)

    def private_files(self) -> Iterable[str]:
        return () if self.store is None else (self.store,)


class ParentConfig(FeatureSection, frozen=True):
    """The node that this one registers with."""

    KEY = "parent"
    CALLER_KINDS = frozenset({PARENT_KIND})

    url: Annotated[
        Annotated[str, kind("parent_url")],
        help_text("wss://host/ax, ws://127.0.0.1:port/ax or unix:/path/to/ax.sock."),
    ]
    segment: Annotated[
        Segment, help_text("Segment of this node at the parent. Its tool names begin with it.")
    ]
    backup: Annotated[
        list[Annotated[str, kind("parent_url")]],
        help_text("Other parents, tried in this order if the first cannot be reached."),
    ] = field(default_factory=list)
    token: Annotated[
        SecretReference | None, help_text("Bearer token for the parent, by reference.")
    ] = None
    heartbeat: Annotated[
        DurationOrZero, help_text("Interval of heartbeats to the parent. 0: no heartbeats.")
    ] = 5.0
    authority: Annotated[
        Annotated[str, kind("authority")] | None,
        help_text("Owner of the segment, such as dns:edge01.factory.example.com."),
    ] = None
    authority_key: Annotated[
        SecretReference | None,
        help_text("Private key (PEM) that proves the authority, by reference: ${file:path}."),
    ] = None
    ca: Annotated[Text | None, help_text("CA file for the parent's certificate.")] = None
    certificate: Annotated[
        Text | None, help_text("Client certificate (PEM) of this node for the parent.")
    ] = None
    key: Annotated[Text | None, help_text("File with the private key of the certificate.")] = None

    def private_files(self) -> Iterable[str]:
        return () if self.key is None else (self.key,)

    def __repr__(self) -> str:
        # A resolved config contains secrets.
        return f"ParentConfig({self.segment} at {self.url})"


def resolve_parent(
    parent: ParentConfig, *, environ: Mapping[str, str], base_dir: Path
) -> ParentConfig:
    """Resolve the references of a parent, and make its file paths absolute.

    Raises ConfigError for missing files and variables, and for an invalid resolved address.
    """

    def resolve_text(text: str | None) -> str | None:
        return None if text is None else resolve(text, environ=environ, base_dir=base_dir)

    def address(text: str) -> str:
        try:
            return check_parent_url(resolve_text(text) or "")
        except InvalidValueError as bad:
            raise ConfigError.of(f"the parent's address: {bad.message}", bad.hint) from None

    return replace(
        parent,
        url=address(parent.url),
        backup=[address(url) for url in parent.backup],
        token=resolve_text(parent.token),
        authority_key=resolve_text(parent.authority_key),
        **resolve_files(parent, PARENT_FILES, environ, base_dir),
    )
