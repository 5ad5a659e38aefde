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
        color_system: str | None = None,
    ) -> None:
        self.screen = Screen(participant.topic)
        self.stopping = asyncio.Event()
        self._participant = participant
        self._write = write
        self._clock = clock
        self._color_system = color_system
        self._keys = KeyParser()
        self._draw_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._remarks: dict[str, str] = {}
        """By proposal: the last remark of a recipient."""

    # -- events

    def on_event(self, event: Event) -> None:
        """Show a message of the topic."""
        head, content = event.envelope.head, read_content(event.envelope)
        line = format_message(head, content, time=self._clock(), own_id=self.screen.own_id)
        if line is not None and event.verified is None:
            line = replace(line, text=f"{line.text}  (response to an unseen request)")
        if line is not None:
            is_response = isinstance(content, Response) and self._participant.id in head.to
            is_own = is_response and event.verified is True
            self.screen = topic_screen.add_line(self.screen, line, scroll_to_end=is_own)
        if isinstance(content, Chat) and head.correlation_id is not None:
            tracked = self._participant.proposals.get(head.correlation_id)
            # Remarks of other participants have no effect on it.
            if tracked is not None and head.sender in tracked.to:
                text = put_on_one_line(f"{head.sender}: {content.text}", _MAX_REMARK_LENGTH)
                self._remarks[tracked.proposalId] = text
        self.draw_soon()

    def note(self, text: str, tone: str = "note", *, scroll_to_end: bool = False) -> None:
        line = MessageLine(self._clock(), "", put_on_one_line(text), tone)
        self.screen = topic_screen.add_line(self.screen, line, scroll_to_end=scroll_to_end)
        self.draw_soon()

    def refresh(self) -> None:
        """Draw again if something has changed."""
        previous = self.screen
        self._update()
        if self.screen != previous:
            self.draw_soon()

    def _update(self) -> None:
        """Update the participants, the pending proposals and the connection state."""
        participant = self._participant
        reputation = participant.reputation
        participants = [
            ScreenParticipant(id, describe_capabilities(capabilities), reputation.get(id, 0))
            for id, capabilities in sorted(participant.participants.items())
        ]
        pending = [
            self._describe(tracked)
            for tracked in participant.proposals.values()
            if tracked.status == "pending"
        ]
        ids = {tracked.id for tracked in pending}
        self._remarks = {id: text for id, text in self._remarks.items() if id in ids}
        screen = topic_screen.set_proposals(
            topic_screen.set_participants(self.screen, participants), pending
        )
        own_id, inside = put_on_one_line(participant.id, 128), participant.status.connected
        self.screen = replace(
            screen, own_id=own_id, connected=inside, lost_count=participant.lost_messages
        )

    def _describe(self, tracked: TrackedProposal) -> PendingProposal:
        participant = self._participant
        kind = request_kind(tracked.method, tracked.context)
        blocked_reason = (
            ""
            if participant.can_send(kind)
            else f"You cannot fulfil it: {participant.id} may not send {kind}."
        )
        return PendingProposal(
            tracked.proposalId,
            tracked.proposer,
            ", ".join(tracked.to),
            f"{tracked.method} {tracked.context}".strip(),
            bytes(tracked.params),
            is_own=tracked.proposer == participant.id,
            blocked_reason=put_on_one_line(blocked_reason),
            remark=self._remarks.get(tracked.proposalId, ""),
        )

    def on_resize(self, width: int, height: int) -> None:
        self.screen = topic_screen.resize(self.screen, width, height)
        self.draw_soon()

    def on_input(self, data: bytes) -> None:
        """Handle terminal input. Empty: the terminal is gone."""
        if not data:
            self.stopping.set()
        for key in self._keys.feed(data):
            self.on_key(key)

    def on_key(self, key: Key) -> None:
        shown_proposal = self.screen.proposal(self.screen.question_id)
        self.screen, action = topic_screen.handle_key(self.screen, key)
        if action is not None:
            self._perform(action, shown_proposal)
        self.draw_soon()

    # -- actions

    def _perform(self, action: ScreenAction, shown_proposal: PendingProposal | None) -> None:
        """Perform an action.

        Args:
            shown_proposal: the proposal that the user was asked about.
        """
        if action.name == "leave":
            self.stopping.set()
        elif action.name == "say" and action.text.strip() == "/help":
            for line in HELP:
                self.note(line, scroll_to_end=True)
        elif action.name == "say":
            self._start(self._send_draft(action.text))
        elif action.name == "fulfil":
            self._start(self._fulfil(action.text, shown_proposal))
        elif action.name == "reject":
            self._start(self._reject(action.text))
        elif action.name == "reject_all":
            self._start(self._reject_all(action.text, action.ids))

    def _start(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(self._run(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, coroutine: Any) -> None:
        try:
            await coroutine
        except InterlockError as error:
            # An error response is already shown as a message of the topic.
            if "participant" not in (error.data or {}):
                self.note(error.message, "problem", scroll_to_end=True)
        self.refresh()

    async def _send_draft(self, text: str) -> None:
        to, body = split_recipient(text, self._participant.participants)
        try:
            await self._participant.chat(body, to)
        except InterlockError:
            self.screen = topic_screen.restore_draft(self.screen, text)
            raise
        # The gateway does not return a message to its sender.
        self._add_own_line(f"{body} (to {to[0]})" if to else body)

    async def _fulfil(self, id: str, shown_proposal: PendingProposal | None) -> None:
        tracked = self._participant.proposals.get(id)
        if tracked is not None and not self._describe(tracked).is_same(shown_proposal):
            text = "The proposal has changed since it was shown. Nothing was done."
            self.note(text, "problem", scroll_to_end=True)
            return
        proposal: TrackedProposal | str = id if tracked is None else tracked
        task = asyncio.ensure_future(
            self._participant.fulfil(proposal, timeout=_CALL_TIMEOUT_SECONDS)
        )
        try:
            # Local errors occur at once, before anything is sent.
            await asyncio.sleep(0)
            if not task.done():
                self._add_own_line(f"fulfils [{shorten_id(id)}]")
            await task
        finally:
            task.cancel()

    async def _reject(self, id: str) -> None:
        participant = self._participant
        proposer = participant.proposals[id].proposer if id in participant.proposals else ""
        if not participant.reject(id):
            self.note("The proposal is no longer pending.")
            return
        self._add_own_line(f"rejects [{shorten_id(id)}]")
        if self._can_tell(proposer):
            await participant.send(CHAT, _REJECTION_CHAT, [proposer], id)

    async def _reject_all(self, proposer: str, ids: tuple[str, ...]) -> None:
        participant = self._participant
        rejected = [id for id in ids if participant.reject(id)]
        if not rejected:
            self.note("The proposals are no longer pending.")
            return
        count_text = f"{len(rejected):,} {'proposal' if len(rejected) == 1 else 'proposals'}"
        proposer_name = "you" if proposer == participant.id else proposer[:128]
        self._add_own_line(f"rejects {count_text} of {proposer_name}")
        if not self._can_tell(proposer):
            return
        if len(rejected) > _MAX_SINGLE_REJECTIONS:
            text = f"{count_text} of yours were rejected: all that were pending."
            await participant.chat(text, to=[proposer], correlation_id=rejected[-1])
            return
        for id in rejected:
            await participant.send(CHAT, _REJECTION_CHAT, [proposer], id)

    def _can_tell(self, proposer: str) -> bool:
        """Return whether a proposer can be told about a rejection. The user sees why not."""
        participant = self._participant
        if proposer == participant.id:
            return False
        if proposer not in participant.participants:
            self.note(f"{proposer[:128]} has disconnected, so no reason was sent.")
            return False
        if not participant.can_send(CHAT):
            self.note(f"{proposer[:128]} gets no reason: you may not chat here.")
            return False
        return True

    def _add_own_line(self, text: str) -> None:
        line = MessageLine(self._clock(), self.screen.own_id, put_on_one_line(text), "mine")
        self.screen = topic_screen.add_line(self.screen, line, scroll_to_end=True)
        self.draw_soon()

    # -- drawing

    def draw_soon(self) -> None:
        if self._draw_timer is None:
            self._draw_timer = asyncio.get_running_loop().call_later(_DRAW_SECONDS, self.draw)

    def draw(self) -> None:
        self.stop_drawing()
        # One update for all messages since the last drawing.
        self._update()
        self._write(render_screen(self.screen, self._color_system))
        self.screen = topic_screen.mark_drawn(self.screen)

    def stop_drawing(self) -> None:
        if self._draw_timer is not None:
            self._draw_timer.cancel()
            self._draw_timer = None

    async def end(self) -> None:
        """Stop without waiting for pending calls: other participants see their responses."""
        self.stop_drawing()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def render_screen(screen: Screen, color_system: str | None) -> str:
    """Return the screen as terminal output."""
    width, height = screen.size
    console = Console(
        file=io.StringIO(),
        width=width + 1,
        height=height,
        force_terminal=color_system is not None,
        no_color=bool(os.environ.get("NO_COLOR")),
        color_system=color_system,  # type: ignore[arg-type]
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    text = Text("\n").join(draw_screen(screen))
    with console.capture() as capture:
        console.print(text, end="", no_wrap=True, overflow="ignore", crop=False)
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
    participant = create_participant(gateway, topic, retry=True)
    events = participant.events()

    async def body() -> None:
        async with participant.connected():
            log_lines.log_to_stderr(logging.WARNING)
            await _run_screen(participant, events, stopping)

    await run_until_stopped(stopping, body(), gateway)
    output.print_note(f"Left {topic}")


async def _run_screen(participant: Participant, events: Any, stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    screen = LiveScreen(participant, write=_write, color_system=_find_color_system())
    screen.stopping = stopping
    log_handler = _ScreenLogHandler(screen.note)
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, [log_handler]
    fd = sys.stdin.fileno()

    def size() -> None:
        screen.on_resize(*streams.terminal_size(sys.stdout.fileno()))

    async def follow() -> None:
        async for event in events:
            screen.on_event(event)

    async def refresh() -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            screen.refresh()

    with _raw_terminal(fd):
        tasks = [asyncio.ensure_future(follow()), asyncio.ensure_future(refresh())]
        loop.add_reader(fd, lambda: screen.on_input(_read(fd)))
        loop.add_signal_handler(signal.SIGWINCH, size)
        try:
            _write(_SCREEN_START)
            size()
            screen.refresh()
            await wait_for_first(stopping, *tasks)
        finally:
            loop.remove_reader(fd)
            loop.remove_signal_handler(signal.SIGWINCH)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await screen.end()
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
    previous = termios.tcgetattr(fd)
    settings = termios.tcgetattr(fd)
    settings[0] &= ~(termios.IXON | termios.ICRNL)
    settings[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
    termios.tcsetattr(fd, termios.TCSADRAIN, settings)
    try:
        yield
    finally:
        # Discard pending input: it is not meant for the shell.
        termios.tcsetattr(fd, termios.TCSAFLUSH, previous)
