"""URIs in results, as clients know them.

Where two upstreams list the same URI, clients see each of them in a form that tells whose it is.
What such an upstream answers names its resources by its own URIs: they are put into the same form,
so that a client can go on with what it was told. Everything else in a result stays as it came.
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
_Show = Callable[[str], str]


def rewrite_uris(call: Call, outcome: Outcome, snapshot: Snapshot) -> Outcome:
    """The outcome with the URIs that its caller knows. Never raises."""
    change = _CHANGES.get(call.method)
    if change is None or not snapshot.colliding(call.upstream) or b'"uri"' not in outcome.result:
        return outcome
    try:
        members = decode_members(outcome.result)
        if not change(members, lambda uri: snapshot.shown_uri(call.upstream, uri)):
            return outcome
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ProtocolError):
        # What cannot be read is for the client to judge.
        return outcome
    return Outcome(encode_members(members), outcome.era, outcome.glance)


def _contents(members: _Members, show: _Show) -> bool:
    """`resources/read`: every part says which resource it is."""
    return _each(members, "contents", lambda part: _uri(part, show))


def _skill(members: _Members, show: _Show) -> bool:
    """`skills/get`: a skill, and each of its files."""
    if "skill" not in members:
        return False
    skill = decode_members(members["skill"])
    if not _uri(skill, show) | _resources(skill, show):
        return False
    members["skill"] = Raw(encode_members(skill))
    return True


def _resources(members: _Members, show: _Show) -> bool:
    """`resources/directory/read`: what is in the folder."""
    return _each(members, "resources", lambda one: _uri(one, show))


def _content(members: _Members, show: _Show) -> bool:
    """`tools/call`: links to resources, and resources that are put into the answer."""
    return _each(members, "content", lambda block: _block(block, show))


def _task(members: _Members, show: _Show) -> bool:
    """`tasks/get`: what the call came to stands inside."""
    if "result" not in members:
        return False
    result = decode_members(members["result"])
    if not _content(result, show):
        return False
    members["result"] = Raw(encode_members(result))
    return True


def _messages(members: _Members, show: _Show) -> bool:
    """`prompts/get`: each message has a block, or several."""

    def message(one: _Members) -> bool:
        content = one.get("content")
        if content is None:
            return False
        if bytes(content)[:1] == b"[":
            return _content(one, show)
        block = decode_members(content)
        if not _block(block, show):
            return False
        one["content"] = Raw(encode_members(block))
        return True

    return _each(members, "messages", message)


def _block(block: _Members, show: _Show) -> bool:
    kind = block.get("type")
    if kind is None:
        return False
    if bytes(kind) == b'"resource_link"':
        return _uri(block, show)
    if bytes(kind) != b'"resource"' or "resource" not in block:
        return False
    resource = decode_members(block["resource"])
    if not _uri(resource, show):
        return False
    block["resource"] = Raw(encode_members(resource))
    return True


def _each(members: _Members, name: str, change: Callable[[_Members], bool]) -> bool:
    """Change the objects of a list. True: at least one is another now."""
    raw = members.get(name)
    if raw is None or bytes(raw)[:1] != b"[":
        return False
    items = _decode_list(raw)
    changed = False
    for place, item in enumerate(items):
        if bytes(item)[:1] == b"{":
            one = decode_members(item)
            if change(one):
                items[place] = Raw(encode_members(one))
                changed = True
    if changed:
        members[name] = Raw(encode_value(items))
    return changed


def _uri(members: _Members, show: _Show) -> bool:
    raw = members.get(_URI)
    own = None if raw is None else decode_value(raw)
    if not isinstance(own, str):
        return False
    shown = show(own)
    if shown == own:
        return False
    members[_URI] = Raw(encode_value(shown))
    return True


_CHANGES: Final[dict[str, Callable[[_Members, _Show], bool]]] = {
    RESOURCES_READ: _contents,
    TOOLS_CALL: _content,
    PROMPTS_GET: _messages,
    TASKS_GET: _task,
    SKILLS_GET: _skill,
    DIRECTORY_READ: _resources,
}
