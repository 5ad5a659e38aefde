"""One driver of the workspace, as the resolver, the pipeline and the operator see it: what it
serves, how it stands, and its server.

Whenever its server lists its tools, they are held against the contracts that the driver promises to
serve.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Raw, Struct

from interlock.core.call import Call, ClientSession, UpstreamLostError
from interlock.core.catalog.effects import EffectLevel, minimum_level
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.drivers.binding import check_listed
from interlock.drivers.driver_server import (
    MAX_RETRY_SECONDS,
    DriverHost,
    DriverServer,
    DriverSupervisor,
)
from interlock.drivers.health import Health
from interlock.drivers.installation import InstallFailure
from interlock.drivers.launch import is_permanent
from interlock.drivers.offers import DeclaredUris
from interlock.drivers.resolver import DriverCondition
from interlock.drivers.translation import BoundEntry
from interlock.errors import InterlockError, ProtocolError
from interlock.manifests.model import DriverManifest, ImplementedContract, ToolContract
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.mcp import RESOURCE_METHODS

_log = logging.getLogger("interlock.drivers")

SIGN_IN_CHECK_SECONDS: Final = 1.0
"""So often it is looked whether somebody signed in meanwhile."""
_MOST_WARNINGS: Final = 50


class DriverBinding(Struct):
    """A contract that the driver serves, and what is wrong with that."""

    contract: ToolContract
    entry: ImplementedContract
    bound: BoundEntry
    file_problems: tuple[str, ...] = ()
    """What is wrong by the files alone."""
    problems: tuple[str, ...] = ()
    """What is wrong by what the server lists. Empty: it will do, as far as is known."""
    warnings: tuple[str, ...] = ()
    executes: bool = False
    """Whether driver.py serves it without a tool of the server."""
    level: EffectLevel = EffectLevel.READ_ONLY
    """What the server's tool does at least, by its own words, once it was listed."""

    @property
    def is_usable(self) -> bool:
        return not self.file_problems and not self.problems


