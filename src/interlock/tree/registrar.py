"""The registrar: it decides about registrations, segments, leases, budgets and the subtree.

Sessions (`subserver_session.py`) handle the protocol; the registrar decides. A subserver that
connects becomes an upstream of the node (`create_upstream`). Its connector waits for the next
channel. When
the subserver is lost, the upstream stays for the grace period and is removed after that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Raw, UnsetType

from interlock.channels.channel import Channel
from interlock.core.call import Caller
from interlock.core.ports import Clock
from interlock.core.upstreams.listing import RawOffering
from interlock.errors import (
    AUTHORITY_REJECTED,
    CYCLE_DETECTED,
    FORBIDDEN,
    INVALID_PARAMS,
    INVALID_SEGMENT,
    NAMESPACE_CONFLICT,
    SHUTTING_DOWN,
    SPLIT_BRAIN,
    TOO_BUSY,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import jsonrpc
from interlock.protocol import mcpax as ax
from interlock.protocol.aql_terms import BUILTIN_SEGMENT
from interlock.protocol.scopes import ADMIN, READ, WRITE, highest_level, lowest_level, parse_scope
from interlock.tree.authority import check_authority, reject_mutable_tools, requires_proof
from interlock.tree.config import SubserversConfig
from interlock.tree.dial_in import DialIn
from interlock.tree.leases import Leases, split_brain_error
from interlock.tree.subserver_record import (
    CallLater,
    ChildAssignment,
    RegistrationStore,
    SegmentClaim,
    SubserverRecord,
    Timer,
    add_own_id,
    find_budget,
    upstream_key,
)
from interlock.tree.subserver_session import AxSession, encode_keys_changed, wait_for_registration

if TYPE_CHECKING:
    from interlock.core.upstreams.supervisor import Supervisor


# -- The assignment of segments: to the first, to the authority that owns it, or to the same
# subserver when it registers again.


class SegmentOwner:
    """A subserver that has a segment."""

    def __init__(self, info: SubserverRecord) -> None:
        self.info = info


def check_claim(claim: SegmentClaim | None, registration: ax.Registration, verified: bool) -> None:
    """Check a registration against the claim on its segment. Raises InterlockError.

    A proven claim replaces an unproven one. An unproven claim never replaces a proven one.
    """
    if claim is None:
        return
    same_authority = _same_authority(registration.authority, claim.authority)
    if (same_authority and (verified or not claim.verified)) or (verified and not claim.verified):
        return
    raise InterlockError(
        AUTHORITY_REJECTED,
        f"The segment {registration.segment!r} belongs to {claim.authority}"
        + (" and has no valid proof here." if same_authority else ". Choose another segment."),
        {"segment": registration.segment},
    )


def check_segment(
    registration: ax.Registration,
    verified: bool,
    *,
    assignment: ChildAssignment | None,
    present_owner: SegmentOwner | None,
    previous: SegmentOwner | None,
    has_capacity: bool,
) -> None:
    """Check a registration against the present registrations. Raises InterlockError.

    Args:
        assignment: the assignment of a child that the node started.
        present_owner: the subserver with the requested segment.
        previous: the registration of the same caller and subserver_id.
        has_capacity: False if the node has the maximum number of registrations.
    """
    if registration.segment == BUILTIN_SEGMENT:
        raise _conflict_error(registration, "it is reserved for built-in operations")
    if assignment is not None and registration.segment != assignment.segment:
        raise InterlockError(
            INVALID_SEGMENT,
            f"The config assigns the segment {assignment.segment!r}. Register with that segment.",
            {"segment": registration.segment, "expected": assignment.segment},
        )
    if previous is not None:
        info = previous.info
        if info.verified and not verified:
            raise InterlockError(
                AUTHORITY_REJECTED,
                f"The subserver is registered as {info.segment!r} with a proven authority. A new "
                "registration must prove it, too.",
                {"segment": registration.segment},
            )
        if info.live and not _same_authority(info.authority, registration.authority):
            raise _conflict_error(
                registration, "the subserver is registered with another authority"
            )
    if present_owner is not None and present_owner is not previous:
        info = present_owner.info
        is_successor = (
            not info.live
            and verified
            and info.verified
            and _same_authority(info.authority, registration.authority)
        )
        if not is_successor:
            raise _conflict_error(
                registration,
                "another subserver has it"
                if info.live
                else "another subserver had it until recently, and can still come back",
            )
    if present_owner is None and previous is None and not has_capacity:
        raise InterlockError(
            TOO_BUSY,
            "This node has the maximum number of registrations (`subservers.max_registrations`). "
            "Try later.",
        )


def _same_authority(first: str | None, second: str | None) -> bool:
    if first is None or second is None:
        return first is second
    return ax.dns_name(first) == ax.dns_name(second)


def _conflict_error(registration: ax.Registration, reason: str) -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT,
        f"The segment {registration.segment!r} is not available: {reason}.",
        {"segment": registration.segment},
    )


def segment_taken_error(segment: str) -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT,
        f"The segment {segment!r} belongs to a server in the config of the parent.",
        {"segment": segment},
    )


def replaced_error() -> InterlockError:
    return InterlockError(
        NAMESPACE_CONFLICT, "The same subserver has registered again, on another channel."
    )


def unknown_caller_error() -> InterlockError:
    return InterlockError(
        FORBIDDEN, "The caller that registered it has no permission to register any more."
    )


def registration_disabled_error() -> InterlockError:
    return InterlockError(FORBIDDEN, "Registrations are disabled (`subservers.enabled`).")


# -- Segments that belong to an authority, also while no subserver is registered with them.

CLAIM_USE_INTERVAL_SECONDS: Final = 3600.0
"""The interval at which the use of an unproven claim is stored. An unused claim expires."""

_log = logging.getLogger("interlock.upstreams")


class Claims:
    """The claims on the segments of one node."""

    def __init__(self, store: RegistrationStore, wall_clock: Clock) -> None:
        self._store = store
        self._wall_clock = wall_clock

    def check(self, registration: ax.Registration, verified: bool) -> None:
        """Check that the segment belongs to no other authority. Raises InterlockError."""
        check_claim(self._store.find_claim(registration.segment), registration, verified)

    def mark_used(self, info: SubserverRecord) -> None:
        """Claim the segment for the authority of a listed subserver.

        Call it as often as you like: the store is written only if the claim changes.
        """
        authority = info.authority
        if authority is None:
            return
        try:
            claim = self._store.find_claim(info.segment)
            if (
                claim is None
                or claim.authority != authority
                or (info.verified and not claim.verified)
                or (
                    not claim.verified
                    and self._wall_clock() - claim.used >= CLAIM_USE_INTERVAL_SECONDS
                )
            ):
                self._store.save_claim(info.segment, authority, info.verified)
        except InterlockError as error:
            _log.warning(
                "subserver %s: cannot store the claim of its authority: %s",
                info.segment,
                error.message,
            )


# -- All subservers that are registered or in their grace period: by segment, by id, by upstream.


class SubserverRegistration(SegmentOwner):
    """One subserver, from its registration until it is removed."""

    def __init__(self, info: SubserverRecord, session: AxSession) -> None:
        super().__init__(info)
        self.session: AxSession | None = session
        self.dial_in: DialIn | None = None
        """None: the node started the subserver, and its upstream is in the config."""
        self.supervisor: Supervisor | None = None
        self.grace: Timer | None = None
        self.sent_budget: ax.SubserverBudget | None = None
        """The budget that was last sent to the subserver."""
        self.sent_keys = b""
        """The keys of this node that were last sent to the subserver."""
        self.duplicates: set[str] = set()
        """Its descendants that are registered elsewhere in the tree, and that it must end. They are
        sent once."""

    def cancel_grace(self) -> None:
        """Cancel the timer of the grace period."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None


