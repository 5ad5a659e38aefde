"""Who may come into a topic, what it is called there, and what it may say: from the config alone.

Pure. A topic that is not there and one that is closed to the caller are refused in the same words,
so that nobody learns names by asking.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final

from interlock.core.call import Caller
from interlock.errors import FORBIDDEN, INVALID_PARAMS, UNAUTHENTICATED, InterlockError
from interlock.protocol.kinds import PROFILES
from interlock.protocol.mcpx_terms import GUEST, MAX_PARTICIPANT_ID, TOPIC_PATTERN
from interlock.topics.config import (
    RECORDER,
    SeatConfig,
    TopicConfig,
    TopicsConfig,
    can_be_read,
    folded,
    is_gateways,
)
from interlock.topics.member import ParticipantProfile

ADMIN: Final = "admin"
"""What the token of an administrator must have among its scopes, if it has any."""
RESTRICTED: Final = "restricted"
PUBLIC: Final = "public"

_TOPIC: Final = re.compile(TOPIC_PATTERN)
_GLOB: Final = frozenset("*?[")


def admit(
    config: TopicsConfig, topic: str, caller: Caller | None, *, guest: str = GUEST
) -> tuple[TopicConfig, ParticipantProfile]:
    """Raises InterlockError. `caller`: None for one that showed no credential; it is called
    `guest`, where it may come in at all."""
    if _TOPIC.fullmatch(topic) is None:
        raise InterlockError(
            INVALID_PARAMS,
            "A topic is named by 1 to 128 letters, digits, dots, dashes and underscores: "
            "write ?topic=NAME.",
        )
    settings = settings_of(config, topic)
    if caller is None:
        if settings is None or settings.access != PUBLIC:
            raise InterlockError(
                UNAUTHENTICATED,
                "This topic is not open to strangers. Send a bearer token in the Authorization "
                "header.",
            )
        return settings, ParticipantProfile(guest, PROFILES[settings.anonymous])
    if settings is None:
        raise _refused(topic)
    seat = next((one for one in settings.seats if _fits(one, caller)), None)
    if seat is None:
        if settings.access == RESTRICTED:
            raise _refused(topic)
        seat = SeatConfig()
    id = caller.name if seat.id is None else seat.id
    if not is_id(id) or _is_anothers(id, seat, settings):
        raise InterlockError(
            FORBIDDEN,
            f"{id[:MAX_PARTICIPANT_ID]!r} cannot be the id of a participant here. Give the seat an "
            "`id` under topics.rooms in the config.",
        )
    return settings, ParticipantProfile(id, capabilities_of(seat, settings.profile), seat.routing)


def check_administers(config: TopicsConfig, caller: Caller) -> None:
    """Raises InterlockError unless it may see who is in topics, and change what they may say."""
    if not any(fits(caller.name, glob) for glob in config.admins):
        raise InterlockError(
            FORBIDDEN,
            f"{caller.name} does not administer topics: `topics.admins` in the node's config "
            "says who does.",
        )
    if caller.scopes is not None and ADMIN not in caller.scopes:
        raise InterlockError(
            FORBIDDEN,
            f"The token of {caller.name} lacks the scope `{ADMIN}`.",
            data={"missing": [ADMIN]},
        )


def settings_of(config: TopicsConfig, topic: str) -> TopicConfig | None:
    """Those under its very name, else those of the first glob that fits."""
    entry = entry_of(config, topic)
    return None if entry is None else config.rooms[entry]


def entry_of(config: TopicsConfig, topic: str) -> str | None:
    """Under which name the config has a topic: its own, or a glob."""
    if topic in config.rooms:
        return topic if not is_glob(topic) else None
    return next((name for name in config.rooms if is_glob(name) and fits(topic, name)), None)


def capabilities_of(seat: SeatConfig, profile: str = "initial") -> tuple[str, ...]:
    """The patterns of its profile, or of `profile` where it names none, then its own; each once."""
    of_profile = PROFILES[seat.profile or profile]
    return tuple(dict.fromkeys((*of_profile, *seat.capabilities)))


def is_glob(name: str) -> bool:
    """Whether an entry of the config stands for several topics."""
    return not _GLOB.isdisjoint(name)


def fits(name: str, glob: str) -> bool:
    """Capitals count, on every system."""
    return fnmatchcase(name, glob)


def is_id(text: str) -> bool:
    """Whether a participant can be called so. Nobody is called as a gateway is."""
    return can_be_read(text) and not is_gateways(text)


def _is_anothers(id: str, own: SeatConfig, settings: TopicConfig) -> bool:
    """Whether others would take it for somebody else: the node, its recorder, or whoever another
    seat is for."""
    taken = {folded(RECORDER)}
    if settings.node is not None:
        taken.add(folded(settings.node))
    for seat in settings.seats:
        if own.id is None and seat.id is not None:
            # A caller of that very name is no stranger to it, one that is only written so may be.
            taken.update(map(folded, (seat.id, *(name for name in seat.callers if name != id))))
    return folded(id) in taken


def _fits(seat: SeatConfig, caller: Caller) -> bool:
    return any(fits(caller.name, glob) for glob in seat.callers) or not set(seat.roles).isdisjoint(
        caller.roles
    )


def _refused(topic: str) -> InterlockError:
    return InterlockError(
        FORBIDDEN,
        f"You have no seat in a topic called {topic}. Whoever runs the node gives seats, under "
        "topics.rooms in its config.",
    )
