"""The config section `topics`: its checks and its part of the reference."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any, Final

from interlock.core.config.feature_sections import SectionDefinition, find_used_paths
from interlock.core.config.model import Config, ServerConfig
from interlock.core.config.problems import KeyPath, quoted
from interlock.core.config.quantities import default_segment
from interlock.core.config.reader import NodeReader
from interlock.protocol.kinds import find_pattern_problem
from interlock.protocol.mcpx_terms import MAX_PARTICIPANT_ID
from interlock.topics.config import (
    RECORDER,
    ParticipantConfig,
    ParticipantUpstream,
    TopicConfig,
    TopicsConfig,
    is_gateway_id,
    is_readable_id,
    normalize_id,
)

_TOPIC: Final = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,128}")
_DEFAULTS: Final = Config()
_GLOB: Final = frozenset("*?[")
_BRACKETS: Final = re.compile(r"\[!?\]?[^\]]*\]")
_CALLING_PROFILES: Final = ("full_access", "tool_only")


def check_topics(reader: NodeReader, values: dict[str, Any]) -> None:
    """Report every conflict between the settings of topics."""
    topics: TopicsConfig | None = values.get("topics")
    if topics is None or ("topics",) not in reader.places:
        return
    taken_by_others = find_used_paths(values, exclude=TopicsConfig)
    if topics.path in (values.get("path") or _DEFAULTS.path, *taken_by_others):
        reader.report(("topics", "path"), "the path is in use", "choose another path")
    taken: dict[str, KeyPath] = {}
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        taken[server.segment or default_segment(key)] = ("servers", key)
    globs: list[str] = []
    for name, topic in topics.rooms.items():
        path: KeyPath = ("topics", "rooms", name)
        if not _TOPIC.fullmatch(name):
            reader.report(
                path,
                f"{quoted(name)} is not a valid topic name",
                "use letters, digits, dots, dashes and underscores, and * ? [ ] in a glob",
            )
        _check_room(reader, path, name, topic)
        above = next((one for one in globs if _covers(one, name)), None)
        if _GLOB & {*name}:
            globs.append(name)
            if above is not None:
                reader.report(
                    path,
                    f"{quoted(above)} above it matches every topic that this entry matches",
                    "move this entry up: the first glob that matches a topic applies",
                )
        for id, upstream in topic.upstreams.items():
            segment = upstream.segment or default_segment(id)
            if segment in taken:
                reader.report(
                    (*path, "upstreams", id),
                    f"another server has the segment {quoted(segment)}",
                    "set another one: segment: NAME",
                )
            taken[segment] = path


def _covers(above: str, below: str) -> bool:
    """Return whether one glob matches everything that another matches.

    Only for globs with stars and no other wildcards: such a glob covers another if it matches the
    text of the other, since a star there can only match under a star. A set in brackets matches one
    character, so it is compared as one.
    """
    return "*" in above and not {*"?["} & {*above} and fnmatchcase(_BRACKETS.sub("?", below), above)


def _is_covered(caller: str, above: list[str]) -> bool:
    return any(one == caller or _covers(one, caller) for one in above)


def _check_room(reader: NodeReader, path: KeyPath, name: str, topic: TopicConfig) -> None:
    own = {normalize_id(topic.node): "the node"} if topic.node is not None else {}
    if topic.node is not None:
        _check_id(reader, (*path, "node"), topic.node)
        if normalize_id(topic.node) == RECORDER:
            reader.report((*path, "node"), "the recorder has this id", "choose another id")
    if topic.access == "public" and topic.anonymous in _CALLING_PROFILES:
        reader.report(
            (*path, "anonymous"),
            "anyone who can reach the node could call tools through it",
            "use proposal_only, response_only, read_only or initial",
        )
    if topic.upstreams and topic.node is None:
        reader.report(
            (*path, "upstreams"),
            "the node must take part in the topic to call upstreams",
            "add node: ID",
        )
    if topic.upstreams and _GLOB & {*name}:
        reader.report(
            (*path, "upstreams"),
            "a participant can be an upstream in one topic only, but this name is a glob",
            "add an entry for the one topic",
        )
    seen: set[str] = set()
    for number, seat in enumerate(topic.participants):
        at: KeyPath = (*path, "participants", number)
        _check_participant(reader, at, seat)
        above = [caller for one in topic.participants[:number] for caller in one.callers]
        if seat.callers and not seat.roles and all(_is_covered(one, above) for one in seat.callers):
            reader.report(
                (*at, "callers"),
                "an entry above it matches every caller that this entry matches",
                "move this entry up: the first entry that matches a caller applies",
            )
        if seat.id is None:
            continue
        id = normalize_id(seat.id)
        others = {
            normalize_id(name)
            for one in topic.participants
            if one is not seat
            for name in one.callers
        }
        if id in own or id == RECORDER or id in seen:
            whose = own.get(id) or ("the recorder" if id == RECORDER else "another participant")
            reader.report((*at, "id"), f"{whose} has the id {quoted(id)}", "choose another id")
        elif id in others:
            reader.report(
                (*at, "id"),
                f"a caller of another participant has the name {quoted(id)}",
                "choose another id: readers would confuse the two",
            )
        seen.add(id)
    for id in topic.upstreams:
        _check_id(reader, (*path, "upstreams", id), id)
        if normalize_id(id) in own or normalize_id(id) == RECORDER:
            reader.report((*path, "upstreams", id), "this is the node itself", "name another one")


def _check_participant(reader: NodeReader, path: KeyPath, seat: ParticipantConfig) -> None:
    if not seat.callers and not seat.roles:
        reader.report(
            path,
            "this entry matches no caller",
            "set callers: [NAME] or roles: [ROLE]; callers: ['*'] matches every known caller",
        )
    if seat.id is not None:
        _check_id(reader, (*path, "id"), seat.id)
        if len(seat.callers) != 1 or seat.roles or _GLOB & {*seat.callers[0]}:
            reader.report(
                (*path, "id"),
                "several callers would be one participant",
                "name exactly one caller in an entry with an id",
            )
    for number, pattern in enumerate(seat.capabilities):
        problem = find_pattern_problem(pattern)
        if problem:
            reader.report(
                (*path, "capabilities", number),
                f"{quoted(pattern)} grants nothing: {problem}",
                "use a kind, such as chat or mcp/request:tools/*",
            )


def _check_id(reader: NodeReader, path: KeyPath, id: str) -> None:
    if not is_readable_id(id):
        reader.report(
            path,
            f"{quoted(id)} is not a valid participant id",
            f"use at most {MAX_PARTICIPANT_ID} visible characters without spaces",
        )
    elif is_gateway_id(id):
        reader.report(path, "this id is reserved for the gateway", "choose another id")


SECTION: Final = SectionDefinition(
    TopicsConfig,
    check=check_topics,
    reference=(
        (
            "`topics`",
            TopicsConfig,
            "See [topics.md](topics.md). A change of `path` needs a restart.",
        ),
        (
            "`topics.rooms.NAME`",
            TopicConfig,
            "A name, or a glob such as `team-*`. The entry with exactly this name applies, else "
            "the first glob that matches.",
        ),
        ("`topics.rooms.NAME.participants`", ParticipantConfig, "A list."),
        ("`topics.rooms.NAME.upstreams.ID`", ParticipantUpstream, ""),
    ),
)
