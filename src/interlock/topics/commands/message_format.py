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

    at: str
    """The local time of arrival."""
    who: str
    """Empty: the gateway, or this program."""
    text: str
    tone: str = "plain"
    """plain, mine, proposal, answer, note or problem."""

    def plainly(self) -> str:
        """Format the line without colours."""
        return f"{self.at} {self.who}: {self.text}" if self.who else f"{self.at} * {self.text}"


def put_on_one_line(text: str, most: int = MAX_LINE_LENGTH) -> str:
    """Put a text of a participant on one line, without control characters."""
    shown = " ".join(output.sanitize(text[: most * 2]).split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def format_params(params: bytes | Raw) -> list[str]:
    """Format params completely, as lines of JSON.

    Characters that terminals may show differently are escaped.
    """
    try:
        shown = msgspec.json.format(bytes(params), indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        shown = bytes(params).decode(errors="backslashreplace")
    # Line breaks come from the formatter. Those inside strings are already escaped.
    return [escape_invisible(line) for line in shown.split("\n")]


def find_missing_recipient(text: str, there: Container[str]) -> str:
    """Return the name after `@` at the beginning of a text if no such participant is there, else
    ""."""
    name, _, words = text.removeprefix("@").partition(" ")
    if not text.startswith("@") or not words.strip():
        return ""
    recipient = name.rstrip(":,")
    return "" if name in there or recipient in there else recipient


def split_recipient(text: str, there: Container[str]) -> tuple[list[str], str]:
    """Return the recipients and the text of a line that may begin with `@NAME`.

    If there is no such participant, the unchanged text goes to everybody.
    """
    name, _, words = text.removeprefix("@").partition(" ")
    name = name if name in there else name.rstrip(":,")
    if text.startswith("@") and name in there and words.strip():
        return [name], words.strip()
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
    head: EnvelopeHeader, content: Content, *, at: str, own: str = ""
) -> MessageLine | None:
    """Format a message. None: there is nothing to show."""
    who = put_on_one_line(head.sender, 128)
    to = _format_recipients(head.to)
    if isinstance(content, Chat):
        # Every participant can read it, also if it has recipients.
        whom = f" (to {to})" if head.to else ""
        return MessageLine(at, who, put_on_one_line(content.text) + whom, _choose_tone(head, own))
    if isinstance(content, ProposalPayload):
        what = _format_call(content.method, content.context, content.params)
        return MessageLine(
            at,
            who,
            f"proposes{_with_preposition(to, ' to')}: {what}  [{shorten_id(head.id)}]",
            "proposal",
        )
    if isinstance(content, Request):
        what = _format_call(content.method, content.context, content.params)
        about = head.correlation_id
        done = f"fulfils [{shorten_id(about)}]" if about else "requests"
        return MessageLine(
            at, who, f"{done}{_with_preposition(to)}: {what}", _choose_tone(head, own)
        )
    if isinstance(content, Response):
        tone = "answer" if content.error is None else "problem"
        return MessageLine(
            at, who, f"responds{_with_preposition(to, ' to')}: {_format_response(content)}", tone
        )
    if isinstance(content, Notification):
        return MessageLine(
            at, who, _format_call(content.method, content.context, content.params), "note"
        )
    if isinstance(content, Presence):
        return _format_presence(content, at)
    if isinstance(content, Welcome):
        return _format_welcome(content, at)
    if isinstance(content, Problem):
        return MessageLine(
            at,
            "",
            f"{put_on_one_line(content.error)}: {put_on_one_line(content.message)}",
            "problem",
        )
    return _format_other(head, content, at)


def _choose_tone(head: EnvelopeHeader, own: str) -> str:
    return "mine" if own and head.sender == own else "plain"


def _format_presence(content: Presence, at: str) -> MessageLine:
    who = put_on_one_line(content.participant.id, 128)
    if content.event != JOIN:
        return MessageLine(at, "", f"{who} left", "note")
    capabilities = put_on_one_line(", ".join(content.participant.capabilities)) or "nothing"
    return MessageLine(at, "", f"{who} joined and may send {capabilities}", "note")


def _format_welcome(content: Welcome, at: str) -> MessageLine:
    others = ", ".join(one.id for one in content.participants) or "nobody else"
    capabilities = ", ".join(content.you.capabilities) or "nothing"
    words = f"you are {content.you.id} and may send {capabilities}; participants: {others}"
    return MessageLine(at, "", put_on_one_line(words), "note")


def _format_other(head: EnvelopeHeader, content: UnknownPayload, at: str) -> MessageLine:
    said = f"{head.kind} {_decode_text(content.payload)}"
    return MessageLine(at, put_on_one_line(head.sender, 128), put_on_one_line(said), "note")


def _format_call(method: str, context: str, params: Raw) -> str:
    """Format a call: `tools/call write_file {"path":"/a"}`."""
    named = format_arguments(params)
    said = f"{method} {context} {named}" if context else f"{method} {named}"
    return put_on_one_line(said)


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
    what = f"{content.method} {content.context}".strip()
    if content.error is not None:
        return put_on_one_line(f"{what} failed: {_format_error(content.error)}")
    return put_on_one_line(f"{what}: {_format_result(content.result)}")


def _format_error(error: Raw) -> str:
    told = _decode_or_none(error)
    message = told.get("message") if isinstance(told, dict) else None
    return message if isinstance(message, str) else _decode_text(error)


def _format_result(result: Raw | None) -> str:
    """Format a result: the text of a tool result, the names of a list, else all of it."""
    told = None if result is None else _decode_or_none(result)
    listed = _format_list(told) if isinstance(told, dict) else ""
    if listed:
        return listed
    content = told.get("content") if isinstance(told, dict) else None
    if isinstance(content, list):
        texts = [one.get("text") for one in content if isinstance(one, dict)]
        shown = " ".join(one for one in texts if isinstance(one, str))
        failed = isinstance(told, dict) and told.get("isError") is True
        if shown:
            return f"failed: {shown}" if failed else shown
    return "" if result is None else _decode_text(result)


def _format_list(result: dict[Any, Any]) -> str:
    """Format a list by its names: `2 tools: add, echo`. Schemas would be unreadable."""
    for key in _LIST_MEMBERS:
        entries = result.get(key)
        if isinstance(entries, list):
            names = [one.get("name") for one in entries if isinstance(one, dict)]
            shown = ", ".join(one for one in names if isinstance(one, str))
            return f"{len(entries)} {key}" + (f": {shown}" if shown else "")
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
