"""What a subserver's channel asks of the registrar, and is given by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from interlock.errors import InterlockError
from interlock.ports import Clock
from interlock.protocol import ax
from interlock.upstreams.listing import RawOffer

if TYPE_CHECKING:
    from interlock.upstreams.ax.session import AxSession

CHANNEL: Final = "channel"
"""By what a subserver was lost that did not miss its heartbeats."""


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class Place(NamedTuple):
    """What the config gives to a child that the node started: it must register as that."""

    key: str
    segment: str


class Desk(Protocol):
    """What a session asks of the registrar."""

    aggregator_id: str
    own_info: bytes
    clock: Clock
    call_later: CallLater

    @property
    def tree_id(self) -> str: ...

    def consider(self, session: AxSession, wanted: ax.Registration) -> bool:
        """Whether its authority is proven. Raises InterlockError when it may not register."""
        ...

    def admit(self, session: AxSession, identity: ax.Identity | None) -> ax.Registered:
        """Register it. Raises InterlockError."""
        ...

    def refused(self, session: AxSession, error: InterlockError) -> None:
        """It has been told that it may not register."""

    def joined(self, session: AxSession) -> None:
        """It has been told that it is registered."""

    def beaten(self, session: AxSession, beat: ax.Beat) -> bytes:
        """The result of a heartbeat. Raises InterlockError when it may not stay; INVALID_PARAMS
        when only its news are refused."""
        ...

    def renew(self, session: AxSession) -> None:
        """It is still there, though it need not say so."""

    def vet(self, session: AxSession, offer: RawOffer) -> None:
        """Whether it may offer this. Raises InterlockError when it may not, and has ended."""

    def dismiss(self, session: AxSession, error: InterlockError) -> None:
        """End it, and forget it."""

    def lost(self, session: AxSession, reason: str, by: str) -> None:
        """It was registered, and cannot be reached any more, by its heartbeats or its channel."""

    def left(self, session: AxSession, reason: str) -> None:
        """It has deregistered itself."""

    def over(self, session: AxSession) -> None:
        """Its channel is of no use any more. Told once, after everything else."""
