"""An MCP server for the tests of drivers: stdio, one of each kind of answer, and a memory.

    python driver_server.py [--heard FILE] [--offers tools,prompts,resources] [--down FILE]
        [--writes] [FOLDER]

What it hears is written into FILE, one line each, with a mark of its own by which two starts can
be told apart (numbers of processes cannot, where each has a world of its own). While the file of
`--down` is there it ends at once; with `--writes` its tools say that they change things. Only the
standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from typing import Any

BIRTH = os.urandom(8).hex()
PIXEL = "iVBORw0KGgo="
PROMPT = {
    "name": "summarize-document",
    "description": "Asks for a summary.",
    "arguments": [{"name": "about", "required": True}],
}


def schema(*required: str, **properties: str) -> dict[str, Any]:
    types = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": types, "required": list(required)}


SCHEMAS: dict[str, dict[str, Any]] = {
    "echo": schema("message", message="string"),
    "add": schema("a", "b", a="number", b="number"),
    "show": {"type": "object"},
    "plain": schema("text", text="string"),
    "image": schema(),
    "mixed": schema(said="string"),
    "wrong": schema("why", why="string"),
    "refuse": schema("why", why="string"),
    "slow": schema(),
    "release": schema(),
    "progress": schema("steps", steps="integer"),
    "crash": schema(),
    "environ": schema(),
    "dial": schema("host", "port", host="string", port="integer", say="string"),
    "note": schema("text", "file", text="string", file="string"),
    "drop": schema("name", name="string"),
    "restore": schema("name", name="string"),
    "forget": schema("name", name="string"),
}


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.offers = set(options.offers.split(","))
        self.tools = dict(SCHEMAS)
        self.prompts = [PROMPT, {"name": "another"}]
        self.waiting: list[Any] = []

    # -- speaking

    def send(self, message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def remember(self, message: dict[str, Any]) -> None:
        if self.options.heard:
            line = json.dumps({"birth": BIRTH, **message}) + "\n"
            with open(self.options.heard, "a", encoding="utf-8") as file:
                file.write(line)

    def take(self, message: dict[str, Any]) -> None:
        self.remember(message)
        method, id = message.get("method"), message.get("id")
        if method is None or id is None:
            return
        params = message.get("params") or {}
        try:
            answer = self.answer(method, params, id)
        except KeyError as missing:
            self.send({"id": id, "error": {"code": -32602, "message": f"No {missing}."}})
            return
        if answer is None:
            self.send({"id": id, "error": {"code": -32601, "message": f"No {method}."}})
        elif answer is not ...:
            self.send({"id": id, "result": answer})

    def answer(self, method: str, params: dict[str, Any], id: Any) -> Any:
        if method == "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {name: {"listChanged": True} for name in self.offers},
                "serverInfo": {"name": "driver-server", "version": "1"},
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [self.definition(name) for name in self.tools]}
        if method == "tools/call":
            return self.call(params["name"], params.get("arguments") or {}, params, id)
        if method == "prompts/list":
            return {"prompts": self.prompts}
        if method == "prompts/get":
            text = f"Summarize {params.get('arguments', {}).get('about')}."
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        if method == "resources/list":
            return {"resources": [{"uri": "memo://today", "name": "today"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "file:///{path}", "name": "files"}]}
        if method == "resources/read":
            return {"contents": [{"uri": params["uri"], "text": self.read(params["uri"])}]}
        return None

    def definition(self, name: str) -> dict[str, Any]:
        details: dict[str, Any] = {"name": name, "inputSchema": self.tools[name]}
        if self.options.writes:
            details["annotations"] = {"readOnlyHint": False}
        return details

    def read(self, uri: str) -> str:
        if not uri.startswith("file://"):
            return "nothing to do"
        with open(uri.removeprefix("file://"), encoding="utf-8") as file:
            return file.read()

    # -- tools

    def call(self, name: str, given: dict[str, Any], params: dict[str, Any], id: Any) -> Any:
        if name not in self.tools:
            raise KeyError(name)
        return getattr(self, f"do_{name}")(given, params, id)

    def do_echo(self, given: dict[str, Any], *_: Any) -> Any:
        return text(json.dumps({"said": given["message"], "birth": BIRTH}))

    def do_add(self, given: dict[str, Any], *_: Any) -> Any:
        total = given["a"] + given["b"]
        return {**text(str(total)), "structuredContent": {"sum": total, "parts": [given]}}

    def do_show(self, given: dict[str, Any], params: dict[str, Any], _: Any) -> Any:
        details = {"arguments": given, "meta": params.get("_meta"), "birth": BIRTH}
        return {**text(""), "structuredContent": details}

    def do_plain(self, given: dict[str, Any], *_: Any) -> Any:
        return text(given["text"])

    def do_image(self, *_: Any) -> Any:
        return {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}

    def do_mixed(self, given: dict[str, Any], *_: Any) -> Any:
        picture = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
        link = {"type": "resource_link", "uri": "file:///drawing.png", "name": "drawing"}
        if "said" in given:
            return {"content": [*text(json.dumps(given))["content"], picture, link]}
        return {"content": [picture, *text("A drawing.")["content"], link]}

    def do_wrong(self, given: dict[str, Any], *_: Any) -> Any:
        return {**text(given["why"]), "isError": True}

    def do_refuse(self, given: dict[str, Any], _: Any, id: Any) -> Any:
        self.send({"id": id, "error": {"code": -32001, "message": given["why"]}})
        return ...

    def do_slow(self, _: Any, __: Any, id: Any) -> Any:
        self.waiting.append(id)
        return ...

    def do_release(self, *_: Any) -> Any:
        waiting, self.waiting = self.waiting, []
        for id in waiting:
            self.send({"id": id, "result": text('{"said": "at last"}')})
        return text(str(len(waiting)))

    def do_progress(self, given: dict[str, Any], params: dict[str, Any], _: Any) -> Any:
        token = (params.get("_meta") or {}).get("progressToken")
        for step in range(1, given["steps"] + 1):
            details = {"progressToken": token, "progress": step, "total": given["steps"]}
            if token is not None:
                self.send({"method": "notifications/progress", "params": details})
        return text('{"said": "done"}')

    def do_crash(self, *_: Any) -> Any:
        os._exit(1)

    def do_environ(self, *_: Any) -> Any:
        details = {"environ": dict(os.environ), "argv": sys.argv, "birth": BIRTH}
        return {**text(""), "structuredContent": details}

    def do_dial(self, given: dict[str, Any], *_: Any) -> Any:
        try:
            with socket.create_connection((given["host"], given["port"]), 5) as line:
                line.sendall(given.get("say", "").encode())
                if "say" not in given:
                    line.shutdown(socket.SHUT_WR)
                details = {"got": line.recv(1000).decode()}
        except OSError as error:
            details = {"failed": type(error).__name__}
        return {**text(""), "structuredContent": details}

    def do_note(self, given: dict[str, Any], *_: Any) -> Any:
        with open(given["file"], "a", encoding="utf-8") as file:
            file.write(given["text"] + "\n")
        return text('{"said": "noted"}')

    def do_drop(self, given: dict[str, Any], *_: Any) -> Any:
        self.tools.pop(given["name"], None)
        self.send({"method": "notifications/tools/list_changed"})
        return text("{}")

    def do_restore(self, given: dict[str, Any], *_: Any) -> Any:
        self.tools[given["name"]] = SCHEMAS[given["name"]]
        self.send({"method": "notifications/tools/list_changed"})
        return text("{}")

    def do_forget(self, given: dict[str, Any], *_: Any) -> Any:
        self.prompts = [prompt for prompt in self.prompts if prompt["name"] != given["name"]]  # type: ignore[index]
        self.send({"method": "notifications/prompts/list_changed"})
        return text("{}")


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heard")
    parser.add_argument("--offers", default="tools")
    parser.add_argument("--down")
    parser.add_argument(
        "--writes", action="store_true", help="its tools say that they change things"
    )
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    if options.down and os.path.exists(options.down):
        sys.exit(3)
    server = Server(options)
    for line in sys.stdin:
        server.take(json.loads(line))


if __name__ == "__main__":
    main()
