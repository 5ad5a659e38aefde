"""What is known of a registered subserver, and what the registrar asks of its store."""

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


# -- What a subserver's channel asks of the registrar, and is given by it.

CHANNEL: Final = "channel"
"""By what a subserver was lost that did not miss its heartbeats."""


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class ChildAssignment(NamedTuple):
    """What the config gives to a child that the node started: it must register as that."""

    key: str
    segment: str


class SessionRegistrar(Protocol):
    """What a session asks of the registrar."""

    aggregator_id: str
    node_info: bytes
    clock: Clock
    call_later: CallLater

    @property
    def tree_id(self) -> str: ...

    def consider(self, session: AxSession, wanted: ax.Registration) -> bool:
        """Whether its authority is proven. Raises InterlockError when it may not register."""
        ...

    def admit(
        self, session: AxSession, identity: ax.SubserverIdentity | None
    ) -> ax.RegistrationResult:
        """Register it. Raises InterlockError."""
        ...

    def refused(self, session: AxSession, error: InterlockError) -> None:
        """It has been told that it may not register."""

    def joined(self, session: AxSession) -> None:
        """It has been told that it is registered."""

    def beaten(self, session: AxSession, beat: ax.HeartbeatParams) -> bytes:
        """The result of a heartbeat. Raises InterlockError when it may not stay; INVALID_PARAMS
        when only its news are refused."""
        ...

    def renew(self, session: AxSession) -> None:
        """It is still there, though it need not say so."""

    def vet(self, session: AxSession, offer: RawOffering) -> None:
        """Whether it may offer this. Raises InterlockError when it may not, and has ended."""

    def dismiss(self, session: AxSession, error: InterlockError) -> None:
        """End it, and forget it."""

    def lost(self, session: AxSession, reason: str, by: str) -> None:
        """It was registered, and cannot be reached any more, by its heartbeats or its channel."""

    def left(self, session: AxSession, reason: str) -> None:
        """It has deregistered itself."""

    def over(self, session: AxSession) -> None:
        """Its channel is of no use any more. Told once, after everything else."""


def key_of(segment: str) -> str:
    """By what the node knows a subserver that dialled in."""
    return f"ax:{segment}"


class SubserverRecord(msgspec.Struct, eq=False, kw_only=True):
    """One subserver. It is the same object from its first registration until it is forgotten, and
    says what is true now."""

    key: str
    """`ax:` and its segment; for a child that the node started, its key in the config."""
    segment: str
    subserver_id: str
    caller: str = ""
    """Who registered it."""
    peer: str = ""
    """Where it dialled from: `local`, `loopback` or an address."""
    label: str = ""
    """The channel, for people."""
    session_id: str = ""
    """Empty: it is not registered now, but its tools are still listed, as degraded."""
    authority: str | None = None
    verified: bool = False
    """Whether the authority was proven."""
    role: str = "leaf"
    """`leaf` or `aggregator`."""
    offers: SubserverCapabilities = SubserverCapabilities()
    transport_class: str = NATIVE
    interval_ms: int = 0
    version: str = ""
    subtree_ids: tuple[str, ...] = ()
    """The aggregators behind it, itself among them. Empty for a leaf."""
    descendant_ids: frozenset[str] = frozenset()
    """The subserver_ids of everything behind it, leaves included. Empty for a leaf."""
    budget: SubserverBudget = SubserverBudget()
    auth_scope: str = ADMIN
    """The most that it is asked for."""
    registered_at: float = 0.0
    """Seconds on the wall clock, as all that follow."""
    last_beat: float = 0.0
    lost_at: float | None = None
    """Since when it is degraded."""
    problem: str = ""
    """Why it is."""

    @property
    def live(self) -> bool:
        """Whether it is registered now."""
        return bool(self.session_id)

    @property
    def deadline_ms(self) -> int:
        """How long it may say nothing."""
        return heartbeat_deadline_ms(self.interval_ms)

    def learn(self, said: Registration) -> None:
        """Take what it says of itself."""
        self.authority = said.authority
        self.role = "aggregator" if said.is_aggregator else "leaf"
        self.offers, self.transport_class = said.capabilities, said.transport_class
        self.interval_ms, self.version = said.heartbeat_interval_ms, said.version
        ids = said.subtree_ids
        self.subtree_ids = () if ids is None else with_itself(said.subserver_id, ids)
        self.descendant_ids = frozenset(said.descendant_ids if said.is_aggregator else ())


def with_itself(subserver_id: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The ids of a subtree, those of its top among them."""
    return ids if subserver_id in ids else (subserver_id, *ids)


def as_budget(config: BudgetConfig) -> SubserverBudget:
    """What the config grants, as it is told."""

    def number(limit: int | None) -> int:
        return UNLIMITED if limit is None else limit

    return SubserverBudget(
        number(config.calls_per_minute), number(config.mutable_calls), number(config.cost_units)
    )


def budget_for(settings: SubserversConfig, segment: str) -> SubserverBudget:
    """What the config grants to one of them."""
    link = settings.links.get(segment)
    own = None if link is None else link.budget
    return as_budget(settings.budget if own is None else own)


class SegmentClaim(Protocol):
    """Who owns a segment."""

    @property
    def authority(self) -> str: ...
    @property
    def verified(self) -> bool: ...
    @property
    def used(self) -> float: ...


class SubserverLease(Protocol):
    """Where a subserver is registered."""

    @property
    def aggregator_id(self) -> str: ...
    @property
    def until(self) -> float: ...


class RegistrationStore(Protocol):
    """Where claims and leases are kept (`tree/store.py`). Everything raises InterlockError."""

    def identity(self, role: str) -> str: ...

    def claim_on(self, segment: str) -> SegmentClaim | None: ...

    def keep_claim(self, segment: str, authority: str, verified: bool) -> bool:
        """False: a proven one is there, which an unproven one never displaces."""
        ...

    def other_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str
    ) -> SubserverLease | None:
        """That of another aggregator in the same tree, if it has not lapsed."""
        ...

    def take_lease(
        self, subserver_id: str, aggregator_id: str, tree_id: str, authority: str, until: float
    ) -> SubserverLease | None:
        """Take it; or else the one of another aggregator in the same tree, which stays."""
        ...

    def take_leases(
        self, aggregator_id: str, tree_id: str, wanted: Iterable[tuple[str, str, float]]
    ) -> Mapping[str, SubserverLease]:
        """Take many at once (the subserver, its authority, until when): those of others, which
        stay."""
        ...

    def renew_leases(
        self,
        aggregator_id: str,
        until: Iterable[tuple[str, float]],
        released: Iterable[str] = (),
    ) -> None: ...
