"""The config section `topics`: rooms, their participants and capabilities."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field

from interlock.core.config.quantities import PATH_PATTERN
from interlock.core.config.section import (
    Count,
    Duration,
    DurationOrZero,
    FeatureSection,
    Glob,
    Section,
    Segment,
    Size,
    Text,
    help_text,
)
from interlock.core.config.trust import EffectName
from interlock.protocol.kinds import INVISIBLE
from interlock.protocol.mcpx_terms import MAX_PARTICIPANT_ID

MEBIBYTE: Final = 1024 * 1024
RECORDER: Final = "recorder"
"""The id of the participant that writes a topic to the journal. No other participant can have
it."""
_GATEWAY_ID: Final = re.compile(r"system(?![^\W_])")
"""The id of the gateway, alone or followed by anything but a letter or digit."""

Access = Literal["public", "private", "restricted"]
Routing = Literal["all", "directed"]
ProfileName = Literal[
    "full_access", "proposal_only", "response_only", "read_only", "tool_only", "initial", "none"
]


def normalize_id(id: str) -> str:
    """Normalize an id: equal for ids that differ only in case or in Unicode form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", id).casefold())


def is_gateway_id(id: str) -> bool:
    """Return whether the id is the gateway's, or could be mistaken for it."""
    return _GATEWAY_ID.match(normalize_id(id)) is not None


def is_readable_id(id: str) -> bool:
    """Return whether an id is fully visible: no spaces, invisible characters or changes of text
    direction."""
    return 0 < len(id) <= MAX_PARTICIPANT_ID and id.isprintable() and INVISIBLE.search(id) is None


class ParticipantConfig(Section, frozen=True):
    """A participant of a topic and its capabilities. The first entry that matches a caller
    applies."""

    callers: Annotated[list[Glob], help_text("Globs of callers.")] = field(default_factory=list)
    roles: Annotated[list[Text], help_text("Or callers with any of these roles.")] = field(
        default_factory=list
    )
    id: Annotated[Text | None, help_text("Id in the topic. Default: the caller's name.")] = None
    profile: Annotated[
        ProfileName | None, help_text("Set of capabilities. Default: the topic's.")
    ] = None
    capabilities: Annotated[
        list[Text], help_text("Further kinds it may send, such as mcp/request:tools/*.")
    ] = field(default_factory=list)
    routing: Annotated[
        Routing, help_text("directed: it does not get messages that are addressed only to others.")
    ] = "all"


class ParticipantUpstream(Section, frozen=True):
    """A participant whose tools are in the catalog of the node."""

    segment: Annotated[
        Segment, help_text("Segment of its tool names. Default: made from its id.")
    ] = ""
    allow: Annotated[list[Glob], help_text("Globs of tools to list. Default: all.")] = field(
        default_factory=list
    )
    deny: Annotated[list[Glob], help_text("Globs of tools not to list.")] = field(
        default_factory=list
    )
    effects: Annotated[
        dict[Glob, EffectName],
        help_text("Effects of tools, by glob. They override what the participant declares."),
    ] = field(default_factory=dict)
    trust_annotations: Annotated[bool, help_text("Trust the annotations of its tools.")] = False
    timeout: Annotated[Duration | None, help_text("Deadline of a call. Default: the node's.")] = (
        None
    )
    grace: Annotated[
        DurationOrZero, help_text("How long its tools stay listed after it leaves.")
    ] = 60.0
    enabled: Annotated[bool, help_text("false: do not use it as an upstream.")] = True


class TopicConfig(Section, frozen=True):
    """One topic, or all topics whose names match a glob."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "seats": "participants", "most": "max_participants", "guests": "max_guests",
    }  # fmt: skip

    access: Annotated[
        Access,
        help_text(
            "restricted: callers in `participants`; private: every known caller; public: also "
            "callers without a token."
        ),
    ] = "restricted"
    participants: Annotated[
        list[ParticipantConfig], help_text("Who may join. The first match applies.")
    ] = field(default_factory=list)
    profile: Annotated[
        ProfileName,
        help_text("Default profile of participants, and of callers that match no participant."),
    ] = "initial"
    anonymous: Annotated[ProfileName, help_text("Profile of callers without a token.")] = "initial"
    node: Annotated[
        Text | None, help_text("Id under which the node takes part. Default: it does not.")
    ] = None
    upstreams: Annotated[
        dict[Text, ParticipantUpstream],
        help_text("Participants that are upstreams of the node, by id."),
    ] = field(default_factory=dict)
    record: Annotated[
        Literal["off", "heads", "full"],
        help_text("What to write to the journal, by a participant with the id recorder."),
    ] = "off"
    notice: Annotated[
        bool, help_text("Tell the others when a participant sends a kind that it may not.")
    ] = False
    max_participants: Annotated[Count, help_text("Maximum number of participants.")] = 1_000
    max_guests: Annotated[
        Count | None,
        help_text(
            "Maximum number of guests (without a token). Default: half of `max_participants`."
        ),
    ] = None
    guest_message: Annotated[
        Size,
        help_text("Maximum size of a message of a guest. Others: 1 MiB."),
    ] = 64 * 1024
    queue: Annotated[Count, help_text("Maximum number of messages queued for a slow reader.")] = (
        1_000
    )
    queue_bytes: Annotated[Size, help_text("Maximum size of these messages.")] = 4 * MEBIBYTE
    unread: Annotated[
        Size,
        help_text("Maximum size of queued messages of the whole topic. Guests get half of it."),
    ] = 64 * MEBIBYTE
    overflow: Annotated[
        Literal["report", "close"],
        help_text("report: tell a slow reader what it lost; close: disconnect it (code 1013)."),
    ] = "report"
    stalled: Annotated[
        Duration, help_text("Disconnect a participant that reads nothing for this time.")
    ] = 30.0
    ping: Annotated[Duration, help_text("Ping a participant that sends nothing for this time.")] = (
        30.0
    )
    messages_per_second: Annotated[
        Count | None, help_text("Rate limit of one participant. Default: no limit.")
    ] = None
    record_per_second: Annotated[
        Count,
        help_text(
            "Maximum average rate at which messages of one participant are recorded; of all "
            "together ten times that."
        ),
    ] = 10

    @property
    def guest_limit(self) -> int:
        """The maximum number of participants without a token."""
        return max(1, self.max_participants // 2) if self.max_guests is None else self.max_guests


class TopicsConfig(FeatureSection, frozen=True):
    """Rooms where agents and people work together (MCPx)."""

    KEY = "topics"
    RESTART = ("path",)
    RENAMED: ClassVar[Mapping[str, str]] = {"most": "max_connections"}

    path: Annotated[
        Annotated[str, Meta(pattern=PATH_PATTERN, extra={"kind": "path"})],
        help_text("Path of the WebSocket."),
    ] = "/ws"
    admins: Annotated[
        list[Glob],
        help_text("Globs of callers that may change capabilities of others. Default: none."),
    ] = field(default_factory=list)
    max_connections: Annotated[
        Count | None,
        help_text(
            "Maximum number of connections to all topics together. Default: half of the open "
            "file limit."
        ),
    ] = None
    rooms: Annotated[dict[Text, TopicConfig], help_text("Topics by name or glob.")] = field(
        default_factory=dict
    )

    def paths(self) -> Iterable[str]:
        return (self.path,)
