"""The participants of one room that are upstreams of the node: begun together, each by itself.

A participant that leaves keeps its tools listed for its grace, as a server does that is lost; then
they are withdrawn, until it is there again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from interlock.catalog.definitions import is_wanted
from interlock.config.model import AskConfig, ServerConfig
from interlock.config.quantities import default_segment
from interlock.config.topics import ParticipantUpstream
from interlock.protocol.mcpx.envelope import Head
from interlock.upstreams.topics.participant_connector import ParticipantConnector, key_of
from interlock.upstreams.topics.participant_link import Say


class Handle(Protocol):
    def cancel(self) -> None: ...


class Withdraws(Protocol):
    """What keeps an upstream alive, as far as a room needs to know it."""

    def withdraw(self, reason: str) -> None: ...


Begin = Callable[[str, ServerConfig, ParticipantConnector], Withdraws]
CallLater = Callable[[float, Callable[[], None]], Handle]


def server_of(topic: str, participant: str, settings: ParticipantUpstream) -> ServerConfig:
    """What the config says of a participant, as of any other server."""
    return ServerConfig(
        segment=settings.segment or default_segment(participant),
        description=f"{participant} in the topic {topic}",
        allow=settings.allow,
        deny=settings.deny,
        effects=settings.effects,
        trust_annotations=settings.trust_annotations,
        timeout=settings.timeout,
        grace=settings.grace,
        # There is one seat for the node in the room, and nobody to be asked.
        sessions="shared",
        ask=AskConfig(sampling="deny", elicitation="deny", roots="deny"),
    )


class RoomUpstreams:
    """The upstreams of one room."""

    def __init__(
        self,
        topic: str,
        settings: Mapping[str, ParticipantUpstream],
        *,
        own_info: bytes,
        say: Say,
        begin: Begin,
        end: Callable[[str], None],
        call_later: CallLater,
        **more: Any,
    ) -> None:
        """`begin` starts to supervise one, `end` forgets it; `more` is for its connector."""
        self.connectors: dict[str, ParticipantConnector] = {}
        """By the key under which the node knows it."""
        self._end = end
        self._call_later = call_later
        self._timers: dict[str, Handle] = {}
        for participant, wanted in settings.items():
            if not wanted.enabled:
                continue
            key = key_of(topic, participant)
            server = server_of(topic, participant, wanted)
            connector = ParticipantConnector(
                key,
                participant,
                own_info,
                say,
                may_be_node=bool(wanted.allow),
                takes=partial(is_wanted, server=server),
                **more,
            )
            upstream = begin(key, server, connector)
            connector.on_arrived = lambda key=key: self._stays(key)
            connector.on_left = lambda key=key, upstream=upstream, grace=wanted.grace: self._goes(
                key, upstream, grace
            )
            self.connectors[key] = connector

    def heard(self, head: Head, text: bytes) -> None:
        """Something that was said in the room."""
        for connector in list(self.connectors.values()):
            connector.heard(head, text)

    def close(self) -> None:
        """The node leaves the room, and with it everything that it knew from there."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        connectors, self.connectors = self.connectors, {}
        for key, connector in connectors.items():
            connector.on_left = connector.on_arrived = None
            connector.left("the node left the room")
            self._end(key)

    def _stays(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _goes(self, key: str, upstream: Withdraws, grace: float) -> None:
        def over() -> None:
            self._timers.pop(key, None)
            upstream.withdraw("it left the room")

        self._stays(key)
        self._timers[key] = self._call_later(grace, over)
