"""A server in somebody else's tree, in the foreground: a node without a door that stands for it.

It says when it is registered and when it is not, and ends when told to, with a goodbye.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from interlock.cli import log_lines, say
from interlock.config import Config, ParentConfig, ServerConfig, SubserversConfig
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.faces.ax.refusal import advice
from interlock.faces.ax.registrant import Registrant
from interlock.faces.ax.standing import State
from interlock.node.alone import alone
from interlock.node.node import Node
from interlock.node.places import state_home
from interlock.node.run import end_at_once
from interlock.upstreams.supervisor import State as ServerState


async def stay_joined(name: str, server: ServerConfig, parent: ParentConfig) -> None:
    """Keep a server registered until a signal comes. Raises InterlockError when it cannot be
    started, or is not wanted."""
    log_lines.log_to_stderr(logging.WARNING)
    # How it stands with the parent is told in words of our own; and why the server cannot be
    # started, which is the end.
    for name_of_log in ("interlock.faces.ax", "interlock.node", "interlock.upstreams"):
        logging.getLogger(name_of_log).setLevel(logging.ERROR)
    folder = _folder(parent)
    config = Config(
        listen="127.0.0.1:0",
        servers={name: replace(server, segment=parent.segment)},
        subservers=SubserversConfig(enabled=False),
        parent=parent,
        state_dir=str(folder),
    )
    otherwise = "end that one first, or choose another --segment"
    with alone(folder / "join.lock", parent.segment, parent.url, otherwise=otherwise):
        stopping = _heed_signals()
        node = Node(config, base_dir=Path.cwd(), leaf=True)
        try:
            node.start()
            await _first_of(stopping, _until_ready(node, name))
            if not stopping.is_set():
                # From now on it is started again when it fails, and somebody may want to know.
                logging.getLogger("interlock.upstreams").setLevel(logging.WARNING)
                node.register()
                await _first_of(
                    stopping, _Telling(node, backed=bool(parent.backup)).until_refused()
                )
        finally:
            registrant = node.tree.registrant
            left = registrant is not None and registrant.state is State.REGISTERED
            await node.stop()
            if left and registrant is not None:
                say.note(f"left {registrant.url}")


async def _until_ready(node: Node, name: str) -> None:
    """Wait for the server's first list. Raises InterlockError when there is none to be had."""
    supervisor = node.supervisor(name)
    await supervisor.until_settled()
    if supervisor.state is ServerState.FAILED:
        raise InterlockError(
            UPSTREAM_UNAVAILABLE, supervisor.problem or f"{name} cannot be reached."
        )


class _Telling:
    """Tells a person how it stands with the parent."""

    def __init__(self, node: Node, *, backed: bool) -> None:
        """`backed`: there are other parents to be tried before a refusal is the end."""
        registrant = node.tree.registrant
        assert registrant is not None
        self._node = node
        self._backed = backed
        self._registrant = registrant
        # A person or a script is there to hear of it, and can do something about it.
        registrant.stubborn = False
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told = ""

    async def until_refused(self) -> None:
        """Raises InterlockError when the parent does not want it, at first or any more."""
        self._registrant.on_state = self._moved
        self._moved(self._registrant)
        await self._refused

    def _moved(self, registrant: Registrant) -> None:
        if registrant.state is State.REGISTERED:
            tools = len(self._node.catalog.current.tools)
            print(
                f"registered as {registrant.assigned_segment} at {registrant.url}; "
                f"{tools} {'tool' if tools == 1 else 'tools'}",
                flush=True,
            )
            self._told = ""
        problem = registrant.problem
        if problem is None:
            return
        said = say.printable(f"{problem.message} {advice(problem)}".strip())
        if registrant.state is State.ENDED and not self._refused.done():
            whole = said if registrant.url in said else f"{registrant.url}: {said}"
            self._refused.set_exception(InterlockError(problem.failure, whole))
        elif registrant.state is State.WAITING and said != self._told:
            if not registrant.refused or self._backed:
                say.note(f"{said} Trying again until Ctrl-C.")
            self._told = said


def _folder(parent: ParentConfig) -> Path:
    """The state folder of a server at a parent: its id there is kept in it."""
    place = blake2b(f"{parent.url} {parent.segment}".encode(), digest_size=6).hexdigest()
    return state_home(os.environ) / "join" / f"{parent.segment}-{place}"


def _heed_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stopping.is_set():
            end_at_once()
        stopping.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, stopping.set)
    return stopping


async def _first_of(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Until the work is done or has failed, or somebody wants it to end."""
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopped.cancel()
        working.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)
