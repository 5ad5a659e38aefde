"""Drivers put together: their files, what is known of them, and who serves which contract.

The files are read when the node starts, and again when one of them changes. What did not change
keeps its server. A DRIVER.md that becomes invalid keeps its last valid version in use, unless
drivers must be signed; a driver that cannot be used for another reason is taken out.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import platform
import shutil
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from interlock.contracts.accepted_contracts import AcceptedContractStore, BrokenContract
from interlock.contracts.changed_tools import ToolChange, classes
from interlock.contracts.config import ContractsConfig
from interlock.contracts.paths import registered_drivers_path
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.server_info import UpstreamIntroduction
from interlock.core.config import Config
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.breaker import Breakers, Circuit
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import Upstream
from interlock.core.upstreams.supervisor import Supervisor
from interlock.drivers.binding import check_entry
from interlock.drivers.code_process import CodeDescription, DriverCode, inspect_code
from interlock.drivers.config import DriversConfig
from interlock.drivers.contract_shape import ContractShape
from interlock.drivers.contract_upstream import ContractUpstream, ServedContract
from interlock.drivers.driver import Driver, DriverBinding
from interlock.drivers.driver_journal import DriverJournal
from interlock.drivers.driver_server import DriverHost
from interlock.drivers.hooks import Hooks, code_fingerprint, make_hooks, read_code
from interlock.drivers.lifecycle import DriverLifecycle, workspace_id
from interlock.drivers.limits import override_warnings
from interlock.drivers.publication import (
    ContractRecorder,
    DeprecationLookup,
    DriverPublisher,
    introduction_of,
)
from interlock.drivers.registrations import read_registrations, write_registrations
from interlock.drivers.resolver import Machine, SelectionPolicy, tag_warnings
from interlock.drivers.signature_check import refusal, signature_fingerprint
from interlock.drivers.status import ContractStatus, DriverStatus, contracts_of, status_of
from interlock.drivers.translation import NO_TRANSFORMS, BoundEntry
from interlock.errors import InterlockError
from interlock.manifests import workspace as files
from interlock.manifests.model import DriverManifest, ImplementedContract, ToolContract
from interlock.primitives.text import format_count
from interlock.protocol.jsonrpc import encode_value
from interlock.trust.authorization import MinimumActions

# -- What the log tells of drivers: which there are when the node starts, and what becomes of them
# when their files change.

_log = logging.getLogger("interlock.drivers")


def log_start(drivers: Mapping[str, Driver]) -> None:
    """The node has read its drivers for the first time."""
    used = [driver for driver in drivers.values() if not driver.condition.refused]
    if used:
        ids = ", ".join(sorted(driver.manifest.id for driver in used))
        _log.info("%s: %s", format_count(len(used), "driver"), ids)


def log_changes(
    before: Mapping[str, Driver], now: Mapping[str, Driver], unusable: Collection[Path]
) -> None:
    """Files have changed. `unusable`: those that cannot be used as they are; what is wrong with
    them was told already."""
    for key, driver in before.items():
        if key not in now:
            broken = driver.manifest.file in unusable
            what = "is taken out: its files are wrong" if broken else "was removed"
            _log.info("driver %s %s%s", driver.manifest.id, what, _served(driver, "; it served"))
    for key, driver in now.items():
        if before.get(key) is driver or driver.condition.refused:
            # Why it is refused was told where it was made.
            continue
        what = "changed" if key in before else "was added"
        _log.info("driver %s %s%s", driver.manifest.id, what, _served(driver, ": it serves"))


def log_kept_versions(drivers: Mapping[str, Driver], invalid: Collection[Path]) -> None:
    """Name the drivers that stay in use although their files have become `invalid`."""
    for driver in drivers.values():
        manifest = driver.manifest
        if manifest.file in invalid and not driver.condition.refused:
            _log.warning(
                "driver %s: invalid %s; keeping version %s",
                manifest.id, manifest.file.name, manifest.version,
            )  # fmt: skip


def log_ready(driver: Driver) -> None:
    """Its server was asked, and has listed its tools."""
    _log.info("driver %s is ready%s", driver.manifest.id, _served(driver, ": it serves"))


def _served(driver: Driver, words: str) -> str:
    ids = sorted(binding.contract.id for binding in driver.bindings.values() if binding.is_usable)
    return f"{words} {', '.join(ids)}" if ids else ""


# -- Which contracts of drivers break what was accepted of them, and what becomes of the drivers
# that serve one: they say so, and do not serve it where the config holds what breaks.


class ContractAcceptance:
    """What is known to break."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], base_dir: Path, audit: Audit
    ) -> None:
        self._config = config
        self._audit = audit
        self._accepted = AcceptedContractStore.of(config, environ, base_dir)
        self._mark: object = None
        self._broken: dict[str, BrokenContract] = {}
        """Contracts that are not what was accepted, by key."""

    def configure(self, config: Config) -> None:
        """Use a new config."""
        self._config = config

    @property
    def _holds(self) -> bool:
        return self._config.section(ContractsConfig).on_break == "hold"

    def judge(self, served: Iterable[ToolContract]) -> None:
        """Hold these against what was accepted, and accept what breaks nobody."""
        fresh: list[BrokenContract] = []
        self._broken = {}
        if self._config.section(ContractsConfig).watch:
            self._broken, fresh = self._accepted.take(served)
        self._mark = self._accepted.mark()
        for broken in fresh:
            found = " ".join(classes(broken.changes))
            self._audit.record_change("contracts", broken.contract.id, "breaking", found)

    def is_out_of_date(self) -> bool:
        """Somebody else has accepted something since."""
        return self._accepted.mark() != self._mark

    def mark_of(self, contracts: Collection[str]) -> tuple[tuple[str, ...], bool]:
        """By what it is seen that a driver of these contracts, given by key, is judged otherwise:
        what breaks, and whether that is held."""
        keys = sorted(self._broken.keys() & set(contracts))
        broken = tuple(self._broken[key].sentence for key in keys)
        return broken, bool(broken) and self._holds

    def tell(self, driver: Driver) -> None:
        """Have a new driver say what breaks, and not serve it where that is held."""
        for key in driver.bindings.keys() & self._broken.keys():
            sentence = self._broken[key].sentence
            driver.warn(sentence)
            if self._holds:
                driver.bindings[key].file_problems += (sentence,)

    def sentences(self) -> dict[str, str]:
        """By the keys of contracts."""
        return {key: broken.sentence for key, broken in self._broken.items()}

    def shown(self, served: Mapping[str, ServedContract]) -> list[ToolChange]:
        """What broke and is served, as an operator sees it."""
        return [
            broken.shown(
                held=self._holds, drivers=[driver.manifest.id for driver in served[key].drivers]
            )
            for key, broken in self._broken.items()
            if key in served
        ]


