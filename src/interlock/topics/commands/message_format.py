"""Messages of a topic as text for people. No I/O.

A text of a participant is on one line behind the name of its sender, without terminal control
characters. So it cannot imitate output of this program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.protocol.kinds import PROFILES
from interlock.protocol.mcpx_terms import JOIN
from interlock.terminal import output
from interlock.terminal.safe_text import escape_invisible
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import (
    Chat,
    Content,
    Notification,
    Presence,
    Problem,
    ProposalPayload,
    Request,
    Response,
    UnknownPayload,
    Welcome,
)

MAX_LINE_LENGTH: Final = 2_000
"""The maximum number of characters of a line. `--json` shows everything."""
_SHORT_ID_LENGTH: Final = 8
_PROFILE_NAMES: Final = {frozenset(patterns): name for name, patterns in PROFILES.items()}
_LIST_MEMBERS: Final = ("tools", "resources", "resourceTemplates", "prompts")


class MessageLine(msgspec.Struct, frozen=True):
    """One line of output."""

    time: str
    """The local time of arrival."""
    sender: str
    """Empty: the gateway, or this program."""
    text: str
    tone: str = "plain"
    """plain, mine, proposal, answer, note or problem."""

    def format_plain(self) -> str:
        """Format the line without colours."""
        return (
            f"{self.time} {self.sender}: {self.text}"
            if self.sender
            else f"{self.time} * {self.text}"
        )


def put_on_one_line(text: str, max_length: int = MAX_LINE_LENGTH) -> str:
    """Put a text of a participant on one line, without control characters."""
    shown = " ".join(output.sanitize(text[: max_length * 2]).split())
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


def format_params(params: bytes | Raw) -> list[str]:
    """Format params completely, as lines of JSON.

    Characters that terminals may show differently are escaped.
    """
    try:
        params_text = msgspec.json.format(bytes(params), indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        params_text = bytes(params).decode(errors="backslashreplace")
    # Line breaks come from the formatter. Those inside strings are already escaped.
    return [escape_invisible(line) for line in params_text.split("\n")]


def find_missing_recipient(text: str, participants: Container[str]) -> str:
    """Return the name after `@` at the beginning of a text if no such participant is there, else
    ""."""
    name, _, body = text.removeprefix("@").partition(" ")
    if not text.startswith("@") or not body.strip():
        return ""
    recipient = name.rstrip(":,")
    return "" if name in participants or recipient in participants else recipient


def split_recipient(text: str, participants: Container[str]) -> tuple[list[str], str]:
    """Return the recipients and the text of a line that may begin with `@NAME`.

    If there is no such participant, the unchanged text goes to everybody.
    """
    name, _, body = text.removeprefix("@").partition(" ")
    name = name if name in participants else name.rstrip(":,")
    if text.startswith("@") and name in participants and body.strip():
        return [name], body.strip()
    return [], text


def shorten_id(id: str) -> str:
    """Return the beginning of an id."""
    return put_on_one_line(id[:_SHORT_ID_LENGTH], _SHORT_ID_LENGTH)


def find_profile(capabilities: Iterable[str]) -> str:
    """Return the name of the profile with exactly these capabilities, or ""."""
    return _PROFILE_NAMES.get(frozenset(capabilities), "")


def describe_capabilities(capabilities: Sequence[str]) -> str:
    """Return what a participant may send: a profile name or its capabilities."""
    return find_profile(capabilities) or ", ".join(capabilities) or "nothing"


def format_message(
    head: EnvelopeHeader, content: Content, *, time: str, own_id: str = ""
) -> MessageLine | None:
    """Format a message. None: there is nothing to show."""
    sender = put_on_one_line(head.sender, 128)
    to = _format_recipients(head.to)
    if isinstance(content, Chat):
        # Every participant can read it, also if it has recipients.
        recipients = f" (to {to})" if head.to else ""
        return MessageLine(
            time, sender, put_on_one_line(content.text) + recipients, _choose_tone(head, own_id)
        )
    if isinstance(content, ProposalPayload):
        call = _format_call(content.method, content.context, content.params)
        return MessageLine(
            time,
            sender,
            f"proposes{_with_preposition(to, ' to')}: {call}  [{shorten_id(head.id)}]",
            "proposal",
        )
    if isinstance(content, Request):
        call = _format_call(content.method, content.context, content.params)
        correlation_id = head.correlation_id
        verb = f"fulfils [{shorten_id(correlation_id)}]" if correlation_id else "requests"
        return MessageLine(
            time, sender, f"{verb}{_with_preposition(to)}: {call}", _choose_tone(head, own_id)
        )
    if isinstance(content, Response):
        tone = "answer" if content.error is None else "problem"
        return MessageLine(
            time,
            sender,
            f"responds{_with_preposition(to, ' to')}: {_format_response(content)}",
            tone,
        )
    if isinstance(content, Notification):
        return MessageLine(
            time, sender, _format_call(content.method, content.context, content.params), "note"
        )
    if isinstance(content, Presence):
        return _format_presence(content, time)
    if isinstance(content, Welcome):
        return _format_welcome(content, time)
    if isinstance(content, Problem):
        return MessageLine(
            time,
            "",
            f"{put_on_one_line(content.error)}: {put_on_one_line(content.message)}",
            "problem",
        )
    return _format_other(head, content, time)


def _choose_tone(head: EnvelopeHeader, own_id: str) -> str:
    return "mine" if own_id and head.sender == own_id else "plain"


def _format_presence(content: Presence, time: str) -> MessageLine:
    sender = put_on_one_line(content.participant.id, 128)
    if content.event != JOIN:
        return MessageLine(time, "", f"{sender} left", "note")
    capabilities = put_on_one_line(", ".join(content.participant.capabilities)) or "nothing"
    return MessageLine(time, "", f"{sender} joined and may send {capabilities}", "note")


def _format_welcome(content: Welcome, time: str) -> MessageLine:
    other_ids = ", ".join(participant.id for participant in content.participants) or "none"
    capabilities = ", ".join(content.you.capabilities) or "nothing"
    text = f"you are {content.you.id} and may send {capabilities}; participants: {other_ids}"
    return MessageLine(time, "", put_on_one_line(text), "note")


def _format_other(head: EnvelopeHeader, content: UnknownPayload, time: str) -> MessageLine:
    text = f"{head.kind} {_decode_text(content.payload)}"
    return MessageLine(time, put_on_one_line(head.sender, 128), put_on_one_line(text), "note")


def _format_call(method: str, context: str, params: Raw) -> str:
    """Format a call: `tools/call write_file {"path":"/a"}`."""
    named = format_arguments(params)
    text = f"{method} {context} {named}" if context else f"{method} {named}"
    return put_on_one_line(text)


def format_arguments(params: Raw | bytes) -> str:
    """Format the arguments of a tool call, or the params of another call."""
    try:
        members: dict[str, Raw] = msgspec.json.decode(params, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return _decode_text(params)
    return (
        _decode_text(members.get("arguments", params))
        if "name" in members
        else _decode_text(params)
    )


def _format_response(content: Response) -> str:
    call = f"{content.method} {content.context}".strip()
    if content.error is not None:
        return put_on_one_line(f"{call} failed: {_format_error(content.error)}")
    return put_on_one_line(f"{call}: {_format_result(content.result)}")


def _format_error(error: Raw) -> str:
    value = _decode_or_none(error)
    message = value.get("message") if isinstance(value, dict) else None
    return message if isinstance(message, str) else _decode_text(error)


def _format_result(result: Raw | None) -> str:
    """Format a result: the text of a tool result, the names of a list, else all of it."""
    value = None if result is None else _decode_or_none(result)
    list_text = _format_list(value) if isinstance(value, dict) else ""
    if list_text:
        return list_text
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, list):
        texts = [item.get("text") for item in content if isinstance(item, dict)]
        text = " ".join(item for item in texts if isinstance(item, str))
        is_error = isinstance(value, dict) and value.get("isError") is True
        if text:
            return f"failed: {text}" if is_error else text
    return "" if result is None else _decode_text(result)


def _format_list(result: dict[Any, Any]) -> str:
    """Format a list by its names: `2 tools: add, echo`. Schemas would be unreadable."""
    for key in _LIST_MEMBERS:
        entries = result.get(key)
        if isinstance(entries, list):
            names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
            text = ", ".join(entry for entry in names if isinstance(entry, str))
            return f"{len(entries)} {key}" + (f": {text}" if text else "")
    return ""


def _decode_or_none(raw: Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode_text(raw: Raw | bytes) -> str:
    return bytes(memoryview(raw)[: MAX_LINE_LENGTH * 4]).decode(errors="replace")


def _format_recipients(to: Sequence[str]) -> str:
    return put_on_one_line(", ".join(to), 200)


def _with_preposition(to: str, word: str = "") -> str:
    return f"{word} {to}" if to else ""
