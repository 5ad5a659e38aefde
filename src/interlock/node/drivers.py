"""Drivers put together: their files, what of them is offered in the catalog, and who serves it.

The files are read when the node starts, and again when one of them changes. What did not change
keeps its server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.catalog.catalog import Catalog
from interlock.catalog.drivers.binding import check_entry
from interlock.catalog.drivers.candidates import Machine, Workspace, tag_warnings
from interlock.catalog.drivers.contract_shape import ContractShape
from interlock.catalog.drivers.contract_tool import approval_floor, definition, effect_level
from interlock.catalog.drivers.translating import NO_TRANSFORMS, BoundEntry
from interlock.catalog.drivers.versions import Deprecation, Versions
from interlock.catalog.offering import contract_offering, read_offering
from interlock.config import Config
from interlock.config.quantities import default_segment
from interlock.errors import InterlockError
from interlock.manifests import workspace as files
from interlock.manifests.driver import DriverManifest
from interlock.manifests.tool import ToolContract
from interlock.node.driver_care import DriverCare, workspace_id
from interlock.node.driver_registrations import keep_registrations, read_registrations
from interlock.node.driver_status import ContractStatus, DriverStatus, status_of
from interlock.node.driver_trust import refusal
from interlock.node.places import registered_drivers_path
from interlock.pipeline.audit import Audit
from interlock.pipeline.breaker import Breakers, Circuit
from interlock.pipeline.pipeline import Pipeline
from interlock.pipeline.policy import Action
from interlock.pipeline.policy.decision import decision
from interlock.ports import Upstream
from interlock.protocol.jsonrpc import encode_value
from interlock.upstreams.drivers.contract_upstream import KEY, ContractUpstream, Served
from interlock.upstreams.drivers.driver import Binding, Driver
from interlock.upstreams.drivers.hooks import Hooks, code_digest, load_hooks
from interlock.upstreams.drivers.offers import declared_prompts, declared_resources
from interlock.upstreams.drivers.rows import Rows
from interlock.upstreams.supervisor import Supervisor

_log = logging.getLogger("interlock.drivers")

LOOK_EVERY: Final = 0.4
LOOK_COSTS: Final = 20
"""A look at all files may take one part in so many of the time."""
AT_ONCE: Final = 4
"""So many servers are asked for their tools at the same time when the node starts."""


class Drivers:
    """The drivers of one node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        own_info: bytes,
        catalog: Catalog,
        pipeline: Pipeline,
        upstreams: dict[str, Upstream],
        audit: Audit,
        breakers: Breakers,
    ) -> None:
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._catalog = catalog
        self._pipeline = pipeline
        self._upstreams = upstreams
        self._audit = audit
        self._registrations = registered_drivers_path(config, environ, base_dir)
        self.deprecations: Callable[[Iterable[ToolContract]], Mapping[str, Deprecation]] = (
            lambda _: {}
        )
        """Which majors of contracts are on their way out. Set by whoever keeps them."""
        self.care = DriverCare(
            config,
            environ=environ,
            base_dir=base_dir,
            own_info=own_info,
            audit=audit,
            pipeline=pipeline,
            on_changed=self._changed,
            on_offer=self._offered,
        )
        self._rows = Rows(self._record, workspace_id(base_dir), time.time)
        self.contracts = ContractUpstream(
            clock=time.monotonic,
            wall_clock=time.time,
            call_later=lambda seconds, then: asyncio.get_running_loop().call_later(seconds, then),
            rows=self._rows,
            machine=this_machine(base_dir),
            circuit_open=lambda key: breakers.state(key) is Circuit.OPEN,
        )
        self._workspace: files.Workspace | None = None
        self._posted = False
        self._publishing: asyncio.Handle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._verifier: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    # -- life

    def start(self) -> None:
        """Read the files, offer the contracts, and begin to ask the servers for their tools."""
        if not self._config.drivers.enabled:
            return
        self._take(self._load())
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="drivers")

    async def close(self) -> None:
        tasks = [one for one in (self._watcher, self._verifier) if one is not None]
        self._watcher = self._verifier = None
        for task in tasks:
            task.cancel()
        if self._publishing is not None:
            self._publishing.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self.care.close(), *self._ending, return_exceptions=True)

    async def configure(self, config: Config) -> None:
        """Run by a new config."""
        before, self._config = self._config.drivers, config
        self.care.configure(config)
        if config.drivers == before:
            if self._posted:
                self._publish()
            return
        await self.close()
        self._workspace = None
        self._take_away()
        self.start()

    def _load(self) -> files.Workspace:
        settings = self._config.drivers
        return files.load_workspace(
            self._base_dir,
            folders=settings.folders,
            contract_folders=settings.contracts,
            registered=read_registrations(self._registrations),
        )

    async def _watch(self) -> None:
        """Notice when a file changed, by looking at all of them now and then."""
        pause = LOOK_EVERY
        while True:
            await asyncio.sleep(pause)
            workspace = self._workspace
            if workspace is None:
                continue
            began = time.perf_counter()
            try:
                after = await asyncio.to_thread(workspace.reload)
                if after.read_files or after.drivers.keys() != workspace.drivers.keys():
                    self._take(after)
            except Exception:
                _log.exception("the drivers' files could not be read again")
            pause = max(LOOK_EVERY, (time.perf_counter() - began) * LOOK_COSTS)

    # -- from files to drivers

    def _take(self, workspace: files.Workspace) -> None:
        """Go on with what the files say now. What did not change goes on as it is."""
        before = {} if self._workspace is None else self._workspace.refused
        self._workspace = workspace
        self.care.inventory = workspace.secrets
        for path, refused in workspace.refused.items():
            if before.get(path) != refused:
                for problem in refused.problems:
                    _log.warning("%s", problem)
        kept = self.care.drivers
        for key in [*kept]:
            manifest = workspace.drivers.get(key.removeprefix("driver:"))
            if manifest is None or not self._is_same(kept[key], manifest, workspace):
                self._end(kept[key])
        shapes: dict[str, ContractShape] = {}
        for manifest in workspace.drivers.values():
            if f"driver:{manifest.key}" not in kept and manifest.server is not None:
                self._begin(manifest, workspace, shapes)
        keep_registrations(self._registrations, workspace.registered)
        self._gather(workspace, shapes)
        self._publish()
        if self._config.drivers.verify == "start":
            self._verify()

    def _is_same(
        self, driver: Driver, manifest: DriverManifest, workspace: files.Workspace
    ) -> bool:
        if driver.manifest.digest != manifest.digest or driver.manifest.file != manifest.file:
            return False
        now = {one.contract.key: one.contract.digest for one in workspace.bindings[manifest.key]}
        then = {key: one.contract.digest for key, one in driver.bindings.items()}
        return now == then and driver.code_digest == code_digest(manifest)

    def _begin(
        self,
        manifest: DriverManifest,
        workspace: files.Workspace,
        shapes: dict[str, ContractShape],
    ) -> None:
        hooks: Hooks | None = None
        warnings: list[str] = []
        digest = code_digest(manifest)
        refused = refusal(manifest, self._config, self._base_dir)
        if not refused:
            try:
                hooks, warnings = load_hooks(
                    manifest,
                    [one.contract.id for one in workspace.bindings[manifest.key]],
                    allowed=self._config.drivers.allow_code,
                )
            except InterlockError as error:
                refused = error.message
        bindings = {}
        for one in workspace.bindings[manifest.key]:
            contract, entry = one.contract, one.entry
            transforms = NO_TRANSFORMS if hooks is None else hooks.transforms
            executes = hooks is not None and hooks.executes(contract.id)
            try:
                shape = shapes.get(contract.key) or ContractShape(contract)
                shapes[contract.key] = shape
                wrong = tuple(
                    check_entry(contract, entry, transforms=transforms, has_hook=executes)
                )
                bound = BoundEntry(contract, entry, transforms=transforms, shape=shape)
            except InterlockError as error:
                _log.warning("%s: %s", manifest.id, error.message)
                continue
            bindings[contract.key] = Binding(contract, entry, bound, wrong, executes=executes)
            for problem in wrong:
                _log.warning("%s: %s", manifest.id, problem)
        driver = Driver(manifest, bindings, self.care)
        driver.hooks = hooks
        driver.code_digest = digest
        driver.standing.refused = refused
        driver.standing.authed = self.care.auth(driver).authed or manifest.auth is not None
        for text in (*warnings, *tag_warnings(manifest, self._allowed())):
            driver.warn(text)
        for caution in workspace.cautions.get(manifest.file, ()):
            driver.warnings[str(caution)] = None
        if refused:
            _log.warning("%s is not used: %s", manifest.id, refused)
        self.care.drivers[driver.key] = self._upstreams[driver.key] = driver
        self.care.look_after(driver)

    def _end(self, driver: Driver) -> None:
        self.care.drivers.pop(driver.key, None)
        self._upstreams.pop(driver.key, None)
        self._catalog.withdraw(driver.key)
        task = asyncio.get_running_loop().create_task(
            self.care.forget(driver), name=f"end:{driver.key}"
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _gather(self, workspace: files.Workspace, shapes: dict[str, ContractShape]) -> None:
        """Who serves which contract."""
        served: dict[str, Served] = {}
        before = self.contracts.served
        for driver in self.care.drivers.values():
            for key, binding in driver.bindings.items():
                if key not in served:
                    known = before.get(key)
                    shape = (
                        known.shape
                        if known is not None and known.contract is binding.contract
                        else shapes.get(key) or ContractShape(binding.contract)
                    )
                    served[key] = Served(binding.contract, shape, [])
                served[key].drivers.append(driver)
        for one in served.values():
            one.drivers.sort(key=lambda driver: driver.key)
        self.contracts.served = served
        self.contracts.workspace = self._allowed()

    def _allowed(self) -> Workspace:
        settings = self._config.drivers
        return Workspace(
            region=settings.region,
            strict_region=settings.strict_region,
            forbid=tuple(settings.policy.forbid),
            require=tuple(settings.policy.require),
            allow=tuple(settings.policy.allow),
            pins=dict(settings.pins),
            trusted_tags={tag: tuple(ids) for tag, ids in settings.policy.trusted_tags.items()},
        )

    def _take_away(self) -> None:
        if self._posted:
            self._posted = False
            self._catalog.withdraw(KEY)
            self._upstreams.pop(KEY, None)
            self._pipeline.permit.contract_floors = {}

    # -- what is offered

    def _changed(self, driver: Driver) -> None:
        """Something is known about a driver that was not: soon, and once for many."""
        if self._publishing is None and self._workspace is not None:
            self._publishing = asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        """Offer every contract that somebody serves, as far as is known."""
        self._publishing = None
        usable = [
            one.contract
            for key, one in self.contracts.served.items()
            if any(driver.serves(key) for driver in one.drivers)
        ]
        ends = self.deprecations(usable)
        versions = self.contracts.versions = Versions(usable, ends, time.time())
        for clash in versions.clashes:
            _log.warning("%s", clash)
        for served in self.contracts.served.values():
            served.deprecation = ends.get(served.contract.key)
        if not versions.names and not self._posted:
            return
        self._posted = True
        self._upstreams[KEY] = self.contracts
        tools = [
            definition(
                contract,
                name=name,
                deprecation=None if (end := ends.get(contract.key)) is None else end.notice(),
            )
            for name, contract in versions.names.items()
        ]
        effects = {name: effect_level(contract) for name, contract in versions.names.items()}
        offering = contract_offering(KEY, self._config.root_segment, tools, effects)
        for one in offering.set_aside:
            _log.warning("the contract %s is not offered: %s", one.name, one.reason)
        self._pipeline.permit.contract_floors = {
            tool.canonical: decision(
                Action.CONFIRM,
                f"contract:{tool.upstream_name}",
                "Its contract asks for a human's approval.",
            )
            for tool in offering.tools
            if approval_floor(versions.names[tool.upstream_name])
        }
        self._catalog.post(offering)

    def _offered(self, driver: Driver, supervisor: Supervisor) -> None:
        """A driver's server has listed what it has."""
        offer = supervisor.offer
        driver.listed(offer.tools)
        manifest = driver.manifest
        if not self._config.drivers.preview or not (manifest.prompts or manifest.resources):
            return
        prompts, missing = declared_prompts(manifest, offer.prompts)
        resources, templates, more = declared_resources(manifest, offer.resources, offer.templates)
        for text in (*missing, *more):
            driver.warn(text)
        server = supervisor.server
        self._catalog.post(
            read_offering(
                driver.key,
                type(server)(segment=default_segment(manifest.id)),
                (),
                prompts=prompts,
                resources=resources,
                templates=templates,
                root_segment=self._config.root_segment,
                serves_resources=bool(resources or templates),
            )
        )

    # -- verification

    def _verify(self) -> None:
        if self._verifier is None or self._verifier.done():
            self._verifier = asyncio.get_running_loop().create_task(
                self._verify_all(), name="drivers:verify"
            )

    async def _verify_all(self) -> None:
        """Ask the servers of drivers that nobody has used yet for their tools, a few at a time."""
        places = asyncio.Semaphore(AT_ONCE)

        async def look(driver: Driver) -> None:
            async with places:
                await self._verify_one(driver)

        waiting = [
            one
            for one in self.care.drivers.values()
            if not one.verified and not one.standing.refused
        ]
        await asyncio.gather(*(look(one) for one in waiting))

    async def _verify_one(self, driver: Driver) -> None:
        if driver.verified or self.care.drivers.get(driver.key) is not driver:
            return
        try:
            await driver.awake()
        except InterlockError as error:
            # It is unverified, and looked at again when somebody needs it.
            _log.info("%s is not verified: %s", driver.manifest.id, error.message)
            return
        if not driver.calls:
            # It was only asked: who needs it starts it.
            await driver.end()

    # -- how they fare

    def status(self) -> list[DriverStatus]:
        refused = {} if self._workspace is None else self._workspace.refused
        return [
            *(status_of(one) for one in self.care.drivers.values()),
            *(
                DriverStatus.of_file(path, [str(problem) for problem in one.problems])
                for path, one in refused.items()
            ),
        ]

    def contract_status(self) -> list[ContractStatus]:
        names: dict[str, list[str]] = {}
        for name, contract in self.contracts.versions.names.items():
            names.setdefault(contract.key, []).append(name)
        return [
            ContractStatus(
                key=key,
                names=sorted(names.get(key, ())),
                version=one.contract.version,
                drivers=[driver.manifest.key for driver in one.drivers],
            )
            for key, one in self.contracts.served.items()
        ]

    def _record(
        self,
        call: Any,
        what: str,
        name: str,
        upstream: str,
        outcome: str,
        duration_us: int,
        row: Mapping[str, Any],
    ) -> None:
        detail = encode_value(row).decode()
        self._audit.record_part(call, what, name, upstream, outcome, duration_us, detail)


def this_machine(base_dir: Path) -> Machine:
    """What `requires` of a driver is held against."""
    systems = {"Linux": "linux", "Darwin": "darwin", "Windows": "windows"}
    machines = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    machines |= {"i386": "x86", "i686": "x86", "armv7l": "arm", "armv6l": "arm"}
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        disk = shutil.disk_usage(base_dir).free // 2**20
    except (OSError, ValueError):
        memory = disk = 0
    return Machine(
        os=systems.get(platform.system(), platform.system().lower()),
        arch=machines.get(platform.machine().lower(), platform.machine().lower()),
        disk_mb=disk,
        memory_mb=memory,
    )
