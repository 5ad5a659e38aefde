"""``python -m bench.topic_soak --minutes 10``: many come and go in many topics of one node.

They talk, say what they may not, do not read, vanish without a word, and take each other's place.
What must hold all the time: nobody hears what was said in another room, nobody hears itself, and
nobody speaks for another. And at the end: the node holds no more objects, files and memory than
when it had warmed up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from bench import topic_gateway
from bench.bars import Bar
from bench.processor import open_files, resident_bytes
from bench.report import console, show_bars, show_table
from bench.targets import Bench
from interlock.protocol.websocket import Close, FrameDecoder, text_frame
from interlock.topics.wire.envelope import write_envelope

ROOMS = 8
SEATS = 12
"""Guests in a room at a time, about."""
KNOWN = 4
"""Callers with a token: when one comes in again, it takes its own place."""
CONFIG = """\
listen: 127.0.0.1:PORT
tokens:
{tokens}
topics:
  rooms:
    room-*:
      access: public
      profile: proposal_only
      queue: 50
      queue_bytes: 64KiB
      stalled: 2s
      ping: 5s
"""
MOST_MORE_OBJECTS = 500
"""What caches may still take; each of thousands who came and went would leave more."""
MOST_GROWTH = 16.0
"""MiB between the end of the warm-up and the end."""
FEWEST_JOINS = 30.0
"""In a second. Seven times as many come when nothing else is going on."""
DEAF = 0.1
"""How many guests do not read for some seconds."""
LOUD = 0.02
"""How often one says more at once than somebody who does not read can keep."""
_MASK = b"\x01\x02\x03\x04"
_NOISE = (b"nonsense", b"[]", b"{}", b'{"protocol":"mcpx/v0.2"}', b'{"kind":"system/welcome"}')


def token_of(number: int) -> str:
    return f"soak-token-of-caller-{number}"


class SoakSettings(msgspec.Struct, frozen=True):
    seconds: float = 600.0
    seed: int = 7

    @property
    def warmup(self) -> float:
        return min(30.0, self.seconds / 4)


class Guest:
    """A client that reads and writes frames itself, so that it can be as rude as it likes."""

    def __init__(self, soak: Soak, room: str, token: str, *, deaf: bool = False) -> None:
        """`deaf`: it will not read for a while, and has little room for what comes."""
        self.soak, self.room, self.token, self.deaf = soak, room, token, deaf
        self.id = ""
        self.said = 0
        self.decoder = FrameDecoder(masked=False, max_message=1 << 20)

    async def come(self) -> None:
        sock = socket.socket()
        if self.deaf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.soak.port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=1 << 14)
        bearer = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        self.writer.write(
            f"GET /ws?topic={self.room} HTTP/1.1\r\nHost: 127.0.0.1:{self.soak.port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{bearer}\r\n".encode()
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head:
            raise ConnectionError(f"not let in: {head[:200]!r}")
        self.soak.count["joins"] += 1

    async def hear(self, seconds: float) -> bool:
        """Read for some time. False: the connection is over."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    data = await self.reader.read(1 << 16)
                    if not data:
                        return False
                    for event in self.decoder.feed(data):
                        if isinstance(event, bytes):
                            self._take(json.loads(event))
                        elif isinstance(event, Close):
                            self.soak.count[f"closed {event.code}"] += 1
                            return False
        except TimeoutError:
            return True

    def _take(self, message: dict[str, Any]) -> None:
        soak, kind, payload = self.soak, message["kind"], message["payload"]
        soak.count["heard"] += 1
        if not self.id:
            soak.expect(kind == "system/welcome", f"{kind} came before the welcome")
            self.id = payload["you"]["id"]
        if kind == "system/error":
            soak.expect(message["to"] == [self.id], "an error for another")
            soak.count[payload["error"]] += 1
        elif kind in ("system/welcome", "system/presence"):
            soak.expect(message["from"] == "system:gateway", f"{kind} of a participant")
        else:
            soak.expect(payload["room"] == self.room, f"{payload['room']} was heard in {self.room}")
            soak.expect(payload["by"] == message["from"], "one spoke for another")
            soak.expect(message["from"] != self.id or bool(self.token), "it heard itself")

    def say(self, kind: str = "chat", sender: str = "", size: int = 0) -> None:
        self.said += 1
        payload = {"room": self.room, "by": sender or self.id, "text": "x" * size}
        text = write_envelope(
            id=f"{self.id}-{self.said}", sender=sender or self.id, kind=kind,
            payload=msgspec.json.encode(payload),
        )  # fmt: skip
        self.write(text)

    def write(self, text: bytes) -> None:
        self.writer.write(text_frame(text, _MASK))
        self.soak.count["said"] += 1

    def vanish(self) -> None:
        """Without a word."""
        self.writer.transport.abort()


