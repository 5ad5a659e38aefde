"""The load on a topic: one sender and many receivers, as raw sockets of one process.

It counts bytes, because anything more per message would measure the load and not the target: all
envelopes of a run have the same length. One receiver reads every envelope and checks its number,
and in the end all must have got exactly what was sent.

Run as a process it is given one command after another, a line each; see `topic_crowd`.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import Counter
from typing import Any, Literal

import msgspec

from interlock.protocol.websocket import FrameDecoder, text_frame
from interlock.topics.wire.envelope import write_envelope

LENGTH = 300
"""Bytes of an envelope."""
HANG_TIMEOUT = 20.0
_MASK = b"\0\0\0\0"
_SAMPLED = 10


class CrowdFailure(Exception):
    """The target did something else than it should."""


class Command(msgspec.Struct):
    """What the load is to do next."""

    do: Literal["join", "run", "pump", "stall", "wake", "leave"]
    port: int = 0
    path: str = "/"
    """Of the receivers."""
    sender_path: str = "/"
    token: str = ""
    """Of the sender. Receivers have none."""
    receivers: int = 0
    seconds: float = 1.0
    window: int = 1
    messages: int = 0
    sender: str = "sender"


class Figures(msgspec.Struct):
    """What came of a command."""

    sent: int = 0
    deliveries: int = 0
    seconds: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    lost: int = 0
    """How many messages the one who slept was told that it lost."""

    @property
    def per_second(self) -> float:
        return self.deliveries / self.seconds if self.seconds else 0.0


class Receiver:
    """One who listens. `got` counts bytes since the crowd was settled."""

    __slots__ = ("decoder", "got", "last", "sampled", "sock")

    def __init__(self, sock: socket.socket, *, sampled: bool) -> None:
        self.sock = sock
        self.got = 0
        self.sampled = sampled
        self.decoder: FrameDecoder | None = None
        self.last = -1


def connect(port: int, path: str, token: str = "") -> tuple[socket.socket, bytes]:
    """A WebSocket, and what came behind the opening."""
    sock = socket.socket()
    sock.settimeout(HANG_TIMEOUT)
    sock.connect(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    opening = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Version: 13\r\n{bearer}\r\n"
    )
    sock.sendall(opening.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = sock.recv(4096)
        if not more:
            raise CrowdFailure(f"no WebSocket at {path}: {answer[:300]!r}")
        answer += more
    head, _, behind = answer.partition(b"\r\n\r\n")
    if b" 101 " not in head:
        raise CrowdFailure(f"no WebSocket at {path}: {head[:300]!r} {behind[:300]!r}")
    return sock, behind


class Crowd:
    """One sender, its receivers, and what is measured between them. The last receiver may sleep."""

    def __init__(self, command: Command) -> None:
        self.receivers: list[Receiver] = []
        last = command.receivers - 1
        step = max(1, command.receivers // _SAMPLED)
        unread: dict[int, bytes] = {}
        for number in range(command.receivers):
            sock, behind = connect(command.port, command.path)
            one = Receiver(sock, sampled=number % step == 0 and number != last)
            self.receivers.append(one)
            unread[sock.fileno()] = behind
        self.sender, behind = connect(command.port, command.sender_path, command.token)
        self.said = FrameDecoder(masked=False, max_message=1 << 20)
        self._hear_as_sender(behind)
        self.name = command.sender
        self.asleep: Receiver | None = None
        self.sent = 0
        self.size = len(text_frame(self._envelope(0)))
        self.poll = select.epoll()
        self.by_file = {one.sock.fileno(): one for one in self.receivers}
        for file in (*self.by_file, self.sender.fileno()):
            self.poll.register(file, select.EPOLLIN)
        self.buffer = bytearray(1 << 20)
        self.places: Counter[int] = Counter()
        """How many of those who read have got so many messages: asking everybody after each read
        would take longer than reading."""
        self._settle(unread)
        for one in (self.receivers[0], self.receivers[-1]):
            one.decoder = FrameDecoder(masked=False, max_message=1 << 20)

    def _envelope(self, number: int) -> bytes:
        text = ""
        for _ in range(2):
            payload = json.dumps({"text": text}).encode()
            made = write_envelope(
                id=f"{number:012d}", sender=self.name, kind="chat", payload=payload,
                ts="2025-08-26T14:00:00Z",
            )  # fmt: skip
            text = "x" * (LENGTH - len(made))
        return made

    def _settle(self, unread: dict[int, bytes]) -> None:
        """Until everybody has heard one message, and so all that was before it."""
        probe = self._envelope(999_999_999_999)
        self.sender.sendall(text_frame(probe, _MASK))
        for one in self.receivers:
            decoder = FrameDecoder(masked=False, max_message=1 << 24)
            events = decoder.feed(unread.get(one.sock.fileno(), b""))
            while probe not in events:
                data = one.sock.recv(1 << 16)
                if not data:
                    raise CrowdFailure("the target closed a receiver")
                events = decoder.feed(data)
            one.sock.setblocking(False)

    def run(self, seconds: float, window: int, messages: int = 0) -> Figures:
        """Keep `window` messages on their way, for some time or so many messages."""
        began = time.perf_counter()
        end = began + (seconds if not messages else HANG_TIMEOUT)
        awake = [one for one in self.receivers if one is not self.asleep]
        first = self.sent
        sent_at: list[float] = []
        delays: list[float] = []
        before = sum(one.got for one in awake)
        size = self.size
        places = self.places = Counter(one.got // size for one in awake)
        slowest = min(places)
        while True:
            while not places[slowest]:
                del places[slowest]
                slowest += 1
            now = time.perf_counter()
            over = now >= end or (messages and self.sent - first >= messages)
            if over and slowest >= self.sent:
                break
            if now > end + HANG_TIMEOUT:
                raise CrowdFailure(f"{self.sent - slowest} messages never arrived")
            free = 0 if over else window - (self.sent - slowest)
            if free > 0:
                frames = [
                    text_frame(self._numbered(self.sent + place), _MASK) for place in range(free)
                ]
                sent_at += [time.perf_counter()] * free
                self.sender.sendall(b"".join(frames))
                self.sent += free
            self._read(first, sent_at, delays)
        took = time.perf_counter() - began
        if any(one.got != self.sent * size for one in awake):
            raise CrowdFailure("a receiver got other bytes than were sent")
        delays.sort()
        return Figures(
            self.sent - first,
            (sum(one.got for one in awake) - before) // size,
            took,
            _at(delays, 0.5),
            _at(delays, 0.99),
        )

    def _numbered(self, number: int) -> bytes:
        whole = getattr(self, "_template", None)
        if whole is None:
            whole = self._template = self._envelope(0).split(b"%012d" % 0)
        return b"%b%012d%b" % (whole[0], number, whole[1])

    def _read(self, first: int, sent_at: list[float], delays: list[float]) -> None:
        size, buffer, by_file, places = self.size, self.buffer, self.by_file, self.places
        for file, _ in self.poll.poll(1.0):
            one = by_file.get(file)
            if one is None:
                self._hear_as_sender(self.sender.recv(1 << 16))
                continue
            count = one.sock.recv_into(buffer)
            if not count:
                raise CrowdFailure("the target closed a receiver")
            older = one.got // size
            one.got += count
            newer = one.got // size
            if newer > older:
                places[older] -= 1
                places[newer] += 1
            if one.decoder is not None:
                self._check(one, bytes(buffer[:count]))
            if one.got > self.sent * size:
                raise CrowdFailure("more bytes came than were sent")
            if one.sampled:
                now = time.perf_counter()
                for number in range(older, newer):
                    delays.append((now - sent_at[number - first]) * 1e6)

    def _check(self, one: Receiver, data: bytes) -> None:
        assert one.decoder is not None
        for text in one.decoder.feed(data):
            if text != self._numbered(one.last + 1):
                raise CrowdFailure(f"after message {one.last} came {text!r:.300}")
            one.last += 1

    def _hear_as_sender(self, data: bytes) -> None:
        for event in self.said.feed(data):
            if not isinstance(event, bytes):
                raise CrowdFailure(f"the sender was told {event!r}")
            if b"system/error" in event:
                raise CrowdFailure(f"the sender was told {event[:500]!r}")

    # -- one who does not read

    def stall(self) -> None:
        self.asleep = self.receivers[-1]
        self.poll.unregister(self.asleep.sock.fileno())

    def wake(self) -> Figures:
        """It reads again, until it was told what it lost and has heard something new."""
        one = self.asleep
        assert one is not None
        assert one.decoder is not None
        self.asleep = None
        one.sock.settimeout(HANG_TIMEOUT)
        lost, welcomed = 0, False
        while not (lost and welcomed):
            data = one.sock.recv(1 << 16)
            if not data:
                raise CrowdFailure("the target closed the one who slept")
            for event in one.decoder.feed(data):
                if not isinstance(event, bytes):
                    raise CrowdFailure(f"the one who slept was told {event!r}")
                if event == self._numbered(one.last + 1):
                    one.last += 1
                    continue
                message = json.loads(event)
                if message["kind"] == "system/error":
                    lost += message["payload"]["lost"]
                elif message["kind"] == "system/welcome":
                    welcomed = True
                else:
                    raise CrowdFailure(f"after message {one.last} came {event[:300]!r}")
        if one.last + 1 + lost != self.sent:
            raise CrowdFailure(f"it read {one.last + 1}, lost {lost}, and {self.sent} were sent")
        one.last = self.sent - 1
        one.got = self.sent * self.size
        one.sock.setblocking(False)
        self.poll.register(one.sock.fileno(), select.EPOLLIN)
        return Figures(lost=lost)

    def leave(self) -> None:
        for one in self.receivers:
            one.sock.close()
        self.sender.close()
        self.poll.close()


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def main() -> None:
    """Commands on standard input, figures or a failure on standard output."""
    crowd: Crowd | None = None
    for line in sys.stdin.buffer:
        command = msgspec.json.decode(line, type=Command)
        answer: dict[str, Any] = {}
        figures = Figures()
        try:
            if command.do == "join":
                crowd = Crowd(command)
            elif crowd is None:
                raise CrowdFailure("nobody is there")
            elif command.do in ("run", "pump"):
                figures = crowd.run(command.seconds, command.window, command.messages)
            elif command.do == "stall":
                crowd.stall()
            elif command.do == "wake":
                figures = crowd.wake()
            else:
                crowd.leave()
                crowd = None
            answer["figures"] = figures
        except (CrowdFailure, OSError) as error:
            answer["failure"] = f"{command.do}: {error}"
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
