"""One driver of the workspace: how it stands, and its server while that runs.

The server is started by the first call that needs it, is kept while it is used, and ends when
nobody has used it for a while. Whenever it lists its tools, they are held against the contracts
that the driver promises to serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import Raw, Struct

from interlock.call import Call, ClientSession, UpstreamGoneError
from interlock.catalog.drivers.binding import check_listed
from interlock.catalog.drivers.resolver import Standing
from interlock.catalog.drivers.translating import BoundEntry
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError, ProtocolError
from interlock.manifests.driver import DriverManifest, Implements
from interlock.manifests.tool import ToolContract
from interlock.ports import Back, Clock, Exchange
from interlock.protocol.jsonrpc import decode_value
from interlock.upstreams.drivers.health import Health
from interlock.upstreams.drivers.waking import WakingExchange
from interlock.upstreams.supervisor import Supervisor

_log = logging.getLogger("interlock.drivers")

RETRY_FIRST: Final = 0.5
RETRY_AT_MOST: Final = 30.0
"""Between two attempts to reach a server, from the first to the longest pause."""
_MOST_WARNINGS: Final = 50


class Binding(Struct):
    """A contract that the driver serves, and what is wrong with that."""

    contract: ToolContract
    entry: Implements
    bound: BoundEntry
    wrong: tuple[str, ...] = ()
    """What is wrong by the files alone."""
    problems: tuple[str, ...] = ()
    """What is wrong by what the server lists. Empty: it will do, as far as is known."""
    warnings: tuple[str, ...] = ()
    executes: bool = False
    """Whether driver.py serves it without a tool of the server."""

    @property
    def counts(self) -> bool:
        return not self.wrong and not self.problems


class DriverSupervisor(Supervisor):
    """A supervisor that counts its attempts: a driver's server is given up after some."""

    attempts = 0
    on_attempt: Callable[[], None] = staticmethod(lambda: None)

    def _give_up_when_due(self, lost_at: float | None) -> float | None:
        self.attempts += 1
        given = super()._give_up_when_due(lost_at)
        self.on_attempt()
        return given

    def _became_ready(self, peer: Any, offer: Any) -> None:
        self.attempts = 0
        super()._became_ready(peer, offer)
        self.on_attempt()


class Surroundings(Protocol):
    """What a driver is given by the node."""

    clock: Clock
    idle: float

    async def prepare(self, driver: Driver) -> None:
        """Have it installed, of the right version and signed in. Raises InterlockError."""

    def supervise(self, driver: Driver, sleep: Callable[[float], Awaitable[None]]) -> Any:
        """A supervisor for its server, not begun yet. Raises InterlockError."""

    def make_room(self, driver: Driver) -> Awaitable[None]:
        """Another server is about to run. Raises InterlockError when there are too many."""
        ...

    def call_later(self, seconds: float, then: Callable[[], None]) -> Any: ...

    def changed(self, driver: Driver) -> None:
        """What is known about it is something else now."""

    async def ended(self, driver: Driver) -> None:
        """Its server is no more."""


