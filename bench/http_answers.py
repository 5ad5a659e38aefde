"""Cuts one HTTP answer at a time out of a connection's bytes. Pure: bytes in, answer out.

The usual case, a whole answer with a content length in one read, takes one short path. Chunked
bodies and bodies that come in many reads take the longer one.
"""

from __future__ import annotations

import msgspec


class BadAnswer(Exception):
    """The bytes are not an HTTP answer that this reader understands."""


class HttpAnswer(msgspec.Struct, gc=False):
    status: int
    lower_head: bytes
    """The status line and headers with their last empty line, in lower case."""
    head: bytes
    body: bytes

    @property
    def event_stream(self) -> bool:
        return b"\r\ncontent-type: text/event-stream" in self.lower_head

    def header(self, name: bytes) -> bytes | None:
        """A header's value as it was sent; the name is given in lower case."""
        return header(self.lower_head, name, self.head)


def header(lower_head: bytes, name: bytes, head: bytes | None = None) -> bytes | None:
    """A header's value, in lower case unless the head as it was sent is given too."""
    at = lower_head.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    source = lower_head if head is None else head
    return source[start : lower_head.index(b"\r\n", start)].strip()


class AnswerReader:
    """Feed it what was read; it returns the answer once that is whole."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0
        self.needed = 0
        self.head = b""
        self.lower_head = b""
        self.body_at = 0
        self.chunked = False

    def feed(self, data: bytes) -> HttpAnswer | None:
        if self.size == 0:
            end = data.find(b"\r\n\r\n")
            if end >= 0:
                head = data[: end + 4]
                lower = head.lower()
                length = header(lower, b"content-length")
                if length is not None and len(data) == end + 4 + int(length):
                    return HttpAnswer(int(head[9:12]), lower, head, data[end + 4 :])
        self.pieces.append(data)
        self.size += len(data)
        if self.size < self.needed:
            return None
        return self.assemble()

    def assemble(self) -> HttpAnswer | None:
        data = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces = [data]
        if not self.head and not self.read_head(data):
            return None
        if self.chunked:
            body = dechunk(data, self.body_at)
            if body is None:
                return None
        elif len(data) < self.needed:
            return None
        elif len(data) > self.needed:
            raise BadAnswer(f"{len(data) - self.needed} bytes after the answer's end")
        else:
            body = data[self.body_at :]
        answer = HttpAnswer(int(self.head[9:12]), self.lower_head, self.head, body)
        self.pieces, self.size, self.needed = [], 0, 0
        self.head, self.chunked = b"", False
        return answer

    def read_head(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return False
        self.head = data[: end + 4]
        self.lower_head = self.head.lower()
        if not self.lower_head.startswith(b"http/1."):
            raise BadAnswer(f"not HTTP: {data[:40]!r}")
        self.body_at = end + 4
        length = header(self.lower_head, b"content-length")
        if length is not None:
            self.needed = self.body_at + int(length)
        elif header(self.lower_head, b"transfer-encoding") == b"chunked":
            self.chunked = True
        elif self.head[9:12] in (b"202", b"204", b"304"):
            self.needed = self.body_at
        else:
            raise BadAnswer("neither a content length nor chunks")
        return True


def dechunk(data: bytes, at: int) -> bytes | None:
    """The body of a chunked answer that starts at ``at``, or None while its end is missing."""
    parts: list[bytes] = []
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(data[at:line_end].split(b";", 1)[0], 16)
        start = line_end + 2
        if len(data) < start + size + 2:
            return None
        if size == 0:
            if len(data) > start + 2:
                raise BadAnswer("bytes after the last chunk")
            return b"".join(parts)
        parts.append(data[start : start + size])
        at = start + size + 2


def event_messages(body: bytes) -> list[bytes]:
    """The data of each server-sent event in a body, empty ones left out."""
    messages = []
    for event in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if data := b"\n".join(lines):
            messages.append(data)
    return messages
