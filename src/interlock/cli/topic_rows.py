"""Topics and who is in them, as lines for a person. Pure, but for the time zone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from rich.cells import cell_len, set_cell_size

from interlock.cli.topic_said import may, one_line, profile_of
from interlock.pipeline.topics.overview import MemberNow, TopicNow

_HEADS: Final = ("topic", "access", "profile", "node", "record", "here", "refused")
_GAP: Final = "  "
_NONE: Final = "-"
_WIDEST: Final = 40
_MOST_SHOWN: Final = 10
"""Members of a topic in the list of all: the topic by itself shows everybody."""


def overview(topics: Sequence[TopicNow]) -> Iterator[str]:
    """A table of all topics, below each who is there."""
    if not topics:
        return
    rows = [_row(one) for one in topics]
    widths = _widths((_HEADS, *rows))
    yield _joined(_HEADS, widths)
    for topic, row in zip(topics, rows, strict=True):
        yield _joined(row, widths)
        members = [_member(one) for one in topic.members[:_MOST_SHOWN]]
        inner = _widths(members)
        for member in members:
            yield f"{_GAP}{_joined(member, inner)}"
        hidden = len(topic.members) - len(members)
        if hidden:
            yield f"{_GAP}… and {hidden} more: interlock topic list {topic.name}"


def detailed(topic: TopicNow) -> Iterator[str]:
    """Everything about one topic."""
    yield one_line(topic.name, 128)
    by = "" if topic.entry == topic.name else f", by {one_line(topic.entry, 128)} in the config"
    yield f"  access   {topic.access}, {_counted(topic.seats, 'seat')}{by}"
    guests = f"; without a token {topic.anonymous}" if topic.access == "public" else ""
    yield f"  profile  {topic.profile}{guests}"
    yield f"  node     {_NONE if topic.node is None else one_line(topic.node, 128)}"
    yield f"  record   {topic.record}"
    if not topic.open:
        yield f"  here     nobody, of at most {topic.most}"
        return
    yield f"  here     {len(topic.members)}, of at most {topic.most}"
    yield f"  refused  {_counted(topic.refused, 'message')} since it was opened"
    for member in topic.members:
        yield ""
        own = ", a seat of the node itself" if member.inside else ""
        yield f"{one_line(member.participant_id, 256)}{own}"
        yield f"  since    {_since(member.connected_at)}"
        yield f"  routing  {member.routing}"
        yield f"  refused  {_counted(member.refused, 'message')}"
        profile = profile_of(member.capabilities)
        named = f" ({profile})" if profile else ""
        yield f"  may send{named}:" + ("" if member.capabilities else " nothing")
        for pattern in member.capabilities:
            yield f"    {one_line(pattern)}"


def _row(topic: TopicNow) -> tuple[str, ...]:
    """As the config has it; what is open now behind it."""
    return (
        one_line(topic.name, 128),
        topic.access,
        topic.profile,
        _NONE if topic.node is None else one_line(topic.node, 128),
        _NONE if topic.record == "off" else topic.record,
        str(len(topic.members)) if topic.open else _NONE,
        str(topic.refused) if topic.open else _NONE,
    )


def _member(member: MemberNow) -> tuple[str, ...]:
    more = ["the node's own seat"] if member.inside else []
    if member.refused:
        more.append(f"{member.refused} refused")
    return (
        one_line(member.participant_id, 256),
        one_line(may(member.capabilities)),
        member.routing,
        f"since {_since(member.connected_at)}",
        ", ".join(more),
    )


def _since(moment: str) -> str:
    """In the time zone of whoever reads it."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return one_line(moment, 40)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [min(_WIDEST, max(map(cell_len, column))) for column in zip(*rows, strict=True)]


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    """What is wider than its column stands out rather than being cut: ids and patterns count."""
    cells = (
        cell if cell_len(cell) >= width else set_cell_size(cell, width)
        for cell, width in zip(row, widths, strict=True)
    )
    return _GAP.join(cells).rstrip()
