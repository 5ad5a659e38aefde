"""Drivers put together: their files, what is known of them, and who serves which contract.

The files are read when the node starts, and again when one of them changes. What did not change
keeps its server; a driver whose file cannot be used any more is taken out, and says why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from interlock.catalog.catalog import Catalog
from interlock.catalog.drivers.contract_shape import ContractShape
from interlock.catalog.introduction import Voice
from interlock.config import Config
from interlock.manifests import workspace as files
from interlock.manifests.driver import DriverManifest
from interlock.manifests.tool import ToolContract
from interlock.node.contracts_shown import ToolChange
from interlock.node.driver_care import DriverCare, workspace_id
from interlock.node.driver_judging import DriverJudging
from interlock.node.driver_making import allowed_by, make_driver
from interlock.node.driver_making import this_machine as this_machine
from interlock.node.driver_news import tell_begin, tell_changes, tell_verified
from interlock.node.driver_publishing import Deprecations, Publishing, voice_of
from interlock.node.driver_registrations import keep_registrations, read_registrations
from interlock.node.driver_status import ContractStatus, DriverStatus, contracts_of, status_of
from interlock.node.driver_trust import signature_mark
from interlock.node.driver_verifying import DriverVerifying
from interlock.node.places import registered_drivers_path
from interlock.pipeline.audit import Audit
from interlock.pipeline.breaker import Breakers, Circuit
from interlock.pipeline.pipeline import Pipeline
from interlock.ports import Upstream
from interlock.protocol.jsonrpc import encode_value
from interlock.upstreams.drivers.contract_upstream import ContractUpstream, Served
from interlock.upstreams.drivers.driver import Driver
from interlock.upstreams.drivers.hooks import code_mark
from interlock.upstreams.drivers.rows import Rows
from interlock.upstreams.supervisor import Supervisor

_log = logging.getLogger("interlock.drivers")

LOOK_EVERY: Final = 0.25
LOOK_COSTS: Final = 20
"""A look at all files may take one part in so many of the time."""
CHANGE_COSTS: Final = 4
"""And one that finds something new, which has to be read."""
MADE_AT_ONCE: Final = 10
"""So many drivers are made of their files before others are served again."""

Shapes = dict[str, ContractShape]
Made = dict[str, tuple[Driver, tuple[object, object]]]
"""Drivers and the marks of their files, by the keys of their manifests."""
Marks = dict[str, object]
"""By the keys of drivers."""


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
        self._upstreams = upstreams
        self._audit = audit
        self._registrations = registered_drivers_path(config, environ, base_dir)
        self._judging = DriverJudging(config, environ=environ, base_dir=base_dir, audit=audit)
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
        self.verifying = DriverVerifying(self.care.drivers)
        self.contracts = ContractUpstream(
            clock=time.monotonic,
            wall_clock=time.time,
            call_later=lambda seconds, then: asyncio.get_running_loop().call_later(seconds, then),
            rows=Rows(self._record, workspace_id(base_dir), time.time),
            machine=this_machine(base_dir),
            circuit_open=lambda key: breakers.state(key) is Circuit.OPEN,
        )
        self.publishing = Publishing(
            config,
            catalog=catalog,
            permit=pipeline.permit,
            upstreams=upstreams,
            contracts=self.contracts,
        )
        self.on_voices: Callable[[], None] = lambda: None
        """Told when a driver's server can do something else beside contracts."""
        self._workspace: files.Workspace | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ending: dict[asyncio.Task[None], Driver] = {}

    @property
    def deprecations(self) -> Deprecations:
        """Which majors of contracts are on their way out. Set by whoever keeps them."""
        return self.publishing.deprecations

    @deprecations.setter
    def deprecations(self, given: Deprecations) -> None:
        self.publishing.deprecations = given
        self.refresh()

    def refresh(self) -> None:
        """What is known of contracts is something else now: offer them by it."""
        if self._workspace is not None:
            self.publishing.soon()

    # -- life

    def start(self) -> None:
        """Read the files, offer the contracts, and begin to ask the servers for their tools."""
        if not self._config.drivers.enabled:
            return
        self._take(self._load())
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="drivers")

    async def close(self) -> None:
        tasks = [one for one in (self._watcher, self.verifying.task) if one is not None]
        self._watcher = self.verifying.task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workspace = None
        for driver in list(self.care.drivers.values()):
            self._end(driver, at_once=True)
        self.contracts.served = {}
        self.publishing.take_away()
        for driver in self._ending.values():
            driver.server.hurry()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def configure(self, config: Config) -> None:
        """Run by a new config."""
        before, self._config = self._config, config
        self.publishing.config = self._judging.config = config
        self.care.configure(config)
        await self.care.walls.end_uncovered(configured=True)
        if config.drivers == before.drivers:
            if config.contracts != before.contracts and self._workspace is not None:
                self._take(self._workspace)
            elif self.publishing.posted:
                self.publishing.now()
            return
        await self.close()
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
            try:
                after, signed, cost = await asyncio.to_thread(self._look, workspace)
                news = self._is_news(workspace, after, signed)
                if news:
                    self._take(after, await self._make_ahead(after))
                self._look_at_installs()
                await self.care.walls.end_uncovered()
            except Exception:
                _log.exception("the drivers' files could not be read again")
            else:
                # Where something changed, something else is about to: who waits for it is a human.
                pause = max(LOOK_EVERY, cost * (CHANGE_COSTS if news else LOOK_COSTS))

    def _look_at_installs(self) -> None:
        """Somebody may have installed what a driver could not be used without."""
        mended = [one for one in self.care.drivers.values() if one.look_at_install()]
        for driver in mended:
            self._changed(driver)
        if mended:
            self._verify()

    def _look(self, workspace: files.Workspace) -> tuple[files.Workspace, Marks, float]:
        """What the files say now, by what signatures are known, and what it cost to look. In a
        thread of its own."""
        began = time.thread_time()
        after = workspace.reload()
        signed = {key: self._signed(one) for key, one in after.drivers.items()}
        return after, signed, time.thread_time() - began

    def _signed(self, manifest: DriverManifest) -> object:
        return signature_mark(manifest) if self._config.drivers.trust else None

    def _marks(self, manifest: DriverManifest, workspace: files.Workspace) -> tuple[object, ...]:
        """Of the files beside a manifest that are read, of the server that one of them may say, and
        of what its contracts break."""
        keys = {one.contract.key for one in workspace.bindings[manifest.key]}
        broken, held = self._judging.mark_of(keys)
        return code_mark(manifest), self._signed(manifest), broken, held, manifest.server

    def _is_news(self, before: files.Workspace, after: files.Workspace, signed: Marks) -> bool:
        # Code that comes, changes or goes is seen there, too.
        if after.read_files or after.drivers.keys() != before.drivers.keys():
            return True
        if after.refused != before.refused or self._judging.is_out_of_date():
            return True
        return any(
            one.marks[1] != signed.get(one.manifest.key) for one in self.care.drivers.values()
        )

    # -- from files to drivers

    def _take(self, workspace: files.Workspace, ahead: Made | None = None) -> None:
        """Go on with what the files say now. What did not change goes on as it is. `ahead`: drivers
        that were made of these files before."""
        begins = self._workspace is None
        before = {} if self._workspace is None else self._workspace.refused
        self._workspace = workspace
        self.care.inventory = workspace.secrets
        for path, refused in workspace.refused.items():
            if before.get(path) != refused:
                for problem in refused.problems:
                    _log.warning("%s", problem)
        self._judging.judge([workspace.contracts[key] for key in sorted(workspace.serving)])
        kept = self.care.drivers
        were = {**kept}
        for key in [*kept]:
            manifest = workspace.drivers.get(key.removeprefix("driver:"))
            if manifest is None or not self._is_same(kept[key], manifest, workspace):
                self._end(kept[key], at_once=False)
        shapes: Shapes = {}
        made = ahead or {}
        for manifest in workspace.drivers.values():
            if f"driver:{manifest.key}" not in kept and manifest.server is not None:
                one = made.get(manifest.key) or self._make(manifest, workspace, shapes)
                self._begin(manifest, workspace, one)
        if begins:
            tell_begin(kept)
        else:
            tell_changes(were, kept, workspace.refused)
        keep_registrations(self._registrations, workspace.registered)
        self._gather()
        if ahead is None:
            self.publishing.now()
        else:
            self.publishing.soon()
        self._verify()

    def _is_same(
        self, driver: Driver, manifest: DriverManifest, workspace: files.Workspace
    ) -> bool:
        if driver.manifest.digest != manifest.digest or driver.manifest.file != manifest.file:
            return False
        now = {one.contract.key: one.contract.digest for one in workspace.bindings[manifest.key]}
        then = {key: one.contract.digest for key, one in driver.bindings.items()}
        return now == then and driver.marks == self._marks(manifest, workspace)

    async def _make_ahead(self, workspace: files.Workspace) -> Made:
        """The drivers whose files are new, a few at a time: others are served in between."""
        made: Made = {}
        shapes: Shapes = {}
        for manifest in workspace.drivers.values():
            known = self.care.drivers.get(f"driver:{manifest.key}")
            same = known is not None and known.manifest.digest == manifest.digest
            if manifest.server is not None and not same:
                made[manifest.key] = self._make(manifest, workspace, shapes)
                if len(made) % MADE_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return made

    def _make(
        self, manifest: DriverManifest, workspace: files.Workspace, shapes: Shapes
    ) -> tuple[Driver, tuple[object, object]]:
        # Marked before anything is read: what changes meanwhile is news.
        marks = code_mark(manifest), self._signed(manifest)
        driver = make_driver(
            manifest,
            workspace,
            config=self._config,
            base_dir=self._base_dir,
            allowed=allowed_by(self._config),
            around=self.care,
            shape_of=lambda contract: self._shape(contract, shapes),
        )
        return driver, marks

    def _begin(
        self,
        manifest: DriverManifest,
        workspace: files.Workspace,
        made: tuple[Driver, tuple[object, object]],
    ) -> None:
        driver, marks = made
        driver.marks = (*marks, *self._marks(manifest, workspace)[len(marks) :])
        self._judging.tell(driver)
        self.care.drivers[driver.key] = self._upstreams[driver.key] = driver
        self.care.look_after(driver)

    def _shape(self, contract: ToolContract, shapes: Shapes) -> ContractShape:
        """One for all drivers that serve it. Raises InterlockError."""
        found = shapes.get(contract.key)
        if found is None:
            known = self.contracts.served.get(contract.key)
            same = known is not None and known.contract is contract
            found = known.shape if known is not None and same else ContractShape(contract)
            shapes[contract.key] = found
        return found

    def _end(self, driver: Driver, *, at_once: bool) -> None:
        self.care.drivers.pop(driver.key, None)
        # From this moment on nobody starts it any more.
        driver.server.closed = True
        self.publishing.withdraw(driver)
        task = asyncio.get_running_loop().create_task(
            self.care.forget(driver, at_once=at_once), name=f"end:{driver.key}"
        )
        self._ending[task] = driver
        task.add_done_callback(self._ending.pop)

    def _gather(self) -> None:
        """Who serves which contract."""
        served: dict[str, Served] = {}
        for driver in self.care.drivers.values():
            for key, binding in driver.bindings.items():
                if key not in served:
                    served[key] = Served(binding.contract, binding.bound.shape, [])
                served[key].drivers.append(driver)
        for one in served.values():
            one.drivers.sort(key=lambda driver: driver.key)
        self.contracts.served = served
        self.contracts.workspace = allowed_by(self._config)

    # -- what is offered

    def _changed(self, driver: Driver) -> None:
        """Something is known about a driver that was not."""
        if self.care.drivers.get(driver.key) is driver:
            self.refresh()

    def _offered(self, driver: Driver, supervisor: Supervisor) -> None:
        """A driver's server has listed what it has."""
        if self.care.drivers.get(driver.key) is not driver:
            return
        first = not driver.verified
        driver.listed(supervisor.offer.tools)
        if first:
            tell_verified(driver)
        before = driver.capabilities
        self.publishing.offered(driver, supervisor, others=self.care.drivers.values())
        if driver.capabilities != before:
            self.on_voices()

    def voices(self) -> list[Voice]:
        """What the servers of drivers can do beside contracts, for whoever introduces the node."""
        return [voice_of(one) for one in self.care.drivers.values() if one.capabilities]

    def _verify(self) -> None:
        if self._config.drivers.verify == "start":
            self.verifying.begin(self._config.drivers.most_processes)

    # -- how they fare

    def status(self) -> list[DriverStatus]:
        workspace = self._workspace
        known = [status_of(one) for one in self.care.drivers.values()]
        if workspace is None:
            return known
        others = [
            DriverStatus.of_manifest(one)
            for one in workspace.drivers.values()
            if one.server is None
        ]
        refused = [
            DriverStatus.of_file(path, [str(problem) for problem in one.problems])
            for path, one in workspace.refused.items()
        ]
        return [*known, *others, *refused]

    def contract_status(self) -> list[ContractStatus]:
        return contracts_of(self.contracts, self.publishing.set_aside(), self._judging.sentences())

    def broken_contracts(self) -> list[ToolChange]:
        """Contracts that changed so that callers break, and nobody has accepted it."""
        return self._judging.shown(self.contracts.served)

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
