"""What an administrator sees of the topics of a node: those that the config names, those that are
open now, and who is in each. Pure: it looks, and changes nothing."""

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
    """How one topic fares."""

    members: int
    refused: int
    """How many messages led nowhere since it was opened."""


class TopicsStatus(msgspec.Struct, frozen=True):
    """The part of topics in the status of a node."""

    topics: dict[str, TopicStatus] = {}
    """Topics that are open, by name."""
    topics_url: str | None = None
    """Where its topics are joined, if it has any."""


class TopicMember(msgspec.Struct, frozen=True, rename="camel"):
    """Somebody who is in a topic."""

    participant_id: str
    capabilities: tuple[str, ...]
    routing: str
    connected_at: str
    refused: int
    """How many of its messages led nowhere."""
    inside: bool
    """Whether it is the node's own seat, and has no connection."""


class TopicDetails(msgspec.Struct, frozen=True, rename="camel"):
    """A topic: what holds there, and who is there now."""

    name: str
    entry: str
    """The name or the glob in the config by which it is what it is."""
    access: str
    profile: str
    """What callers without a seat of their own may say, and seats that name no profile."""
    anonymous: str
    """What those may say who come without a token, where they may come."""
    seats: int
    node: str | None
    """What the node is called there, if it has a seat."""
    record: str
    most: int
    open: bool
    refused: int
    """How many messages led nowhere since it was opened, of those who left too."""
    members: tuple[TopicMember, ...]


def topics_now(gateway: Gateway, topic: str | None = None) -> list[TopicDetails]:
    """Every topic, in the order of the config: behind a glob those that are open by it. With
    `topic`, that one, which may be closed; none when nothing in the config fits it."""
    if topic is None:
        return list(_all(gateway))
    entry = admission.entry_of(gateway.config, topic)
    return [] if entry is None else [_now(gateway, topic, entry)]


def _all(gateway: Gateway) -> Iterator[TopicDetails]:
    open_by: dict[str, list[str]] = {}
    for name in sorted(gateway.rooms):
        entry = admission.entry_of(gateway.config, name)
        if entry is not None and entry != name:
            open_by.setdefault(entry, []).append(name)
    for entry in gateway.config.rooms:
        yield _now(gateway, entry, entry)
        for name in open_by.get(entry, ()):
            yield _now(gateway, name, entry)


def _now(gateway: Gateway, name: str, entry: str) -> TopicDetails:
    room: Room | None = gateway.rooms.get(name)
    settings: TopicConfig = gateway.config.rooms[entry] if room is None else room.settings
    return TopicDetails(
        name=name,
        entry=entry,
        access=settings.access,
        profile=settings.profile,
        anonymous=settings.anonymous,
        seats=len(settings.seats),
        node=settings.node,
        record=settings.record,
        most=settings.most,
        open=room is not None,
        refused=0 if room is None else room.refused,
        members=() if room is None else tuple(map(_member, room.members.values())),
    )


def _member(member: Member) -> TopicMember:
    return TopicMember(
        member.id,
        member.capabilities,
        member.routing,
        member.connected_at,
        member.refused,
        member.inside,
    )