class Soak:
    """Everybody who is there, and what was seen."""

    def __init__(self, port: int, settings: SoakSettings) -> None:
        self.port = port
        self.count: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.chance = random.Random(settings.seed)
        self.until = 0.0

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong[what] += 1

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return max(0.0, self.until - time.monotonic())

    async def run(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds
        seats = [
            self._seat(f"room-{room}", token_of(number) if number < KNOWN else "")
            for room in range(ROOMS)
            for number in range(SEATS)
        ]
        await asyncio.gather(*seats)

    async def _seat(self, room: str, token: str) -> None:
        """One after the other comes to this seat, and each behaves in its own way."""
        while self.left:
            guest = Guest(self, room, token, deaf=not token and self.chance.random() < DEAF)
            try:
                await guest.come()
                await guest.hear(0.2)
                if guest.deaf:
                    await asyncio.sleep(min(1 + 4 * self.chance.random(), self.left))
                    await guest.hear(min(2.0, 0.1 + self.left))
                elif guest.id:
                    await self._behave(guest)
            except (ConnectionError, asyncio.IncompleteReadError):
                self.count["not let in"] += 1
                await asyncio.sleep(0.05)
            finally:
                if hasattr(guest, "writer"):
                    guest.vanish()

    async def _behave(self, guest: Guest) -> None:
        chance = self.chance
        for _ in range(chance.randint(1, 12)):
            match chance.randint(0, 11):
                case 0:
                    guest.write(chance.choice(_NOISE))
                case 1:
                    guest.say(chance.choice(["mcp/request:tools/call:x", "system/presence"]))
                case 2:
                    guest.say(sender=chance.choice(["system:gateway", "caller-1", "nobody"]))
                case 3:
                    guest.say("mcp/proposal:tools/call:x", size=20_000)
                case 4 if chance.random() < LOUD:
                    for _ in range(80):
                        guest.say(size=60_000)
                case 5 if guest.token:
                    again = Guest(self, guest.room, guest.token)
                    await again.come()
                    await again.hear(0.1)
                    again.vanish()
                case _:
                    guest.say(size=chance.randint(0, 2_000))
            if not await guest.hear(chance.random() * 0.1):
                return
        self.count["left"] += 1


class Holding(msgspec.Struct):
    """What the node holds while nobody is there."""

    objects: int
    files: int
    resident: int


def measure(settings: SoakSettings) -> dict[str, Any]:
    secrets = {f"SOAK_TOKEN_{number}": token_of(number) for number in range(KNOWN)}
    tokens = "\n".join(
        f"  - name: caller-{number}\n    token: ${{env:SOAK_TOKEN_{number}}}"
        for number in range(KNOWN)
    )
    with (
        tempfile.TemporaryDirectory(prefix="interlock-soak-") as folder,
        Bench(Path(folder)) as bench,
        console.status(f"topics: {settings.seconds:.0f} seconds of coming and going"),
    ):
        node, port = topic_gateway.start(bench, CONFIG.replace("{tokens}", tokens), secrets)
        soak = Soak(port, settings)

        def quiet() -> Holding:
            """Once nobody is there, and no file was opened or closed for a second."""
            deadline = time.monotonic() + 20.0
            files, since = open_files(node.pid), time.monotonic()
            while (now := time.monotonic()) < min(deadline, since + 1.0):
                if (count := open_files(node.pid)) != files:
                    files, since = count, now
                time.sleep(0.05)
            return Holding(topic_gateway.objects_of(bench, node), files, resident_bytes(node.pid))

        asyncio.run(soak.run(0.5))
        base = quiet()
        asyncio.run(soak.run(settings.warmup))
        warm = quiet()
        seen: list[float] = []
        parts = 4
        for _ in range(parts):
            asyncio.run(soak.run((settings.seconds - settings.warmup) / parts))
            seen.append(resident_bytes(node.pid) / (1 << 20))
        end = quiet()
        died = node.process.poll()
        log = node.log_tail()
    return {
        "seconds": settings.seconds,
        "count": dict(soak.count.most_common()),
        "wrong": dict(soak.wrong),
        "base": msgspec.to_builtins(base),
        "warm": msgspec.to_builtins(warm),
        "end": msgspec.to_builtins(end),
        "resident_mib": seen,
        "died": died,
        "log": log if "Traceback" in log else "",
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    warm, end, base = (result[name] for name in ("warm", "end", "base"))
    late = statistics.mean(result["resident_mib"][-2:])
    early = statistics.mean(result["resident_mib"][:2])
    wrong = float(sum(result["wrong"].values()))
    return [
        Bar("wrong messages", wrong, "<=", 0.0, note=", ".join(result["wrong"])),
        Bar("objects more than after the warm-up", float(end["objects"] - warm["objects"]), "<=",
            float(MOST_MORE_OBJECTS)),
        Bar("files more than before", float(end["files"] - base["files"]), "<=", 0.0),
        Bar("memory, second half above first", late - early, "<=", MOST_GROWTH, "MiB"),
        Bar("times the node ended or complained", float(result["died"] is not None)
            + float(bool(result["log"])), "<=", 0.0),
        Bar("times somebody was told what it lost", float(result["count"].get("messages_lost", 0)),
            ">=", 1.0),
        Bar("joins", float(result["count"].get("joins", 0)), ">=",
            FEWEST_JOINS * result["seconds"]),
        Bar("violations", float(result["count"].get("capability_violation", 0)), ">=", 1.0),
        Bar("times somebody's place was taken", float(result["count"].get("closed 4009", 0)), ">=",
            1.0),
    ]  # fmt: skip


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    show_table("seen", ("", "times"), [[name, value] for name, value in result["count"].items()])
    if result["log"]:
        console.print(result["log"], markup=False)
    show_bars(bars)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.topic_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("bench-results/topic-soak.json"))
    chosen = parser.parse_args()
    result = measure(SoakSettings(chosen.minutes * 60, chosen.seed))
    bars = judge(result)
    show(result, bars)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    shown = {**result, "bars": [bar.shown() for bar in bars]}
    chosen.out.write_bytes(msgspec.json.format(msgspec.json.encode(shown), indent=2))
    sys.exit(any(bar.met is not True for bar in bars))


if __name__ == "__main__":
    main()