class Driver:
    """A driver, as the resolver, the pipeline and the operator see it."""

    timeout: float | None = None

    def __init__(
        self, manifest: DriverManifest, bindings: Mapping[str, Binding], around: Surroundings
    ) -> None:
        self.manifest = manifest
        self.key = f"driver:{manifest.key}"
        self.bindings = dict(bindings)
        """By the key of the contract."""
        self.standing = Standing()
        self.verified = False
        """Whether its server has been asked for its tools."""
        self.problem = ""
        """Why its server could not be reached when it was last tried."""
        self.hooks: Any = None
        """What its driver.py brings, if that may be run."""
        self.health: Health | None = None
        self.on_sign: Callable[[UpstreamGoneError], None] | None = None
        """Told of failures that may mean that somebody has to sign in again."""
        self.warnings: dict[str, None] = {}
        """What the operator should look at, in the order in which it came up."""
        self.supervisor: DriverSupervisor | None = None
        self.under_way = 0
        self.calls = 0
        """How many calls of contracts it was given."""
        self.code_digest = ""
        """Of its driver.py."""
        self.last_used = around.clock()
        self.roots = _folders(manifest)
        """The folders that its server was given, when it was given any: no file elsewhere may be
        named to it."""
        self._around = around
        self._waking: asyncio.Task[DriverSupervisor] | None = None
        self._idling: Any = None
        self._news = asyncio.Event()
        self._reviving: asyncio.Task[None] | None = None

    # -- what the pipeline asks

    def start(self, call: Call, back: Back) -> Exchange:
        """Send a request to its server, which is started for it if need be."""
        self.used()
        supervisor = self.supervisor
        if supervisor is not None and supervisor.peer is not None:
            return supervisor.start(call, back)
        return WakingExchange(call, back, self._woken)

    async def _woken(self, call: Call, back: Back) -> Exchange:
        supervisor = await self.awake()
        return supervisor.start(call, back)

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return {} if self.supervisor is None else self.supervisor.capabilities

    def set_level(self, level: str, session: ClientSession | None) -> None:
        if self.supervisor is not None:
            self.supervisor.set_level(level, session)

    def apart(self, call: Call) -> object | None:
        return None if self.supervisor is None else self.supervisor.apart(call)

    async def watch(self, uri: str, call: Call | None) -> None:
        await (await self.awake()).watch(uri, call)

    async def unwatch(self, uri: str, call: Call | None) -> None:
        if self.supervisor is not None:
            await self.supervisor.unwatch(uri, call)

    async def until_ready(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.awake()
        except (TimeoutError, InterlockError):
            return False
        return True

    # -- its server

    async def awake(self) -> DriverSupervisor:
        """Its server, ready to be asked. Raises InterlockError."""
        supervisor = self.supervisor
        if supervisor is not None and supervisor.peer is not None:
            return supervisor
        if self._waking is None:
            self._waking = asyncio.get_running_loop().create_task(
                self._wake(), name=f"wake:{self.key}"
            )
            self._waking.add_done_callback(self._wake_over)
        # Many may wait for the same: one who leaves must not end it for the others.
        return await asyncio.shield(self._waking)

    def _wake_over(self, task: asyncio.Task[DriverSupervisor]) -> None:
        self._waking = None
        if not task.cancelled() and task.exception() is not None:
            _log.debug("%s did not get ready", self.key)

    async def _wake(self) -> DriverSupervisor:
        self.used()
        try:
            await self._around.prepare(self)
            supervisor = self.supervisor
            if supervisor is None:
                await self._around.make_room(self)
                supervisor = self.supervisor = self._around.supervise(self, self._pause)
                supervisor.on_attempt = self._news.set
                supervisor.begin()
            await self._until_tried(supervisor)
        except InterlockError as error:
            self.problem = error.message
            self._around.changed(self)
            raise
        self.problem = ""
        self._look_later()
        return supervisor

    async def _until_tried(self, supervisor: DriverSupervisor) -> None:
        """Wait until it is ready, or has been tried often enough. Raises InterlockError."""
        most = self.manifest.connection.max_retries
        while supervisor.peer is None:
            if supervisor.attempts > most:
                problem = supervisor.problem or "it does not get ready"
                await self.end()
                raise UpstreamGoneError(
                    UPSTREAM_UNAVAILABLE,
                    f"The server of {self.manifest.id} is not available: {problem}",
                    sent=False,
                )
            self._news.clear()
            await self._news.wait()

    async def _pause(self, seconds: float) -> None:
        """Between two attempts. `seconds` is what a supervisor thinks right."""
        attempts = 0 if self.supervisor is None else max(self.supervisor.attempts - 1, 0)
        await asyncio.sleep(min(max(seconds, RETRY_FIRST * 2**attempts), RETRY_AT_MOST))

    async def end(self) -> None:
        """End its server. The next call starts another one."""
        supervisor, self.supervisor = self.supervisor, None
        if self._idling is not None:
            self._idling.cancel()
            self._idling = None
        if supervisor is not None:
            await supervisor.end()
            await self._around.ended(self)

    async def close(self) -> None:
        """End it for good."""
        tasks = [one for one in (self._waking, self._reviving) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.end()

    # -- how it fares

    def warn(self, text: str) -> None:
        """Something that the operator should look at."""
        if text not in self.warnings and len(self.warnings) < _MOST_WARNINGS:
            self.warnings[text] = None
            _log.warning("%s: %s", self.manifest.id, text)

    def note_health(self) -> None:
        """Take over what its health is now."""
        if self.health is not None:
            self.standing.health_failed_at = self.health.failed_at
            self.standing.health_passed_at = self.health.passed_at

    def answered(self) -> None:
        """Its server has answered a call, whatever it said."""
        if self.health is not None:
            self.health.passed()
            self.note_health()

    def noticed(self, gone: UpstreamGoneError) -> None:
        """Why a call failed may be a sign that the sign-in has ended."""
        if self.on_sign is not None:
            self.on_sign(gone)

    def unreachable(self, why: str) -> None:
        """A call did not reach its server, or no answer came. Whether that lasts is found out now,
        so that a driver that is back is used again at once."""
        if self.health is not None:
            self.health.failed(why)
            self.note_health()
        if self._reviving is None:
            self._reviving = asyncio.get_running_loop().create_task(
                self._revive(), name=f"revive:{self.key}"
            )

    async def _revive(self) -> None:
        try:
            await self.awake()
        except InterlockError:
            # Its problem is kept; the next call that comes after a while tries again.
            return
        else:
            self.answered()
        finally:
            self._reviving = None

    # -- while nobody uses it

    def used(self) -> None:
        self.last_used = self._around.clock()

    def _look_later(self) -> None:
        if self._idling is None and self.supervisor is not None:
            left = self.last_used + self._around.idle - self._around.clock()
            self._idling = self._around.call_later(max(left, 0.0), self._look)

    def _look(self) -> None:
        self._idling = None
        if self.supervisor is None:
            return
        unused = self._around.clock() - self.last_used
        if self.under_way or self._waking is not None or unused < self._around.idle:
            self._look_later()
            return
        task = asyncio.get_running_loop().create_task(self.end(), name=f"idle:{self.key}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    # -- what its server lists

    def listed(self, tools: list[Raw]) -> None:
        """Hold what its server offers against what the driver promises."""
        definitions = _by_name(tools)
        for binding in self.bindings.values():
            found = check_listed(
                binding.contract, binding.entry, definitions, has_hook=binding.executes
            )
            if found.errors != binding.problems:
                for problem in found.errors:
                    _log.warning(
                        "%s does not serve %s: %s", self.manifest.id, binding.contract.id, problem
                    )
            binding.problems, binding.warnings = found.errors, found.warnings
        self.verified = True
        self._around.changed(self)

    def serves(self, contract: str) -> bool:
        """Whether it can be asked for a contract, as far as is known."""
        binding = self.bindings.get(contract)
        return binding is not None and binding.counts and not self.standing.refused


def _folders(manifest: DriverManifest) -> tuple[str, ...] | None:
    server = manifest.server
    if server is None or server.kind == "remote":
        return None
    return tuple(one for one in server.args if one.startswith("/")) or None


def _by_name(tools: list[Raw]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for raw in tools:
        try:
            definition = decode_value(raw)
        except ProtocolError:
            continue
        if isinstance(definition, dict) and isinstance(definition.get("name"), str):
            found.setdefault(definition["name"], definition)
    return found
