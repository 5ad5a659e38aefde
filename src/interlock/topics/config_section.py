"""The section `topics` of the config: its struct, its checks and its part of the reference."""

from __future__ import annotations

from typing import Final

from interlock.core.config.feature_sections import SectionDefinition
from interlock.topics.config import ParticipantUpstream, SeatConfig, TopicConfig, TopicsConfig
from interlock.topics.config_checks import check_topics

SECTION: Final = SectionDefinition(
    TopicsConfig,
    check=check_topics,
    reference=(
        (
            "`topics`",
            TopicsConfig,
            "See [topics.md](topics.md). `path` takes a new start of the node.",
        ),
        (
            "`topics.rooms.NAME`",
            TopicConfig,
            "A name, or a glob such as `team-*`: the entry with the same name counts first, then "
            "the first glob that fits.",
        ),
        ("`topics.rooms.NAME.seats`", SeatConfig, "A list."),
        ("`topics.rooms.NAME.upstreams.ID`", ParticipantUpstream, ""),
    ),
)
