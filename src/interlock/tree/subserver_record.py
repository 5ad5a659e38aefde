"""The record of a registered subserver, and the interfaces of the registrar to sessions and its
store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from interlock.core.config.trust import BudgetConfig
from interlock.core.ports import Clock
from interlock.core.upstreams.listing import RawOffering
from interlock.errors import InterlockError
from interlock.protocol import mcpax as ax
from interlock.protocol.mcpax import (
    NATIVE,
    UNLIMITED,
    Registration,
    SubserverBudget,
    SubserverCapabilities,
    heartbeat_deadline_ms,
)
from interlock.protocol.scopes import ADMIN
from interlock.tree.config import SubserversConfig

if TYPE_CHECKING:
    from interlock.tree.subserver_session import AxSession


# -- The registrar, as sessions use it.

CHANNEL: Final = "channel"
"""The cause of a loss other than missed heartbeats: the channel was closed."""


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class ChildAssignment(NamedTuple):
    """The upstream key and the segment of a child that the node started."""

    key: str
    segment: str


class SessionRegistrar(Protocol):
    """The registrar, as a session uses it."""

    aggregator_id: str
    node_info: bytes
    clock: Clock
    call_later: CallLater

    @property
    def tree_id(self) -> str: ...

    def verify_registration(self, session: AxSession, registration: ax.Registration) -> bool:
        """Check a registration. Return whether its authority is proven. Raises InterlockError."""
        ...

    def register(
        self, session: AxSession, identity: ax.SubserverIdentity | None
    ) -> ax.RegistrationResult:
        """Register the subserver of a session. Raises InterlockError."""
        ...

    def on_rejected(self, session: AxSession, error: InterlockError) -> None:
        """Handle a rejection that was sent to the subserver."""

    def on_registered(self, session: AxSession) -> None:
        """Handle a registration whose result was sent to the subserver."""

    def handle_heartbeat(self, session: AxSession, heartbeat: ax.HeartbeatParams) -> bytes:
        """Process a heartbeat and return its result.

        Raises InterlockError if the session must end, with INVALID_PARAMS if only the changes in
        the heartbeat are rejected.
        """
        ...

    def renew_lease(self, session: AxSession) -> None:
        """Renew the lease of a subserver without heartbeats."""

    def check_offering(self, session: AxSession, raw_offering: RawOffering) -> None:
        """Check the tools that a subserver offers. Raises InterlockError, and ends the session."""

    def dismiss(self, session: AxSession, error: InterlockError) -> None:
        """End a session and remove its subserver."""

    def on_lost(self, session: AxSession, reason: str, cause: str) -> None:
        """Handle the loss of a registered subserver.

        Args:
            cause: `mcpax/heartbeat` for missed heartbeats, or `channel`.
        """

    def on_deregistered(self, session: AxSession, reason: str) -> None:
        """Handle a deregistration by the subserver."""

    def on_ended(self, session: AxSession) -> None:
        """Handle the end of a session. Called once, after all other events."""


def upstream_key(segment: str) -> str:
    """Return the upstream key of a subserver that connected by itself."""
    return f"ax:{segment}"


class SubserverRecord(msgspec.Struct, eq=False, kw_only=True):
    """The present data of one subserver.

    It is the same object from the first registration until the subserver is removed.
    """

    key: str
    """`ax:` and the segment. For a child that the node started: its key in the config."""
    segment: str
    subserver_id: str
    caller: str = ""
    """The caller that registered it."""
    peer: str = ""
    """The origin of its channel: `local`, `loopback` or an address."""
    label: str = ""
    """A description of the channel, for people."""
    session_id: str = ""
    """Empty: not registered. In the grace period its tools are still listed, as degraded."""
    authority: str | None = None
    verified: bool = False
    """True if the authority was proven."""
    role: str = "leaf"
    """`leaf` or `aggregator`."""
    offers: SubserverCapabilities = SubserverCapabilities()
    transport_class: str = NATIVE
    interval_ms: int = 0
    version: str = ""
    subtree_ids: tuple[str, ...] = ()
    """The aggregators in its subtree, including itself. Empty for a leaf."""
    descendant_ids: frozenset[str] = frozenset()
    """The subserver_ids of its subtree, including leaves. Empty for a leaf."""
    budget: SubserverBudget = SubserverBudget()
    auth_scope: str = ADMIN
    """The highest scope of calls that it gets."""
    registered_at: float = 0.0
    """In seconds on the wall clock, like the following times."""
    last_beat: float = 0.0
    lost_at: float | None = None
    """The time at which it was lost. None: it is registered."""
    problem: str = ""
    """The reason of the loss."""

    @property
    def live(self) -> bool:
        """True if it is registered now."""
        return bool(self.session_id)

    @property
    def deadline_ms(self) -> int:
        """The time without a heartbeat after which it counts as lost."""
        return heartbeat_deadline_ms(self.interval_ms)

    def apply_registration(self, registration: Registration) -> None:
        """Copy the fields of a registration."""
        self.authority = registration.authority
        self.role = "aggregator" if registration.is_aggregator else "leaf"
        self.offers, self.transport_class = registration.capabilities, registration.transport_class
        self.interval_ms, self.version = registration.heartbeat_interval_ms, registration.version
        ids = registration.subtree_ids
        self.subtree_ids = () if ids is None else add_own_id(registration.subserver_id, ids)
        self.descendant_ids = frozenset(
            registration.descendant_ids if registration.is_aggregator else ()
        )


def add_own_id(subserver_id: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Add the id of an aggregator to the ids of its subtree, if it is missing."""
    return ids if subserver_id in ids else (subserver_id, *ids)


