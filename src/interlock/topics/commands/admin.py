"""`interlock topic list` and `topic grant`: clients of the admin API of a node.

The node authorizes the requests. These commands show only what it returns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from rich.cells import cell_len, set_cell_size

from interlock.errors import (
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    NAMESPACE_CONFLICT,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    failure_by_name,
)
from interlock.primitives.text import format_count
from interlock.primitives.timestamps import format_local
from interlock.terminal import output
from interlock.topics.commands.checks import check_pattern
from interlock.topics.commands.gateway_target import TOKEN_VARIABLE, GatewayTarget
from interlock.topics.commands.message_format import (
    describe_capabilities,
    find_profile,
    put_on_one_line,
)
from interlock.topics.overview import TopicDetails, TopicMember

# -- Topics and their members, formatted for people. No I/O, but it depends on the time zone.

_COLUMNS: Final = ("topic", "access", "profile", "node", "record", "members", "rejected")
_GAP: Final = "  "
_NONE: Final = "-"
_MAX_COLUMN_WIDTH: Final = 40
_MAX_MEMBERS: Final = 10
"""The maximum number of members of a topic in the list of all topics."""


def format_topics(topics: Sequence[TopicDetails]) -> Iterator[str]:
    """Yield a table of all topics with their members."""
    if not topics:
        return
    rows = [_topic_cells(topic) for topic in topics]
    widths = _measure_columns((_COLUMNS, *rows))
    yield _format_row(_COLUMNS, widths)
    for topic, row in zip(topics, rows, strict=True):
        yield _format_row(row, widths)
        members = [_member_cells(member) for member in topic.members[:_MAX_MEMBERS]]
        member_widths = _measure_columns(members)
        for member in members:
            yield f"{_GAP}{_format_row(member, member_widths)}"
        hidden_count = len(topic.members) - len(members)
        if hidden_count:
            yield f"{_GAP}… and {hidden_count} more: `interlock topic list {topic.name}`"


def format_topic(topic: TopicDetails) -> Iterator[str]:
    """Yield everything about one topic."""
    yield put_on_one_line(topic.name, 128)
    entry_note = (
        ""
        if topic.entry == topic.name
        else f", by {put_on_one_line(topic.entry, 128)} in the config"
    )
    entries = format_count(topic.seats, "configured participant")
    yield f"  access    {topic.access}, {entries}{entry_note}"
    guests = f"; without a token: {topic.anonymous}" if topic.access == "public" else ""
    yield f"  profile   {topic.profile}{guests}"
    yield f"  node      {_NONE if topic.node is None else put_on_one_line(topic.node, 128)}"
    yield f"  record    {topic.record}"
    if not topic.open:
        yield f"  members   none, at most {topic.most}"
        return
    yield f"  members   {len(topic.members)}, at most {topic.most}"
    yield f"  rejected  {format_count(topic.refused, 'message')} since it was opened"
    for member in topic.members:
        yield ""
        suffix = " (the node itself)" if member.inside else ""
        yield f"{put_on_one_line(member.participant_id, 256)}{suffix}"
        yield f"  since     {_format_time(member.connected_at)}"
        yield f"  routing   {member.routing}"
        yield f"  rejected  {format_count(member.refused, 'message')}"
        profile = find_profile(member.capabilities)
        named = f" ({profile})" if profile else ""
        yield f"  may send{named}:" + ("" if member.capabilities else " nothing")
        for pattern in member.capabilities:
            yield f"    {put_on_one_line(pattern)}"


def _topic_cells(topic: TopicDetails) -> tuple[str, ...]:
    """Return the row of a topic: its settings and its current state."""
    return (
        put_on_one_line(topic.name, 128),
        topic.access,
        topic.profile,
        _NONE if topic.node is None else put_on_one_line(topic.node, 128),
        _NONE if topic.record == "off" else topic.record,
        str(len(topic.members)) if topic.open else _NONE,
        str(topic.refused) if topic.open else _NONE,
    )


def _member_cells(member: TopicMember) -> tuple[str, ...]:
    details = ["the node itself"] if member.inside else []
    if member.refused:
        details.append(f"{member.refused} rejected")
    return (
        put_on_one_line(member.participant_id, 256),
        put_on_one_line(describe_capabilities(member.capabilities)),
        member.routing,
        f"since {_format_time(member.connected_at)}",
        ", ".join(details),
    )


def _format_time(moment: str) -> str:
    """Format a time in the local time zone."""
    try:
        return format_local(datetime.fromisoformat(moment).timestamp(), "seconds")
    except (ValueError, OverflowError):
        return put_on_one_line(moment, 40)


def _measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        min(_MAX_COLUMN_WIDTH, max(map(cell_len, column))) for column in zip(*rows, strict=True)
    ]


def _format_row(row: Sequence[str], widths: Sequence[int]) -> str:
    """Format a row. A cell that is wider than its column is not cut: ids and patterns matter."""
    cells = (
        cell if cell_len(cell) >= width else set_cell_size(cell, width)
        for cell, width in zip(row, widths, strict=True)
    )
    return _GAP.join(cells).rstrip()


T = TypeVar("T")

_TIMEOUT_SECONDS: Final = 15.0
"""A timeout in seconds. The node may have to ask an issuer about the token."""
_MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
_MAX_NAMES: Final = 20
_NOT_FOUND: Final = "not_found"
_TOPIC_HINT: Final = "Use --topic NAME."
_WITHOUT_TOKEN: Final = {
    401: f"Set a token with ${TOKEN_VARIABLE} or --token-file.",
    403: (
        "Without a token you are the caller local, the user of this machine. Set a token with "
        f"${TOKEN_VARIABLE} or --token-file."
    ),
}
"""Advice for callers without a token, by status code."""


class _ErrorBody(msgspec.Struct, frozen=True):
    """The error body of the node."""

    error: str
    message: str


def print_topics(gateway: GatewayTarget, name: str | None, *, json: bool) -> None:
    """Print all topics, or one. Raises InterlockError."""
    from interlock.topics.overview import TopicDetails

    body = _send_request(gateway, "/admin/topics", {} if name is None else {"topic": name})
    topics = _decode_body(body, dict[str, list[TopicDetails]], gateway).get("topics", [])
    if name is not None and not topics:
        raise InterlockError(INVALID_PARAMS, _describe_unknown_topic(gateway, name))
    if json:
        output.print_json(msgspec.json.decode(body))
        return
    for line in format_topics(topics) if name is None else format_topic(topics[0]):
        print(output.sanitize(line))
    if not topics:
        output.print_note("The node has no topics. Add them to its config, under topics.rooms.")


def _describe_unknown_topic(gateway: GatewayTarget, name: str) -> str:
    from interlock.topics.overview import TopicDetails

    topics = _decode_body(
        _send_request(gateway, "/admin/topics", {}), dict[str, list[TopicDetails]], gateway
    )
    names = [put_on_one_line(topic.name, 128) for topic in topics.get("topics", [])]
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if matches:
        return f'there is no topic {name}; did you mean "{matches[0]}"?'
    ellipsis = ", …" if len(names) > _MAX_NAMES else ""
    return f"there is no topic {name}. Topics: {', '.join(names[:_MAX_NAMES])}{ellipsis}."


def change_capabilities(
    gateway: GatewayTarget,
    id: str,
    added_patterns: list[str],
    removed_patterns: list[str],
    *,
    topic: str | None,
    json: bool,
) -> None:
    """Add and remove capabilities, and print the old and new ones. Raises InterlockError."""
    from interlock.topics.member import CapabilityUpdate

    for pattern in added_patterns:
        warning = check_pattern(pattern)
        if warning is not None:
            output.print_note(f"Warning: {warning[0]}: {warning[1]}.")
    body = _send_request(
        gateway,
        f"/admin/participants/{quote(id, safe='')}/capabilities",
        {} if topic is None else {"topic": topic},
        {"add": added_patterns, "remove": removed_patterns},
    )
    update = _decode_body(body, CapabilityUpdate, gateway)
    if json:
        output.print_json(msgspec.json.decode(body))
    else:
        print(put_on_one_line(update.participant_id))
        print(f"  before  {_format_capabilities(update.old_capabilities)}")
        print(f"  now     {_format_capabilities(update.new_capabilities)}")
    for note in _list_notes(update.old_capabilities, update.new_capabilities, removed_patterns):
        output.print_note(f"Note: {put_on_one_line(note)}")


def _format_capabilities(capabilities: tuple[str, ...]) -> str:
    """Format capabilities without truncation."""
    words = ", ".join(capabilities) or "none (it can only listen)"
    return put_on_one_line(words, len(words))


def _list_notes(
    old: tuple[str, ...], new: tuple[str, ...], removed_patterns: list[str]
) -> list[str]:
    """Return notes about effects that the user may not expect."""
    from interlock.protocol.kinds import compile_grants, find_pattern_problem

    notes = [
        f"it did not have {pattern} before." for pattern in removed_patterns if pattern not in old
    ]
    valid = [pattern for pattern in new if not find_pattern_problem(pattern)]
    for pattern in removed_patterns:
        wider_pattern = next(
            (wider for wider in valid if compile_grants((wider,)).grants(pattern)), None
        )
        if wider_pattern is not None:
            notes.append(f"{wider_pattern} still grants {pattern}.")
    if old == new:
        notes.append("nothing changed.")
    return notes


# -- requests


def _send_request(
    gateway: GatewayTarget, path: str, query: dict[str, str], request_body: Any = None
) -> bytes:
    """Send a request and return the body. Raises InterlockError, with the node's message if there
    is one."""
    import http.client

    fields = gateway.headers
    if request_body is not None:
        fields["Content-Type"] = "application/json"
    target = f"{path}?{urlencode(query)}" if query else path
    connection = gateway.open_http(_TIMEOUT_SECONDS)
    try:
        connection.request(
            "GET" if request_body is None else "POST",
            target,
            body=None if request_body is None else msgspec.json.encode(request_body),
            headers=fields,
        )
        response = connection.getresponse()
        body = response.read(_MAX_RESPONSE_BYTES)
    except (OSError, http.client.HTTPException) as error:
        advice = gateway.advice if isinstance(error, ConnectionRefusedError) else ""
        reason = advice or f": {_describe_error(error)}."
        raise InterlockError(
            UPSTREAM_UNAVAILABLE, f"cannot reach a node at {_netloc(gateway)}{reason}"
        ) from None
    finally:
        connection.close()
    if response.status == 200:
        return body
    raise _read_error(gateway, response.status, body)


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {_TIMEOUT_SECONDS:.0f} s"
    certificate_error = getattr(error, "verify_message", None)
    if certificate_error:
        return f"its certificate is not trusted ({certificate_error})"
    return getattr(error, "strerror", None) or type(error).__name__


def _netloc(gateway: GatewayTarget) -> str:
    return urlsplit(gateway.url).netloc


def _read_error(gateway: GatewayTarget, status: int, body: bytes) -> InterlockError:
    try:
        error_body = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        error_body = _ErrorBody(_NOT_FOUND if status == 404 else "", "")
    if error_body.error == _NOT_FOUND:
        return InterlockError(
            INVALID_REQUEST,
            f"The node at {_netloc(gateway)} has no administrators of topics (HTTP 404). Add them "
            "to topics.admins in its config.",
        )
    if not error_body.message:
        return InterlockError(
            INTERNAL,
            f"{_netloc(gateway)} returned HTTP {status}. Check that --gateway names a node.",
        )
    try:
        failure = failure_by_name(error_body.error)
    except KeyError:
        failure = INVALID_REQUEST
    advice = "" if gateway.headers else _WITHOUT_TOKEN.get(status, "")
    if failure is NAMESPACE_CONFLICT:
        advice = _TOPIC_HINT
    return InterlockError(failure, f"{put_on_one_line(error_body.message)} {advice}".rstrip())


def _decode_body(body: bytes, type_: type[T], gateway: GatewayTarget) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InterlockError(
            INTERNAL,
            f"{_netloc(gateway)} sent an invalid response. Check that --gateway names a node.",
        ) from None