# -- From a manifest to a driver: whether it may be used, what its code brings, and how each of
# its entries is bound to its contract. What is wrong is kept with the driver, where people look.

ShapeLookup = Callable[[ToolContract], ContractShape]
"""Raises InterlockError for a contract whose schemas cannot be used."""
CodeInspector = Callable[[DriverCode], CodeDescription | None]
"""Says what a driver.py brings; None: it defines no driver. Raises InterlockError."""


def create_driver(
    manifest: DriverManifest,
    workspace: files.Workspace,
    *,
    config: Config,
    base_dir: Path,
    allowed: SelectionPolicy,
    host: DriverHost,
    shape_of: ShapeLookup,
    inspect: CodeInspector,
) -> Driver:
    """The driver of a manifest; refused where it may not be used. `inspect` is asked what its code
    brings, where that may be run."""
    settings = config.section(DriversConfig)
    hooks: Hooks | None = None
    warnings: list[str] = []
    refused = file_rejection(manifest, workspace, config, base_dir, allowed)
    if not refused:
        try:
            code, warnings = read_code(manifest, allowed=settings.allow_code)
            if code is not None:
                served = [binding.contract.id for binding in workspace.bindings[manifest.key]]
                hooks, warnings = make_hooks(manifest, served, code, inspect(code))
        except InterlockError as error:
            refused = error.message
    if hooks is not None:
        # With what only its code says.
        manifest = hooks.manifest
    bindings, unusable = _bindings(manifest, workspace, hooks, shape_of)
    driver = Driver(
        manifest,
        bindings,
        host,
        strict=settings.strict,
        hooks=hooks,
        digest=_digest(manifest, hooks),
    )
    for text in (*warnings, *unusable, *_warnings(manifest, workspace, allowed)):
        driver.warn(text)
    for caution in workspace.cautions.get(manifest.file, ()):
        driver.warnings[str(caution)] = None
    if not refused and settings.strict:
        refused = _strict(list(driver.warnings))
    if not refused and unusable and not bindings:
        refused = unusable[0]
    driver.condition.refused = refused
    if refused:
        driver.hooks = None
        _log.warning("%s is not used: %s", manifest.id, refused)
    return driver


