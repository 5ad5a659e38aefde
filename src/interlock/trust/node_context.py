"""The parts of a node that a feature gets when its component is created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from interlock.core.catalog.catalog import Catalog
from interlock.core.config import Config
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.node_position import NodePosition
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import Recorder
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.server_info import Introduction, ServerInfo
from interlock.core.state.store import StateStore
from interlock.core.upstreams.registry import UpstreamRegistry
from interlock.trust.approvals.component import ApprovalsComponent
from interlock.trust.authorization import Authorizer
from interlock.trust.identity.component import IdentityComponent
from interlock.trust.pins import Pins
from interlock.trust.token_issuer import TokenIssuer

Kind = TypeVar("Kind", bound=FeatureComponent)


class ComponentFinder(Protocol):
    """Finds the component of another feature that was created before."""

    def __call__(self, kind: type[Kind], /) -> Kind: ...


class NodeContext(NamedTuple):
    """The parts of a node that features build on."""

    config: Config
    """The current config. Later ones come with `apply`."""
    environ: Mapping[str, str]
    base_dir: Path
    leaf: bool
    """True if the node represents its one server in the tree of another node."""
    node_info: bytes
    """The node's `serverInfo`."""
    current_config: Callable[[], Config]
    origin: Callable[[], str | None]
    """Returns scheme, host and port of the HTTP listener. None: it is not open."""
    uptime: Callable[[], float]
    component: ComponentFinder
    # -- core
    catalog: Catalog
    audit: Audit
    recorder: Recorder | None
    breakers: Breakers
    upstreams: UpstreamRegistry
    pipeline: Pipeline
    seals: StateSealer
    state: StateStore
    change_listeners: ChangeListeners
    server_info: ServerInfo
    introduce: Callable[[], Introduction]
    introduction_changed: Callable[[], None]
    """Reports that `Component.introductions` returns something else now."""
    place: NodePosition
    guard: Guard
    challenges: Challenges
    # -- trust
    authorizer: Authorizer
    identity: IdentityComponent
    pins: Pins
    approving: ApprovalsComponent
    tokens: TokenIssuer
