"""What a registered subserver is asked for at most, and the keys by which it checks who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import UNSET, Raw, UnsetType

from interlock.protocol.scopes import ADMIN, READ, WRITE, highest, lowest, parse
from interlock.upstreams.ax.authority import must_prove
from interlock.upstreams.ax.records import Record
from interlock.upstreams.ax.session import AxSession
from interlock.upstreams.ax.subserver import Subserver
from interlock.upstreams.ax.words import keys_changed


def granted_scope(wanted: str | None, scopes: tuple[str, ...] | None, *, unproven: bool) -> str:
    """The most that a subserver is asked for: what it wants, and no more than who registered it
    may do. `unproven`: it had to prove its authority and did not."""
    if unproven:
        return READ
    levels = [parse(one).level for one in scopes or ()]
    may = ADMIN if scopes is None else highest(READ, *levels)
    return lowest(wanted or WRITE, may)


class Grants:
    """What every subserver was granted."""

    def __init__(self) -> None:
        self.limits: dict[str, str] = {}
        """Those that may not be asked for everything: the highest level that each may be asked
        for, by the key of its upstream."""
        self.keys: Callable[[], bytes] = bytes
        """Gives this node's public keys, the same object until they are others. Empty: it makes no
        tokens."""

    def grant(self, info: Subserver, session: AxSession, proof: str) -> None:
        """Decide how much it is asked for. `proof`: who must prove its authority."""
        wanted = session.wanted
        unproven = not session.verified and must_prove(proof, session.channel.peer)
        info.auth_scope = granted_scope(
            None if wanted is None else wanted.auth_scope, session.caller.scopes, unproven=unproven
        )
        if info.auth_scope == ADMIN:
            self.release(info.key)
        else:
            self.limits[info.key] = info.auth_scope

    def release(self, key: str) -> None:
        """It is no more."""
        self.limits.pop(key, None)

    def show(self, record: Record) -> Raw | UnsetType:
        """The keys, for one who does not know them. UNSET: it knows them, or there are none."""
        keys = self.keys()
        if keys == record.shown:
            return UNSET
        record.shown = keys
        return Raw(keys)

    def show_in(self, answer: dict[str, object], record: Record) -> None:
        """Show them in the answer to a heartbeat, if there is any need."""
        keys = self.show(record)
        if keys is not UNSET:
            answer["jwks"] = keys

    def tell(self, records: Iterable[Record]) -> None:
        """The keys are others: tell everybody before anything comes that is signed with them."""
        told = keys_changed(self.keys())
        for record in records:
            if record.session is not None:
                record.session.channel.send(told)