def file_rejection(
    manifest: DriverManifest,
    workspace: files.Workspace,
    config: Config,
    base_dir: Path,
    allowed: SelectionPolicy,
) -> str:
    """Why a driver is not used, by what its files alone say, before anything of its code is run.
    Empty: it is."""
    refused = refusal(manifest, config, base_dir)
    if not refused and config.section(DriversConfig).strict:
        cautions = map(str, workspace.cautions.get(manifest.file, ()))
        refused = _strict([*_warnings(manifest, workspace, allowed), *cautions])
    return refused


def selection_policy(config: Config) -> SelectionPolicy:
    """What the config has to say about which drivers serve a call."""
    settings = config.section(DriversConfig)
    return SelectionPolicy(
        region=settings.region,
        strict_region=settings.strict_region,
        forbid=tuple(settings.policy.forbid),
        require=tuple(settings.policy.require),
        allow=tuple(settings.policy.allow),
        pins=dict(settings.pins),
        trusted_tags={tag: tuple(ids) for tag, ids in settings.policy.trusted_tags.items()},
    )


def _digest(manifest: DriverManifest, hooks: Hooks | None) -> str:
    """Of a driver's file, of the server that it starts (which another file may say), and of the
    code that was read."""
    code = "" if hooks is None else hooks.digest
    parts = (manifest.digest.encode(), msgspec.json.encode(manifest.server), code.encode())
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def _warnings(
    manifest: DriverManifest, workspace: files.Workspace, allowed: SelectionPolicy
) -> list[str]:
    """What the operator should look at, by what a manifest says."""
    found = [*tag_warnings(manifest, allowed)]
    for binding in workspace.bindings[manifest.key]:
        found += override_warnings(binding.contract, manifest, binding.entry)
    return found


def _strict(warnings: list[str]) -> str:
    return f"{warnings[0]} (drivers.strict)" if warnings else ""


def _bindings(
    manifest: DriverManifest,
    workspace: files.Workspace,
    hooks: Hooks | None,
    shape_of: ShapeLookup,
) -> tuple[dict[str, DriverBinding], list[str]]:
    """What a driver serves, with what is wrong with that; and why contracts that it names cannot
    be served by anybody."""
    transforms = NO_TRANSFORMS if hooks is None else hooks.transforms
    bindings: dict[str, DriverBinding] = {}
    unusable: list[str] = []
    for binding in workspace.bindings[manifest.key]:
        contract, entry = binding.contract, binding.entry
        executes = hooks is not None and hooks.executes(contract.id)
        wrong = check_entry(contract, entry, transforms=transforms, has_hook=executes)
        for problem in wrong:
            _log.warning("%s: %s", manifest.id, problem)
        try:
            shape = shape_of(contract)
        except InterlockError as error:
            unusable.append(error.message)
            continue
        try:
            bound = BoundEntry(contract, entry, transforms=transforms, shape=shape)
        except InterlockError as error:
            # It is never used, but seen by whoever looks for what is wrong.
            bound = BoundEntry(
                contract, ImplementedContract(entry.tool, entry.version), shape=shape
            )
            wrong = wrong or [error.message]
        bindings[contract.key] = DriverBinding(
            contract, entry, bound, tuple(wrong), executes=executes
        )
    return bindings, unusable


