"""`interlock topic join` on a terminal: connects the keyboard, the screen and a participant.

The screen is drawn from a value (`screen.Screen`), at most 30 times a second. The state of the
terminal is always restored.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from interlock.core.config import redact
from interlock.errors import APPROVAL_REFUSED, InterlockError
from interlock.protocol.kinds import CHAT, request_kind
from interlock.terminal import log_lines, output, streams
from interlock.topics.client import Event, Participant
from interlock.topics.commands import screen as topic_screen
from interlock.topics.commands.gateway_target import GatewayTarget
from interlock.topics.commands.keyboard import PASTE_OFF, PASTE_ON, Key, KeyParser
from interlock.topics.commands.message_format import (
    MessageLine,
    describe_capabilities,
    format_message,
    put_on_one_line,
    shorten_id,
    split_recipient,
)
from interlock.topics.commands.pending_proposals import PendingProposal
from interlock.topics.commands.plain import (
    create_participant,
    install_signal_handlers,
    run_until_stopped,
    wait_for_first,
)
from interlock.topics.commands.screen import Screen, ScreenAction, ScreenParticipant
from interlock.topics.commands.screen_view import HELP, draw_screen
from interlock.topics.wire.payloads import Chat, Response, read_content, write_chat_payload
from interlock.topics.wire.proposals import TrackedProposal

_DRAW_SECONDS: Final = 1 / 30
_CHECK_SECONDS: Final = 1.0
"""Seconds between two checks for changes without a message: expired proposals and lost
connections."""
_SCREEN_START: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l" + PASTE_ON
_SCREEN_END: Final = PASTE_OFF + "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Line wrapping is off while the screen is shown. Terminals differ in character widths, and a text
with wide characters must not begin a line of its own."""
_CURSOR_HOME: Final = "\x1b[H"
_REJECTION_CHAT: Final = write_chat_payload("It was rejected.", end_reason=APPROVAL_REFUSED.name)
_CALL_TIMEOUT_SECONDS: Final = 300.0
"""The timeout of a fulfilled call in seconds."""
_MAX_SINGLE_REJECTIONS: Final = 20
"""Up to this number of rejections at once are sent as one message each, more as one for all."""
_MAX_REMARK_LENGTH: Final = 300


