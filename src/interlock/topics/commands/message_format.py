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

LONGEST: Final = 2_000
"""The maximum number of characters of a line. `--json` shows everything."""
_SHORT_ID: Final = 8
_PROFILE_OF: Final = {frozenset(patterns): name for name, patterns in PROFILES.items()}
_LISTS: Final = ("tools", "resources", "resourceTemplates", "prompts")


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


def one_line(text: str, most: int = LONGEST) -> str:
    """Put a text of a participant on one line, without control characters."""
    shown = " ".join(output.sanitize(text[: most * 2]).split())
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def exactly(params: bytes | Raw) -> list[str]:
    """Format params completely, as lines of JSON.

    Characters that terminals may show differently are escaped.
    """
    try:
        shown = msgspec.json.format(bytes(params), indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        shown = bytes(params).decode(errors="backslashreplace")
    # Line breaks come from the formatter. Those inside strings are already escaped.
    return [escape_invisible(line) for line in shown.split("\n")]


def called(text: str, there: Container[str]) -> str:
    """Return the name after `@` at the beginning of a text if no such participant is there, else
    ""."""
    name, _, words = text.removeprefix("@").partition(" ")
    if not text.startswith("@") or not words.strip():
        return ""
    short = name.rstrip(":,")
    return "" if name in there or short in there else short


def addressed(text: str, there: Container[str]) -> tuple[list[str], str]:
    """Return the recipients and the text of a line that may begin with `@NAME`.

    If there is no such participant, the unchanged text goes to everybody.
    """
    name, _, words = text.removeprefix("@").partition(" ")
    name = name if name in there else name.rstrip(":,")
    if text.startswith("@") and name in there and words.strip():
        return [name], words.strip()
    return [], text


def short(id: str) -> str:
    """Return the beginning of an id."""
    return one_line(id[:_SHORT_ID], _SHORT_ID)


def profile_of(capabilities: Iterable[str]) -> str:
    """Return the name of the profile with exactly these capabilities, or ""."""
    return _PROFILE_OF.get(frozenset(capabilities), "")


def may(capabilities: Sequence[str]) -> str:
    """Return what a participant may send: a profile name or its capabilities."""
    return profile_of(capabilities) or ", ".join(capabilities) or "nothing"


def line_of(
    head: EnvelopeHeader, content: Content, *, at: str, own: str = ""
) -> MessageLine | None:
    """Format a message. None: there is nothing to show."""
    who = one_line(head.sender, 128)
    to = _to(head.to)
    if isinstance(content, Chat):
        # Every participant can read it, also if it has recipients.
        whom = f" (to {to})" if head.to else ""
        return MessageLine(at, who, one_line(content.text) + whom, _mine(head, own))
    if isinstance(content, ProposalPayload):
        what = _call(content.method, content.context, content.params)
        return MessageLine(
            at, who, f"proposes{_whom(to, ' to')}: {what}  [{short(head.id)}]", "proposal"
        )
    if isinstance(content, Request):
        what = _call(content.method, content.context, content.params)
        about = head.correlation_id
        done = f"fulfils [{short(about)}]" if about else "requests"
        return MessageLine(at, who, f"{done}{_whom(to)}: {what}", _mine(head, own))
    if isinstance(content, Response):
        tone = "answer" if content.error is None else "problem"
        return MessageLine(at, who, f"responds{_whom(to, ' to')}: {_answer(content)}", tone)
    if isinstance(content, Notification):
        return MessageLine(at, who, _call(content.method, content.context, content.params), "note")
    if isinstance(content, Presence):
        return _presence(content, at)
    if isinstance(content, Welcome):
        return _welcome(content, at)
    if isinstance(content, Problem):
        return MessageLine(
            at, "", f"{one_line(content.error)}: {one_line(content.message)}", "problem"
        )
    return _other(head, content, at)


def _mine(head: EnvelopeHeader, own: str) -> str:
    return "mine" if own and head.sender == own else "plain"


def _presence(content: Presence, at: str) -> MessageLine:
    who = one_line(content.participant.id, 128)
    if content.event != JOIN:
        return MessageLine(at, "", f"{who} left", "note")
    may = ", ".join(content.participant.capabilities)
    return MessageLine(at, "", f"{who} joined and may send {one_line(may) or 'nothing'}", "note")


def _welcome(content: Welcome, at: str) -> MessageLine:
    others = ", ".join(one.id for one in content.participants) or "nobody else"
    may = ", ".join(content.you.capabilities) or "nothing"
    words = f"you are {content.you.id} and may send {may}; participants: {others}"
    return MessageLine(at, "", one_line(words), "note")


def _other(head: EnvelopeHeader, content: UnknownPayload, at: str) -> MessageLine:
    said = f"{head.kind} {_text(content.payload)}"
    return MessageLine(at, one_line(head.sender, 128), one_line(said), "note")


def _call(method: str, context: str, params: Raw) -> str:
    """Format a call: `tools/call write_file {"path":"/a"}`."""
    named = arguments_of(params)
    said = f"{method} {context} {named}" if context else f"{method} {named}"
    return one_line(said)


def arguments_of(params: Raw | bytes) -> str:
    """Format the arguments of a tool call, or the params of another call."""
    try:
        members: dict[str, Raw] = msgspec.json.decode(params, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError):
        return _text(params)
    return _text(members.get("arguments", params)) if "name" in members else _text(params)


def _answer(content: Response) -> str:
    what = f"{content.method} {content.context}".strip()
    if content.error is not None:
        return one_line(f"{what} failed: {_message(content.error)}")
    return one_line(f"{what}: {_result(content.result)}")


def _message(error: Raw) -> str:
    told = _decoded(error)
    message = told.get("message") if isinstance(told, dict) else None
    return message if isinstance(message, str) else _text(error)


def _result(result: Raw | None) -> str:
    """Format a result: the text of a tool result, the names of a list, else all of it."""
    told = None if result is None else _decoded(result)
    listed = _listed(told) if isinstance(told, dict) else ""
    if listed:
        return listed
    content = told.get("content") if isinstance(told, dict) else None
    if isinstance(content, list):
        texts = [one.get("text") for one in content if isinstance(one, dict)]
        shown = " ".join(one for one in texts if isinstance(one, str))
        failed = isinstance(told, dict) and told.get("isError") is True
        if shown:
            return f"failed: {shown}" if failed else shown
    return "" if result is None else _text(result)


def _listed(result: dict[Any, Any]) -> str:
    """Format a list by its names: `2 tools: add, echo`. Schemas would be unreadable."""
    for key in _LISTS:
        entries = result.get(key)
        if isinstance(entries, list):
            names = [one.get("name") for one in entries if isinstance(one, dict)]
            shown = ", ".join(one for one in names if isinstance(one, str))
            return f"{len(entries)} {key}" + (f": {shown}" if shown else "")
    return ""


def _decoded(raw: Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _text(raw: Raw | bytes) -> str:
    return bytes(memoryview(raw)[: LONGEST * 4]).decode(errors="replace")


def _to(to: Sequence[str]) -> str:
    return one_line(", ".join(to), 200)


def _whom(to: str, word: str = "") -> str:
    return f"{word} {to}" if to else ""
