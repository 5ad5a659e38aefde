"""The load generator's connections: send a request, read its answer, judge it, send the next."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import cast

from bench.exchange import OK, BulkExchange, Exchange
from bench.http_answers import AnswerReader, BadAnswer, HttpAnswer, header
from bench.load_run import LoadRun

FIRST_BUFFER = 1 << 20
LEARN_AT_MOST = 1000
"""Where every answer differs in its head, comparing with the last one is given up."""


class Caller:
    """What both kinds of connection do: the closed loop, without the reading."""

    transport: asyncio.Transport

    def __init__(self, run: LoadRun, exchange: Exchange | BulkExchange) -> None:
        self.run = run
        self.number = 0
        self.sent_at = 0
        self.request = exchange.request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.run.connections.add(self)
        self.send_next()

    def send_next(self) -> None:
        self.number = number = self.run.next_call()
        if not number:
            self.transport.close()
            return
        request = self.request(number)
        self.sent_at = perf_counter_ns()
        self.transport.write(request)

    def give_up(self, reason: str) -> None:
        self.run.call_lost(reason)
        self.number = 0
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.number:
            self.run.call_lost(f"connection closed before the answer ({exc})")
        self.run.closed(self)

    def overdue(self, now: int) -> None:
        if self.number and now - self.sent_at > self.run.plan.call_timeout * 1e9:
            self.give_up("no answer in time")


class CallConnection(Caller, asyncio.Protocol):
    """For small answers, plain or as event streams, whole or in chunks.

    Once an answer was read and judged right, its bytes with the number taken out are kept: the
    next one is right too when it is the same bytes with its own number. Only one that differs,
    if by no more than the date, is read and judged again.
    """

    def __init__(self, run: LoadRun, exchange: Exchange) -> None:
        super().__init__(run, exchange)
        self.judge = exchange.judge
        self.reader = AnswerReader()
        self.right = b"%d%d"
        self.learned = 0

    def data_received(self, data: bytes) -> None:
        number = self.number
        if data == self.right % (number, number):
            now = perf_counter_ns()
            run = self.run
            run.last_answer = now
            run.latencies.append(now - self.sent_at)
            self.send_next()
        else:
            self.read_answer(data)

    def read_answer(self, data: bytes) -> None:
        try:
            answer = self.reader.feed(data)
        except (BadAnswer, ValueError) as cause:
            self.give_up(f"unreadable answer: {cause}")
            return
        if answer is None:
            return
        if not self.number:
            self.give_up("an answer that nothing asked for")
            return
        now = perf_counter_ns()
        verdict = self.judge(self.number, answer)
        if verdict is OK and self.learned < LEARN_AT_MOST:
            self.learn(data, answer)
        self.run.answered(verdict, now, self.sent_at, answer.body)
        self.send_next()

    def learn(self, data: bytes, answer: HttpAnswer) -> None:
        mark = b"%d" % self.number
        whole = data == answer.head + answer.body
        if whole and data.count(mark) == answer.body.count(mark) == 2:
            self.right = data.replace(b"%", b"%%").replace(mark, b"%d")
            self.learned += 1


class BulkConnection(Caller, asyncio.BufferedProtocol):
    """For large answers that are all the same: read into one buffer, compared where they lie.

    Copying megabytes in Python would make the load generator the slowest part of the run.
    """

    def __init__(self, run: LoadRun, exchange: BulkExchange) -> None:
        super().__init__(run, exchange)
        self.exchange = exchange
        self.buffer = bytearray(FIRST_BUFFER)
        self.view = memoryview(self.buffer)
        self.filled = 0
        self.body_at = 0
        self.needed = 0
        self.status = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.view[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        if not self.needed:
            try:
                self.read_head()
            except (BadAnswer, ValueError) as cause:
                self.give_up(f"unreadable answer: {cause}")
                return
        if not self.needed or self.filled < self.needed:
            return
        now = perf_counter_ns()
        sample = bytes(self.view[self.body_at : self.body_at + 300])
        self.run.answered(self.judge(), now, self.sent_at, sample)
        self.filled = self.needed = 0
        self.send_next()

    def read_head(self) -> None:
        end = self.buffer.find(b"\r\n\r\n", 0, self.filled)
        if end < 0:
            return
        head = bytes(self.view[: end + 4]).lower()
        length = header(head, b"content-length")
        if length is None:
            raise BadAnswer("a large answer needs a content length")
        self.status = int(head[9:12])
        self.body_at = end + 4
        self.needed = self.body_at + int(length)
        if self.needed >= len(self.buffer):
            # One byte more, so that there is always room to read into.
            larger = bytearray(self.needed + 1)
            larger[: self.filled] = self.view[: self.filled]
            self.buffer, self.view = larger, memoryview(larger)

    def judge(self) -> str:
        if self.status != 200:
            return f"HTTP {self.status}"
        if self.filled > self.needed:
            return "bytes after the answer's end"
        pieces = self.exchange.expected(self.number)
        if pieces is None:
            return self.exchange.learn(self.number, bytes(self.view[self.body_at : self.needed]))
        at = self.body_at
        if self.needed - at != sum(map(len, pieces)):
            return "wrong length"
        for piece in pieces:
            if not self.buffer.startswith(piece, at):
                return "wrong bytes"
            at += len(piece)
        return OK
