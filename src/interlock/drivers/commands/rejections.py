"""Parts of a config that a node would reject or never use, found without starting a server:
signatures, egress, incompatible contracts, unknown names in pins and secrets, missing folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from interlock.contracts.commands.live import broken_contracts
from interlock.drivers.config import DriversConfig
from interlock.drivers.signature_check import find_rejection
from interlock.manifests.driver_reader import MANIFEST_FILE

if TYPE_CHECKING:
    from interlock.core.config.problems import KeyPath
    from interlock.drivers.commands.workspace import DriverProject

ManifestRejection = tuple[str, str, str, str]
"""The file, the problem, the hint and the driver."""
_DEFAULTS: Final = DriversConfig()


def find_rejections(project: DriverProject) -> Iterator[ManifestRejection]:
    """Yield drivers and contracts that a node of this config would reject."""
    for manifest in project.workspace.drivers.values():
        reason = find_rejection(manifest, project.config, project.base_dir)
        if reason:
            yield str(manifest.file), reason, "", manifest.id
    for broken in broken_contracts(project.config, project.base_dir, project.workspace).values():
        yield str(broken.contract.file), broken.message, "", ""


def find_unknown_names(project: DriverProject) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield config entries that name something which the workspace does not have."""
    settings, workspace = project.settings, project.workspace
    contracts = {*workspace.contracts, *(contract.id for contract in workspace.contracts.values())}
    drivers = {*workspace.drivers, *(manifest.id for manifest in workspace.drivers.values())}
    for contract, driver in settings.pins.items():
        if contract not in contracts:
            yield ("drivers", "pins", contract), f"there is no contract {contract}", "check the id"
        if driver not in drivers:
            yield ("drivers", "pins", contract), f"there is no driver {driver}", "check the id"
    for slug in settings.secrets:
        if slug not in workspace.secrets.entries and slug not in workspace.secret_names:
            hint = "list it in a SECRETS.md, or remove it"
            yield ("drivers", "secrets", slug), f"no inventory lists the secret {slug}", hint
    for name, configured, defaults in (
        ("folders", settings.folders, _DEFAULTS.folders),
        ("contracts", settings.contracts, _DEFAULTS.contracts),
    ):
        for index, folder in enumerate(configured):
            if folder not in defaults and not (project.base_dir / folder).is_dir():
                yield ("drivers", name, index), f"there is no folder {folder}", "check the path"


def find_missing_manifests(project: DriverProject) -> Iterator[tuple[str, str]]:
    """Yield the driver folders without a manifest, each with a message."""
    for folder in project.settings.folders:
        try:
            entries = sorted(os.scandir(project.base_dir / folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if not entry.is_dir() or entry.name.startswith("."):
                continue
            names = os.listdir(entry.path)
            if MANIFEST_FILE in names:
                continue
            similar = next((name for name in names if name.upper() == MANIFEST_FILE.upper()), "")
            message = f"{similar} is not read: rename it to {MANIFEST_FILE}" if similar else (
                f"it contains no {MANIFEST_FILE}"
            )  # fmt: skip
            yield entry.path, message
