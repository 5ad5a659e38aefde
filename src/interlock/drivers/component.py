"""The drivers of a node: their files, their state, and which driver serves which contract.

The files are read when the node starts and when one of them changes. An unchanged driver keeps its
server. If a DRIVER.md becomes invalid, its last valid version stays in use, unless drivers must be
signed. A driver that cannot be used for another reason is removed.
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
from interlock.contracts.changed_tools import ToolChange, breaking_reasons
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
from interlock.drivers.signature_check import find_rejection, signature_fingerprint
from interlock.drivers.status import ContractStatus, DriverStatus, contracts_of, status_of
from interlock.drivers.translation import NO_TRANSFORMS, BoundEntry
from interlock.errors import InterlockError
from interlock.manifests import workspace as files
from interlock.manifests.model import DriverManifest, ImplementedContract, ToolContract
from interlock.primitives.text import format_count
from interlock.protocol.jsonrpc import encode_value
from interlock.trust.authorization import MinimumActions

# -- Log lines about drivers: at the start of the node and when files change.

_log = logging.getLogger("interlock.drivers")


def log_start(drivers: Mapping[str, Driver]) -> None:
    """Log the drivers at the start of the node."""
    active = [driver for driver in drivers.values() if not driver.condition.rejection]
    if active:
        ids = ", ".join(sorted(driver.manifest.id for driver in active))
        _log.info("drivers: %s: %s", format_count(len(active), "driver"), ids)


def log_changes(
    before: Mapping[str, Driver], after: Mapping[str, Driver], unusable: Collection[Path]
) -> None:
    """Log the changes of drivers after files have changed.

    Args:
        unusable: files that cannot be used. Their problems were logged before.
    """
    for key, driver in before.items():
        if key not in after:
            broken = driver.manifest.file in unusable
            event = "removed because its files are invalid" if broken else "removed"
            _log.info("driver %s: %s%s", driver.manifest.id, event, _served(driver, "; it served"))
    for key, driver in after.items():
        if before.get(key) is driver or driver.condition.rejection:
            # The reason of a rejection was logged when the driver was created.
            continue
        event = "changed" if key in before else "added"
        _log.info("driver %s: %s%s", driver.manifest.id, event, _served(driver, ": it serves"))


def log_kept_versions(drivers: Mapping[str, Driver], invalid: Collection[Path]) -> None:
    """Log the drivers that stay in use although their files have become `invalid`."""
    for driver in drivers.values():
        manifest = driver.manifest
        if manifest.file in invalid and not driver.condition.rejection:
            _log.warning(
                "driver %s: invalid %s, version %s stays in use",
                manifest.id, manifest.file.name, manifest.version,
            )  # fmt: skip


def log_ready(driver: Driver) -> None:
    """Log that the server of a driver has listed its tools."""
    _log.info("driver %s: ready%s", driver.manifest.id, _served(driver, ": it serves"))


def _served(driver: Driver, label: str) -> str:
    ids = sorted(binding.contract.id for binding in driver.bindings.values() if binding.is_usable)
    return f"{label} {', '.join(ids)}" if ids else ""


# -- Contracts of drivers that are incompatible with their accepted version. The drivers that serve
# them report it, and do not serve them if the config says `hold`.


class ContractAcceptance:
    """The incompatible changes of contracts that drivers serve."""

    def __init__(
        self, config: Config, *, environ: Mapping[str, str], base_dir: Path, audit: Audit
    ) -> None:
        self._config = config
        self._audit = audit
        self._accepted_store = AcceptedContractStore.from_config(config, environ, base_dir)
        self._acceptance_fingerprint: object = None
        self._broken: dict[str, BrokenContract] = {}
        """Incompatible contracts, by key."""

    def configure(self, config: Config) -> None:
        """Use a new config."""
        self._config = config

    @property
    def _is_holding(self) -> bool:
        return self._config.section(ContractsConfig).on_break == "hold"

    def check(self, contracts: Iterable[ToolContract]) -> None:
        """Compare contracts with their accepted versions, and accept compatible changes."""
        new_breaks: list[BrokenContract] = []
        self._broken = {}
        if self._config.section(ContractsConfig).watch:
            self._broken, new_breaks = self._accepted_store.update(contracts)
        self._acceptance_fingerprint = self._accepted_store.file_version()
        for broken in new_breaks:
            kinds = " ".join(breaking_reasons(broken.changes))
            self._audit.record_change("contracts", broken.contract.id, "breaking", kinds)

    def is_out_of_date(self) -> bool:
        """Return whether another process has accepted contracts since."""
        return self._accepted_store.file_version() != self._acceptance_fingerprint

    def fingerprint(self, contracts: Collection[str]) -> tuple[tuple[str, ...], bool]:
        """Return a fingerprint of the acceptance of contracts: their incompatible changes, and
        whether the contracts are held. If it changes, the driver has to be created again.

        Args:
            contracts: contract keys.
        """
        keys = sorted(self._broken.keys() & set(contracts))
        broken = tuple(self._broken[key].message for key in keys)
        return broken, bool(broken) and self._is_holding

    def apply_to(self, driver: Driver) -> None:
        """Add the incompatible changes to the warnings of a new driver, and disable contracts that
        are held."""
        for key in driver.bindings.keys() & self._broken.keys():
            sentence = self._broken[key].message
            driver.warn(sentence)
            if self._is_holding:
                driver.bindings[key].file_problems += (sentence,)

    def sentences(self) -> dict[str, str]:
        """Return the incompatible changes as sentences, by contract key."""
        return {key: broken.message for key, broken in self._broken.items()}

    def list_changes(self, served: Mapping[str, ServedContract]) -> list[ToolChange]:
        """Return the incompatible contracts that are served, for operators."""
        return [
            broken.to_tool_change(
                is_held=self._is_holding,
                drivers=[driver.manifest.id for driver in served[key].drivers],
            )
            for key, broken in self._broken.items()
            if key in served
        ]


# -- Creation of a driver from its manifest: whether it may be used, its hooks, and the binding of
# each entry to its contract. Problems are stored with the driver.

ShapeLookup = Callable[[ToolContract], ContractShape]
"""Returns the compiled shape of a contract. Raises InterlockError if its schemas cannot be used."""
CodeInspector = Callable[[DriverCode], CodeDescription | None]
"""Returns the description of a driver.py. None: it defines no driver. Raises InterlockError."""


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
    """Create the driver of a manifest. A driver that must not be used is created with a rejection.

    Args:
        allowed: the policy for selecting drivers.
        shape_of: returns the compiled shape of a contract.
        inspect: returns the description of the code, if it may run.
    """
    settings = config.section(DriversConfig)
    hooks: Hooks | None = None
    warnings: list[str] = []
    rejection = file_rejection(manifest, workspace, config, base_dir, allowed)
    if not rejection:
        try:
            code, warnings = read_code(manifest, allowed=settings.allow_code)
            if code is not None:
                contract_ids = [binding.contract.id for binding in workspace.bindings[manifest.key]]
                hooks, warnings = make_hooks(manifest, contract_ids, code, inspect(code))
        except InterlockError as error:
            rejection = error.message
    if hooks is not None:
        # The manifest with the values that only the code defines.
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
    for text in (*warnings, *unusable, *_manifest_warnings(manifest, workspace, allowed)):
        driver.warn(text)
    for caution in workspace.cautions.get(manifest.file, ()):
        driver.warnings[str(caution)] = None
    if not rejection and settings.strict:
        rejection = _strict_rejection(list(driver.warnings))
    if not rejection and unusable and not bindings:
        rejection = unusable[0]
    driver.condition.rejection = rejection
    if rejection:
        driver.hooks = None
        _log.warning("driver %s: not used: %s", manifest.id, rejection)
    return driver


def file_rejection(
    manifest: DriverManifest,
    workspace: files.Workspace,
    config: Config,
    base_dir: Path,
    allowed: SelectionPolicy,
) -> str:
    """Return why a driver is rejected by its files alone, before its code runs. Empty: it is
    not."""
    rejection = find_rejection(manifest, config, base_dir)
    if not rejection and config.section(DriversConfig).strict:
        cautions = map(str, workspace.cautions.get(manifest.file, ()))
        rejection = _strict_rejection(
            [*_manifest_warnings(manifest, workspace, allowed), *cautions]
        )
    return rejection


def selection_policy(settings: DriversConfig, region: str | None = None) -> SelectionPolicy:
    """Return the driver selection policy of a config."""
    policy = settings.policy
    return SelectionPolicy(
        region=settings.region if region is None else region,
        strict_region=settings.strict_region,
        forbid=tuple(policy.forbid),
        require=tuple(policy.require),
        allow=tuple(policy.allow),
        pins=dict(settings.pins),
        trusted_tags={tag: tuple(ids) for tag, ids in policy.trusted_tags.items()},
    )


def _digest(manifest: DriverManifest, hooks: Hooks | None) -> str:
    """Return the digest of a driver's file, its server (which another file may define) and its
    code."""
    code = "" if hooks is None else hooks.digest
    parts = (manifest.digest.encode(), msgspec.json.encode(manifest.server), code.encode())
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


def _manifest_warnings(
    manifest: DriverManifest, workspace: files.Workspace, allowed: SelectionPolicy
) -> list[str]:
    """Return the warnings about a manifest."""
    warnings = [*tag_warnings(manifest, allowed)]
    for binding in workspace.bindings[manifest.key]:
        warnings += override_warnings(binding.contract, manifest, binding.entry)
    return warnings


def _strict_rejection(warnings: list[str]) -> str:
    return f"{warnings[0]} (drivers.strict)" if warnings else ""


def _bindings(
    manifest: DriverManifest,
    workspace: files.Workspace,
    hooks: Hooks | None,
    shape_of: ShapeLookup,
) -> tuple[dict[str, DriverBinding], list[str]]:
    """Return the bindings of a driver with their problems, and why some of its contracts cannot be
    served by any driver."""
    transforms = NO_TRANSFORMS if hooks is None else hooks.transforms
    bindings: dict[str, DriverBinding] = {}
    unusable: list[str] = []
    for binding in workspace.bindings[manifest.key]:
        contract, entry = binding.contract, binding.entry
        executes = hooks is not None and hooks.executes(contract.id)
        problems = check_entry(contract, entry, transforms=transforms, has_hook=executes)
        for problem in problems:
            _log.warning("driver %s: %s", manifest.id, problem)
        try:
            shape = shape_of(contract)
        except InterlockError as error:
            unusable.append(error.message)
            continue
        try:
            bound_entry = BoundEntry(contract, entry, transforms=transforms, shape=shape)
        except InterlockError as error:
            # The binding is never used. It is kept to show its problems.
            bound_entry = BoundEntry(
                contract, ImplementedContract(entry.tool, entry.version), shape=shape
            )
            problems = problems or [error.message]
        bindings[contract.key] = DriverBinding(
            contract, entry, bound_entry, tuple(problems), executes=executes
        )
    return bindings, unusable


def this_machine(base_dir: Path) -> Machine:
    """Return the machine properties that `requires` of a driver is compared with."""
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


# -- Verification of drivers: their servers list their tools before the first call, so that a
# problem is reported when the node starts.

MAX_CONCURRENT_CHECKS: Final = 4
"""Maximum number of servers that are verified at the same time."""


class DriverVerifier:
    """A verifier that starts unverified servers, lists their tools and stops them again."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        """Args:
        drivers: the current drivers, by key. The mapping may change at any time.
        """
        self._drivers = drivers
        self.task: asyncio.Task[None] | None = None

    def begin(self, max_processes: int) -> None:
        """Verify the unverified drivers. Does nothing if a verification is running."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(
                self._verify_all(min(MAX_CONCURRENT_CHECKS, max_processes)), name="drivers:verify"
            )

    async def _verify_all(self, immediately: int) -> None:
        slots = asyncio.Semaphore(immediately)

        async def verify(driver: Driver) -> None:
            async with slots:
                await self._verify(driver)

        drivers = self._find_unverified()
        tried_drivers: set[Driver] = set()
        while drivers:
            tried_drivers.update(drivers)
            await asyncio.gather(*(verify(driver) for driver in drivers))
            # Drivers may have been added meanwhile.
            drivers = [driver for driver in self._find_unverified() if driver not in tried_drivers]

    def _find_unverified(self) -> list[Driver]:
        return [
            driver
            for driver in self._drivers.values()
            if not driver.verified and not driver.condition.rejection
        ]

    async def _verify(self, driver: Driver) -> None:
        if driver.verified or self._drivers.get(driver.key) is not driver:
            return
        try:
            await driver.server.ensure_running()
        except InterlockError as error:
            # The driver stays unverified. Its next call tries again.
            _log.warning("driver %s: %s", driver.manifest.id, error.message)
            return
        if not driver.requests:
            # No call used the server, so stop it. The next call starts it again.
            await driver.server.end()


