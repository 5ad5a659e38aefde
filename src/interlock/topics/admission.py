"""Admission to topics by the config: who may join, under which id, and with which capabilities.

An unknown topic and a topic that is closed to the caller give the same error, so that nobody can
probe for names. This module does no I/O.
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
    ParticipantConfig,
    TopicConfig,
    TopicsConfig,
    is_gateway_id,
    is_readable_id,
    normalize_id,
)
from interlock.topics.member import ParticipantProfile

ADMIN_SCOPE: Final = "admin"
"""The scope that the token of an administrator must have, if it has scopes."""
RESTRICTED: Final = "restricted"
PUBLIC: Final = "public"

_TOPIC: Final = re.compile(TOPIC_PATTERN)
_GLOB: Final = frozenset("*?[")


def find_participant(
    config: TopicsConfig, topic: str, caller: Caller | None, *, guest: str = GUEST
) -> tuple[TopicConfig, ParticipantProfile]:
    """Return the settings of a topic and the participant that a caller is in it. Raises
    InterlockError.

    Args:
        caller: None if the client sent no credential.
        guest: the id of such a client.
    """
    if _TOPIC.fullmatch(topic) is None:
        raise InterlockError(
            INVALID_PARAMS,
            "The topic name is invalid. Use 1 to 128 letters, digits, dots, dashes and "
            "underscores: ?topic=NAME.",
        )
    settings = find_settings(config, topic)
    if caller is None:
        if settings is None or settings.access != PUBLIC:
            raise InterlockError(
                UNAUTHENTICATED,
                "This topic requires authentication. Send a bearer token in the Authorization "
                "header.",
            )
        return settings, ParticipantProfile(guest, PROFILES[settings.anonymous])
    if settings is None:
        raise _not_a_participant(topic)
    entry = next((entry for entry in settings.participants if _matches_caller(entry, caller)), None)
    if entry is None:
        if settings.access == RESTRICTED:
            raise _not_a_participant(topic)
        entry = ParticipantConfig()
    id = caller.name if entry.id is None else entry.id
    if not is_valid_id(id) or _is_reserved_id(id, entry, settings):
        raise InterlockError(
            FORBIDDEN,
            f"{id[:MAX_PARTICIPANT_ID]!r} cannot be the id of a participant here. Configure an "
            "`id` for "
            "it under topics.rooms.",
        )
    return settings, ParticipantProfile(
        id, list_capabilities(entry, settings.profile), entry.routing
    )


def require_administrator(config: TopicsConfig, caller: Caller) -> None:
    """Raise InterlockError unless the caller may list topics and change capabilities."""
    if not any(matches_glob(caller.name, glob) for glob in config.admins):
        raise InterlockError(
            FORBIDDEN,
            f"{caller.name} is not an administrator of topics. Administrators are listed in "
            "`topics.admins` of the node's config.",
        )
    if caller.scopes is not None and ADMIN_SCOPE not in caller.scopes:
        raise InterlockError(
            FORBIDDEN,
            f"The token of {caller.name} lacks the scope `{ADMIN_SCOPE}`.",
            data={"missing": [ADMIN_SCOPE]},
        )


def find_settings(config: TopicsConfig, topic: str) -> TopicConfig | None:
    """Return the settings under exactly this name, else those of the first glob that matches."""
    name = find_config_entry(config, topic)
    return None if name is None else config.rooms[name]


def find_config_entry(config: TopicsConfig, topic: str) -> str | None:
    """Return the name under which the config has a topic: its own name or a glob."""
    if topic in config.rooms:
        return topic if not is_glob(topic) else None
    return next(
        (name for name in config.rooms if is_glob(name) and matches_glob(topic, name)), None
    )


def list_capabilities(entry: ParticipantConfig, profile: str = "initial") -> tuple[str, ...]:
    """Return the patterns of the participant's profile (default: `profile`), then its own, each
    once."""
    profile_capabilities = PROFILES[entry.profile or profile]
    return tuple(dict.fromkeys((*profile_capabilities, *entry.capabilities)))


def is_glob(name: str) -> bool:
    """Return whether a config entry applies to several topics."""
    return not _GLOB.isdisjoint(name)


def matches_glob(name: str, glob: str) -> bool:
    """Return whether a name matches a glob. Case-sensitive on every system."""
    return fnmatchcase(name, glob)


def is_valid_id(text: str) -> bool:
    """Return whether a text can be the id of a participant. The id of the gateway cannot."""
    return is_readable_id(text) and not is_gateway_id(text)


def _is_reserved_id(id: str, candidate: ParticipantConfig, settings: TopicConfig) -> bool:
    """Return whether an id could be mistaken for another: the node, the recorder, or another
    configured participant."""
    reserved_ids = {normalize_id(RECORDER)}
    if settings.node is not None:
        reserved_ids.add(normalize_id(settings.node))
    for entry in settings.participants:
        if candidate.id is None and entry.id is not None:
            # A caller with exactly this name may have the id. A name that only looks alike may not.
            reserved_ids.update(
                map(normalize_id, (entry.id, *(name for name in entry.callers if name != id)))
            )
    return normalize_id(id) in reserved_ids


def _matches_caller(entry: ParticipantConfig, caller: Caller) -> bool:
    return any(matches_glob(caller.name, glob) for glob in entry.callers) or not set(
        entry.roles
    ).isdisjoint(caller.roles)


def _not_a_participant(topic: str) -> InterlockError:
    return InterlockError(
        FORBIDDEN,
        f"You are not a participant of a topic {topic}. The operator of the node adds "
        "participants under topics.rooms in its config.",
    )