class SubserverRegistrations:
    """The present registrations.

    A subserver is identified by its caller and its subserver_id. Another caller with the same
    subserver_id is another subserver, so it cannot block the first one.
    """

    def __init__(self) -> None:
        self._by_segment: dict[str, SubserverRegistration] = {}
        self._by_id: dict[tuple[str, str], SubserverRegistration] = {}
        self._by_key: dict[str, SubserverRegistration] = {}

    def __len__(self) -> int:
        return len(self._by_segment)

    def __iter__(self) -> Iterator[SubserverRegistration]:
        """Iterate over a copy, so that registrations can be removed meanwhile."""
        return iter(list(self._by_segment.values()))

    def find_by_segment(self, segment: str) -> SubserverRegistration | None:
        return self._by_segment.get(segment)

    def find_by_id(self, caller: str, subserver_id: str) -> SubserverRegistration | None:
        return self._by_id.get((caller, subserver_id))

    def find_by_key(self, key: str) -> SubserverRegistration | None:
        return self._by_key.get(key)

    def find_by_session(self, session: AxSession) -> SubserverRegistration | None:
        """Return the registration of a session, or None if the session is not registered."""
        registration = session.registration
        record = (
            None
            if registration is None
            else self.find_by_id(session.caller.name, registration.subserver_id)
        )
        return record if record is not None and record.session is session else None

    def list_records(self) -> list[SubserverRecord]:
        """Return the records of all registrations, by segment."""
        return [self._by_segment[segment].info for segment in sorted(self._by_segment)]

    def add(self, record: SubserverRegistration) -> None:
        info = record.info
        self._by_segment[info.segment] = self._by_key[info.key] = record
        self._by_id[info.caller, info.subserver_id] = record

    def remove(self, record: SubserverRegistration) -> bool:
        """Remove a registration. Return False if it was removed before."""
        info = record.info
        if self._by_segment.get(info.segment) is not record:
            return False
        del self._by_segment[info.segment], self._by_key[info.key]
        del self._by_id[info.caller, info.subserver_id]
        return True

    def subtree_ids(self, *, exclude: SubserverRegistration | None = None) -> Iterator[str]:
        """Yield the ids of all aggregators below."""
        for record in self._by_segment.values():
            if record.session is not None and record is not exclude:
                yield from record.info.subtree_ids

    def descendant_ids(self, *, exclude: SubserverRegistration | None = None) -> Iterator[str]:
        """Yield the subserver_ids of everything that is registered below, including leaves."""
        for record in self._by_segment.values():
            if record.session is not None and record is not exclude:
                yield record.info.subserver_id
                yield from record.info.descendant_ids

    def find_aggregator_of(self, subserver_id: str) -> SubserverRegistration | None:
        """Return the registered aggregator that has this subserver below it."""
        for record in self._by_segment.values():
            if record.session is not None and subserver_id in record.info.descendant_ids:
                return record
        return None