class Driver:
    """A driver, and its server while that runs."""

    timeout: float | None = None

    def __init__(
        self,
        manifest: DriverManifest,
        bindings: Mapping[str, DriverBinding],
        host: DriverHost,
        *,
        strict: bool = False,
        hooks: Any = None,
        digest: str = "",
    ) -> None:
        """Args:
        strict: what is otherwise only a warning counts as an error.
        hooks: what its driver.py brings, if that may be run.
        digest: of the manifest and the code. Default: of the manifest alone.
        """
        self.manifest = manifest
        self.digest = digest or manifest.digest
        """Of everything that says what it does: who approves a call approves that."""
        self._strict = strict
        self.key = f"driver:{manifest.key}"
        self.bindings = dict(bindings)
        """By the key of the contract."""
        self.condition = DriverCondition()
        self.verified = False
        """Whether its server has been asked for its tools."""
        self.problem = ""
        """Why its server could not be reached when it was last tried."""
        self.install_failure: InstallFailure | None = None
        """Of the last attempt, if that failed."""
        self.hooks = hooks
        """What its driver.py brings, if that may be run."""
        self.health: Health | None = None
        self.needs_sign_in: Callable[[UpstreamGoneError], bool] = lambda _: False
        """Told of failures; says whether somebody has to sign in again."""
        self.warnings: dict[str, None] = {}
        """What the operator should look at, in the order in which it came up."""
        self.calls = 0
        """How many calls of contracts it was given."""
        self.requests = 0
        """How much was asked of its server, by whomever."""
        self.fingerprints: tuple[object, ...] = (None, None)
        """By what it is seen that its code, or its signature, changed."""
        self.capabilities: Mapping[str, Any] = {}
        """What of its server is offered beside contracts; also while that sleeps."""
        self.server = DriverServer(self, host)
        self.roots = _folders(manifest)
        """The folders that its server was given, when it was given any: no file elsewhere may be
        named to it."""
        self._uris = DeclaredUris(manifest, self.roots, os.path.realpath)
        self._host = host
        self._reconnect_task: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")

    @property
    def supervisor(self) -> DriverSupervisor | None:
        """Of its server, while there is one."""
        return self.server.supervisor

    # -- what the pipeline asks

    def start(
        self, call: Call, back: ResponseHandler, check: Callable[[], None] | None = None
    ) -> UpstreamRequest:
        """Send a request to its server, which is started for it if need be. `check` is asked when
        the server is there, before it hears of the request. Raises InterlockError."""
        if call.verb in ABOUT_RESOURCES:
            self._uris.rewrite_request(call)
        self.requests += 1
        return self.server.start(call, back, check)

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        if self.supervisor is not None:
            self.supervisor.set_log_level(level, session)

    def session_key(self, call: Call) -> object | None:
        return None if self.supervisor is None else self.supervisor.session_key(call)

    async def subscribe(self, uri: str, call: Call | None) -> None:
        own = self._uris.own(uri)
        await (await self.server.ensure_running()).watch(own, call)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        if self.supervisor is not None:
            await self.supervisor.unsubscribe(self._uris.own(uri), call)

    def server_uris(self, uris: Iterable[str]) -> list[str]:
        """What its server calls resources that are followed."""
        found = []
        for uri in uris:
            try:
                found.append(self._uris.own(uri))
            except InterlockError:
                # It is declared no more.
                continue
        return found

    async def wait_until_ready(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.server.ensure_running()
        except (TimeoutError, InterlockError):
            return False
        return True

    # -- how it fares

    def warn(self, text: str) -> None:
        """Something that the operator should look at."""
        if text not in self.warnings and len(self.warnings) < _MOST_WARNINGS:
            self.warnings[text] = None
            _log.warning("%s: %s", self.manifest.id, text)

    def update_health(self) -> None:
        """Take over what its health is now."""
        if self.health is not None:
            self.condition.health_failed_at = self.health.failed_at
            self.condition.health_passed_at = self.health.passed_at

    def on_response(self) -> None:
        """Its server has answered a call, whatever it said."""
        self.server.touch()
        if self.health is not None:
            self.health.passed()
            self.update_health()

    def on_unreachable(self, why: str) -> None:
        """A call did not reach its server, or no answer came. Whether that lasts is found out now,
        so that a driver that is back is used again at once."""
        if self.health is not None:
            self.health.failed(why)
            self.update_health()
        if self._reconnect_task is None and not self.server.closed:
            self._reconnect_task = asyncio.get_running_loop().create_task(
                self._reconnect(), name=f"revive:{self.key}"
            )

    async def _reconnect(self) -> None:
        try:
            # After a while the failure does not count any more, and the next call tries.
            while self.health is None or not self.health.available:
                try:
                    await self.server.ensure_running()
                except InterlockError as error:
                    if is_permanent(error) or self.server.closed:
                        return
                else:
                    self.on_response()
                    self._host.on_change(self)
                    return
                await self._host.sleep(MAX_RETRY_SECONDS)
        finally:
            self._reconnect_task = None

    def recheck_installation(self) -> bool:
        """Forget that it could not be installed when somebody has installed it since; whether that
        is so."""
        failed = self.install_failure
        if failed is None or not failed.is_outdated():
            return False
        self._clear_install_failure()
        self.problem = ""
        return True

    def allow_install_retry(self) -> None:
        """The same, for a call: it may also find out by itself, after a while."""
        failed = self.install_failure
        if not self.recheck_installation() and failed and self._host.clock() >= failed.again_at:
            self._clear_install_failure()

    def _clear_install_failure(self) -> None:
        self.install_failure = None
        self.condition.install_failed = self.condition.version_problem = ""

    async def ensure_signed_in(self) -> None:
        """Be signed in, as far as that can be done without a human. Raises InterlockError."""
        await self._host.ensure_ready(self)

    def check_sign_in_soon(self) -> None:
        """Find out, soon, whether somebody signed in since it was last looked."""
        now = self._host.clock()
        if self._looking is None and now - self._looked_at >= SIGN_IN_CHECK_SECONDS:
            self._looked_at = now
            self._looking = asyncio.get_running_loop().create_task(
                self._check_sign_in(), name=f"signed-in:{self.key}"
            )

    async def _check_sign_in(self) -> None:
        try:
            await self.ensure_signed_in()
        except InterlockError as error:
            _log.debug("%s: %s", self.key, error.message)
        finally:
            self._looking = None

    async def close(self, *, immediately: bool) -> None:
        """End it for good. Calls under way may still be answered, unless it is to be `at_once`."""
        self.server.closed = True
        tasks = [task for task in (self._reconnect_task, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.server.close(immediately=immediately)
        if self.hooks is not None:
            await self.hooks.process.close(immediately=lambda: self.server.is_immediate)

    # -- what its server lists

    def on_tools_listed(self, tools: list[Raw]) -> None:
        """Hold what its server offers against what the driver promises."""
        definitions = _by_name(tools)
        builds = self.hooks is not None and self.hooks.builds_arguments
        for binding in self.bindings.values():
            found = check_listed(
                binding.contract, binding.entry, definitions, has_hook=binding.executes or builds
            )
            problems, warnings = found.errors, found.warnings
            if self._strict:
                problems, warnings = (*problems, *warnings), ()
            if problems != binding.problems:
                for problem in problems:
                    _log.warning(
                        "%s does not serve %s: %s", self.manifest.id, binding.contract.id, problem
                    )
            binding.problems, binding.warnings = problems, warnings
            binding.level = _level(binding, definitions)
        self.verified = True
        self._host.on_change(self)

    def serves(self, contract: str) -> bool:
        """Whether it can be asked for a contract, as far as is known."""
        binding = self.bindings.get(contract)
        return binding is not None and binding.is_usable and not self.condition.rejection


def _level(binding: DriverBinding, definitions: Mapping[str, Mapping[str, Any]]) -> EffectLevel:
    mcp = binding.entry.mcp
    if mcp is None or binding.executes:
        return EffectLevel.READ_ONLY
    return minimum_level(definitions.get(mcp.tool_name, {}).get("annotations"))


def _folders(manifest: DriverManifest) -> tuple[str, ...] | None:
    server = manifest.server
    if server is None or server.kind == "remote":
        return None
    return tuple(argument for argument in server.args if argument.startswith("/")) or None


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
