"""A driver of the workspace, as the resolver, the pipeline and the operator see it: its contracts,
its state and its server.

Each time the server lists its tools, they are checked against the contracts that the driver
implements.
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
"""Minimum time between two checks whether an operator has signed in."""
_MAX_WARNINGS: Final = 50


class DriverBinding(Struct):
    """A contract that a driver implements, and the problems of the implementation."""

    contract: ToolContract
    entry: ImplementedContract
    bound: BoundEntry
    file_problems: tuple[str, ...] = ()
    """Problems that are visible in the files."""
    problems: tuple[str, ...] = ()
    """Problems that are visible in the server's tool list. Empty: none are known."""
    warnings: tuple[str, ...] = ()
    executes: bool = False
    """True if driver.py serves the contract without a tool of the server."""
    level: EffectLevel = EffectLevel.READ_ONLY
    """Lowest effect level of the server's tool, by its annotations. Known after the tools were
    listed."""

    @property
    def is_usable(self) -> bool:
        return not self.file_problems and not self.problems


class Driver:
    """A driver, with its server while the server runs."""

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
        manifest: the DRIVER.md.
        bindings: the implemented contracts, by contract key.
        host: what the node provides.
        strict: treat warnings as errors.
        hooks: the hooks of driver.py, if the code may run.
        digest: digest of the manifest and the code. Default: the digest of the manifest.
        """
        self.manifest = manifest
        self.digest = digest or manifest.digest
        """Digest of everything that defines the behaviour. An approval is valid for this digest
        only."""
        self._strict = strict
        self.key = f"driver:{manifest.key}"
        self.bindings = dict(bindings)
        """By contract key."""
        self.condition = DriverCondition()
        self.verified = False
        """True if the server has listed its tools at least once."""
        self.problem = ""
        """Error of the last failed attempt to reach the server."""
        self.install_failure: InstallFailure | None = None
        """The last installation attempt, if it failed."""
        self.hooks = hooks
        """Hooks of driver.py, if the code may run."""
        self.health: Health | None = None
        self.needs_sign_in: Callable[[UpstreamLostError], bool] = lambda _: False
        """Called with each failed call. Returns True if an operator has to sign in again."""
        self.warnings: dict[str, None] = {}
        """Warnings for the operator, in the order of their first occurrence."""
        self.calls = 0
        """Number of contract calls."""
        self.requests = 0
        """Number of requests to the server, from all sources."""
        self.fingerprints: tuple[object, ...] = (None, None)
        """Fingerprints of the code, the signature and related files. A difference means that the
        driver has to be created again."""
        self.capabilities: Mapping[str, Any] = {}
        """Capabilities of the server that are offered beside contracts. They are kept while the
        server is stopped."""
        self.server = DriverServer(self, host)
        self.roots = _folders(manifest)
        """Folders that the server gets as arguments, or None. URIs of files outside of these
        folders are rejected."""
        self._uris = DeclaredUris(manifest, self.roots, os.path.realpath)
        self._host = host
        self._reconnect_task: asyncio.Task[None] | None = None
        self._sign_in_task: asyncio.Task[None] | None = None
        self._sign_in_checked_at = float("-inf")

    @property
    def supervisor(self) -> DriverSupervisor | None:
        """The supervisor of the server, or None if the server is stopped."""
        return self.server.supervisor

    # -- interface of the pipeline

    def start(
        self, call: Call, handler: ResponseHandler, check: Callable[[], None] | None = None
    ) -> UpstreamRequest:
        """Send a request to the server and start the server if necessary. Raises InterlockError.

        Args:
            check: called when the server is ready, before the request is sent. It may raise
                InterlockError.
        """
        if call.method in RESOURCE_METHODS:
            self._uris.rewrite_request(call)
        self.requests += 1
        return self.server.start(call, handler, check)

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        if self.supervisor is not None:
            self.supervisor.set_log_level(level, session)

    def session_key(self, call: Call) -> object | None:
        return None if self.supervisor is None else self.supervisor.session_key(call)

    async def subscribe(self, uri: str, call: Call | None) -> None:
        server_uri = self._uris.server_uri(uri)
        await (await self.server.ensure_running()).subscribe(server_uri, call)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        if self.supervisor is not None:
            await self.supervisor.unsubscribe(self._uris.server_uri(uri), call)

    def server_uris(self, uris: Iterable[str]) -> list[str]:
        """Return the server's URIs of watched resources."""
        result = []
        for uri in uris:
            try:
                result.append(self._uris.server_uri(uri))
            except InterlockError:
                # The driver does not declare the resource any more.
                continue
        return result

    async def wait_until_ready(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.server.ensure_running()
        except (TimeoutError, InterlockError):
            return False
        return True

    # -- state

    def warn(self, text: str) -> None:
        """Record a warning for the operator and log it once."""
        if text not in self.warnings and len(self.warnings) < _MAX_WARNINGS:
            self.warnings[text] = None
            _log.warning("driver %s: %s", self.manifest.id, text)

    def update_health(self) -> None:
        """Copy the health into the condition that the resolver reads."""
        if self.health is not None:
            self.condition.health_failed_at = self.health.failed_at
            self.condition.health_passed_at = self.health.passed_at

    def on_response(self) -> None:
        """Record that the server responded to a call, with a result or an error."""
        self.server.touch()
        if self.health is not None:
            self.health.on_pass()
            self.update_health()

    def on_unreachable(self, reason: str) -> None:
        """Record that a call did not reach the server or got no response. Try to reconnect now, so
        that a recovered driver is used again at once."""
        if self.health is not None:
            self.health.on_failure(reason)
            self.update_health()
        if self._reconnect_task is None and not self.server.closed:
            self._reconnect_task = asyncio.get_running_loop().create_task(
                self._reconnect(), name=f"revive:{self.key}"
            )

    async def _reconnect(self) -> None:
        try:
            # Stop when the failure has expired. The next call tries the server again.
            while self.health is None or not self.health.is_available:
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
        """Clear an installation failure if the driver was installed since. Return True if it was
        cleared."""
        failed = self.install_failure
        if failed is None or not failed.is_outdated():
            return False
        self._clear_install_failure()
        self.problem = ""
        return True

    def allow_install_retry(self) -> None:
        """Clear an installation failure before a call, if the driver was installed since or the
        retry time has come."""
        failed = self.install_failure
        if not self.recheck_installation() and failed and self._host.clock() >= failed.retry_at:
            self._clear_install_failure()

    def _clear_install_failure(self) -> None:
        self.install_failure = None
        self.condition.install_failed = self.condition.version_problem = ""

    async def ensure_signed_in(self) -> None:
        """Sign in, as far as that is possible without an operator. Raises InterlockError."""
        await self._host.ensure_ready(self)

    def check_sign_in_soon(self) -> None:
        """Start a check whether an operator has signed in, if the last check was long enough
        ago."""
        now = self._host.clock()
        if self._sign_in_task is None and now - self._sign_in_checked_at >= SIGN_IN_CHECK_SECONDS:
            self._sign_in_checked_at = now
            self._sign_in_task = asyncio.get_running_loop().create_task(
                self._check_sign_in(), name=f"signed-in:{self.key}"
            )

    async def _check_sign_in(self) -> None:
        try:
            await self.ensure_signed_in()
        except InterlockError as error:
            _log.debug("driver %s: %s", self.key, error.message)
        finally:
            self._sign_in_task = None

    async def close(self, *, immediately: bool) -> None:
        """Stop the driver and its server permanently.

        Args:
            immediately: do not wait for calls that are still running.
        """
        self.server.closed = True
        tasks = [task for task in (self._reconnect_task, self._sign_in_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.server.close(immediately=immediately)
        if self.hooks is not None:
            await self.hooks.process.close(immediately=lambda: self.server.is_immediate)

    # -- tool list of the server

    def on_tools_listed(self, tools: list[Raw]) -> None:
        """Check the server's tools against the contracts that the driver implements."""
        definitions = _by_name(tools)
        builds = self.hooks is not None and self.hooks.builds_arguments
        for binding in self.bindings.values():
            findings = check_listed(
                binding.contract, binding.entry, definitions, has_hook=binding.executes or builds
            )
            problems, warnings = findings.errors, findings.warnings
            if self._strict:
                problems, warnings = (*problems, *warnings), ()
            if problems != binding.problems:
                for problem in problems:
                    _log.warning(
                        "driver %s: does not serve %s: %s",
                        self.manifest.id,
                        binding.contract.id,
                        problem,
                    )
            binding.problems, binding.warnings = problems, warnings
            binding.level = _level(binding, definitions)
        self.verified = True
        self._host.on_change(self)

    def serves(self, contract: str) -> bool:
        """Return whether the driver can serve a contract, by what is known now."""
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
    definitions: dict[str, dict[str, Any]] = {}
    for raw in tools:
        try:
            definition = decode_value(raw)
        except ProtocolError:
            continue
        if isinstance(definition, dict) and isinstance(definition.get("name"), str):
            definitions.setdefault(definition["name"], definition)
    return definitions
