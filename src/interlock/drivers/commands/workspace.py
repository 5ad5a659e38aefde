"""The drivers and contracts of a config, read from their files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from interlock.contracts.paths import registered_drivers_path
from interlock.core.config import Config
from interlock.drivers.config import DriversConfig
from interlock.drivers.registrations import read_registrations
from interlock.errors import CONFIG, InterlockError
from interlock.manifests.document import ManifestError
from interlock.manifests.driver_reader import MANIFEST_FILE
from interlock.manifests.model import DriverManifest, ToolContract
from interlock.manifests.ranges import newest
from interlock.manifests.workspace import Workspace, load_workspace
from interlock.terminal import config_source

_MAX_NAMES: Final = 12


class DriverProject(Struct, frozen=True):
    """A config with the content of its driver files."""

    config: Config
    base_dir: Path
    workspace: Workspace

    @property
    def settings(self) -> DriversConfig:
        return self.config.section(DriversConfig)

    def ids(self) -> list[str]:
        """Return the ids of valid drivers, as `id@major` if there are several majors."""
        keys = sorted(self.workspace.drivers)
        bare_ids = [key.partition("@")[0] for key in keys]
        return [
            id if bare_ids.count(id) == 1 else key for id, key in zip(bare_ids, keys, strict=True)
        ]

    def manifest(self, id: str) -> DriverManifest:
        """Return the driver with an id (the newest of several majors) or `id@major`.

        Raises:
            InterlockError: there is none, or its file is invalid. Contains all problems of the
                file.
        """
        driver = self._find_driver(id)
        if driver:
            return driver
        for path, problems in self.workspace.problems.items():
            if path.name == MANIFEST_FILE and path.parent.name == id:
                raise ManifestError(problems)
        raise _unknown("driver", id, self.ids())

    def _find_driver(self, id: str) -> DriverManifest | None:
        exact = self.workspace.drivers.get(id)
        if exact is not None:
            return exact
        majors = {
            manifest.version: manifest
            for manifest in self.workspace.drivers.values()
            if manifest.id == id
        }
        return majors[newest(list(majors))] if majors else None

    def folder_of(self, id: str) -> Path:
        return self.manifest(id).folder

    def contract(self, name: str) -> ToolContract:
        """Return the contract with an id (the oldest of several majors, which has the bare name) or
        `id@major`. Raises InterlockError."""
        contracts = self.workspace.contracts
        if name in contracts:
            return contracts[name]
        majors = sorted(self.workspace.versions(name), key=lambda contract: contract.major)
        if majors:
            return majors[0]
        raise _unknown("contract", name, {contract.id for contract in contracts.values()})

    def is_contract(self, name: str) -> bool:
        return name in self.workspace.contracts or bool(self.workspace.versions(name))

    def display_path(self, path: Path) -> str:
        """Return a path as a person in this folder would write it."""
        try:
            return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        except OSError:
            return str(path)


def open_project(config_path: Path | None) -> DriverProject:
    """Return the drivers of the current config, or of this folder if there is no config.

    Raises ConfigError if the config is invalid. Problems of manifests are in the workspace.
    """
    config, base_dir = config_source.load_or_default(config_source.find_source_or_none(config_path))
    return project_of(config, base_dir)


def project_of(config: Config, base_dir: Path) -> DriverProject:
    return DriverProject(config, base_dir, read_workspace(config, base_dir))


def read_workspace(config: Config, base_dir: Path) -> Workspace:
    """Read the workspace as a node of this config would, including the comparison with accepted
    drivers."""
    settings = config.section(DriversConfig)
    registered_path = registered_drivers_path(config, os.environ, base_dir)
    return load_workspace(
        base_dir,
        folders=settings.folders,
        contract_folders=settings.contracts,
        registered=read_registrations(registered_path),
    )


def _unknown(kind: str, name: str, names_or_ids: Iterable[str]) -> InterlockError:
    names = sorted(names_or_ids)
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if similar:
        hint = f'did you mean "{similar[0]}"?'
    elif not names:
        hint = "this workspace has none. Create a driver: `interlock drivers new`."
    else:
        suffix = ", …" if len(names) > _MAX_NAMES else ""
        hint = f"available: {', '.join(names[:_MAX_NAMES])}{suffix}"
    return InterlockError(CONFIG, f"there is no {kind} {name!r}; {hint}")
