"""A server to be started as a process, with every bad habit that an option can give it.

It reads a line, answers it, reads the next: what comes later was heard later. Standard library
only; `python -S` starts it in a few hundredths of a second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from toolbox import (  # type: ignore[import-not-found]
    STATELESS,
    Message,
    Send,
    Toolbox,
    ToolboxExit,
    error,
    notification,
    result,
    tool,
)

GARBAGE = (
    b"Listening on stdio...\n",
    b"\n",
    b"\xff\xfe\x00 not UTF-8 \xc3\n",
    b"[" * 50_000 + b"\n",
    b"42\n",
    b'"text"\n',
    b"null\n",
    b"[]\n",
    b'{"jsonrpc":"2.0"}\n',
    b'{"jsonrpc":"2.0","id":{},"result":{}}\n',
    b'{"jsonrpc":"2.0","id":1.5,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":"one","result":{}}\n',
    b'{"jsonrpc":"2.0","method":7}\n',
    b'{"jsonrpc":"2.0","method":"notifications/progress"}\n',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":[]}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/unheard/of","params":{}}\n',
    b'{"jsonrpc":"2.0","id":99999999999999999999999,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"What?"}}\n',
    b'{"half a line', b' in two writes"\r\n',
)  # fmt: skip


def write(data: bytes, fd: int = 1) -> None:
    while data:
        data = data[os.write(fd, data) :]


def send(message: Message) -> None:
    write(json.dumps(message).encode() + b"\n")


def sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


class StdioServer(Toolbox):
    """A toolbox with tools that need a process."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options.eras, revision=options.revision, announces=options.announces)
        self.options = options
        self.asked: dict[Any, tuple[Message, Send]] = {}
        self.replies: list[Message] = []
        self.family: list[int] = []
        self.late_probe: Message | None = None
        own = ("environ", "where", "family", "mute", "deaf", "twice", "strangers", "ask", "huge",
               "talk", "null", "batch", "pid", "wordless", "moody")  # fmt: skip
        self.tools += [tool(name) for name in own]  # type: ignore[has-type]
        if options.many:
            self.tools = [tool(f"tool_{number}") for number in range(options.many)]
        if options.pages:
            self.pages = json.loads(options.pages, object_hook=self._by_cursor)
        if options.entries:
            self.tools = json.loads(options.entries)

    @staticmethod
    def _by_cursor(members: dict[str, Any]) -> dict[str | None, Any]:
        return {None if key == "first" else key: value for key, value in members.items()}

    def receive(self, message: Message, reply: Send) -> None:
        options = self.options
        if message.get("method") == "server/discover":
            if options.probe == "ignore":
                return
            if options.probe == "late":
                self.late_probe = message
                return
            if options.probe == "exit":
                write(b"server/discover? Never heard of it.\n", 2)
                sys.exit(3)
        if message.get("method") == "initialize" and self.late_probe is not None:
            # As a server that handles requests concurrently: the refusal overtakes the answer.
            reply(error(message["id"], -32022, "Unsupported", {"supported": [STATELESS]}))
            message, self.late_probe = self.late_probe, None
        if options.garbage:
            write(b"".join(GARBAGE))
        if message.get("method") is None and message.get("id") in self.asked:
            self._answered(message)
        if message.get("method") == "tools/list" and options.changes_while_listing:
            options.changes_while_listing = False
            self._list_and_change(message)
            return
        super().receive(message, reply)

    def _list_and_change(self, message: Message) -> None:
        old = json.dumps(self._result(message, {"tools": self.tools}))
        self.lists += 1
        self.change("new")
        new = json.dumps(notification("notifications/tools/list_changed"))
        write(f"{old}\n{new}\n".encode())

    def _call(self, message: Message, name: str, arguments: Message, reply: Send) -> None:
        id = message["id"]
        if name == "environ":
            reply(self._text(message, json.dumps(dict(os.environ))))
        elif name == "where":
            reply(self._text(message, os.getcwd()))
        elif name == "pid":
            reply(self._text(message, str(os.getpid())))
        elif name == "family":
            reply(self._text(message, json.dumps(self.family)))
        elif name == "mute":
            os.close(1)
        elif name == "deaf":
            os.close(0)
            reply(self._text(message, "deaf now"))
            sleep_for_ever()
        elif name == "twice":
            reply(self._text(message, "first"))
            reply(self._text(message, "second"))
        elif name == "strangers":
            reply(result(id + 1000, {"content": []}))
            reply(error(id + 1001, -1, "no such call"))
            reply(result(str(id), {"content": []}))
            reply(self._text(message, "mine"))
        elif name == "ask":
            for method in ("ping", "sampling/createMessage", "roots/list"):
                own = f"ask-{method}"
                self.asked[own] = (message, reply)
                reply({"jsonrpc": "2.0", "id": own, "method": method, "params": {}})
        elif name == "huge":
            reply(self._text(message, "x" * arguments["size"]))
        elif name == "talk":
            write(b"I have a lot to say about this.\n" * arguments["lines"], 2)
            reply(self._text(message, "said"))
        elif name == "null":
            write(b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (id, arguments["as"].encode()))
        elif name == "moody":
            # It dies of its first call, and is fine in its next life.
            with open(self.options.starts, encoding="utf-8") as file:
                if len(file.readlines()) == 1:
                    raise ToolboxExit
            reply(self._text(message, "fine"))
        elif name == "wordless":
            write(b'{"jsonrpc":"2.0","id":%d}\n' % id)
        elif name == "batch":
            received = notification("notifications/tools/list_changed")
            batch = [received, self._text(message, "batched"), 7]
            write(json.dumps(batch).encode() + b"\n")
        else:
            super()._call(message, name, arguments, reply)

    def _answered(self, message: Message) -> None:
        self.replies.append(message)
        asker, reply = self.asked.pop(message["id"])
        if not self.asked:
            reply(self._text(asker, json.dumps(self.replies)))

    def adopt(self, *, own_session: bool) -> None:
        """Start a child process that keeps the pipes open and ignores SIGTERM."""
        program = "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        program += "while True: time.sleep(3600)"
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", program], start_new_session=own_session
        )
        self.family.append(child.pid)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--eras", default="both")
    parser.add_argument("--revision", default="2025-11-25")
    parser.add_argument("--announces", action="store_true")
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--probe", choices=("answer", "ignore", "exit", "late"), default="answer")
    parser.add_argument("--exit", type=int, help="end at once with this status")
    parser.add_argument("--say", default="", help="what to write to stderr at the start")
    parser.add_argument("--starts", help="a file to which every start adds a line")
    parser.add_argument("--gate", help="a named pipe to wait for")
    parser.add_argument("--silent", action="store_true", help="read, and never answer")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM and end of input")
    parser.add_argument("--grandchild", choices=("here", "own-session"))
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--pages")
    parser.add_argument("--entries")
    parser.add_argument("--changes-while-listing", action="store_true")
    options = parser.parse_args()

    if options.starts:
        with open(options.starts, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    write(options.say.encode(), 2)
    if options.gate:
        # Held up until somebody writes something there.
        with open(options.gate, encoding="utf-8") as gate:
            gate.read()
    if options.exit is not None:
        sys.exit(options.exit)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = StdioServer(options)
    if options.grandchild:
        server.adopt(own_session=options.grandchild == "own-session")
    if options.garbage:
        write(b"".join(GARBAGE))
    for line in sys.stdin.buffer:
        if options.silent:
            continue
        try:
            server.receive(json.loads(line), send)
        except ToolboxExit:
            os.kill(os.getpid(), signal.SIGKILL)
    if options.stubborn:
        sleep_for_ever()


if __name__ == "__main__":
    main()