def convert_budget(config: BudgetConfig) -> SubserverBudget:
    """Convert a budget of the config to the form of MCP-AX."""

    def number(limit: int | None) -> int:
        return UNLIMITED if limit is None else limit

    return SubserverBudget(
        number(config.calls_per_minute), number(config.mutable_calls), number(config.cost_units)
    )


def find_budget(settings: SubserversConfig, segment: str) -> SubserverBudget:
    """Return the configured budget of a subserver."""
    link = settings.links.get(segment)
    budget = None if link is None else link.budget
    return convert_budget(settings.budget if budget is None else budget)


class SegmentClaim(Protocol):
    """The owner of a segment."""

    @property
    def authority(self) -> str: ...
    @property
    def verified(self) -> bool: ...
    @property
    def used(self) -> float: ...


class SubserverLease(Protocol):
    """The registration of a subserver with an aggregator."""

    @property
    def aggregator_id(self) -> str: ...
    @property
    def until(self) -> float: ...


class RegistrationStore(Protocol):
    """The store of claims and leases (`tree/store.py`). All methods raise InterlockError."""

    def identity(self, role: str) -> str: ...

    def find_claim(self, segment: str) -> SegmentClaim | None: ...

    def save_claim(self, segment: str, authority: str, verified: bool) -> bool:
        """Store a claim. Return False if there is a proven claim and the new one is unproven."""
        ...

    def find_other_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str
    ) -> SubserverLease | None:
        """Return a valid lease of another aggregator in the same tree, or None."""
        ...

    def take_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str, authority: str, until: float
    ) -> SubserverLease | None:
        """Take a lease. If another aggregator of the tree has it, return that lease instead."""
        ...

    def take_leases(
        self, aggregator_id: str, tree_id: str, leases: Iterable[tuple[str, str, float]]
    ) -> Mapping[str, SubserverLease]:
        """Take many leases. Return those that other aggregators of the tree have.

        Args:
            leases: subserver_id, authority and expiry of each lease.
        """
        ...

    def renew_leases(
        self,
        aggregator_id: str,
        until: Iterable[tuple[str, float]],
        released: Iterable[str] = (),
    ) -> None: ...