WATCH_SECONDS: Final = 0.25
WATCH_COST_FACTOR: Final = 20
"""A check of all files may use 1/20 of the time."""
CHANGE_COST_FACTOR: Final = 4
"""A check that finds a change, and reads it, may use 1/4 of the time."""
MAX_CONCURRENT_INSPECTIONS: Final = 4
"""Maximum number of processes that inspect driver code at the same time."""
CREATE_BATCH_SIZE: Final = 10
"""Number of drivers that are created before other tasks run again."""

T = TypeVar("T")
Shapes = dict[str, ContractShape]
LoadedDrivers = dict[str, tuple[Driver, tuple[object, object]]]
"""Drivers and the fingerprints of their files, by manifest key."""
FileFingerprints = dict[str, object]
"""By driver key."""


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
        floors: receives the minimum policy action of contract calls.
        declare: records every offered contract in its history.
        deprecations: returns the deprecated majors of contracts.
        on_capabilities_changed: called when the capabilities of a driver's server change.
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
            on_changed=self._on_change,
            on_offer=self._on_offer,
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
        self._end_tasks: dict[asyncio.Task[None], Driver] = {}
        self._inspected: dict[tuple[str, str], CodeDescription | InterlockError | None] = {}
        """Descriptions of driver code, by driver and digest of the code."""

    def refresh(self) -> None:
        """Publish the contracts again because their deprecations changed."""
        if self._workspace is not None:
            self.publisher.publish_soon()

    # -- lifecycle

    def start(self) -> None:
        """Read the files, publish the contracts, and start to verify the servers."""
        if not self._config.section(DriversConfig).enabled:
            return
        workspace = self._load()
        if self._config.section(DriversConfig).allow_code:
            # No call is served yet, so blocking is harmless.
            _run_in_thread(self._inspect_code(workspace))
        self._apply_workspace(workspace)
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="drivers")

    async def close(self) -> None:
        tasks = [task for task in (self._watcher, self.verifier.task) if task is not None]
        self._watcher = self.verifier.task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._workspace = None
        # Forget errors: their cause may be the machine and not the code.
        self._inspected = {
            key: description
            for key, description in self._inspected.items()
            if not isinstance(description, InterlockError)
        }
        for driver in list(self.lifecycle.drivers.values()):
            self._remove(driver, immediately=True)
        self.contracts.served_contract = {}
        self.publisher.withdraw_all()
        for driver in self._end_tasks.values():
            driver.server.stop_waiting()
        await asyncio.gather(*self._end_tasks, return_exceptions=True)

    async def configure(self, config: Config) -> None:
        """Use a new config."""
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
                self._apply_workspace(self._workspace)
            elif self.publisher.is_posted:
                self.publisher.publish()
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
        """Watch the files by checking them periodically."""
        pause = WATCH_SECONDS
        while True:
            await asyncio.sleep(pause)
            workspace = self._workspace
            if workspace is None:
                continue
            try:
                changed_workspace, signatures, cost = await asyncio.to_thread(
                    self._reload_files, workspace
                )
                has_changed = self._has_changes(workspace, changed_workspace, signatures)
                if has_changed:
                    await self._inspect_code(changed_workspace)
                    self._apply_workspace(
                        changed_workspace, await self._create_changed(changed_workspace)
                    )
                self._recheck_installations()
                await self.lifecycle.confinements.end_uncovered_processes()
            except Exception:
                _log.exception("drivers: cannot reload the files")
            else:
                # After a change more changes are likely, and a person is waiting for them.
                pause = max(
                    WATCH_SECONDS, cost * (CHANGE_COST_FACTOR if has_changed else WATCH_COST_FACTOR)
                )

    def _recheck_installations(self) -> None:
        """Clear installation failures of drivers that were installed since."""
        recovered = [
            driver for driver in self.lifecycle.drivers.values() if driver.recheck_installation()
        ]
        for driver in recovered:
            self._on_change(driver)
        if recovered:
            self._verify()

    def _reload_files(
        self, workspace: files.Workspace
    ) -> tuple[files.Workspace, FileFingerprints, float]:
        """Reload the files. Return the workspace, the fingerprints of the signatures and the CPU
        time of the check. Runs in a thread."""
        started = time.thread_time()
        reloaded = workspace.reload()
        signatures = {
            key: self._signature_fingerprint(manifest) for key, manifest in reloaded.drivers.items()
        }
        return reloaded, signatures, time.thread_time() - started

    def _signature_fingerprint(self, manifest: DriverManifest) -> object:
        return (
            signature_fingerprint(manifest) if self._config.section(DriversConfig).trust else None
        )

    def _fingerprints(
        self, manifest: DriverManifest, workspace: files.Workspace
    ) -> tuple[object, ...]:
        """Return the fingerprints of a driver: its code, signature, server, and incompatible
        contracts."""
        keys = {binding.contract.key for binding in workspace.bindings[manifest.key]}
        breaks, on_hold = self._acceptance.fingerprint(keys)
        return (
            code_fingerprint(manifest),
            self._signature_fingerprint(manifest),
            breaks,
            on_hold,
            manifest.server,
        )

    def _has_changes(
        self, before: files.Workspace, after: files.Workspace, signatures: FileFingerprints
    ) -> bool:
        # `read_files` includes added, changed and removed code.
        if after.read_files or after.drivers.keys() != before.drivers.keys():
            return True
        if after.rejected_files != before.rejected_files or self._acceptance.is_out_of_date():
            return True
        return any(
            driver.fingerprints[1] != signatures.get(driver.manifest.key)
            for driver in self.lifecycle.drivers.values()
        )

    # -- loading

    def _apply_workspace(
        self, workspace: files.Workspace, prepared_drivers: LoadedDrivers | None = None
    ) -> None:
        """Apply a workspace. Unchanged drivers stay as they are.

        Args:
            ahead: drivers that were already created from these files.
        """
        is_first = self._workspace is None
        previous_problems = {} if self._workspace is None else self._workspace.rejected_files
        self._workspace = workspace
        self.lifecycle.inventory = workspace.secrets
        for path, problems in workspace.rejected_files.items():
            if previous_problems.get(path) != problems:
                for problem in problems.problems:
                    _log.warning("drivers: %s", problem)
        new_problems = {
            path
            for path, problems in workspace.rejected_files.items()
            if previous_problems.get(path) != problems
        }
        self._acceptance.check([workspace.contracts[key] for key in sorted(workspace.serving)])
        current = self.lifecycle.drivers
        previous = {**current}
        for key in [*current]:
            manifest = workspace.drivers.get(key.removeprefix("driver:"))
            if manifest is None or not self._is_same(current[key], manifest, workspace):
                self._remove(current[key], immediately=False)
        shapes: Shapes = {}
        prepared = prepared_drivers or {}
        for manifest in workspace.drivers.values():
            if f"driver:{manifest.key}" not in current and manifest.server is not None:
                loaded = prepared.get(manifest.key) or self._create(manifest, workspace, shapes)
                self._add(manifest, workspace, loaded)
        if is_first:
            log_start(current)
        else:
            log_changes(previous, current, workspace.rejected_files)
            log_kept_versions(current, new_problems)
        write_registrations(self._registrations, workspace.registered)
        self._collect_served()
        if prepared_drivers is None:
            self.publisher.publish()
        else:
            self.publisher.publish_soon()
        self._verify()

    async def _inspect_code(self, workspace: files.Workspace) -> None:
        """Inspect driver code that was not inspected yet. Each driver.py runs once, in a confined
        process without network."""
        allowed, previous = self._config.section(DriversConfig).allow_code, self._inspected
        codes: list[DriverCode] = []
        for manifest in workspace.drivers.values():
            if (
                manifest.id not in allowed
                or manifest.server is None
                or not code_fingerprint(manifest)
            ):
                continue
            if file_rejection(
                manifest,
                workspace,
                self._config,
                self._base_dir,
                selection_policy(self._config.section(DriversConfig)),
            ):
                continue
            try:
                code, _ = read_code(manifest, allowed=allowed)
            except InterlockError:
                # The error is reported when the driver is created.
                continue
            if code is not None:
                codes.append(code)
        # Remove the descriptions of code that no longer exists.
        keys = [(code.name, code.digest) for code in codes]
        self._inspected = {key: previous[key] for key in keys if key in previous}
        slots = asyncio.Semaphore(MAX_CONCURRENT_INSPECTIONS)

        async def inspect(code: DriverCode) -> None:
            async with slots:
                self._inspected[code.name, code.digest] = await self._inspect(code)

        await asyncio.gather(
            *(inspect(code) for code in codes if (code.name, code.digest) not in self._inspected)
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

    def _get_description(self, code: DriverCode) -> CodeDescription | None:
        """Return the description of a driver.py. Raises InterlockError."""
        key = code.name, code.digest
        if key not in self._inspected:
            # The code has changed since the inspection. This is rare, so blocking for a moment is
            # acceptable.
            self._inspected[key] = _run_in_thread(self._inspect(code))
        description = self._inspected[key]
        if isinstance(description, InterlockError):
            raise description
        return description

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
        return now == then and driver.fingerprints == self._fingerprints(manifest, workspace)

    async def _create_changed(self, workspace: files.Workspace) -> LoadedDrivers:
        """Create the drivers whose files have changed, in small batches so that other tasks can
        run."""
        created: LoadedDrivers = {}
        shapes: Shapes = {}
        for manifest in workspace.drivers.values():
            existing = self.lifecycle.drivers.get(f"driver:{manifest.key}")
            is_unchanged = existing is not None and existing.manifest.digest == manifest.digest
            if manifest.server is not None and not is_unchanged:
                created[manifest.key] = self._create(manifest, workspace, shapes)
                if len(created) % CREATE_BATCH_SIZE == 0:
                    await asyncio.sleep(0)
        return created

    def _create(
        self, manifest: DriverManifest, workspace: files.Workspace, shapes: Shapes
    ) -> tuple[Driver, tuple[object, object]]:
        # Take the fingerprints before reading, so that later changes are detected.
        fingerprints = code_fingerprint(manifest), self._signature_fingerprint(manifest)
        driver = create_driver(
            manifest,
            workspace,
            config=self._config,
            base_dir=self._base_dir,
            allowed=selection_policy(self._config.section(DriversConfig)),
            host=self.lifecycle,
            shape_of=lambda contract: self._get_shape(contract, shapes),
            inspect=self._get_description,
        )
        return driver, fingerprints

    def _add(
        self,
        manifest: DriverManifest,
        workspace: files.Workspace,
        loaded: tuple[Driver, tuple[object, object]],
    ) -> None:
        driver, fingerprints = loaded
        driver.fingerprints = (
            *fingerprints,
            *self._fingerprints(manifest, workspace)[len(fingerprints) :],
        )
        self._acceptance.apply_to(driver)
        self.lifecycle.drivers[driver.key] = self._upstreams[driver.key] = driver
        self.lifecycle.monitor(driver)

    def _get_shape(self, contract: ToolContract, shapes: Shapes) -> ContractShape:
        """Return the shape of a contract, shared by all drivers that serve it. Raises
        InterlockError."""
        shape = shapes.get(contract.key)
        if shape is None:
            existing = self.contracts.served_contract.get(contract.key)
            is_unchanged = existing is not None and existing.contract is contract
            shape = (
                existing.shape if existing is not None and is_unchanged else ContractShape(contract)
            )
            shapes[contract.key] = shape
        return shape

    def _remove(self, driver: Driver, *, immediately: bool) -> None:
        self.lifecycle.drivers.pop(driver.key, None)
        # From now on no call may start the server.
        driver.server.closed = True
        self.publisher.withdraw(driver)
        task = asyncio.get_running_loop().create_task(
            self.lifecycle.remove(driver, immediately=immediately), name=f"end:{driver.key}"
        )
        self._end_tasks[task] = driver
        task.add_done_callback(self._end_tasks.pop)

    def _collect_served(self) -> None:
        """Collect which drivers serve which contract."""
        served_contracts: dict[str, ServedContract] = {}
        for driver in self.lifecycle.drivers.values():
            for key, binding in driver.bindings.items():
                if key not in served_contracts:
                    served_contracts[key] = ServedContract(
                        binding.contract, binding.bound.shape, []
                    )
                served_contracts[key].drivers.append(driver)
        for contract in served_contracts.values():
            contract.drivers.sort(key=lambda driver: driver.key)
        self.contracts.served_contract = served_contracts
        self.contracts.workspace = selection_policy(self._config.section(DriversConfig))

    # -- publication

    def _on_change(self, driver: Driver) -> None:
        """Publish again after the state of a driver changed."""
        if self.lifecycle.drivers.get(driver.key) is driver:
            self.refresh()

    def _on_offer(self, driver: Driver, supervisor: Supervisor) -> None:
        """Process the list of a driver's server."""
        if self.lifecycle.drivers.get(driver.key) is not driver:
            return
        is_first = not driver.verified
        driver.on_tools_listed(supervisor.raw_offering.tools)
        if is_first:
            log_ready(driver)
        previous = driver.capabilities
        self.publisher.on_offering(
            driver, supervisor, other_drivers=self.lifecycle.drivers.values()
        )
        if driver.capabilities != previous:
            self.on_capabilities_changed()

    def introductions(self) -> list[UpstreamIntroduction]:
        """Return the capabilities of driver servers, for the node's introduction."""
        return [
            introduction_of(driver)
            for driver in self.lifecycle.drivers.values()
            if driver.capabilities
        ]

    def _verify(self) -> None:
        if self._config.section(DriversConfig).verify == "start":
            self.verifier.begin(self._config.section(DriversConfig).max_processes)

    # -- status

    def status(self) -> list[DriverStatus]:
        workspace = self._workspace
        if workspace is None:
            return [status_of(driver) for driver in self.lifecycle.drivers.values()]
        used = [
            status_of(driver, _problems(workspace, driver.manifest.file))
            for driver in self.lifecycle.drivers.values()
        ]
        files_in_use = {driver.manifest.file for driver in self.lifecycle.drivers.values()}
        unsupported = [
            DriverStatus.of_manifest(manifest)
            for manifest in workspace.drivers.values()
            if manifest.server is None
        ]
        invalid = [
            DriverStatus.of_file(path, _problems(workspace, path))
            for path in workspace.rejected_files
            if path not in files_in_use
        ]
        return [*used, *unsupported, *invalid]

    def contract_status(self) -> list[ContractStatus]:
        return contracts_of(
            self.contracts, self.publisher.set_aside(), self._acceptance.sentences()
        )

    def broken_contracts(self) -> list[ToolChange]:
        """Return contracts with incompatible changes that are not accepted."""
        return self._acceptance.list_changes(self.contracts.served_contract)

    def _record(
        self,
        call: Any,
        kind: str,
        name: str,
        upstream: str,
        outcome: str,
        duration_us: int,
        row: Mapping[str, Any],
    ) -> None:
        detail = encode_value(row).decode()
        self._audit.record_part(call, kind, name, upstream, outcome, duration_us, detail)


def _problems(workspace: files.Workspace, path: Path) -> list[str]:
    """Return the current problems of a file."""
    invalid = workspace.rejected_files.get(path)
    return [] if invalid is None else [str(problem) for problem in invalid.problems]


def _run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop in another thread, and block until it returns."""
    with ThreadPoolExecutor(1, thread_name_prefix="driver-code") as thread:
        return thread.submit(asyncio.run, work).result()
