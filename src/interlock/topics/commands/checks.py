"""Warnings of `interlock check` about topics: participants that match no caller, topics that nobody
can join, capabilities that are too small for their purpose, or that restrict less than they seem
to.

This module does no I/O.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from interlock.core.config import Config, RuleConfig, TokenConfig
from interlock.protocol import mcp
from interlock.protocol.kinds import CHAT, REQUEST, RESPONSE, KindPattern, compile_grants
from interlock.terminal.config_source import ConfigWarning
from interlock.topics.admission import RESTRICTED, list_capabilities
from interlock.topics.config import ParticipantConfig, TopicConfig, TopicsConfig
from interlock.trust.identity.api_tokens import AccessToken

_LOCAL: Final = "local"
_GLOB: Final = frozenset("*?[")
_MCP_ACTIONS: Final = ("request", "response", "proposal")
_METHODS: Final = tuple(mcp.METHODS)
_RESPONSE_KINDS: Final = (f"{RESPONSE}:{mcp.TOOLS_LIST}", f"{RESPONSE}:{mcp.TOOLS_CALL}")
_CALL_KIND: Final = f"{REQUEST}:{mcp.TOOLS_CALL}"


def check_topics(
    config: Config, *, access_tokens: Sequence[AccessToken] = ()
) -> Iterator[ConfigWarning]:
    """Yield warnings about the topics of a config.

    - callers, administrators and upstreams that no token names, if tokens name all callers;
    - capabilities that match no MCP message;
    - upstreams that cannot respond;
    - callers that may do more outside topics than in them.

    Args:
        access_tokens: valid tokens that are not in the config.
    """
    for name, topic in config.section(TopicsConfig).rooms.items():
        yield from _check_capabilities(name, topic)
        yield from _check_access(name, topic)
        yield from _check_upstreams(name, topic)
    yield from _check_calls_elsewhere(config, access_tokens)
    identity = config.identity
    if identity.issuers or identity.introspection:
        # An issuer names the callers, so the config alone does not tell who exists.
        return
    callers = {
        _LOCAL,
        *(token.name for token in config.tokens),
        *(token.name for token in access_tokens),
    }
    callers |= {certificate.name for certificate in identity.certificates}
    yield from _check_callers(("topics", "admins"), config.section(TopicsConfig).admins, callers)
    for name, topic in config.section(TopicsConfig).rooms.items():
        path = ("topics", "rooms", name)
        for number, entry in enumerate(topic.participants):
            yield from _check_callers(
                (*path, "participants", number, "callers"), entry.callers, callers
            )
        if (
            topic.node is not None
            and topic.node in callers
            and _joins_under_own_name(topic.node, topic)
        ):
            message = f"the caller {topic.node} has the same name and cannot join under it"
            yield (*path, "node"), message, "set another id for the caller or for the node"
        ids = callers | {entry.id for entry in topic.participants if entry.id is not None}
        for id in topic.upstreams:
            if id not in ids:
                message = f"no token and no participant of the topic has the name {id}"
                yield (*path, "upstreams", id), message, _suggest_name(id, ids)


def _check_callers(
    path: tuple[str | int, ...], globs: Iterable[str], names: set[str]
) -> Iterator[ConfigWarning]:
    for number, glob in enumerate(globs):
        if any(fnmatchcase(name, glob) for name in names):
            continue
        fits = "matches" if _GLOB & {*glob} else "has the name"
        yield (*path, number), f"no token of this config {fits} {glob}", _suggest_name(glob, names)


def _suggest_name(name: str, names: set[str]) -> str:
    matches = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.75)
    if matches:
        return f'did you mean "{matches[0]}"?'
    if names == {_LOCAL}:
        return 'add tokens: [{name: NAME, token: "${env:VARIABLE}"}], or: `interlock token create`'
    return "correct it, or create a token: `interlock token create`"


def _joins_under_own_name(caller: str, topic: TopicConfig) -> bool:
    """Return whether a caller, if it may join, does so under its own name."""
    entry = _find_participant(caller, topic)
    return entry is not None and entry.id is None


def _check_access(name: str, topic: TopicConfig) -> Iterator[ConfigWarning]:
    if topic.access == RESTRICTED and not topic.participants:
        message = "the topic is restricted and has no participants, so no caller can join"
        hint = "add participants: [{callers: [NAME], profile: full_access}], or access: private"
        yield ("topics", "rooms", name), message, hint


def _check_capabilities(name: str, topic: TopicConfig) -> Iterator[ConfigWarning]:
    for number, entry in enumerate(topic.participants):
        for index, pattern in enumerate(entry.capabilities):
            doubt = check_pattern(pattern)
            if doubt is not None:
                yield (
                    ("topics", "rooms", name, "participants", number, "capabilities", index),
                    *doubt,
                )


def check_pattern(pattern: str) -> tuple[str, str] | None:
    """Return what is wrong with a capability that looks like an MCP kind, and the correct form.
    None if nothing."""
    suggestion = _suggest_pattern(pattern)
    if suggestion is None:
        return None
    hint = f"use {suggestion}" if suggestion else _MCP_FORMS
    return f"no message has the kind {pattern}", hint


_MCP_FORMS: Final = "use mcp/request:…, mcp/proposal:…, mcp/response:… or mcp/*"


def _suggest_pattern(pattern: str) -> str | None:
    """Return the pattern that the author probably meant. None: the pattern is valid; empty:
    unknown."""
    lowered = pattern.lower()
    if lowered.startswith(("mcp:", "mcp.")):
        return _refine_suggestion(f"mcp/{lowered[4:]}")
    if pattern != lowered and lowered.startswith(("mcp/", CHAT)) and not pattern.startswith("mcp/"):
        return _refine_suggestion(lowered)
    family, slash, rest = pattern.partition("/")
    if family != "mcp":
        return CHAT if pattern.startswith(f"{CHAT}:") else None
    action, colon, method = rest.partition(":")
    if "*" in action.partition("/")[0]:
        return None
    if not slash or action not in _MCP_ACTIONS:
        matches = difflib.get_close_matches(action, _MCP_ACTIONS, n=1, cutoff=0.75)
        return _refine_suggestion(f"mcp/{matches[0]}{colon}{method}") if matches and method else ""
    return _suggest_method(f"mcp/{action}", method)


def _refine_suggestion(pattern: str) -> str:
    """Return the pattern, or a correction of it if it is no valid kind either."""
    return _suggest_pattern(pattern) or pattern


def _suggest_method(family: str, rest: str) -> str | None:
    method, colon, context = rest.partition(":")
    if not method or any(
        KindPattern(f"{family}:{method}").grants(f"{family}:{name}") for name in _METHODS
    ):
        return None
    kinds = sorted({f"{name.rpartition('/')[0]}/*" for name in _METHODS if "/" in name})
    candidates = kinds if method.endswith("*") else list(_METHODS)
    matches = difflib.get_close_matches(method.lower(), candidates, n=1, cutoff=0.75)
    # An unknown method may be an extension, so only likely typos are reported.
    return f"{family}:{matches[0]}{colon}{context}" if matches else None


# -- participants


def _find_participant(caller: str, topic: TopicConfig) -> ParticipantConfig | None:
    """Return the participant entry of a caller by its name alone. None: it may not join."""
    entry = _find_entry(caller, (), topic)
    return ParticipantConfig() if entry is None and topic.access != RESTRICTED else entry


def _find_entry(caller: str, roles: Iterable[str], topic: TopicConfig) -> ParticipantConfig | None:
    """Return the entry that matches the name or one of the roles."""
    for entry in topic.participants:
        named_entry = any(fnmatchcase(caller, glob) for glob in entry.callers)
        if named_entry or not set(entry.roles).isdisjoint(roles):
            return entry
    return None


def _check_upstreams(name: str, topic: TopicConfig) -> Iterator[ConfigWarning]:
    """Yield upstreams that may not send responses."""
    for id in topic.upstreams:
        named_entry = next((entry for entry in topic.participants if entry.id == id), None)
        entry = named_entry or _find_participant(id, topic)
        if entry is None or (named_entry is None and entry.id is not None):
            continue
        grants = compile_grants(list_capabilities(entry, topic.profile))
        if not all(map(grants.grants, _RESPONSE_KINDS)):
            message = f"{id} may not send responses, so its tools cannot be listed"
            hint = "give it profile: response_only, or capabilities: ['mcp/response:*']"
            yield ("topics", "rooms", name, "upstreams", id), message, hint


def _check_calls_elsewhere(
    config: Config, access_tokens: Sequence[AccessToken]
) -> Iterator[ConfigWarning]:
    """Yield one warning about callers that may only propose in topics but call tools elsewhere."""
    policy, rooms = config.policy, config.section(TopicsConfig).rooms.values()
    upstreams = any(upstream.enabled for topic in rooms for upstream in topic.upstreams.values())
    if policy.default == "deny" or not (config.enabled_servers or upstreams):
        return
    unrestricted: dict[str, None] = {}
    tokens: list[TokenConfig | AccessToken] = [*config.tokens, *access_tokens]
    for token in tokens:
        entries = [(_find_entry(token.name, token.roles, topic), topic) for topic in rooms]
        granted = [
            compile_grants(list_capabilities(entry, topic.profile))
            for entry, topic in entries
            if entry
        ]
        if "call" not in token.may or token.scopes is not None or not granted:
            continue
        is_stopped = any(_stops_all_calls(rule, token.name) for rule in policy.rules)
        if not is_stopped and not any(grants.grants(_CALL_KIND) for grants in granted):
            unrestricted[token.name] = None
    if unrestricted:
        *others, last = unrestricted
        names = f"{', '.join(others)} and {last}" if others else last
        message = (
            f"{names} may not call tools in topics, but may call all tools at {config.path}: "
            "capabilities of a topic do not apply outside it"
        )
        hint = "set may: [join] for such a token, or add a policy rule with then: confirm"
        yield ("tokens",), message, hint


def _stops_all_calls(rule: RuleConfig, caller: str) -> bool:
    """Return whether a rule stops every tool call of a caller."""
    limits = rule.selectors().keys() - {"tools", "callers"}
    tools = not rule.tools or "*" in rule.tools
    matches_caller = not rule.callers or any(fnmatchcase(caller, glob) for glob in rule.callers)
    return rule.then != "allow" and tools and matches_caller and not limits
