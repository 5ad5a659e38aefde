"""What a node is told about topics: which there are, who has a seat in them, and what each may say
there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated, Final, Literal

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
    says,
)
from interlock.core.config.trust import EffectName
from interlock.protocol.kinds import INVISIBLE
from interlock.protocol.mcpx_terms import MAX_PARTICIPANT_ID

MEBIBYTE: Final = 1024 * 1024
RECORDER: Final = "recorder"
"""What the participant is called that writes a topic to the journal. Nobody else ever is."""
_GATEWAYS: Final = re.compile(r"system(?![^\W_])")
"""The gateway's own word, alone or in front of anything but more of a word."""

Access = Literal["public", "private", "restricted"]
Routing = Literal["all", "directed"]
ProfileName = Literal[
    "full_access", "proposal_only", "response_only", "read_only", "tool_only", "initial", "none"
]


def folded(id: str) -> str:
    """The same for ids that are the same but for capitals and ways to write a letter."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", id).casefold())


def is_gateways(id: str) -> bool:
    """Whether it is, or could be taken for, what only the gateway is called."""
    return _GATEWAYS.match(folded(id)) is not None


def can_be_read(id: str) -> bool:
    """Whether a reader sees all of it: no spaces, nothing invisible, nothing that turns the order
    of letters around."""
    return 0 < len(id) <= MAX_PARTICIPANT_ID and id.isprintable() and INVISIBLE.search(id) is None


class SeatConfig(Section, frozen=True):
    """Who sits in a topic, and what it may say. The first seat that fits a caller is its own."""

    callers: Annotated[list[Glob], says("Globs of callers.")] = field(default_factory=list)
    roles: Annotated[list[Text], says("Or any of these roles.")] = field(default_factory=list)
    id: Annotated[Text | None, says("What it is called there. Default: the caller's name.")] = None
    profile: Annotated[ProfileName | None, says("A set of capabilities. Default: the topic's.")] = (
        None
    )
    capabilities: Annotated[
        list[Text], says("Kinds it may send as well, such as mcp/request:tools/*.")
    ] = field(default_factory=list)
    routing: Annotated[
        Routing, says("directed: it is not sent what is addressed to others only.")
    ] = "all"


class ParticipantUpstream(Section, frozen=True):
    """A participant whose tools are in the node's catalog."""

    segment: Annotated[Segment, says("Its segment. Default: made from its id.")] = ""
    allow: Annotated[list[Glob], says("Globs of tools that are shown. Default: all.")] = field(
        default_factory=list
    )
    deny: Annotated[list[Glob], says("Globs of tools that are not shown.")] = field(
        default_factory=list
    )
    effects: Annotated[
        dict[Glob, EffectName], says("What tools do, by glob, where you know better.")
    ] = field(default_factory=dict)
    trust_annotations: Annotated[
        bool, says("Whether what it says of its own tools is believed.")
    ] = False
    timeout: Annotated[Duration | None, says("Deadline of a call. Default: the node's.")] = None
    grace: Annotated[DurationOrZero, says("How long its tools stay listed after it left.")] = 60.0
    enabled: Annotated[bool, says("false: it is left alone.")] = True


class TopicConfig(Section, frozen=True):
    """One topic, or all whose names fit a glob."""

    access: Annotated[
        Access,
        says(
            "restricted: who has a seat; private: every known caller; public: without a token, too."
        ),
    ] = "restricted"
    seats: Annotated[list[SeatConfig], says("Who sits here, the first that fits.")] = field(
        default_factory=list
    )
    profile: Annotated[
        ProfileName, says("Capabilities of a seat that names none, and of callers without one.")
    ] = "initial"
    anonymous: Annotated[ProfileName, says("Capabilities of those who come without a token.")] = (
        "initial"
    )
    node: Annotated[
        Text | None, says("The node sits here, under this id. Default: it does not.")
    ] = None
    upstreams: Annotated[
        dict[Text, ParticipantUpstream], says("Participants that are servers to the node, by id.")
    ] = field(default_factory=dict)
    record: Annotated[
        Literal["off", "heads", "whole"],
        says("What of it is written to the journal, by a participant called recorder."),
    ] = "off"
    notice: Annotated[bool, says("Whether others hear that somebody said what it may not.")] = False
    most: Annotated[Count, says("The most participants at once.")] = 1_000
    guests: Annotated[
        Count | None,
        says("The most of them who came without a token. Default: half of `most`."),
    ] = None
    guest_message: Annotated[
        Size,
        says("The longest message of one who came without a token. Of others: 1 MiB."),
    ] = 64 * 1024
    queue: Annotated[Count, says("The most messages that wait for one who does not read.")] = 1_000
    queue_bytes: Annotated[Size, says("The most bytes of them.")] = 4 * MEBIBYTE
    unread: Annotated[
        Size, says("The most bytes that wait for all together; for guests there is half of it.")
    ] = 64 * MEBIBYTE
    overflow: Annotated[
        Literal["tell", "close"],
        says("tell: what is lost is counted and told; close: it is let go (1013)."),
    ] = "tell"
    stalled: Annotated[Duration, says("One who has not read for so long is let go (1013).")] = 30.0
    ping: Annotated[Duration, says("How long a silent one is left alone.")] = 30.0
    messages_per_second: Annotated[
        Count | None, says("The most messages of one participant. Default: no limit.")
    ] = None
    record_per_second: Annotated[
        Count,
        says(
            "The most messages of one participant that are written down, on average; of all "
            "together ten times as many."
        ),
    ] = 10

    @property
    def most_guests(self) -> int:
        """How many may be here without a token."""
        return max(1, self.most // 2) if self.guests is None else self.guests


class TopicsConfig(FeatureSection, frozen=True):
    """Rooms where agents and people work together (MCPx)."""

    KEY = "topics"
    RESTART = ("path",)

    path: Annotated[
        Annotated[str, Meta(pattern=PATH_PATTERN, extra={"kind": "path"})],
        says("Where the WebSocket of topics answers."),
    ] = "/ws"
    admins: Annotated[
        list[Glob],
        says("Globs of callers that may change capabilities of others. Default: nobody."),
    ] = field(default_factory=list)
    most: Annotated[
        Count | None,
        says(
            "The most connections to all topics together. Default: half of the files that the "
            "node may open."
        ),
    ] = None
    rooms: Annotated[dict[Text, TopicConfig], says("Topics by name or glob.")] = field(
        default_factory=dict
    )

    def paths(self) -> Iterable[str]:
        return (self.path,)
