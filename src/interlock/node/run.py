"""A node under way: started from its config, kept by it, and ended by signals.

SIGTERM and SIGINT end it in order, and a second SIGINT at once. SIGHUP and a changed file make it
read its config again: only what changed is touched, and a bad file changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from interlock.config import Config, ConfigChange
from interlock.errors import InterlockError
from interlock.node.node import Node
from interlock.node.watch import FileWatch

_log = logging.getLogger("interlock.node")

FORCED_EXIT = 130


class NodeRun:
    """One run of a node, from `start` to `stop`."""

    def __init__(
        self, load: Callable[[], Config], *, base_dir: Path, watched: Path | None = None
    ) -> None:
        """`load` reads the config anew; `watched` is the file that it comes from."""
        self.config_problem: str | None = None
        """Why the config as it stands now is not the one that runs; None when it is."""
        self.stopping = asyncio.Event()
        self._load = load
        self._base_dir = base_dir
        # Watched before it is read: a change in between is then not missed.
        self._watch = None if watched is None else FileWatch(watched)
        self._node: Node | None = None
        self._reload_asked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def node(self) -> Node:
        if self._node is None:
            raise RuntimeError("the run has not started")
        return self._node

    async def start(self) -> Node:
        """Open the faces and begin to connect. Raises InterlockError, with nothing left over."""
        self._node = node = Node(self._load(), base_dir=self._base_dir)
        try:
            await node.listen()
            node.start()
            await self._listen_locally(node)
        except BaseException:
            await node.stop()
            raise
        self._heed_signals()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._keep_config(), name="config"))
        if self._watch is not None:
            self._tasks.append(loop.create_task(self._watch_config(self._watch), name="watch"))
        return node

    async def stop(self) -> None:
        """End everything. Returns when nothing of the node is left."""
        self.stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.node.stop()

    @staticmethod
    async def _listen_locally(node: Node) -> None:
        try:
            await node.listen_locally()
        except OSError as error:
            # The node is of use without it: only `interlock stdio` and its like do not find it.
            _log.warning("no local socket, so other commands do not find this node: %s", error)

    # -- signals

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stopping.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGHUP, self._reload_asked.set)

    def _interrupted(self) -> None:
        if not self.stopping.is_set():
            self.stopping.set()
            # Asked now: while the node stops it forgets whom it started.
            started = [one.pid for one in self.node.status().upstreams if one.pid is not None]
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, lambda: _end_at_once(started))

    # -- the config

    async def _watch_config(self, watch: FileWatch) -> None:
        async for _ in watch.changes():
            self._reload_asked.set()

    async def _keep_config(self) -> None:
        while True:
            await self._reload_asked.wait()
            self._reload_asked.clear()
            try:
                change = await self.node.apply(self._load())
            except InterlockError as error:
                self.config_problem = error.message
                _log.error("the config cannot be used, the node goes on as it was: %s", error)
            except Exception as bug:
                self.config_problem = f"The node failed while reloading ({type(bug).__name__})."
                _log.exception("reloading failed inside the node")
            else:
                self.config_problem = _waiting(change)
                _log.info("config reloaded: %s", describe(change))


def describe(change: ConfigChange) -> str:
    """What a reload did, in one line."""
    relinked = change.relinked
    parts = {
        "started": change.added,
        "ended": change.removed,
        "restarted": relinked,
        "changed without a restart": tuple(key for key in change.changed if key not in relinked),
        "settings applied": change.live,
        "waiting for a new start": change.restart,
    }
    said = [f"{what} {', '.join(names)}" for what, names in parts.items() if names]
    return "; ".join(said) or "nothing changed"


def _waiting(change: ConfigChange) -> str | None:
    if not change.restart:
        return None
    return f"{', '.join(change.restart)} changed: that takes a new start of the node."


def _end_at_once(started: list[int]) -> None:
    """Leave now, and take every started process along."""
    for pid in started:
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # It ended by itself in the meantime.
            continue
    os._exit(FORCED_EXIT)