# -- Limits of the subtree: no aggregator that is above this one, and not too many.
#
# The subtree ids of a child are reported to the parent, and from there to the root. An aggregator
# above that finds its own id would end the registration of this complete node. So a child that
# reports a known ancestor is rejected here.


def reject_cycle(ids: Iterable[str], own_id: str, ancestor_ids: Collection[str]) -> None:
    """Reject a subtree with this aggregator or one above it. Raises InterlockError."""
    for aggregator_id in ids:
        if aggregator_id == own_id:
            raise InterlockError(
                CYCLE_DETECTED,
                "The parent is in the subtree of the node that registers, which would be a cycle. "
                "Choose another parent.",
                {"aggregator_id": own_id},
            )
        if aggregator_id in ancestor_ids:
            raise InterlockError(
                CYCLE_DETECTED,
                "A node above the parent is in the subtree of the node that registers, which "
                "would be a cycle. Choose another parent.",
                {"aggregator_id": aggregator_id},
            )


def reject_large_subtree(ids: Iterable[str], other_ids: Iterable[str]) -> None:
    """Reject a subtree with which too many aggregators are below. Raises InterlockError."""
    all_ids = {*ids, *other_ids}
    if len(all_ids) > ax.MAX_SUBTREE_IDS:
        raise ProtocolError(
            f"Too many nodes in the tree below the parent: {len(all_ids)}. The maximum is "
            f"{ax.MAX_SUBTREE_IDS}. Register some of them elsewhere.",
            INVALID_PARAMS,
            {"field": ax.SUBTREE_IDS},
        )


def find_subtree_registrations(
    records: Iterable[SubserverRegistration], ids: Collection[str] | None
) -> Iterator[tuple[SubserverRegistration, InterlockError]]:
    """Yield the registrations whose subtrees have these aggregators, each with an error.

    Args:
        ids: the aggregators. None: yield the registration with the largest subtree.
    """
    registered = [
        record for record in records if record.session is not None and record.info.subtree_ids
    ]
    if ids is None:
        if registered:
            error = ProtocolError(
                "Too many nodes in the subtree: the parent of this node accepts no more.",
                INVALID_PARAMS,
                {"field": ax.SUBTREE_IDS},
            )
            yield max(registered, key=lambda record: len(record.info.subtree_ids)), error
        return
    for record in registered:
        matches = set(ids).intersection(record.info.subtree_ids)
        if matches:
            yield (
                record,
                InterlockError(
                    CYCLE_DETECTED,
                    "A node above the parent is in the subtree of this node, which is a cycle.",
                    {"aggregator_id": min(matches)},
                ),
            )


# -- The scope of each subserver, and the keys with which it verifies caller tokens.