def this_machine(base_dir: Path) -> Machine:
    """What `requires` of a driver is held against."""
    systems = {"Linux": "linux", "Darwin": "darwin", "Windows": "windows"}
    machines = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    machines |= {"i386": "x86", "i686": "x86", "armv7l": "arm", "armv6l": "arm"}
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        disk = shutil.disk_usage(base_dir).is_idle // 2**20
    except (OSError, ValueError):
        memory = disk = 0
    return Machine(
        os=systems.get(platform.system(), platform.system().lower()),
        arch=machines.get(platform.machine().lower(), platform.machine().lower()),
        disk_mb=disk,
        memory_mb=memory,
    )


# -- Asks the servers of drivers for their tools before anybody needs them, so that a driver whose
# server lacks something says so when the node starts and not at the first call.

AT_ONCE: Final = 4
"""So many servers are asked at the same time."""


class DriverVerifier:
    """Starts what nobody has used yet, and ends it again."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        """`drivers`: those there are now, by key. They may change at any time."""
        self._drivers = drivers
        self.task: asyncio.Task[None] | None = None

    def begin(self, most_processes: int) -> None:
        """Look at those that nobody has looked at. Called as often as anybody likes."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(
                self._verify_all(min(AT_ONCE, most_processes)), name="drivers:verify"
            )

    async def _verify_all(self, immediately: int) -> None:
        places = asyncio.Semaphore(immediately)

        async def look(driver: Driver) -> None:
            async with places:
                await self._verify(driver)

        waiting = self._unverified()
        tried: set[Driver] = set()
        while waiting:
            tried.update(waiting)
            await asyncio.gather(*(look(driver) for driver in waiting))
            # Others may have come meanwhile.
            waiting = [driver for driver in self._unverified() if driver not in tried]

    def _unverified(self) -> list[Driver]:
        return [
            driver
            for driver in self._drivers.values()
            if not driver.verified and not driver.condition.refused
        ]

    async def _verify(self, driver: Driver) -> None:
        if driver.verified or self._drivers.get(driver.key) is not driver:
            return
        try:
            await driver.server.ensure_running()
        except InterlockError as error:
            # It is unverified, and looked at again when somebody needs it.
            _log.warning("%s: %s", driver.manifest.id, error.message)
            return
        if not driver.requests:
            # It was only asked: who needs it starts it.
            await driver.server.end()


LOOK_EVERY: Final = 0.25
WATCH_COST_FACTOR: Final = 20
"""A look at all files may take one part in so many of the time."""
CHANGE_COST_FACTOR: Final = 4
"""And one that finds something new, which has to be read."""
MAX_CONCURRENT_INSPECTIONS: Final = 4
"""So many processes at a time look at the code of drivers."""
CREATE_BATCH_SIZE: Final = 10
"""So many drivers are made of their files before others are served again."""

T = TypeVar("T")
Shapes = dict[str, ContractShape]
LoadedDrivers = dict[str, tuple[Driver, tuple[object, object]]]
"""Drivers and the marks of their files, by the keys of their manifests."""
FileFingerprints = dict[str, object]
"""By the keys of drivers."""


