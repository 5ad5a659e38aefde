"""What a node would refuse or never use of the drivers of a config, found without starting one:
signatures, egress, contracts that broke, pins and secrets that lead nowhere, folders that are not
there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from interlock.contracts.commands.live import broken_contracts
from interlock.drivers.config import DriversConfig
from interlock.drivers.signature_check import refusal
from interlock.manifests.driver_reader import MANIFEST_FILE

if TYPE_CHECKING:
    from interlock.core.config.problems import KeyPath
    from interlock.drivers.commands.workspace import DriverProject

ManifestRejection = tuple[str, str, str, str]
"""The file, what is wrong, what to do, and the driver that it is about."""
_DEFAULTS: Final = DriversConfig()


def refused(project: DriverProject) -> Iterator[ManifestRejection]:
    """Drivers and contracts that a node of this config would not take."""
    for manifest in project.workspace.drivers.values():
        why = refusal(manifest, project.config, project.base_dir)
        if why:
            yield str(manifest.file), why, "", manifest.id
    for broken in broken_contracts(project.config, project.base_dir, project.workspace).values():
        yield str(broken.contract.file), broken.sentence, "", ""


def unknown_names(project: DriverProject) -> Iterator[tuple[KeyPath, str, str]]:
    """Places of the config that name something which the workspace does not have."""
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
    for name, given, usual in (
        ("folders", settings.folders, _DEFAULTS.folders),
        ("contracts", settings.contracts, _DEFAULTS.contracts),
    ):
        for index, folder in enumerate(given):
            if folder not in usual and not (project.base_dir / folder).is_dir():
                yield ("drivers", name, index), f"there is no folder {folder}", "check the path"


def without_manifest(project: DriverProject) -> Iterator[tuple[str, str]]:
    """Folders among the drivers that hold none."""
    for folder in project.settings.folders:
        try:
            inside = sorted(os.scandir(project.base_dir / folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for item in inside:
            if not item.is_dir() or item.name.startswith("."):
                continue
            names = os.listdir(item.path)
            if MANIFEST_FILE in names:
                continue
            alike = next((name for name in names if name.upper() == MANIFEST_FILE.upper()), "")
            why = f"{alike} is not read: call it {MANIFEST_FILE}" if alike else (
                f"there is no {MANIFEST_FILE} in it"
            )  # fmt: skip
            yield item.path, why
