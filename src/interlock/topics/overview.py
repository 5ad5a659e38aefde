"""The topics as administrators see them: configured topics, open topics and their members.
Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from interlock.topics import admission
from interlock.topics.config import TopicConfig

if TYPE_CHECKING:
    from interlock.topics.gateway import Gateway
    from interlock.topics.member import Member
    from interlock.topics.room import Room


class TopicStatus(msgspec.Struct, frozen=True):
    """The state of one open topic."""

    members: int
    refused: int
    """The number of messages rejected since it was opened."""


class TopicsStatus(msgspec.Struct, frozen=True):
    """The topics in the status of a node."""

    topics: dict[str, TopicStatus] = {}
    """Open topics, by name."""
    topics_url: str | None = None
    """The URL of its topics, if it has any."""


class TopicMember(msgspec.Struct, frozen=True, rename="camel"):
    """A member of a topic."""

    participant_id: str
    capabilities: tuple[str, ...]
    routing: str
    connected_at: str
    refused: int
    """The number of its messages that were rejected."""
    inside: bool
    """True for a participant of the node itself, which has no connection."""


class TopicDetails(msgspec.Struct, frozen=True, rename="camel"):
    """A topic: its settings and its members."""

    name: str
    entry: str
    """The name or glob of its config entry."""
    access: str
    profile: str
    """The default profile of participants, and of callers that match no participant."""
    anonymous: str
    """The profile of callers without a token, if the topic is public."""
    seats: int
    node: str | None
    """The id of the node in the topic, if it takes part."""
    record: str
    most: int
    open: bool
    refused: int
    """The number of messages rejected since the room was opened, including those of former
    members."""
    members: tuple[TopicMember, ...]


def describe_topics(gateway: Gateway, topic: str | None = None) -> list[TopicDetails]:
    """Return every topic in the order of the config; open topics of a glob follow it.

    Args:
        topic: return only this one, open or not; an empty list if the config has no such topic.
    """
    if topic is None:
        return list(_describe_all(gateway))
    entry = admission.find_config_entry(gateway.config, topic)
    return [] if entry is None else [_describe_topic(gateway, topic, entry)]


def _describe_all(gateway: Gateway) -> Iterator[TopicDetails]:
    open_topics: dict[str, list[str]] = {}
    for name in sorted(gateway.rooms):
        entry = admission.find_config_entry(gateway.config, name)
        if entry is not None and entry != name:
            open_topics.setdefault(entry, []).append(name)
    for entry in gateway.config.rooms:
        yield _describe_topic(gateway, entry, entry)
        for name in open_topics.get(entry, ()):
            yield _describe_topic(gateway, name, entry)


def _describe_topic(gateway: Gateway, name: str, entry: str) -> TopicDetails:
    room: Room | None = gateway.rooms.get(name)
    settings: TopicConfig = gateway.config.rooms[entry] if room is None else room.settings
    return TopicDetails(
        name=name,
        entry=entry,
        access=settings.access,
        profile=settings.profile,
        anonymous=settings.anonymous,
        seats=len(settings.participants),
        node=settings.node,
        record=settings.record,
        most=settings.max_participants,
        open=room is not None,
        refused=0 if room is None else room.rejected,
        members=() if room is None else tuple(map(_describe_member, room.members.values())),
    )


def _describe_member(member: Member) -> TopicMember:
    return TopicMember(
        member.id,
        member.capabilities,
        member.routing,
        member.connected_at,
        member.rejected,
        member.internal,
    )
