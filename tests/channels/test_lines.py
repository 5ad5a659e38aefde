"""Tests of line channels: over Unix sockets, stdio and fed bytes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from interlock.channels import lines
from interlock.channels.channel import Channel
from interlock.channels.dial import dial
from interlock.channels.lines import LinesChannel, LinesServerProtocol
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from tests.channels.conftest import Run
from tests.channels.recording_owner import RecordingOwner


class LineListener:
    """A server on a Unix socket with its connections."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix:{path}"
        self._came: asyncio.Queue[LinesChannel] = asyncio.Queue()

    def accept(self, channel: LinesChannel) -> None:
        self._came.put_nowait(channel)

    async def next(self) -> LinesChannel:
        return await self._came.get()


@asynccontextmanager
async def listening(folder: Path, max_message: int = 1_000_000) -> AsyncIterator[LineListener]:
    # A socket's path may not be long.
    path = folder / "s"
    there = LineListener(path)
    make = partial(LinesServerProtocol, there.accept, label="child", max_message=max_message)
    server = await asyncio.get_running_loop().create_unix_server(make, str(path))
    try:
        yield there
    finally:
        server.close()


class UnreadingProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.ReadTransport", transport).pause_reading()


def test_sends_messages_both_ways(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with listening(tmp_path) as there:
            ours: Channel = await dial(there.url)
            theirs: Channel = await there.next()
            our_ear, their_ear = RecordingOwner(ours), RecordingOwner(theirs)
            sent = [b'{"a":1}', b"x" * 500_000, b'{\n"a":\r\n2}']
            for payload in sent:
                ours.send(payload)
                theirs.send(payload)
            # JSON may be broken into lines; a message is one.
            expected = [*sent[:2], b'{ "a":  2}']
            assert await our_ear.wait_for_messages(3) == expected
            assert await their_ear.wait_for_messages(3) == expected
            assert (ours.peer, theirs.peer) == ("local", "local")
            assert (ours.label, theirs.label) == (there.url, "child")
            assert (ours.peer_names, ours.close_reason) == ((), "")
            ours.send(b"last words")
            ours.close(4000, "a reason that lines do not carry")
            ours.send(b"dropped")
            assert not ours.is_open
            assert await their_ear.wait_until_closed() == "it closed the channel"
            assert their_ear.messages[3:] == [b"last words"]
            await ours.wait_closed()
            await theirs.wait_closed()
            assert our_ear.closed == ["it was closed by this side"]
            assert not theirs.is_open

    run(test())


def test_too_long_message_closes_channel(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        async with listening(tmp_path, max_message=100) as there:
            ours = await dial(there.url)
            their_ear = RecordingOwner(await there.next())
            our_ear = RecordingOwner(ours)
            ours.send(b"x" * 100)
            ours.send(b"x" * 101)
            ours.send(b"never")
            assert await their_ear.wait_until_closed() == "it sent a message of more than 100 bytes"
            assert their_ear.messages == [b"x" * 100]
            await our_ear.wait_until_closed()
            await ours.wait_closed()

    run(test())


def test_closes_unread_channel(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_UNREAD_BYTES", 1024 * 1024)

    async def test() -> None:
        path = tmp_path / "s"
        server = await asyncio.get_running_loop().create_unix_server(UnreadingProtocol, str(path))
        ours = await dial(f"unix://{path}")
        ear = RecordingOwner(ours)
        for _ in range(100):
            ours.send(b"x" * 1_000_000)
            await asyncio.sleep(0)
        assert not ours.is_open
        assert await ear.wait_until_closed() == "it does not read the messages that are sent to it"
        await ours.wait_closed()
        server.close()

    run(test())


def test_close_does_not_wait_for_unread_peer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CLOSING", 0.05)

    async def test() -> None:
        path = tmp_path / "s"
        server = await asyncio.get_running_loop().create_unix_server(UnreadingProtocol, str(path))
        ours = await dial(f"unix:{path}")
        ear = RecordingOwner(ours)
        ours.send(b"x" * 10_000_000)
        ours.close()
        await ours.wait_closed()
        assert ear.closed == ["it was closed by this side"]
        server.close()

    run(test())


def test_missing_listener_is_unavailable(run: Run, tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(
            InterlockError, match=r"Cannot reach the node at .*: No such file"
        ) as raised:
            await dial(f"unix:{tmp_path / 's'}")
        assert raised.value.failure is UPSTREAM_UNAVAILABLE

    run(test())


# -- over anything


class FedChannel:
    """A channel whose bytes a test feeds."""

    def __init__(self, unread: int = 0) -> None:
        self.written: list[bytes] = []
        self.hung_up: list[bool] = []
        self.unread = unread
        self.channel = LinesChannel(
            self.written.append,
            self.hung_up.append,
            label="process",
            unread=lambda: self.unread,
            max_message=100,
        )


async def test_reads_lines_from_fed_bytes() -> None:
    under = FedChannel()
    channel = under.channel
    channel.feed(b'{"before')
    channel.feed(b'"}\n')
    ear = RecordingOwner(channel)
    channel.feed(b"two\nthree\r\n\nfo")
    assert ear.messages == [b'{"before"}', b"two", b"three"]
    channel.send(b"a\nb")
    assert under.written == [b"a b\n"]
    channel.feed(b"ur")
    channel.on_end("it exited with status 1")
    await channel.wait_closed()
    # The last line may lack its end.
    assert ear.messages[3:] == [b"four"]
    assert ear.closed == ["it exited with status 1"]
    channel.on_end()
    channel.feed(b"more\n")
    channel.send(b"more")
    channel.close()
    assert (len(ear.messages), len(ear.closed)) == (4, 1)
    assert (under.written, under.hung_up) == ([b"a b\n"], [])


async def test_close_notifies_owner_of_bytes() -> None:
    under = FedChannel()
    ear = RecordingOwner(under.channel)
    under.channel.close()
    assert under.hung_up == [False]
    under.channel.feed(b"late\n")
    assert (ear.messages, ear.closed) == ([], [])
    under.channel.on_end()
    assert ear.closed == ["it was closed by this side"]

    stuck = FedChannel(unread=64 * 1024 * 1024 + 1)
    ear = RecordingOwner(stuck.channel)
    stuck.channel.send(b"one too many")
    assert (stuck.written, stuck.hung_up, stuck.channel.is_open) == ([], [True], False)
    stuck.channel.on_end()
    assert ear.closed == ["it does not read the messages that are sent to it"]


def test_closed_owner_gets_no_second_message() -> None:
    under = FedChannel()
    heard: list[bytes] = []
    under.channel.feed(b"one\ntwo\n")

    def take(payload: bytes) -> None:
        heard.append(payload)
        under.channel.close()

    under.channel.on_message = take
    under.channel.feed(b"three\n")
    assert heard == [b"one"]


def test_late_owner_gets_events_in_order() -> None:
    under = FedChannel()
    told: list[str] = []
    under.channel.feed(b"one\n")
    under.channel.on_end("it went away")
    under.channel.on_close = told.append
    # There is something to hear first.
    assert told == []
    under.channel.on_message = lambda payload: told.append(payload.decode())
    assert told == ["one", "it went away"]


# -- this process's own

CHILD = """
import asyncio, sys
from interlock.channels.lines import open_stdio

async def main():
    channel = await open_stdio()
    print("printed by somebody")
    closed = asyncio.Event()
    channel.on_close = lambda why: (sys.stderr.write(why + "\\n"), closed.set())
    channel.on_message = lambda payload: channel.send(payload if payload != b"who" else
        f"{channel.peer} {channel.label} {sys.stdin.read()!r}".encode())
    await closed.wait()
    await channel.wait_closed()

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_stdio(loop: str) -> None:
    async def test() -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CHILD,
            loop,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=10_000_000,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        large = b"x" * 1_000_000
        child.stdin.write(b'{"a":1}\nwho\n' + large + b"\n")
        assert await child.stdout.readline() == b'{"a":1}\n'
        assert await child.stdout.readline() == b"local stdio ''\n"
        assert await child.stdout.readline() == large + b"\n"
        child.stdin.close()
        out, err = await child.communicate()
        assert (out, child.returncode) == (b"", 0)
        assert err.decode().split("\n") == ["printed by somebody", "it closed the channel", ""]

    asyncio.run(asyncio.wait_for(test(), 30))


def test_rejects_stdio_without_pipes(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "file"
        file.write_bytes(b"")
        with file.open("rb") as stdin, (tmp_path / "out").open("wb") as stdout:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CHILD, "asyncio", stdin=stdin, stdout=stdout,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            _, err = await child.communicate()
        assert b"Both must be pipes" in err

    asyncio.run(asyncio.wait_for(test(), 30))
