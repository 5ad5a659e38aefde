"""Rewrites URIs in results to the URIs that clients see.

If two upstreams list the same URI, clients see a different URI for each upstream. The results of
such an upstream contain its own URIs. They are rewritten, so that a client can use them. All other
parts of a result are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from interlock.core.call import Call, Outcome
from interlock.core.catalog.snapshot import Snapshot
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import (
    DIRECTORY_READ,
    PROMPTS_GET,
    RESOURCES_READ,
    SKILLS_GET,
    TASKS_GET,
    TOOLS_CALL,
)

_URI: Final = "uri"
_decode_list = msgspec.json.Decoder(list[Raw]).decode

_Members = dict[str, Raw]
_ShowUri = Callable[[str], str]


def rewrite_uris(call: Call, outcome: Outcome, snapshot: Snapshot) -> Outcome:
    """Return the outcome with the URIs that its caller sees. Never raises."""
    rewrite = _REWRITERS.get(call.method)
    if (
        rewrite is None
        or not snapshot.has_collisions(call.upstream)
        or b'"uri"' not in outcome.result
    ):
        return outcome
    try:
        members = decode_members(outcome.result)
        if not rewrite(members, lambda uri: snapshot.shown_uri(call.upstream, uri)):
            return outcome
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ProtocolError):
        # The client handles an invalid result itself.
        return outcome
    return Outcome(encode_members(members), outcome.era, outcome.summary)


def _rewrite_contents(members: _Members, show_uri: _ShowUri) -> bool:
    """Rewrite `resources/read`: every part has the URI of its resource."""
    return _rewrite_items(members, "contents", lambda part: _rewrite_uri(part, show_uri))


def _rewrite_skill(members: _Members, show_uri: _ShowUri) -> bool:
    """Rewrite `skills/get`: the skill, and each of its files."""
    if "skill" not in members:
        return False
    skill = decode_members(members["skill"])
    if not _rewrite_uri(skill, show_uri) | _rewrite_resources(skill, show_uri):
        return False
    members["skill"] = Raw(encode_members(skill))
    return True


def _rewrite_resources(members: _Members, show_uri: _ShowUri) -> bool:
    """Rewrite `resources/directory/read`: the content of the folder."""
    return _rewrite_items(members, "resources", lambda resource: _rewrite_uri(resource, show_uri))


def _rewrite_content(members: _Members, show_uri: _ShowUri) -> bool:
    """Rewrite `tools/call`: resource links, and embedded resources."""
    return _rewrite_items(members, "content", lambda block: _rewrite_block(block, show_uri))


def _rewrite_task(members: _Members, show_uri: _ShowUri) -> bool:
    """Rewrite `tasks/get`: the result of the call is inside."""
    if "result" not in members:
        return False
    result = decode_members(members["result"])
    if not _rewrite_content(result, show_uri):
        return False
    members["result"] = Raw(encode_members(result))
    return True


def _rewrite_messages(members: _Members, show_uri: _ShowUri) -> bool:
    """Rewrite `prompts/get`: each message has one or several blocks."""

    def rewrite_message(message: _Members) -> bool:
        content = message.get("content")
        if content is None:
            return False
        if bytes(content)[:1] == b"[":
            return _rewrite_content(message, show_uri)
        block = decode_members(content)
        if not _rewrite_block(block, show_uri):
            return False
        message["content"] = Raw(encode_members(block))
        return True

    return _rewrite_items(members, "messages", rewrite_message)


def _rewrite_block(block: _Members, show_uri: _ShowUri) -> bool:
    kind = block.get("type")
    if kind is None:
        return False
    if bytes(kind) == b'"resource_link"':
        return _rewrite_uri(block, show_uri)
    if bytes(kind) != b'"resource"' or "resource" not in block:
        return False
    resource = decode_members(block["resource"])
    if not _rewrite_uri(resource, show_uri):
        return False
    block["resource"] = Raw(encode_members(resource))
    return True


def _rewrite_items(members: _Members, name: str, rewrite: Callable[[_Members], bool]) -> bool:
    """Rewrite the objects of a list. Return whether at least one has changed."""
    raw = members.get(name)
    if raw is None or bytes(raw)[:1] != b"[":
        return False
    items = _decode_list(raw)
    has_changed = False
    for index, item in enumerate(items):
        if bytes(item)[:1] == b"{":
            item_members = decode_members(item)
            if rewrite(item_members):
                items[index] = Raw(encode_members(item_members))
                has_changed = True
    if has_changed:
        members[name] = Raw(encode_value(items))
    return has_changed


def _rewrite_uri(members: _Members, show_uri: _ShowUri) -> bool:
    raw = members.get(_URI)
    upstream_uri = None if raw is None else decode_value(raw)
    if not isinstance(upstream_uri, str):
        return False
    shown_uri = show_uri(upstream_uri)
    if shown_uri == upstream_uri:
        return False
    members[_URI] = Raw(encode_value(shown_uri))
    return True


_REWRITERS: Final[dict[str, Callable[[_Members, _ShowUri], bool]]] = {
    RESOURCES_READ: _rewrite_contents,
    TOOLS_CALL: _rewrite_content,
    PROMPTS_GET: _rewrite_messages,
    TASKS_GET: _rewrite_task,
    SKILLS_GET: _rewrite_skill,
    DIRECTORY_READ: _rewrite_resources,
}
