"""Topic commands without a screen: send a message, print messages, run a bridge."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from typing import Any, Final, TextIO

from interlock.core.config import ServerConfig
from interlock.errors import CONFIG, InterlockError
from interlock.primitives.text import format_count
from interlock.protocol.jsonrpc import notification, remove_line_breaks
from interlock.protocol.kinds import request_kind
from interlock.protocol.mcpx_terms import MAX_ENVELOPE_BYTES
from interlock.terminal import log_lines, output, streams
from interlock.terminal.safe_text import wrap_text
from interlock.topics.client import Event, Participant, Welcome
from interlock.topics.commands.gateway_target import GatewayTarget
from interlock.topics.commands.message_format import (
    find_missing_recipient,
    format_message,
    put_on_one_line,
    split_recipient,
)
from interlock.topics.wire.payloads import read_content

_MAX_QUEUED_LINES: Final = 100
"""The maximum number of stdin lines that wait to be sent."""
_MAX_NAMES: Final = 20


@asynccontextmanager
async def connect_once(gateway: GatewayTarget, topic: str) -> AsyncIterator[Participant]:
    """Connect to the topic once, without retries. Raises InterlockError."""
    participant = create_participant(gateway, topic, retry=False)
    try:
        async with participant.connected():
            yield participant
    except InterlockError as error:
        raise gateway.explain(error) from None


def create_participant(
    gateway: GatewayTarget, topic: str, *, retry: bool, **options: Any
) -> Participant:
    """Create a participant. The name of the topic is already checked. Raises InterlockError."""
    gateway.topic = topic
    settings = gateway.settings(retry=retry)
    try:
        return Participant(gateway.url, topic=topic, **{**settings, **options})
    except ValueError as error:
        # The config of the local node may have an address that cannot be used for topics.
        raise InterlockError(CONFIG, str(error)) from None


async def send_once(
    gateway: GatewayTarget,
    topic: str,
    kind: str,
    payload: bytes,
    to: list[str],
    correlation_id: str | None,
) -> str:
    """Send one message and leave. Returns its id. Raises InterlockError.

    A message that the welcome does not allow is not sent.
    """
    # No retries: a failure is reported once, by its error.
    log_lines.log_to_stderr(logging.ERROR)
    async with connect_once(gateway, topic) as participant:
        present = {participant.id, *participant.participants}
        id = await participant.send(kind, payload, to, correlation_id)
    missing_recipients = [recipient for recipient in to if recipient not in present]
    if missing_recipients:
        _note_missing(missing_recipients, topic, present - {participant.id})
    return id


def _note_missing(
    missing_recipients: list[str], topic: str, present: Iterable[str], options: str = ""
) -> None:
    """Print that these participants are not in the topic, and who is."""
    present_ids = ", ".join(sorted(present)[:_MAX_NAMES]) or "none"
    verb = "is" if len(missing_recipients) == 1 else "are"
    words = (
        f"{', '.join(missing_recipients)} {verb} not in {topic} now{options}. Other participants: "
        f"{present_ids}."
    )
    output.print_note(f"Note: {put_on_one_line(words)}")


def format_event(event: Event, *, json: bool, own_id: str = "") -> str | None:
    """Format a message on one line, as text or as the original JSON."""
    if json:
        text = remove_line_breaks(event.envelope.text).decode()
        return output.sanitize(text) if sys.stdout.isatty() else text
    time_text = time.strftime("%H:%M:%S")
    line = format_message(
        event.envelope.head, read_content(event.envelope), time=time_text, own_id=own_id
    )
    if line is None:
        return None
    return wrap_for_terminal(line.format_plain(), sys.stdout)


def wrap_for_terminal(line: str, out: TextIO) -> str:
    """Wrap a line for the terminal.

    A terminal would continue it in the next row, where text of a participant could imitate a line
    of this program.
    """
    if not out.isatty():
        return line
    # Escaped characters that the encoding lacks need more space.
    encoded = line.encode(out.encoding, "backslashreplace").decode(out.encoding)
    return "\n".join(wrap_text(encoded, streams.terminal_size(out.fileno())[0]))


async def print_messages(
    gateway: GatewayTarget,
    topic: str,
    *,
    json: bool,
    event_filter: Callable[[Event], bool] = lambda _: True,
    send_stdin: bool = False,
) -> None:
    """Print messages until a signal, or until the output is closed.

    Args:
        send_stdin: send the lines of stdin.
    """
    # Before the connection errors are raised. After it, a lost connection is logged as a warning.
    log_lines.log_to_stderr(logging.ERROR)
    stopping = install_signal_handlers()
    participant = create_participant(gateway, topic, retry=True)
    events = participant.events()

    async def read() -> None:
        async with participant.connected():
            log_lines.log_to_stderr(logging.WARNING)
            stdin_task = asyncio.ensure_future(
                _send_stdin(participant) if send_stdin else _do_nothing()
            )
            try:
                async for event in events:
                    text = format_event(event, json=json) if event_filter(event) else None
                    if text is not None:
                        print(text, flush=True)
                    if not streams.is_stdout_open():
                        return
            finally:
                stdin_task.cancel()
                await asyncio.gather(stdin_task, return_exceptions=True)

    await run_until_stopped(stopping, read(), gateway)


async def _do_nothing() -> None:
    """Do nothing."""


async def _send_stdin(participant: Participant) -> None:
    """Send every line of stdin."""
    lines: asyncio.Queue[str] = asyncio.Queue(_MAX_QUEUED_LINES)
    loop = asyncio.get_running_loop()

    def read() -> None:
        # A daemon thread, because a read from stdin cannot be cancelled.
        for line in _read_lines(sys.stdin.fileno()):
            try:
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
            except (RuntimeError, CancelledError):
                return  # the topic was left

    threading.Thread(target=read, daemon=True, name="stdin").start()
    while True:
        text = (await lines.get()).strip()
        if text:
            to, words = split_recipient(text, participant.participants)
            missing_recipient = find_missing_recipient(text, participant.participants)
            try:
                await participant.chat(words, to)
            except InterlockError as error:
                output.print_problem(error.message)
            else:
                if missing_recipient:
                    present, topic = participant.participants, participant.topic
                    _note_missing(
                        [missing_recipient], topic, present, ", so it was sent to all participants"
                    )


def _read_lines(fd: int) -> Iterator[str]:
    """Yield lines of a file descriptor. Not with a stream object: a process cannot exit while a
    waiting thread has its lock."""
    rest = b""
    cut = False
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            # The terminal was closed.
            data = b""
        *lines, rest = (rest + data).split(b"\n")
        if cut and lines:
            # Skip the rest of a line that was too long.
            lines, cut = lines[1:], False
        if cut:
            rest = b""
        elif rest and (not data or len(rest) > MAX_ENVELOPE_BYTES):
            # The last line, or one that is too long for the gateway.
            lines, rest, cut = [*lines, rest], b"", bool(data)
        yield from (line.decode(errors="replace") for line in lines)
        if not data:
            return


async def run_bridge(gateway: GatewayTarget, topic: str, server: ServerConfig, name: str) -> None:
    """Run an MCP server in the topic until a signal. Raises InterlockError."""
    from interlock.topics.client.bridge import Bridge

    # A server that fails to start is reported by its error.
    log_lines.log_to_stderr(logging.ERROR)
    stopping = install_signal_handlers()
    bridge = Bridge(server, name=name)

    async def run_server() -> None:
        async with bridge.running():
            log_lines.log_to_stderr(logging.WARNING)
            # The bridge may be started before the gateway.
            participant = create_participant(
                gateway, topic, retry=True, server=bridge, sleep=asyncio.sleep
            )
            tasks: set[asyncio.Task[None]] = set()

            def on_list_change(method: str) -> None:
                kind = request_kind(method)
                # Without the capability nothing is sent. Others list the tools when they need them.
                if participant.status.connected and participant.can_send(kind):
                    task = asyncio.ensure_future(_send_notification(participant, kind, method))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

            participant.on(Welcome, lambda _: _print_joined(participant, bridge.tools))
            async with participant.connected():
                bridge.on_change = on_list_change
                await asyncio.Event().wait()

    await run_until_stopped(stopping, run_server(), gateway)
    output.print_note(f"Left {topic}")


async def _send_notification(participant: Participant, kind: str, method: str) -> None:
    try:
        await participant.send(kind, notification(method))
    except InterlockError as error:
        output.print_note(f"Note: cannot announce a changed list: {error.message}")


def _print_joined(participant: Participant, tools: int) -> None:
    words = format_count(tools, "tool")
    suffix = "" if participant.status.welcomes <= 1 else " again"
    print(
        f"in {participant.topic}{suffix} as {output.sanitize(participant.id)}; {words}",
        flush=True,
    )
    if not participant.can_send("mcp/response:tools/call:x"):
        output.print_note(
            "Note: this participant may not respond to calls in the topic. Ask the operator of the "
            "gateway for the profile response_only."
        )


def install_signal_handlers() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signal_number, stopping.set)
    return stopping


async def run_until_stopped(
    stopping: asyncio.Event, work: Coroutine[Any, Any, None], gateway: GatewayTarget
) -> None:
    """Wait for the work, or for a signal. Raises InterlockError."""
    pending_tasks = asyncio.ensure_future(work)
    try:
        await wait_for_first(stopping, pending_tasks)
    except InterlockError as error:
        raise gateway.explain(error) from None
    finally:
        pending_tasks.cancel()
        await asyncio.gather(pending_tasks, return_exceptions=True)


async def wait_for_first(stopping: asyncio.Event, *pending_tasks: asyncio.Future[None]) -> None:
    """Wait for a signal, or for one of these tasks. Raises the exception of a task."""
    stop_task = asyncio.ensure_future(stopping.wait())
    try:
        futures: set[asyncio.Future[Any]] = {stop_task, *pending_tasks}
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for task in pending_tasks:
            if task.done():
                task.result()
    finally:
        stop_task.cancel()
        await asyncio.gather(stop_task, return_exceptions=True)
