"""What a node is told about its place in a tree: its parent, and those that register with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from interlock.core.config.model import LatencyClass
from interlock.core.config.problems import BadValue, ConfigError
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
    kind,
    says,
)
from interlock.core.config.trust import BudgetConfig
from interlock.core.pipeline.authentication import PARENT_KIND

ProofPolicy = Literal["remote", "always", "never"]

PARENT_REFERENCES: Final = ("url", "token", "authority_key")
"""The fields of `parent` in which references stand; each of its `backup` may hold one too."""
PARENT_FILES: Final = ("ca", "certificate", "key")


class SubserverLink(Section, frozen=True):
    """What is known beforehand about one registered subserver."""

    min_latency_class: Annotated[
        LatencyClass | None, says("No tool behind this link is shown as quicker than this.")
    ] = None
    timeout: Annotated[
        Duration | None, says("Deadline of a call to it. Default: by its tools' latency classes.")
    ] = None
    budget: Annotated[BudgetConfig | None, says("Its budget instead of the one for all.")] = None


class SubserversConfig(FeatureSection, frozen=True):
    """Servers and nodes that dial in and register, as MCP-AX describes it."""

    KEY = "subservers"
    RESTART = ("enabled", "path", "store")

    enabled: Annotated[bool, says("false: nobody may register with this node.")] = True
    path: Annotated[
        Annotated[str, Meta(pattern=PATH_PATTERN, extra={"kind": "path"})],
        says("Where they dial in (WebSocket). A Unix socket, ax.sock, is in the state folder."),
    ] = "/ax"
    most: Annotated[Count, says("The most registrations at once.")] = 10_000
    grace: Annotated[
        DurationOrZero, says("How long the tools of a lost one stay listed, as degraded.")
    ] = 300.0
    list_ttl: Annotated[Duration, says("How long a subserver's list is believed.")] = 60.0
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    notifications_per_second: Annotated[
        Count, says("So many notifications of one subserver are passed on at once.")
    ] = 100
    notifications_kept: Annotated[
        Annotated[int, Meta(ge=0)], says("So many more wait; then the oldest are dropped.")
    ] = 1_000
    proof: Annotated[
        ProofPolicy,
        says(
            "Who must prove the authority for a namespace with tools that change something: those "
            "from other machines, everybody, or nobody."
        ),
    ] = "remote"
    trust: Annotated[
        list[Text],
        says("Files with the public keys (PEM, JWK or JWKS) by which proofs are checked."),
    ] = field(default_factory=list)
    sticky: Annotated[
        bool, says("Whether a segment stays with the authority that had it, also when it is gone.")
    ] = True
    store: Annotated[
        Text | None,
        says("A registration store (SQLite file) that several nodes of a tree share."),
    ] = None
    links: Annotated[
        dict[Segment, SubserverLink], says("Settings for single subservers, by segment.")
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
        says("wss://host/ax, ws://127.0.0.1:port/ax or unix:/path/to/ax.sock."),
    ]
    segment: Annotated[
        Segment, says("What this node is called there: the names of its tools begin with it.")
    ]
    backup: Annotated[
        list[Annotated[str, kind("parent_url")]],
        says("Other parents, tried in turn when this one cannot be reached."),
    ] = field(default_factory=list)
    token: Annotated[
        SecretReference | None, says("The bearer token for the parent, by reference.")
    ] = None
    heartbeat: Annotated[
        DurationOrZero, says("How often this node says that it is there; 0 never does.")
    ] = 5.0
    authority: Annotated[
        Annotated[str, kind("authority")] | None,
        says("Who owns the segment, such as dns:edge01.factory.example.com."),
    ] = None
    authority_key: Annotated[
        SecretReference | None,
        says("The private key (PEM) that signs the proof of it, by reference: ${file:path}."),
    ] = None
    ca: Annotated[Text | None, says("The CA file that signed the parent's certificate.")] = None
    certificate: Annotated[
        Text | None, says("This node's client certificate (PEM), shown to the parent.")
    ] = None
    key: Annotated[Text | None, says("The file with the certificate's private key.")] = None

    def private_files(self) -> Iterable[str]:
        return () if self.key is None else (self.key,)

    def __repr__(self) -> str:
        # Once its references are resolved it holds secrets.
        return f"ParentConfig({self.segment} at {self.url})"


def resolve_parent(
    parent: ParentConfig, *, environ: Mapping[str, str], base_dir: Path
) -> ParentConfig:
    """The parent as its link needs it: every reference resolved, every file absolute and there.

    Raises ConfigError, also for an address that is none once it is resolved.
    """

    def whole(text: str | None) -> str | None:
        return None if text is None else resolve(text, environ=environ, base_dir=base_dir)

    def address(text: str) -> str:
        try:
            return check_parent_url(whole(text) or "")
        except BadValue as bad:
            raise ConfigError.of(f"the parent's address: {bad.message}", bad.hint) from None

    return replace(
        parent,
        url=address(parent.url),
        backup=[address(url) for url in parent.backup],
        token=whole(parent.token),
        authority_key=whole(parent.authority_key),
        **resolve_files(parent, PARENT_FILES, environ, base_dir),
    )