class LiveScreen:
    """A screen that follows a participant."""

    def __init__(
        self,
        participant: Participant,
        *,
        write: Callable[[str], None],
        clock: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
        colours: str | None = None,
    ) -> None:
        self.screen = Screen(participant.topic)
        self.left = asyncio.Event()
        self._participant = participant
        self._write = write
        self._clock = clock
        self._colours = colours
        self._keys = KeyParser()
        self._drawing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._words: dict[str, str] = {}
        """By proposal: the last remark of a recipient."""

    # -- events

    def heard(self, event: Event) -> None:
        """Show a message of the topic."""
        head, content = event.envelope.head, read_content(event.envelope)
        line = format_message(head, content, at=self._clock(), own=self.screen.own)
        if line is not None and event.verified is None:
            line = replace(line, text=f"{line.text}  (response to an unseen request)")
        if line is not None:
            answers = isinstance(content, Response) and self._participant.id in head.to
            mine = answers and event.verified is True
            self.screen = topic_screen.add_line(self.screen, line, to_the_end=mine)
        if isinstance(content, Chat) and head.correlation_id is not None:
            tracked = self._participant.proposals.get(head.correlation_id)
            # Remarks of other participants have no effect on it.
            if tracked is not None and head.sender in tracked.to:
                words = put_on_one_line(f"{head.sender}: {content.text}", _MAX_REMARK_LENGTH)
                self._words[tracked.proposalId] = words
        self.draw_soon()

    def note(self, text: str, tone: str = "note", *, to_the_end: bool = False) -> None:
        line = MessageLine(self._clock(), "", put_on_one_line(text), tone)
        self.screen = topic_screen.add_line(self.screen, line, to_the_end=to_the_end)
        self.draw_soon()

    def look(self) -> None:
        """Draw again if something has changed."""
        before = self.screen
        self._update()
        if self.screen != before:
            self.draw_soon()

    def _update(self) -> None:
        """Update the participants, the pending proposals and the connection state."""
        one = self._participant
        lies = one.reputation
        people = [
            ScreenParticipant(id, describe_capabilities(capabilities), lies.get(id, 0))
            for id, capabilities in sorted(one.participants.items())
        ]
        waiting = [
            self._as_shown(tracked)
            for tracked in one.proposals.values()
            if tracked.status == "pending"
        ]
        ids = {tracked.id for tracked in waiting}
        self._words = {id: words for id, words in self._words.items() if id in ids}
        screen = topic_screen.set_proposals(
            topic_screen.set_participants(self.screen, people), waiting
        )
        own, inside = put_on_one_line(one.id, 128), one.status.connected
        self.screen = replace(screen, own=own, connected=inside, lost=one.lost_messages)

    def _as_shown(self, tracked: TrackedProposal) -> PendingProposal:
        one = self._participant
        kind = request_kind(tracked.method, tracked.context)
        barred = (
            "" if one.can_send(kind) else f"You cannot fulfil it: {one.id} may not send {kind}."
        )
        return PendingProposal(
            tracked.proposalId,
            tracked.proposer,
            ", ".join(tracked.to),
            f"{tracked.method} {tracked.context}".strip(),
            bytes(tracked.params),
            mine=tracked.proposer == one.id,
            barred=put_on_one_line(barred),
            said=self._words.get(tracked.proposalId, ""),
        )

    def resized(self, width: int, height: int) -> None:
        self.screen = topic_screen.resize(self.screen, width, height)
        self.draw_soon()

    def typed(self, data: bytes) -> None:
        """Handle terminal input. Empty: the terminal is gone."""
        if not data:
            self.left.set()
        for key in self._keys.feed(data):
            self.pressed(key)

    def pressed(self, key: Key) -> None:
        shown = self.screen.proposal(self.screen.asking)
        self.screen, deed = topic_screen.handle_key(self.screen, key)
        if deed is not None:
            self._do(deed, shown)
        self.draw_soon()

    # -- actions

    def _do(self, deed: ScreenAction, shown: PendingProposal | None) -> None:
        """Perform an action.

        Args:
            shown: the proposal that the user was asked about.
        """
        if deed.name == "leave":
            self.left.set()
        elif deed.name == "say" and deed.text.strip() == "/help":
            for line in HELP:
                self.note(line, to_the_end=True)
        elif deed.name == "say":
            self._begin(self._say(deed.text))
        elif deed.name == "fulfil":
            self._begin(self._fulfil(deed.text, shown))
        elif deed.name == "reject":
            self._begin(self._reject(deed.text))
        elif deed.name == "reject_all":
            self._begin(self._reject_all(deed.text, deed.ids))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(self._done(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _done(self, work: Any) -> None:
        try:
            await work
        except InterlockError as error:
            # An error response is already shown as a message of the topic.
            if "participant" not in (error.data or {}):
                self.note(error.message, "problem", to_the_end=True)
        self.look()

    async def _say(self, text: str) -> None:
        to, words = split_recipient(text, self._participant.participants)
        try:
            await self._participant.chat(words, to)
        except InterlockError:
            self.screen = topic_screen.restore_draft(self.screen, text)
            raise
        # The gateway does not return a message to its sender.
        self._mine(f"{words} (to {to[0]})" if to else words)

    async def _fulfil(self, id: str, shown: PendingProposal | None) -> None:
        tracked = self._participant.proposals.get(id)
        if tracked is not None and not self._as_shown(tracked).is_same(shown):
            words = "The proposal has changed since it was shown. Nothing was done."
            self.note(words, "problem", to_the_end=True)
            return
        what: TrackedProposal | str = id if tracked is None else tracked
        fulfilling = asyncio.ensure_future(
            self._participant.fulfil(what, timeout=_CALL_TIMEOUT_SECONDS)
        )
        try:
            # Local errors occur at once, before anything is sent.
            await asyncio.sleep(0)
            if not fulfilling.done():
                self._mine(f"fulfils [{shorten_id(id)}]")
            await fulfilling
        finally:
            fulfilling.cancel()

    async def _reject(self, id: str) -> None:
        one = self._participant
        proposer = one.proposals[id].proposer if id in one.proposals else ""
        if not one.reject(id):
            self.note("The proposal is no longer pending.")
            return
        self._mine(f"rejects [{shorten_id(id)}]")
        if self._is_told(proposer):
            await one.send(CHAT, _REJECTION_CHAT, [proposer], id)

    async def _reject_all(self, proposer: str, ids: tuple[str, ...]) -> None:
        one = self._participant
        rejected = [id for id in ids if one.reject(id)]
        if not rejected:
            self.note("The proposals are no longer pending.")
            return
        count = f"{len(rejected):,} {'proposal' if len(rejected) == 1 else 'proposals'}"
        whose = "you" if proposer == one.id else proposer[:128]
        self._mine(f"rejects {count} of {whose}")
        if not self._is_told(proposer):
            return
        if len(rejected) > _MAX_SINGLE_REJECTIONS:
            words = f"{count} of yours were rejected: all that were pending."
            await one.chat(words, to=[proposer], correlation_id=rejected[-1])
            return
        for id in rejected:
            await one.send(CHAT, _REJECTION_CHAT, [proposer], id)

    def _is_told(self, proposer: str) -> bool:
        """Return whether a proposer can be told about a rejection. The user sees why not."""
        one = self._participant
        if proposer == one.id:
            return False
        if proposer not in one.participants:
            self.note(f"{proposer[:128]} has left and was not told.")
            return False
        if not one.can_send(CHAT):
            self.note(f"{proposer[:128]} was not told: you may not chat here.")
            return False
        return True

    def _mine(self, text: str) -> None:
        line = MessageLine(self._clock(), self.screen.own, put_on_one_line(text), "mine")
        self.screen = topic_screen.add_line(self.screen, line, to_the_end=True)
        self.draw_soon()

    # -- drawing

    def draw_soon(self) -> None:
        if self._drawing is None:
            self._drawing = asyncio.get_running_loop().call_later(_DRAW_SECONDS, self.draw)

    def draw(self) -> None:
        self.stop_drawing()
        # One update for all messages since the last drawing.
        self._update()
        self._write(render_screen(self.screen, self._colours))
        self.screen = topic_screen.mark_drawn(self.screen)

    def stop_drawing(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            self._drawing = None

    async def end(self) -> None:
        """Stop without waiting for pending calls: other participants see their responses."""
        self.stop_drawing()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def render_screen(screen: Screen, colours: str | None) -> str:
    """Return the screen as terminal output."""
    width, height = screen.size
    console = Console(
        file=io.StringIO(),
        width=width + 1,
        height=height,
        force_terminal=colours is not None,
        no_color=bool(os.environ.get("NO_COLOR")),
        color_system=colours,  # type: ignore[arg-type]
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    whole = Text("\n").join(draw_screen(screen))
    with console.capture() as capture:
        console.print(whole, end="", no_wrap=True, overflow="ignore", crop=False)
    return _CURSOR_HOME + capture.get()


class _ScreenLogHandler(logging.Handler):
    """A log handler that shows records on the screen."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        tone = "problem" if record.levelno >= logging.WARNING else "note"
        self._note(redact(record.getMessage()), tone)


async def run_live(gateway: GatewayTarget, topic: str) -> None:
    """Take part in the topic until the user leaves. Raises InterlockError."""
    # Before the connection, errors go to the ordinary terminal, once.
    log_lines.log_to_stderr(logging.ERROR)
    stopping = install_signal_handlers()
    participant = create_participant(gateway, topic, patient=True)
    events = participant.events()

    async def body() -> None:
        async with participant.connected():
            log_lines.log_to_stderr(logging.WARNING)
            await _run_screen(participant, events, stopping)

    await run_until_stopped(stopping, body(), gateway)
    output.print_note(f"left {topic}")


async def _run_screen(participant: Participant, events: Any, stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    live = LiveScreen(participant, write=_write, colours=_find_color_system())
    live.left = stopping
    noted = _ScreenLogHandler(live.note)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [noted]
    fd = sys.stdin.fileno()

    def size() -> None:
        live.resized(*streams.terminal_size(sys.stdout.fileno()))

    async def follow() -> None:
        async for event in events:
            live.heard(event)

    async def look() -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            live.look()

    with _raw_terminal(fd):
        following = [asyncio.ensure_future(follow()), asyncio.ensure_future(look())]
        loop.add_reader(fd, lambda: live.typed(_read(fd)))
        loop.add_signal_handler(signal.SIGWINCH, size)
        try:
            _write(_SCREEN_START)
            size()
            live.look()
            await wait_for_first(stopping, *following)
        finally:
            loop.remove_reader(fd)
            loop.remove_signal_handler(signal.SIGWINCH)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await live.end()
            root.handlers = handlers
            _write(_SCREEN_END)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:
        # The terminal was closed.
        return b""


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _find_color_system() -> str:
    # Without colours the selection is still visible.
    return Console().color_system or "standard"


@contextmanager
def _raw_terminal(fd: int) -> Iterator[None]:
    """Read each key at once and without echo, Ctrl-C too. Output processing is unchanged."""
    before = termios.tcgetattr(fd)
    now = termios.tcgetattr(fd)
    now[0] &= ~(termios.IXON | termios.ICRNL)
    now[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(fd, termios.TCSADRAIN, now)
    try:
        yield
    finally:
        # Discard pending input: it is not meant for the shell.
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
