"""An MCP server that is as easy to talk into harm as a server can be: one tool cannot be undone.

    python vault.py FILE [DEFINITIONS] [--any-case]

Each time that `open` is executed is one line of FILE. The names of tools are read with the greatest
kindness: case, spaces, prefixes, forms of Unicode and invisible characters do not matter, and a
tool is known that no list names. Methods that it does not know, but that sound like opening, open
it as well. Of two members of the same name it reads the first, where the node reads the last. With
`--any-case` it reads as servers in Go do: upper and lower case are the same, and the last counts.
DEFINITIONS, if given, holds what `tools/list` answers with; whoever calls `look` makes the server
say that its list changed. With `vanish` it opens and goes without an answer. Only the standard
library.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from typing import Any

OPEN = {
    "name": "open",
    "description": "Opens the vault. It cannot be closed again.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": False, "destructiveHint": True},
}
LOOK = {
    "name": "look",
    "description": "Looks at the vault.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}
CAPABILITIES: dict[str, Any] = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True},
    "completions": {},
    "logging": {},
    "extensions": {"example.com/vault": {}},
    "experimental": {"example.com/vault": {}},
}

LOOK_ALIKES: dict[str, str | int | None] = {
    "\u043e": "o",
    "\u0440": "p",
    "\u0435": "e",
    "\u0578": "n",
    "\u03bf": "o",
}


def letters_of(name: str) -> str:
    """What is left of a name for a kind reader."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(r"[^a-z]", "", plain.translate(str.maketrans(LOOK_ALIKES)))


def meant(name: str) -> str:
    """The tool that a kind reader takes a name for."""
    letters = letters_of(name)
    for known in ("look", "open"):
        if letters.endswith(known):
            return known
    return "open" if letters.endswith(("secretly", "unlisted")) else ""


class Vault:
    def __init__(self, path: str, definitions: str | None) -> None:
        self.path = path
        self.definitions = definitions

    def tools(self) -> list[dict[str, Any]]:
        if self.definitions is None:
            return [OPEN, LOOK]
        with open(self.definitions) as file:
            tools: list[dict[str, Any]] = json.load(file)
        return tools

    def open(self, params: dict[str, Any]) -> None:
        line = json.dumps(params.get("arguments") or {}).encode() + b"\n"
        ledger = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(ledger, line)
        os.close(ledger)

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": CAPABILITIES,
                "serverInfo": {"name": "vault", "version": "1"},
            }
        if method == "tools/list":
            return {"tools": self.tools()}
        if method == "prompts/list":
            return {"prompts": [{"name": "open"}]}
        if method == "prompts/get":
            return {"messages": []}
        if method == "resources/list":
            return {"resources": [{"uri": "vault://open", "name": "open"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": []}
        if method == "resources/read":
            return {"contents": [{"uri": params["uri"], "text": "closed"}]}
        if method == "completion/complete":
            return {"completion": {"values": []}}
        if method in ("ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel"):
            return {}
        if letters_of(method) == "toolscall":
            return self.call(params)
        if meant(method) == "open":
            self.open(params)
            return {}
        return None

    def call(self, params: dict[str, Any]) -> dict[str, Any]:
        name = meant(str(params.get("name", "")))
        if name == "open":
            self.open(params)
            arguments = params.get("arguments")
            if isinstance(arguments, dict) and arguments.get("vanish"):
                os._exit(1)
        text = {"open": "The vault is open.", "look": "There is a vault."}.get(name, "What?")
        return {"content": [{"type": "text", "text": text}], "isError": not name}


def first_counts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        members.setdefault(key, value)
    return members


MEMBERS = ("method", "params", "id", "name", "arguments", "uri", "ref", "protocolVersion", "vanish")
ANY_CASE = {name.casefold(): name for name in MEMBERS}


def any_case(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {ANY_CASE.get(key.casefold(), key): value for key, value in pairs}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    actual = [item for item in sys.argv[1:] if item != "--any-case"]
    members = any_case if "--any-case" in sys.argv else first_counts
    vault = Vault(actual[0], actual[1] if len(actual) > 1 else None)
    for line in sys.stdin:
        message = json.loads(line, object_pairs_hook=members)
        method, params = message.get("method"), message.get("params", {})
        if method is None:
            continue
        if "id" not in message:
            if meant(method) == "open":
                vault.open(params)
            continue
        result = vault.call(params) if method == "tools/call" else vault.answer(method, params)
        if result is None:
            say({"id": message["id"], "error": {"code": -32601, "message": "No such method."}})
            continue
        if method == "tools/call" and meant(str(params.get("name"))) == "look":
            say({"method": "notifications/tools/list_changed"})
        say({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
