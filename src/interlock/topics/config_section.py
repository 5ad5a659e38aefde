"""The config section `topics`: its checks and its part of the reference."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any, Final

from interlock.core.config.feature_sections import SectionDefinition, find_used_paths
from interlock.core.config.model import Config, ServerConfig
from interlock.core.config.problems import KeyPath, quote
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
    used_paths = find_used_paths(values, exclude=TopicsConfig)
    if topics.path in (values.get("path") or _DEFAULTS.path, *used_paths):
        reader.report(("topics", "path"), "the path is in use", "choose another path")
    segments: dict[str, KeyPath] = {}
    servers: dict[str, ServerConfig] = values.get("servers", {})
    for key, server in servers.items():
        segments[server.segment or default_segment(key)] = ("servers", key)
    globs: list[str] = []
    for name, topic in topics.rooms.items():
        path: KeyPath = ("topics", "rooms", name)
        if not _TOPIC.fullmatch(name):
            reader.report(
                path,
                f"{quote(name)} is not a valid topic name",
                "use letters, digits, dots, dashes and underscores, and * ? [ ] in a glob",
            )
        _check_room(reader, path, name, topic)
        covering_glob = next((glob for glob in globs if _covers(glob, name)), None)
        if _GLOB & {*name}:
            globs.append(name)
            if covering_glob is not None:
                reader.report(
                    path,
                    f"{quote(covering_glob)} above it matches every topic that this entry matches",
                    "move this entry up: the first glob that matches a topic applies",
                )
        for id, upstream in topic.upstreams.items():
            segment = upstream.segment or default_segment(id)
            if segment in segments:
                reader.report(
                    (*path, "upstreams", id),
                    f"another server has the segment {quote(segment)}",
                    "set another one: segment: NAME",
                )
            segments[segment] = path


def _covers(earlier_glob: str, later_glob: str) -> bool:
    """Return whether the first glob matches every text that the second glob matches.

    False if the first glob has a wildcard other than `*`. A set in brackets of the second one
    counts as one character.
    """
    return (
        "*" in earlier_glob
        and not {*"?["} & {*earlier_glob}
        and fnmatchcase(_BRACKETS.sub("?", later_glob), earlier_glob)
    )


def _is_covered(caller: str, globs: list[str]) -> bool:
    return any(glob == caller or _covers(glob, caller) for glob in globs)


def _check_room(reader: NodeReader, path: KeyPath, name: str, topic: TopicConfig) -> None:
    node_ids = {normalize_id(topic.node): "the node"} if topic.node is not None else {}
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
    used_ids: set[str] = set()
    for number, entry in enumerate(topic.participants):
        entry_path: KeyPath = (*path, "participants", number)
        _check_participant(reader, entry_path, entry)
        earlier_callers = [
            caller
            for earlier_entry in topic.participants[:number]
            for caller in earlier_entry.callers
        ]
        if (
            entry.callers
            and not entry.roles
            and all(_is_covered(caller, earlier_callers) for caller in entry.callers)
        ):
            reader.report(
                (*entry_path, "callers"),
                "an entry above it matches every caller that this entry matches",
                "move this entry up: the first entry that matches a caller applies",
            )
        if entry.id is None:
            continue
        id = normalize_id(entry.id)
        other_names = {
            normalize_id(name)
            for other in topic.participants
            if other is not entry
            for name in other.callers
        }
        if id in node_ids or id == RECORDER or id in used_ids:
            owner = node_ids.get(id) or (
                "the recorder" if id == RECORDER else "another participant"
            )
            reader.report(
                (*entry_path, "id"), f"{owner} has the id {quote(id)}", "choose another id"
            )
        elif id in other_names:
            reader.report(
                (*entry_path, "id"),
                f"a caller of another participant has the name {quote(id)}",
                "choose another id: readers would confuse the two",
            )
        used_ids.add(id)
    for id in topic.upstreams:
        _check_id(reader, (*path, "upstreams", id), id)
        if normalize_id(id) in node_ids or normalize_id(id) == RECORDER:
            reader.report((*path, "upstreams", id), "this is the node itself", "name another one")


def _check_participant(reader: NodeReader, path: KeyPath, entry: ParticipantConfig) -> None:
    if not entry.callers and not entry.roles:
        reader.report(
            path,
            "this entry matches no caller",
            "set callers: [NAME] or roles: [ROLE]; callers: ['*'] matches every known caller",
        )
    if entry.id is not None:
        _check_id(reader, (*path, "id"), entry.id)
        if len(entry.callers) != 1 or entry.roles or _GLOB & {*entry.callers[0]}:
            reader.report(
                (*path, "id"),
                "several callers would be one participant",
                "name exactly one caller in an entry with an id",
            )
    for number, pattern in enumerate(entry.capabilities):
        problem = find_pattern_problem(pattern)
        if problem:
            reader.report(
                (*path, "capabilities", number),
                f"{quote(pattern)} grants nothing: {problem}",
                "use a kind, such as chat or mcp/request:tools/*",
            )


def _check_id(reader: NodeReader, path: KeyPath, id: str) -> None:
    if not is_readable_id(id):
        reader.report(
            path,
            f"{quote(id)} is not a valid participant id",
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
