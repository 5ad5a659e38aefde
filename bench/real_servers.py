"""Real tools: public MCP servers from npm and PyPI, installed for a moment and listed over stdio.

Nothing of them is kept but the lists, in the cache folder that the caller names, and nothing is
committed. No install script of theirs runs. A server is listed with made-up credentials and, where
this user may, without a network: its list needs neither. Whatever cannot be had is left out and
named; the time for all of it is bounded.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench.processes import end_group
from bench.real_server_table import SERVERS, RealServer
from bench.report import note

INSTALLING_S = 150.0
LISTING_S = 45.0
ALTOGETHER_S = 1_500.0
WORKERS = 2


class Listed(msgspec.Struct):
    """What one server was found to offer."""

    server: str
    package: str
    tools: list[dict[str, Any]]


class NotListed(Exception):
    """This server cannot be had here; the message says why."""


def list_real_tools(most: int, cache: Path) -> list[dict[str, Any]]:
    """Up to so many real tools, each as ``{"server": its server's name, "tool": its definition}``.

    They come in the table's order, whole servers first; the cache makes it the same ones again.
    """
    found: list[dict[str, Any]] = []
    for listed in list_real_servers(most, cache):
        found += [{"server": listed.server, "tool": tool} for tool in listed.tools]
    return found[:most]


def list_real_servers(most: int, cache: Path) -> list[Listed]:
    """Servers with so many tools together, or all that could be had in the time there is."""
    cache.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + ALTOGETHER_S
    found: dict[str, Listed] = {}
    with ThreadPoolExecutor(WORKERS) as workers:
        waiting = list(SERVERS)
        while waiting and count(found) < most and time.monotonic() < until:
            some, waiting = waiting[: WORKERS * 2], waiting[WORKERS * 2 :]
            for server, listed in zip(
                some, workers.map(lambda each: had(each, cache), some), strict=True
            ):
                if isinstance(listed, Listed):
                    found[server.name] = listed
                else:
                    note(f"{server.name} is left out: {listed}")
    return [found[server.name] for server in SERVERS if server.name in found]


def count(found: dict[str, Listed]) -> int:
    return sum(len(listed.tools) for listed in found.values())


def had(server: RealServer, cache: Path) -> Listed | str:
    """The server's list, from the cache or live; or why there is none."""
    kept = cache / f"{server.name}.json"
    try:
        listed = msgspec.json.decode(kept.read_bytes(), type=Listed)
        if listed.package == server.package:
            return listed
    except (OSError, msgspec.DecodeError):
        pass  # not there, or of an older shape: it is listed anew
    try:
        with tempfile.TemporaryDirectory(
            prefix="interlock-real-", ignore_cleanup_errors=True
        ) as folder:
            tools = list_over_stdio(installed(server, Path(folder)), server, Path(folder))
    except NotListed as why:
        return str(why)
    listed = Listed(server.name, server.package, tools)
    kept.write_bytes(msgspec.json.encode(listed))
    return listed


def installed(server: RealServer, folder: Path) -> list[str]:
    """Put the package into the folder; the command that starts it."""
    if server.source == "npm":
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise NotListed("npm and node are not installed")
        quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
        attempt(["npm", "install", *quiet, "--prefix", str(folder), server.package])
        script = folder / "node_modules" / ".bin" / (server.program or npm_program(server, folder))
        command = ["node", str(script)]
    else:
        attempt([sys.executable, "-m", "venv", str(folder / "venv")])
        script = folder / "venv" / "bin" / server.program
        python = str(folder / "venv" / "bin" / "python")
        attempt([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:",
                 server.package])  # fmt: skip
        command = [python, str(script)]
    if not script.exists():
        raise NotListed(f"{server.package} has no program {server.program}")
    if is_native(script):
        command = [str(script)]
    return [*command, *server.arguments]


def npm_program(server: RealServer, folder: Path) -> str:
    """What the package says that it is started by."""
    name = server.package.rpartition("@")[0]
    about = msgspec.json.decode((folder / "node_modules" / name / "package.json").read_bytes())
    named = about.get("bin") or {}
    return name.rpartition("/")[2] if isinstance(named, str) else next(iter(named), "none")


def is_native(script: Path) -> bool:
    """A program that is no script of its language, or one with another interpreter."""
    with script.open("rb") as opened:
        first = opened.read(64)
    return first.startswith(
        (b"\x7fELF", b"#!/bin/sh", b"#!/usr/bin/env sh", b"#!/usr/bin/env bash")
    )


def attempt(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING_S)
    except subprocess.TimeoutExpired:
        raise NotListed("it takes too long to install") from None
    if done.returncode != 0:
        raise NotListed(f"it cannot be installed: {done.stderr.strip()[-200:]}")


def without_network(command: list[str]) -> list[str]:
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        return command
    return [unshare, "--net", *command]


def list_over_stdio(command: list[str], server: RealServer, folder: Path) -> list[dict[str, Any]]:
    """Every page of its ``tools/list``, asked as a client of the session era does."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        **{name: value.replace("HOME", str(home)) for name, value in server.environment.items()},
    }
    command = [part.replace("HOME", str(home)) for part in without_network(command)]
    with Conversation(command, environment, home) as talk:
        talk.ask("initialize", {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "interlock-bench", "version": "1"},
        })  # fmt: skip
        talk.tell("notifications/initialized")
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(200):
            page = talk.ask("tools/list", {} if cursor is None else {"cursor": cursor})
            tools += page.get("tools", [])
            cursor = page.get("nextCursor")
            if not cursor:
                break
    if not tools:
        raise NotListed("it lists no tools")
    return tools


class Conversation:
    """JSON-RPC lines with one child process, with a limit on the whole of it."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._until = time.monotonic() + LISTING_S
        self._number = 0
        self._unread = b""
        self._errors = folder / "stderr.log"
        with self._errors.open("wb") as errors:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=environment, cwd=folder, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                with suppress(
                    OSError
                ):  # what it did not read, because it ended, is still to be sent
                    stream.close()
        end_group(self._child, patience=1.0)
        return False

    def tell(self, method: str) -> None:
        self._write({"jsonrpc": "2.0", "method": method})

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        self._write({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while True:
            line = self._line()
            try:
                message = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # some print to their standard output before they speak
            if isinstance(message, dict) and message.get("id") == self._number:
                if "result" in message:
                    return dict(message["result"])
                if "error" in message:
                    raise NotListed(f"{method} is answered with {message['error']}"[:200])

    def _write(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(msgspec.json.encode(message) + b"\n")
            self._child.stdin.flush()
        except OSError:
            raise NotListed(f"it ended: {self._last_words()}") from None

    def _line(self) -> bytes:
        assert self._child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = self._until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise NotListed(f"it does not answer: {self._last_words()}")
                more = os.read(self._child.stdout.fileno(), 1 << 16)
                if not more:
                    raise NotListed(f"it ended: {self._last_words()}")
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        return self._errors.read_text(errors="replace").strip()[-200:]