class Drivers:
    """The drivers of one node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        node_info: bytes,
        catalog: Catalog,
        pipeline: Pipeline,
        floors: MinimumActions,
        upstreams: dict[str, Upstream],
        audit: Audit,
        breakers: Breakers,
        declare: ContractRecorder,
        deprecations: DeprecationLookup,
        on_capabilities_changed: Callable[[], None],
    ) -> None:
        """Args:
        declare: records every contract that is offered, for its history.
        deprecations: the majors of contracts that are deprecated.
        on_voices: called when a driver's server can do something else beside contracts.
        """
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._upstreams = upstreams
        self._audit = audit
        self._registrations = registered_drivers_path(config, environ, base_dir)
        self._acceptance = ContractAcceptance(
            config, environ=environ, base_dir=base_dir, audit=audit
        )
        self.lifecycle = DriverLifecycle(
            config,
            environ=environ,
            base_dir=base_dir,
            node_info=node_info,
            audit=audit,
            pipeline=pipeline,
            on_changed=self._changed,
            on_offer=self._offered,
        )
        self.verifier = DriverVerifier(self.lifecycle.drivers)
        self.contracts = ContractUpstream(
            clock=time.monotonic,
            wall_clock=time.time,
            call_later=lambda seconds, then: asyncio.get_running_loop().call_later(seconds, then),
            journal=DriverJournal(self._record, workspace_id(base_dir), time.time),
            machine=this_machine(base_dir),
            circuit_open=lambda key: breakers.state(key) is Circuit.OPEN,
        )
        self.publisher = DriverPublisher(
            config,
            catalog=catalog,
            floors=floors,
            upstreams=upstreams,
            contracts=self.contracts,
            declare=declare,
            deprecations=deprecations,
        )
        self.on_capabilities_changed = on_capabilities_changed
        self._workspace: files.Workspace | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ending: dict[asyncio.Task[None], Driver] = {}
        self._inspected: dict[tuple[str, str], CodeDescription | InterlockError | None] = {}
        """What each driver.py brings, by the driver and the digest of the code."""

    def refresh(self) -> None:
        """What is known of contracts is something else now: offer them by it."""
        if self._workspace is not None:
            self.publisher.soon()

    # -- life

    def start(self) -> None:
        """Read the files, offer the contracts, and begin to ask the servers for their tools."""
        if not self._config.section(DriversConfig).enabled:
            return
        workspace = self._load()
        if self._config.section(DriversConfig).allow_code:
            # Nobody is served yet who could be held up.
            _run_in_thread(self._inspect_code(workspace))
        self._take(workspace)
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="drivers")

    async def close(self) -> None:
        tasks = [task for task in (self._watcher, self.verifier.task) if task is not None]
        self._watcher = self.verifier.task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workspace = None
        # What was wrong with code may be something of this machine.
        self._inspected = {
            key: found
            for key, found in self._inspected.items()
            if not isinstance(found, InterlockError)
        }
        for driver in list(self.lifecycle.drivers.values()):
            self._end(driver, immediately=True)
        self.contracts.served = {}
        self.publisher.withdraw_all()
        for driver in self._ending.values():
            driver.server.stop_waiting()
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def configure(self, config: Config) -> None:
        """Run by a new config."""
        before, self._config = self._config, config
        self.publisher.configure(config)
        self._acceptance.configure(config)
        self.lifecycle.configure(config)
        await self.lifecycle.confinements.end_uncovered_processes(configured=True)
        if config.section(DriversConfig) == before.section(DriversConfig):
            if (
                config.section(ContractsConfig) != before.section(ContractsConfig)
                and self._workspace is not None
            ):
                self._take(self._workspace)
            elif self.publisher.posted:
                self.publisher.now()
            return
        await self.close()
        if config.section(DriversConfig).enabled:
            await self._inspect_code(await asyncio.to_thread(self._load))
        self.start()

    def _load(self) -> files.Workspace:
        settings = self._config.section(DriversConfig)
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
                news = self._has_changes(workspace, after, signed)
                if news:
                    await self._inspect_code(after)
                    self._take(after, await self._create_changed(after))
                self._recheck_installations()
                await self.lifecycle.confinements.end_uncovered_processes()
            except Exception:
                _log.exception("the drivers' files could not be read again")
            else:
                # Where something changed, something else is about to: who waits for it is a human.
                pause = max(LOOK_EVERY, cost * (CHANGE_COST_FACTOR if news else WATCH_COST_FACTOR))

    def _recheck_installations(self) -> None:
        """Somebody may have installed what a driver could not be used without."""
        mended = [
            driver for driver in self.lifecycle.drivers.values() if driver.recheck_installation()
        ]
        for driver in mended:
            self._changed(driver)
        if mended:
            self._verify()

    def _look(self, workspace: files.Workspace) -> tuple[files.Workspace, FileFingerprints, float]:
        """What the files say now, by what signatures are known, and what it cost to look. In a
        thread of its own."""
        began = time.thread_time()
        after = workspace.reload()
        signed = {key: self._signed(manifest) for key, manifest in after.drivers.items()}
        return after, signed, time.thread_time() - began

    def _signed(self, manifest: DriverManifest) -> object:
        return (
            signature_fingerprint(manifest) if self._config.section(DriversConfig).trust else None
        )

    def _marks(self, manifest: DriverManifest, workspace: files.Workspace) -> tuple[object, ...]:
        """Of the files beside a manifest that are read, of the server that one of them may say, and
        of what its contracts break."""
        keys = {binding.contract.key for binding in workspace.bindings[manifest.key]}
        broken, held = self._acceptance.mark_of(keys)
        return code_fingerprint(manifest), self._signed(manifest), broken, held, manifest.server

    def _has_changes(
        self, before: files.Workspace, after: files.Workspace, signed: FileFingerprints
    ) -> bool:
        # Code that comes, changes or goes is seen there, too.
        if after.read_files or after.drivers.keys() != before.drivers.keys():
            return True
        if after.refused != before.refused or self._acceptance.is_out_of_date():
            return True
        return any(
            driver.fingerprints[1] != signed.get(driver.manifest.key)
            for driver in self.lifecycle.drivers.values()
        )

    # -- from files to drivers

    def _take(self, workspace: files.Workspace, ahead: LoadedDrivers | None = None) -> None:
        """Go on with what the files say now. What did not change goes on as it is. `ahead`: drivers
        that were made of these files before."""
        begins = self._workspace is None
        before = {} if self._workspace is None else self._workspace.refused
        self._workspace = workspace
        self.lifecycle.inventory = workspace.secrets
        for path, refused in workspace.refused.items():
            if before.get(path) != refused:
                for problem in refused.problems:
                    _log.warning("%s", problem)
        fresh = {path for path, refused in workspace.refused.items() if before.get(path) != refused}
        self._acceptance.judge([workspace.contracts[key] for key in sorted(workspace.serving)])
        kept = self.lifecycle.drivers
        were = {**kept}
        for key in [*kept]:
            manifest = workspace.drivers.get(key.removeprefix("driver:"))
            if manifest is None or not self._is_same(kept[key], manifest, workspace):
                self._end(kept[key], immediately=False)
        shapes: Shapes = {}
        made = ahead or {}
        for manifest in workspace.drivers.values():
            if f"driver:{manifest.key}" not in kept and manifest.server is not None:
                one = made.get(manifest.key) or self._make(manifest, workspace, shapes)
                self._begin(manifest, workspace, one)
        if begins:
            log_start(kept)
        else:
            log_changes(were, kept, workspace.refused)
            log_kept_versions(kept, fresh)
        write_registrations(self._registrations, workspace.registered)
        self._gather()
        if ahead is None:
            self.publisher.now()
        else:
            self.publisher.soon()
        self._verify()

    async def _inspect_code(self, workspace: files.Workspace) -> None:
        """Learn what the code of drivers brings that is not known yet: each driver.py is run once,
        in a confined process without network."""
        allowed, known = self._config.section(DriversConfig).allow_code, self._inspected
        found: list[DriverCode] = []
        for manifest in workspace.drivers.values():
            if (
                manifest.id not in allowed
                or manifest.server is None
                or not code_fingerprint(manifest)
            ):
                continue
            if file_rejection(
                manifest, workspace, self._config, self._base_dir, selection_policy(self._config)
            ):
                continue
            try:
                code, _ = read_code(manifest, allowed=allowed)
            except InterlockError:
                # It is said when the driver is made.
                continue
            if code is not None:
                found.append(code)
        # Code that is there no more is forgotten.
        keys = [(code.name, code.digest) for code in found]
        self._inspected = {key: known[key] for key in keys if key in known}
        several = asyncio.Semaphore(MAX_CONCURRENT_INSPECTIONS)

        async def inspect(code: DriverCode) -> None:
            async with several:
                self._inspected[code.name, code.digest] = await self._inspect(code)

        await asyncio.gather(
            *(inspect(code) for code in found if (code.name, code.digest) not in self._inspected)
        )

    async def _inspect(self, code: DriverCode) -> CodeDescription | InterlockError | None:
        try:
            return await inspect_code(
                code,
                lambda: self.lifecycle.confinements.open_without_network(code.driver),
                env=self.lifecycle.code_environment(),
            )
        except InterlockError as error:
            return error

    def _described(self, code: DriverCode) -> CodeDescription | None:
        """What a driver.py brings. Raises InterlockError."""
        key = code.name, code.digest
        if key not in self._inspected:
            # It was changed since it was looked at: rare, and others wait for the moment it takes.
            self._inspected[key] = _run_in_thread(self._inspect(code))
        found = self._inspected[key]
        if isinstance(found, InterlockError):
            raise found
        return found

    def _is_same(
        self, driver: Driver, manifest: DriverManifest, workspace: files.Workspace
    ) -> bool:
        if driver.manifest.digest != manifest.digest or driver.manifest.file != manifest.file:
            return False
        now = {
            binding.contract.key: binding.contract.digest
            for binding in workspace.bindings[manifest.key]
        }
        then = {key: binding.contract.digest for key, binding in driver.bindings.items()}
        return now == then and driver.fingerprints == self._marks(manifest, workspace)

    async def _create_changed(self, workspace: files.Workspace) -> LoadedDrivers:
        """The drivers whose files are new, a few at a time: others are served in between."""
        made: LoadedDrivers = {}
        shapes: Shapes = {}
        for manifest in workspace.drivers.values():
            known = self.lifecycle.drivers.get(f"driver:{manifest.key}")
            same = known is not None and known.manifest.digest == manifest.digest
            if manifest.server is not None and not same:
                made[manifest.key] = self._make(manifest, workspace, shapes)
                if len(made) % CREATE_BATCH_SIZE == 0:
                    await asyncio.sleep(0)
        return made

    def _make(
        self, manifest: DriverManifest, workspace: files.Workspace, shapes: Shapes
    ) -> tuple[Driver, tuple[object, object]]:
        # Marked before anything is read: what changes meanwhile is news.
        marks = code_fingerprint(manifest), self._signed(manifest)
        driver = create_driver(
            manifest,
            workspace,
            config=self._config,
            base_dir=self._base_dir,
            allowed=selection_policy(self._config),
            host=self.lifecycle,
            shape_of=lambda contract: self._shape(contract, shapes),
            inspect=self._described,
        )
        return driver, marks

    def _begin(
        self,
        manifest: DriverManifest,
        workspace: files.Workspace,
        made: tuple[Driver, tuple[object, object]],
    ) -> None:
        driver, marks = made
        driver.fingerprints = (*marks, *self._marks(manifest, workspace)[len(marks) :])
        self._acceptance.tell(driver)
        self.lifecycle.drivers[driver.key] = self._upstreams[driver.key] = driver
        self.lifecycle.monitor(driver)

    def _shape(self, contract: ToolContract, shapes: Shapes) -> ContractShape:
        """One for all drivers that serve it. Raises InterlockError."""
        found = shapes.get(contract.key)
        if found is None:
            known = self.contracts.served.get(contract.key)
            same = known is not None and known.contract is contract
            found = known.shape if known is not None and same else ContractShape(contract)
            shapes[contract.key] = found
        return found

    def _end(self, driver: Driver, *, immediately: bool) -> None:
        self.lifecycle.drivers.pop(driver.key, None)
        # From this moment on nobody starts it any more.
        driver.server.closed = True
        self.publisher.withdraw(driver)
        task = asyncio.get_running_loop().create_task(
            self.lifecycle.remove(driver, immediately=immediately), name=f"end:{driver.key}"
        )
        self._ending[task] = driver
        task.add_done_callback(self._ending.pop)

    def _gather(self) -> None:
        """Who serves which contract."""
        served: dict[str, ServedContract] = {}
        for driver in self.lifecycle.drivers.values():
            for key, binding in driver.bindings.items():
                if key not in served:
                    served[key] = ServedContract(binding.contract, binding.bound.shape, [])
                served[key].drivers.append(driver)
        for contract in served.values():
            contract.drivers.sort(key=lambda driver: driver.key)
        self.contracts.served = served
        self.contracts.workspace = selection_policy(self._config)

    # -- what is offered

    def _changed(self, driver: Driver) -> None:
        """Something is known about a driver that was not."""
        if self.lifecycle.drivers.get(driver.key) is driver:
            self.refresh()

    def _offered(self, driver: Driver, supervisor: Supervisor) -> None:
        """A driver's server has listed what it has."""
        if self.lifecycle.drivers.get(driver.key) is not driver:
            return
        first = not driver.verified
        driver.on_tools_listed(supervisor.offer.tools)
        if first:
            log_ready(driver)
        before = driver.capabilities
        self.publisher.offered(driver, supervisor, others=self.lifecycle.drivers.values())
        if driver.capabilities != before:
            self.on_capabilities_changed()

    def introductions(self) -> list[UpstreamIntroduction]:
        """What the servers of drivers can do beside contracts, for whoever introduces the node."""
        return [
            introduction_of(driver)
            for driver in self.lifecycle.drivers.values()
            if driver.capabilities
        ]

    def _verify(self) -> None:
        if self._config.section(DriversConfig).verify == "start":
            self.verifier.begin(self._config.section(DriversConfig).most_processes)

    # -- how they fare

    def status(self) -> list[DriverStatus]:
        workspace = self._workspace
        if workspace is None:
            return [status_of(driver) for driver in self.lifecycle.drivers.values()]
        known = [
            status_of(driver, _problems(workspace, driver.manifest.file))
            for driver in self.lifecycle.drivers.values()
        ]
        files_in_use = {driver.manifest.file for driver in self.lifecycle.drivers.values()}
        others = [
            DriverStatus.of_manifest(manifest)
            for manifest in workspace.drivers.values()
            if manifest.server is None
        ]
        refused = [
            DriverStatus.of_file(path, _problems(workspace, path))
            for path in workspace.refused
            if path not in files_in_use
        ]
        return [*known, *others, *refused]

    def contract_status(self) -> list[ContractStatus]:
        return contracts_of(
            self.contracts, self.publisher.set_aside(), self._acceptance.sentences()
        )

    def broken_contracts(self) -> list[ToolChange]:
        """Contracts that changed so that callers break, and nobody has accepted it."""
        return self._acceptance.shown(self.contracts.served)

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


def _problems(workspace: files.Workspace, path: Path) -> list[str]:
    """What is wrong with a file as it is now."""
    refused = workspace.refused.get(path)
    return [] if refused is None else [str(problem) for problem in refused.problems]


def _run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, on a loop of its own in another thread, which is waited for."""
    with ThreadPoolExecutor(1, thread_name_prefix="driver-code") as thread:
        return thread.submit(asyncio.run, work).result()