def granted_scope(
    registration: str | None, scopes: tuple[str, ...] | None, *, unproven: bool
) -> str:
    """Return the highest scope of calls to a subserver.

    Args:
        wanted: the scope that the subserver requests.
        scopes: the scopes of the caller that registered it, which are the limit.
        unproven: True if it had to prove its authority and did not.
    """
    if unproven:
        return READ
    levels = [parse_scope(scope).level for scope in scopes or ()]
    allowed = ADMIN if scopes is None else highest_level(READ, *levels)
    return lowest_level(registration or WRITE, allowed)


class SubserverGrants:
    """The scopes and keys of all subservers."""

    def __init__(self) -> None:
        self.limits: dict[str, str] = {}
        """The highest scope of each limited subserver, by the key of its upstream. Subservers
        without a limit are not included."""
        self.keys: Callable[[], bytes] = bytes
        """Returns the public keys of this node, the same object until they change. Empty: the node
        issues no tokens."""

    def grant(self, info: SubserverRecord, session: AxSession, proof_policy: str) -> None:
        """Set the scope of a subserver.

        Args:
            proof_policy: the setting `subservers.proof`.
        """
        registration = session.registration
        unproven = not session.verified and requires_proof(proof_policy, session.channel.peer)
        info.auth_scope = granted_scope(
            None if registration is None else registration.auth_scope,
            session.caller.scopes,
            unproven=unproven,
        )
        if info.auth_scope == ADMIN:
            self.release(info.key)
        else:
            self.limits[info.key] = info.auth_scope

    def release(self, key: str) -> None:
        """Remove a subserver."""
        self.limits.pop(key, None)

    def take_unsent_keys(self, record: SubserverRegistration) -> Raw | UnsetType:
        """Return the keys if they were not sent to the subserver yet, else UNSET."""
        keys = self.keys()
        if keys == record.sent_keys:
            return UNSET
        record.sent_keys = keys
        return Raw(keys)

    def add_unsent_keys(self, response: dict[str, object], record: SubserverRegistration) -> None:
        """Add keys that were not sent yet to the response to a heartbeat."""
        keys = self.take_unsent_keys(record)
        if keys is not UNSET:
            response["jwks"] = keys

    def publish_keys(self, records: Iterable[SubserverRegistration]) -> None:
        """Send changed keys to all subservers, before the first token with a new key."""
        notification = encode_keys_changed(self.keys())
        for record in records:
            if record.session is not None:
                record.session.channel.send(notification)


AUDIT_OK: Final = "ok"
"""The outcome of accepted events in the audit journal."""


