"""One run of a node: start, reload of the config, and stop by signals.

SIGTERM and SIGINT stop it in order; a second SIGINT stops it at once. A changed config file is
reloaded: only what changed is touched, and an invalid file changes nothing. SIGHUP does the same,
except for a node that was started from a terminal: then it means that the terminal was closed, and
stops the node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from interlock.app.file_watch import FileWatch
from interlock.app.garbage_collector import GarbageCollector
from interlock.app.node import Node
from interlock.core.catalog.offering import Offering
from interlock.core.config import Config, ConfigChange, Problem, diff
from interlock.core.instance_lock import StateLock
from interlock.core.paths import state_dir, status_path
from interlock.errors import InterlockError
from interlock.terminal.forced_exit import exit_now

_log = logging.getLogger("interlock.node")

MAX_CONNECT_SECONDS: Final = 10.0
REGISTER_DELAY_SECONDS: Final = 3.0
"""The maximum time to wait for upstreams before the node registers with a parent, which would
otherwise list no tools of it at first."""
TOOL_CHECK_DELAY_SECONDS: Final = 0.5
"""The delay after a change of tools before names in the config are checked. Lists of tools change
in bursts."""
STOP_TIMEOUT_SECONDS: Final = 20.0
"""Longer than any part of a node takes to stop in order."""


async def _register(node: Node) -> None:
    await node.until_settled(REGISTER_DELAY_SECONDS)
    node.on_settled()


class NodeRun:
    """One run of a node, from `start` to `stop`."""

    def __init__(
        self,
        load: Callable[[], Config],
        *,
        base_dir: Path,
        config_path: Path | None = None,
        listens: bool = True,
        find_warnings: Callable[[Config], Iterable[Problem]] = lambda _: (),
        find_tool_warnings: Callable[
            [Config, Sequence[Offering]], Iterable[Problem]
        ] = lambda *_: (),
    ) -> None:
        """
        Args:
            load: reads the config again.
            config_path: the file that the config comes from.
            listens: False for a node without HTTP and sockets; its owner passes messages to it.
            find_warnings: returns warnings about a valid config.
            find_tool_warnings: the same, after upstreams have listed their tools.
        """
        self.config_problem: str | None = None
        """Why the current config file is not in use. None if it is."""
        self.stopping = asyncio.Event()
        self._load = load
        self._find_warnings = find_warnings
        self._logged_warnings: frozenset[tuple[str, str]] = frozenset()
        """The warnings that were logged for the current config."""
        self._find_tool_warnings = find_tool_warnings
        self._logged_tool_warnings: set[tuple[str, str]] = set()
        self._tools_changed = asyncio.Event()
        self._base_dir = base_dir
        self._listens = listens
        # Watched before it is read, so that no change is missed.
        self._watch = (
            None
            if config_path is None
            else FileWatch(config_path, on_missing=self._on_config_missing)
        )
        self._node: Node | None = None
        self._start_config = Config()
        self._pending_fields: tuple[str, ...] = ()
        """Fields that changed since the start and need a restart."""
        self._reload_requested = asyncio.Event()
        self._reloading = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._status: asyncio.Server | None = None
        self._status_path: Path | None = None
        self._lock: StateLock | None = None
        self._collector: GarbageCollector | None = None

    @property
    def node(self) -> Node:
        if self._node is None:
            raise RuntimeError("the run has not started")
        return self._node

    async def start(self) -> Node:
        """Open the listeners and begin to connect. Raises InterlockError, after cleaning up."""
        # First, because a signal during the start must stop what was started.
        self._install_signal_handlers()
        self._start_config = config = self._load()
        if self._listens:
            self._lock = StateLock(state_dir(config, os.environ, self._base_dir))
        try:
            self._node = node = Node(config, base_dir=self._base_dir)
        except BaseException:
            self._unlock()
            raise
        try:
            if self._listens:
                await node.listen()
            node.start()
            if self._listens:
                await self._listen_locally(node)
            else:
                await self._open_approval_socket(node)
        except BaseException:
            self._close_status()
            await node.stop()
            self._unlock()
            raise
        self._log_warnings(self._find_warnings(config))
        loop = asyncio.get_running_loop()
        if self._listens:
            # A node that only serves one client on stdio does not register as another child.
            self._tasks.append(loop.create_task(_register(node), name="register"))
        self._tasks.append(loop.create_task(self._reload_on_request(), name="config"))
        node.catalog.on_change(lambda _: self._tools_changed.set())
        self._tasks.append(loop.create_task(self._check_tools(node), name="tool names"))
        if self._watch is not None:
            self._tasks.append(loop.create_task(self._watch_config(self._watch), name="watch"))
        self._tasks.append(loop.create_task(self._start_collector(node), name="collector"))
        return node

    async def _start_collector(self, node: Node) -> None:
        """Configure the garbage collector once everything is started."""
        await node.until_settled(MAX_CONNECT_SECONDS)
        self._collector = GarbageCollector(asyncio.get_running_loop().call_later)
        self._collector.start()

    async def stop(self) -> None:
        """Stop everything. Returns when nothing of the node is left."""
        self.stopping.set()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                # Wait for a reload under way: half of one would leave resources open.
                async with self._reloading:
                    for task in self._tasks:
                        task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                if self._collector is not None:
                    self._collector.stop()
                self._close_status()
                await self.node.stop()
                self._unlock()
        except TimeoutError:
            _log.error("node: not stopped within %g s, exiting now", STOP_TIMEOUT_SECONDS)
            exit_now()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def _listen_locally(self, node: Node) -> None:
        try:
            socket = await node.listen_locally()
            path = status_path(socket)
            path.unlink(missing_ok=True)
            self._status = await asyncio.get_running_loop().create_unix_server(
                lambda: _StatusServer(node), path=str(path)
            )
            path.chmod(0o600)
            self._status_path = path
        except (OSError, InterlockError) as error:
            # The node works without it, but `interlock stdio` and similar commands do not find it.
            _log.warning(
                "local socket: cannot open it, so other commands do not find this node: %s", error
            )

    @staticmethod
    async def _open_approval_socket(node: Node) -> None:
        try:
            await node.listen_for_people()
        except (OSError, InterlockError) as error:
            _log.warning(
                "local socket: cannot open it, so pending calls cannot be approved: %s", error
            )

    def _close_status(self) -> None:
        if self._status is not None:
            self._status.close()
        if self._status_path is not None:
            self._status_path.unlink(missing_ok=True)

    # -- signals

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stopping.set)
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        if not has_terminal():
            loop.add_signal_handler(signal.SIGHUP, self._reload_requested.set)
        elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # The terminal was closed. With nohup, SIGHUP is ignored.
            loop.add_signal_handler(signal.SIGHUP, self.stopping.set)

    def _on_interrupt(self) -> None:
        if self.stopping.is_set():
            exit_now()
        self.stopping.set()

    # -- the config

    async def _watch_config(self, watch: FileWatch) -> None:
        async for _ in watch.changes():
            self._reload_requested.set()

    async def _reload_on_request(self) -> None:
        while True:
            await self._reload_requested.wait()
            self._reload_requested.clear()
            async with self._reloading:
                await self._reload()

    async def _reload(self) -> None:
        try:
            # In a thread: a long file must not delay calls.
            config = await asyncio.to_thread(self._load)
            change = await self.node.apply(config)
        except InterlockError as error:
            self.config_problem = error.message
            _log.error("config: invalid, the previous config stays in use: %s", error)
        except Exception as error:
            self.config_problem = (
                f"Internal error of the reload ({type(error).__name__}). See the log of the node."
            )
            _log.exception("config: reload failed with an internal error")
        else:
            _log.info("config: reloaded: %s", describe_change(change))
            self._log_warnings(await asyncio.to_thread(self._find_warnings, config))
            self._tools_changed.set()
            pending_fields = diff(self._start_config, config).restart
            self.config_problem = _describe_restart(pending_fields)
            if pending_fields and pending_fields != self._pending_fields:
                _log.warning("config: %s", self.config_problem)
            self._pending_fields = pending_fields

    def _log_warnings(self, find_warnings: Iterable[Problem]) -> None:
        """Log each new warning once, whatever its line number, and again only after it was gone."""
        problems = {(problem.path, problem.message): problem for problem in find_warnings}
        for key, problem in problems.items():
            if key not in self._logged_warnings:
                _log.warning("config: %s", problem)
        self._logged_warnings = frozenset(problems)

    async def _check_tools(self, node: Node) -> None:
        """Log names in the config that match no tool, whenever tools or the config change."""
        checked = None
        while True:
            config, offerings = node.config, node.catalog.offerings
            # In a thread: a long list must not delay calls.
            problems = await asyncio.to_thread(self._find_tool_warnings, config, offerings)
            listed = {(problem.path, problem.message): problem for problem in problems}
            if config is not checked:
                # A problem that was corrected and returns is logged again.
                self._logged_tool_warnings &= listed.keys()
                checked = config
            for key, problem in listed.items():
                if key not in self._logged_tool_warnings:
                    _log.warning("config: %s", problem)
            self._logged_tool_warnings |= listed.keys()
            await self._tools_changed.wait()
            await asyncio.sleep(TOOL_CHECK_DELAY_SECONDS)
            self._tools_changed.clear()

    def _on_config_missing(self) -> None:
        _log.warning(
            "config: the file is missing. The previous config stays in use until the file returns."
        )


class _StatusServer(asyncio.Protocol):
    """Sends the status of the node to a client and closes the connection. Only its own user can
    connect."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        out = cast("asyncio.WriteTransport", transport)
        out.write(msgspec.json.encode(self._node.report().document()))
        out.close()


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal as its input or output."""
    for fd in (0, 1):
        try:
            os.tcgetpgrp(fd)
        except OSError:
            # No terminal, or not our controlling terminal.
            continue
        return True
    return False


def describe_change(change: ConfigChange) -> str:
    """Describe the effects of a reload in one line."""
    restarted = change.reconnect
    parts = {
        "started": change.added,
        "stopped": change.removed,
        "restarted": restarted,
        "changed without a restart": tuple(key for key in change.changed if key not in restarted),
        "settings changed:": change.live,
    }
    parts_text = [f"{label} {', '.join(names)}" for label, names in parts.items() if names]
    default = "nothing to apply" if change.restart else "nothing changed"
    return "; ".join(parts_text) or default


def _describe_restart(fields: tuple[str, ...]) -> str | None:
    if not fields:
        return None
    return f"{' and '.join(fields)} changed in the config. Restart the node to apply this."
