"""From a manifest to a driver: whether it may be used, what its code brings, and how each of its
entries is bound to its contract. What is wrong is kept with the driver, where people look."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from interlock.catalog.drivers.binding import check_entry
from interlock.catalog.drivers.candidates import Machine, Workspace, tag_warnings
from interlock.catalog.drivers.contract_shape import ContractShape
from interlock.catalog.drivers.limits import override_warnings
from interlock.catalog.drivers.translating import NO_TRANSFORMS, BoundEntry
from interlock.config import Config
from interlock.errors import InterlockError
from interlock.manifests import workspace as files
from interlock.manifests.driver import DriverManifest, Implements
from interlock.manifests.tool import ToolContract
from interlock.node.driver_trust import refusal
from interlock.upstreams.drivers.driver import Binding, Driver
from interlock.upstreams.drivers.driver_server import Surroundings
from interlock.upstreams.drivers.hooks import Hooks, load_hooks

_log = logging.getLogger("interlock.drivers")

ShapeOf = Callable[[ToolContract], ContractShape]
"""Raises InterlockError for a contract whose schemas cannot be used."""


def make_driver(
    manifest: DriverManifest,
    workspace: files.Workspace,
    *,
    config: Config,
    base_dir: Path,
    allowed: Workspace,
    around: Surroundings,
    shape_of: ShapeOf,
) -> Driver:
    """The driver of a manifest; refused where it may not be used."""
    settings = config.drivers
    hooks: Hooks | None = None
    warnings: list[str] = []
    refused = refusal(manifest, config, base_dir)
    if not refused and settings.strict:
        # What its files alone say, before anything of its code is run.
        cautions = map(str, workspace.cautions.get(manifest.file, ()))
        refused = _strict([*_warnings(manifest, workspace, allowed), *cautions])
    if not refused:
        try:
            hooks, warnings = load_hooks(
                manifest,
                [one.contract.id for one in workspace.bindings[manifest.key]],
                allowed=settings.allow_code,
            )
        except InterlockError as error:
            refused = error.message
    if hooks is not None:
        # With what only its code says.
        manifest = hooks.manifest
    bindings, unusable = _bindings(manifest, workspace, hooks, shape_of)
    driver = Driver(manifest, bindings, around, strict=settings.strict)
    driver.hooks = hooks
    driver.digest = _digest(manifest, hooks)
    for text in (*warnings, *unusable, *_warnings(manifest, workspace, allowed)):
        driver.warn(text)
    for caution in workspace.cautions.get(manifest.file, ()):
        driver.warnings[str(caution)] = None
    if not refused and settings.strict:
        refused = _strict(list(driver.warnings))
    if not refused and unusable and not bindings:
        refused = unusable[0]
    driver.standing.refused = refused
    if refused:
        driver.hooks = None
        _log.warning("%s is not used: %s", manifest.id, refused)
    return driver


def allowed_by(config: Config) -> Workspace:
    """What the config has to say about which drivers serve a call."""
    settings = config.drivers
    return Workspace(
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
    manifest: DriverManifest, workspace: files.Workspace, allowed: Workspace
) -> list[str]:
    """What the operator should look at, by what a manifest says."""
    found = [*tag_warnings(manifest, allowed)]
    for one in workspace.bindings[manifest.key]:
        found += override_warnings(one.contract, manifest, one.entry)
    return found


def _strict(warnings: list[str]) -> str:
    return f"{warnings[0]} (drivers.strict)" if warnings else ""


def _bindings(
    manifest: DriverManifest,
    workspace: files.Workspace,
    hooks: Hooks | None,
    shape_of: ShapeOf,
) -> tuple[dict[str, Binding], list[str]]:
    """What a driver serves, with what is wrong with that; and why contracts that it names cannot
    be served by anybody."""
    transforms = NO_TRANSFORMS if hooks is None else hooks.transforms
    bindings: dict[str, Binding] = {}
    unusable: list[str] = []
    for one in workspace.bindings[manifest.key]:
        contract, entry = one.contract, one.entry
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
            bound = BoundEntry(contract, Implements(entry.tool, entry.version), shape=shape)
            wrong = wrong or [error.message]
        bindings[contract.key] = Binding(contract, entry, bound, tuple(wrong), executes=executes)
    return bindings, unusable


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