class Registrar:
    """The registrations of one node."""

    def __init__(
        self,
        *,
        store: RegistrationStore,
        settings: SubserversConfig,
        aggregator_id: str,
        node_info: bytes,
        create_upstream: Callable[[SubserverRecord, DialIn], Supervisor],
        remove_upstream: Callable[[str], None],
        is_segment_taken: Callable[[str], bool],
        on_change: Callable[[], None],
        on_granted: Callable[[SubserverRecord], None] | None = None,
        on_lost: Callable[[SubserverRecord, str], None] | None = None,
        audit: Callable[[str, str, str, str, str], None] | None = None,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
        call_later: CallLater | None = None,
        base_dir: Path = Path(),
    ) -> None:
        """Create the registrar.

        Args:
            create_upstream: creates and starts the upstream of a new subserver.
            remove_upstream: ends an upstream and removes its tools.
            is_segment_taken: returns whether a configured server has a segment.
            on_change: called when the ids of the subtree change.
            on_granted: called for each new session and each new budget.
            on_lost: called when a registered subserver is lost.
            audit: records a decision: segment, caller, method, outcome (`ok` or a failure), detail.
            base_dir: the folder that the paths in `trust` refer to.
        """
        self.aggregator_id = aggregator_id
        self.node_info = node_info
        self.clock = clock
        self.call_later: CallLater = call_later or asyncio.get_running_loop().call_later
        self._store = store
        self._settings = settings
        self._create_upstream = create_upstream
        self._remove_upstream = remove_upstream
        self._is_segment_taken = is_segment_taken
        self._on_change = on_change
        self._on_granted = on_granted
        self._on_lost = on_lost
        self._audit = audit
        self._wall_clock = wall_clock
        self._base_dir = base_dir
        self._budget_cap = ax.SubserverBudget()
        self._channels: set[AxSession] = set()
        self._records = SubserverRegistrations()
        self._claims = Claims(store, wall_clock)
        self._leases = Leases(
            store,
            aggregator_id,
            wall_clock=wall_clock,
            call_later=self.call_later,
            on_split=self.dismiss,
        )
        self._parent_id: str | None = None
        self._closed = False
        self._truncation_logged = False
        self.grants = SubserverGrants()

    # -- for the node

    def accept(
        self,
        channel: Channel,
        caller: Caller,
        on_registered: Callable[[], None] | None = None,
    ) -> None:
        """Accept a channel of an authorized caller."""
        if self._closed or not self._settings.enabled:
            channel.close(1001, "registrations are disabled")
            return
        session = AxSession(channel, caller, self)
        session.on_registered = on_registered
        self._open(session)

    async def adopt(self, channel: Channel, *, key: str, segment: str) -> AxSession:
        """Wait until a started child has registered with its configured segment.

        Raises InterlockError if it does not register.
        """
        session = AxSession(channel, Caller(f"config:{key}"), self, ChildAssignment(key, segment))
        done = wait_for_registration(session, key)
        self._open(session)
        try:
            await done
        except asyncio.CancelledError:
            session.dismiss(InterlockError(SHUTTING_DOWN, "The node has stopped waiting."))
            raise
        return session

    def child_id(self, key: str) -> str:
        """Return the permanent id of a child that the node starts. Raises InterlockError.

        Children of two nodes have different ids, also if they have the same name.
        """
        return self._store.identity(f"child {key}")

    def subservers(self) -> list[SubserverRecord]:
        """Return all subservers that are registered or in their grace period, by segment."""
        return self._records.list_records()

    def subserver(self, key: str) -> SubserverRecord | None:
        """Return the record of the subserver behind an upstream, or None."""
        record = self._records.find_by_key(key)
        return None if record is None else record.info

    def subtree_ids(self) -> tuple[str, ...]:
        """Return the ids of this aggregator and of all aggregators below."""
        return tuple(dict.fromkeys((self.aggregator_id, *self._records.subtree_ids())))

    def descendant_ids(self) -> tuple[str, ...]:
        """Return the subserver_ids of everything that is registered below, including leaves.

        The list is truncated at the maximum length of a message.
        """
        ids = sorted(set(self._records.descendant_ids()))
        if len(ids) > ax.MAX_SUBTREE_IDS and not self._truncation_logged:
            self._truncation_logged = True
            _log.warning(
                "subtree: %d subservers are below this node, but only %d can be reported to the "
                "parent; duplicates of the others in the tree are not detected",
                len(ids), ax.MAX_SUBTREE_IDS,
            )  # fmt: skip
        return tuple(ids[: ax.MAX_SUBTREE_IDS])

    def remove_duplicates(self, ids: Collection[str]) -> None:
        """End the registrations of subservers that are registered elsewhere in the tree.

        The parent reports them (MCP-AX §13.4). Duplicates below an aggregator are reported to it.
        """
        duplicates = set(ids)
        parent = self._parent_id or ""
        for record in self._records:
            if record.session is None:
                continue
            if record.info.subserver_id in duplicates:
                self._remove(record, split_brain_error(parent))
            else:
                record.duplicates |= duplicates & record.info.descendant_ids

    @property
    def channels(self) -> int:
        """The number of open channels, registered or not."""
        return len(self._channels)

    @property
    def list_ttl(self) -> float:
        """The time after which the list of a subserver is fetched again."""
        return self._settings.list_ttl

    @property
    def tree_id(self) -> str:
        """The id of the tree. Subservers get a new id with their next heartbeat."""
        return self._leases.tree_id

    @tree_id.setter
    def tree_id(self, tree_id: str) -> None:
        if tree_id != self.tree_id:
            self._leases.move_to_tree(tree_id)
            self._dismiss_ancestors()

    @property
    def parent_id(self) -> str | None:
        """The parent of this aggregator. It must not be in the subtree of a subserver."""
        return self._parent_id

    @parent_id.setter
    def parent_id(self, parent_id: str | None) -> None:
        self._parent_id = parent_id
        self._dismiss_ancestors()

    def dismiss_subtrees(self, ids: Collection[str] | None) -> None:
        """Dismiss subservers because the parent rejected their subtrees.

        Args:
            ids: the rejected aggregators. None: dismiss the subserver with the largest subtree.
        """
        for record, error in find_subtree_registrations(self._records, ids):
            self._remove(record, error)

    @property
    def budget_cap(self) -> ax.SubserverBudget:
        """The budget of this node at its parent. No subserver gets a larger one."""
        return self._budget_cap

    @budget_cap.setter
    def budget_cap(self, cap: ax.SubserverBudget) -> None:
        self._budget_cap = cap
        self._update_budgets()

    def configure(
        self, settings: SubserversConfig, known_callers: Container[str] | None = None
    ) -> None:
        """Apply new settings, and dismiss subservers that have no permission any more.

        Args:
            known: the callers that may be registered. None: do not check the callers.
        """
        self._settings = settings
        for record in self._records:
            info = record.info
            if record.dial_in is None:
                continue
            if not settings.enabled:
                self._remove(record, registration_disabled_error())
            elif self._is_segment_taken(info.segment):
                self._remove(record, segment_taken_error(info.segment))
            elif known_callers is not None and info.caller not in known_callers:
                self._remove(record, unknown_caller_error())
        for session in list(self._channels):
            if session.assignment is not None:
                continue
            if not settings.enabled:
                session.dismiss(registration_disabled_error())
            elif known_callers is not None and session.caller.name not in known_callers:
                session.dismiss(unknown_caller_error())
        self._update_budgets()

    def keys_changed(self) -> None:
        """Send the changed keys of this node to all subservers."""
        self.grants.publish_keys(self._records)

    def close(self) -> None:
        """Dismiss all subservers, because the node stops."""
        self._closed = True
        error = InterlockError(SHUTTING_DOWN, "The node stops.")
        for record in self._records:
            self._remove(record, error)
        for session in list(self._channels):
            session.dismiss(error)
        self._leases.close()

    # -- for sessions (`SessionRegistrar`)

    def verify_registration(self, session: AxSession, registration: ax.Registration) -> bool:
        verified = check_authority(
            registration,
            session.channel.peer_names,
            aggregator_id=self.aggregator_id,
            trust=[self._base_dir / Path(path).expanduser() for path in self._settings.trust],
            wall_clock=self._wall_clock,
        )
        self._check(session, registration, verified)
        self._leases.check(registration.subserver_id)
        return verified

    def register(
        self, session: AxSession, identity: ax.SubserverIdentity | None
    ) -> ax.RegistrationResult:
        registration = session.registration
        assert registration is not None
        # Another subserver may have registered in the meantime.
        self._check(session, registration, session.verified)
        if (
            identity is not None
            and identity.parent_id is not None
            and identity.parent_id != self.aggregator_id
            and identity.tree_id in (None, self.tree_id)
        ):
            raise split_brain_error(identity.parent_id)
        # Take the lease first: if the store is not usable, no present session must be ended.
        self._leases.take(session, registration)
        previous = self._records.find_by_id(session.caller.name, registration.subserver_id)
        present_owner = self._records.find_by_segment(registration.segment)
        if previous is not present_owner or session.assignment is not None:
            # The subserver moves to another segment, or replaces another subserver.
            for replaced_registration in (previous, present_owner):
                if replaced_registration is not None:
                    self._remove(replaced_registration, replaced_error())
        record = self._records.find_by_segment(registration.segment)
        info = self._update_record(session, registration, None if record is None else record.info)
        if record is None:
            record = SubserverRegistration(info, session)
            self._records.add(record)
        else:
            previous_session, record.session = record.session, session
            record.cancel_grace()
            if previous_session is not None:
                self._record_end(info, replaced_error())
                previous_session.dismiss(replaced_error())
        record.sent_budget, record.sent_keys = info.budget, b""
        self._update_descendants(record, info.descendant_ids, frozenset())
        return ax.RegistrationResult(
            assigned_segment=registration.segment,
            session_id=session.id,
            heartbeat_deadline_ms=ax.heartbeat_deadline_ms(registration.heartbeat_interval_ms),
            budget=info.budget,
            aggregator_id=self.aggregator_id,
            tree_id=self.tree_id,
            auth_scope=info.auth_scope,
            jwks=self.grants.take_unsent_keys(record),
            duplicate_ids=self._take_duplicates(record) or UNSET,
        )

    def on_rejected(self, session: AxSession, error: InterlockError) -> None:
        segment = "" if session.registration is None else session.registration.segment
        self._record_audit(
            segment, session.caller.name, ax.REGISTER, error.failure.name, error.message
        )

    def on_registered(self, session: AxSession) -> None:
        record = self._find_registration(session)
        if record is None:
            return
        info = record.info
        _log.info("subserver %s: registered (%s)", info.segment, session.channel.label)
        self._record_audit(
            info.segment, info.caller, ax.REGISTER, AUDIT_OK, f"from {session.channel.label}"
        )
        if self._on_granted is not None:
            self._on_granted(info)
        if session.assignment is None:
            if record.dial_in is None:
                record.dial_in = DialIn(info.segment, self.node_info, lambda: self.list_ttl)
                record.supervisor = self._create_upstream(info, record.dial_in)
            record.dial_in.arrive(session)
        self._on_change()

    def handle_heartbeat(self, session: AxSession, heartbeat: ax.HeartbeatParams) -> bytes:
        record = self._find_registration(session)
        assert record is not None
        info = record.info
        if heartbeat.subtree_ids is not None:
            reject_cycle(
                heartbeat.subtree_ids, self.aggregator_id, self._ancestor_ids(info.role != "leaf")
            )
            ids = add_own_id(info.subserver_id, heartbeat.subtree_ids)
            if info.role == "aggregator" and ids != info.subtree_ids:
                reject_large_subtree(
                    ids, (self.aggregator_id, *self._records.subtree_ids(exclude=record))
                )
                info.subtree_ids = ids
                self._on_change()
        if heartbeat.descendant_ids is not None and info.role == "aggregator":
            descendants = frozenset(heartbeat.descendant_ids)
            if descendants != info.descendant_ids:
                self._update_descendants(record, descendants, info.descendant_ids)
                self._on_change()
        info.last_beat = self._wall_clock()
        self._leases.renew(session)
        response: dict[str, object] = {
            "status": "ok",
            "heartbeat_deadline_ms": info.deadline_ms,
            "tree_id": self.tree_id,
        }
        if record.sent_budget != info.budget:
            record.sent_budget = info.budget
            response["budget"] = info.budget
        self.grants.add_unsent_keys(response, record)
        if record.duplicates:
            response[ax.DUPLICATE_IDS] = self._take_duplicates(record)
        return jsonrpc.encode_value(response)

    def renew_lease(self, session: AxSession) -> None:
        self._leases.renew(session)

    def check_offering(self, session: AxSession, raw_offering: RawOffering) -> None:
        record = self._find_registration(session)
        if record is None:
            raise InterlockError(UPSTREAM_UNAVAILABLE, "The subserver is no longer registered.")
        info = record.info
        if not info.verified and requires_proof(self._settings.proof, info.peer):
            try:
                reject_mutable_tools(info.segment, raw_offering.tools)
            except InterlockError as error:
                self.dismiss(session, error)
                raise
        if session.assignment is None:
            # Claim the segment only now: a subserver that is never listed must not block others.
            self._claims.mark_used(info)

    def dismiss(self, session: AxSession, error: InterlockError) -> None:
        record = self._find_registration(session)
        if record is None:
            session.dismiss(error)
        else:
            self._remove(record, error)

    def on_lost(self, session: AxSession, reason: str, cause: str) -> None:
        record = self._find_registration(session)
        if record is None:
            return
        info = record.info
        record.session = None
        info.session_id = ""
        info.lost_at = self._wall_clock()
        info.problem = reason
        self._leases.release(session)
        _log.warning("subserver %s: connection lost: %s", info.segment, reason)
        self._record_audit(info.segment, info.caller, cause, UPSTREAM_LOST.name, reason)
        supervisor = record.supervisor
        if supervisor is None or not supervisor.listed or not self._settings.grace:
            self._remove(record, None, reason)
        else:
            record.grace = self.call_later(
                self._settings.grace, lambda: self._remove(record, None, "the grace period is over")
            )
        self._on_change()
        if self._on_lost is not None:
            self._on_lost(info, reason)

    def on_deregistered(self, session: AxSession, reason: str) -> None:
        record = self._find_registration(session)
        if record is not None:
            self._record_audit(
                record.info.segment, record.info.caller, ax.DEREGISTER, AUDIT_OK, reason
            )
            self._remove(record, None, reason)

    def on_ended(self, session: AxSession) -> None:
        self._channels.discard(session)

    # -- decisions

    def _open(self, session: AxSession) -> None:
        self._channels.add(session)
        session.start()

    def _check(self, session: AxSession, registration: ax.Registration, verified: bool) -> None:
        """Check whether a subserver may register. Raises InterlockError."""
        if not self._settings.enabled and session.assignment is None:
            raise registration_disabled_error()
        ids, is_aggregator = (
            (registration.subserver_id, *(registration.subtree_ids or ())),
            registration.is_aggregator,
        )
        reject_cycle(ids, self.aggregator_id, self._ancestor_ids(is_aggregator))
        other = self._records.find_aggregator_of(registration.subserver_id)
        if other is not None and other.info.subserver_id != registration.subserver_id:
            raise split_brain_error(other.info.subserver_id)
        if session.assignment is None:
            if self._is_segment_taken(registration.segment):
                raise segment_taken_error(registration.segment)
            if self._settings.sticky:
                self._claims.check(registration, verified)
        previous = self._records.find_by_id(session.caller.name, registration.subserver_id)
        check_segment(
            registration,
            verified,
            assignment=session.assignment,
            present_owner=self._records.find_by_segment(registration.segment),
            previous=previous,
            has_capacity=len(self._records) < self._settings.max_registrations,
        )
        if is_aggregator:
            reject_large_subtree(
                ids, (self.aggregator_id, *self._records.subtree_ids(exclude=previous))
            )

    def _update_descendants(
        self, record: SubserverRegistration, ids: frozenset[str], known_ids: frozenset[str]
    ) -> None:
        """Store the descendants that an aggregator reports.

        An id is a duplicate if it is registered here, or below another aggregator that reported it
        first. Duplicates are not stored, and are sent back to the aggregator.
        """
        other_ids = self._records.descendant_ids(exclude=record)
        record.duplicates = set((ids - known_ids).intersection(other_ids))
        record.info.descendant_ids = ids - record.duplicates

    def _take_duplicates(self, record: SubserverRegistration) -> tuple[str, ...]:
        """Return the duplicates that an aggregator must end, once, and record them."""
        ids, record.duplicates = tuple(sorted(record.duplicates)), set()
        if ids:
            sent_keys = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
            detail = f"reports subservers that are registered elsewhere in the tree: {sent_keys}"
            _log.warning("subserver %s: %s", record.info.segment, detail)
            self._record_audit(
                record.info.segment, record.info.caller, ax.HEARTBEAT, SPLIT_BRAIN.name, detail
            )
        return ids

    def _ancestor_ids(self, is_aggregator: bool) -> frozenset[str]:
        """Return the known aggregators above this node. A leaf has no cycle, so none are needed."""
        known_ids = (self.tree_id, self._parent_id) if is_aggregator else ()
        return frozenset(id for id in known_ids if id and id != self.aggregator_id)

    def _dismiss_ancestors(self) -> None:
        ancestor_ids = self._ancestor_ids(True)
        if ancestor_ids:
            self.dismiss_subtrees(ancestor_ids)

    def _find_registration(self, session: AxSession) -> SubserverRegistration | None:
        return self._records.find_by_session(session)

    def _update_record(
        self, session: AxSession, registration: ax.Registration, info: SubserverRecord | None
    ) -> SubserverRecord:
        """Update the record of a subserver, or create one."""
        channel = session.channel
        if info is None:
            key = (
                upstream_key(registration.segment)
                if session.assignment is None
                else session.assignment.key
            )
            info = SubserverRecord(
                key=key, segment=registration.segment, subserver_id=registration.subserver_id
            )
        info.caller, info.peer, info.label = session.caller.name, channel.peer, channel.label
        info.session_id, info.verified = session.id, session.verified
        info.budget = find_budget(self._settings, registration.segment).limited_by(self._budget_cap)
        info.registered_at = info.last_beat = self._wall_clock()
        info.lost_at, info.problem = None, ""
        info.apply_registration(registration)
        self.grants.grant(info, session, self._settings.proof)
        return info

    def _remove(
        self, record: SubserverRegistration, error: InterlockError | None, reason: str = ""
    ) -> None:
        """Remove a subserver and all its tools at once."""
        info, session = record.info, record.session
        reason = reason if error is None else error.message
        if not self._records.remove(record):
            return
        record.cancel_grace()
        record.session = None
        info.session_id = ""
        self.grants.release(info.key)
        if session is not None:
            self._leases.release(session)
        if record.supervisor is not None:
            record.supervisor.withdraw(reason)
        if session is not None and error is not None:
            self._record_end(info, error)
            session.dismiss(error)
        if record.dial_in is not None:
            self._remove_upstream(info.key)
        if session is not None:
            self._on_change()

    # -- audit

    def _record_end(self, info: SubserverRecord, error: InterlockError) -> None:
        name = error.failure.name
        self._record_audit(info.segment, info.caller, ax.SESSION_ENDED, name, error.message)

    def _record_audit(
        self, segment: str, caller: str, method: str, outcome: str, detail: str
    ) -> None:
        if self._audit is not None:
            self._audit(segment, caller, method, outcome, detail)

    # -- budgets

    def _update_budgets(self) -> None:
        for record in self._records:
            budget = find_budget(self._settings, record.info.segment).limited_by(self._budget_cap)
            if budget != record.info.budget:
                record.info.budget = budget
                if record.session is not None and self._on_granted is not None:
                    self._on_granted(record.info)
