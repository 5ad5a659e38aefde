"""The drivers and contracts of a config, as their files say, for the commands that look at them."""

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

_MOST_NAMED: Final = 12


class DriverProject(Struct, frozen=True):
    """A config, and everything that its drivers' files say."""

    config: Config
    base_dir: Path
    workspace: Workspace

    @property
    def settings(self) -> DriversConfig:
        return self.config.section(DriversConfig)

    def ids(self) -> list[str]:
        """Every driver that can be used, `id@major` where there are two majors of it."""
        keys = sorted(self.workspace.drivers)
        once = [key.partition("@")[0] for key in keys]
        return [id if once.count(id) == 1 else key for id, key in zip(once, keys, strict=True)]

    def manifest(self, id: str) -> DriverManifest:
        """The driver that is meant: by its id (of several majors the newest) or `id@major`.

        Raises InterlockError; for one whose file is wrong, with everything that is wrong with it.
        """
        found = self._drivers_of(id)
        if found:
            return found
        for path, problems in self.workspace.problems.items():
            if path.name == MANIFEST_FILE and path.parent.name == id:
                raise ManifestError(problems)
        raise _unknown("driver", id, self.ids())

    def _drivers_of(self, id: str) -> DriverManifest | None:
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
        """The contract that is meant: by its id (of several majors the oldest, which has the bare
        name) or `id@major`. Raises InterlockError."""
        contracts = self.workspace.contracts
        if name in contracts:
            return contracts[name]
        majors = sorted(self.workspace.versions(name), key=lambda contract: contract.major)
        if majors:
            return majors[0]
        raise _unknown("contract", name, {contract.id for contract in contracts.values()})

    def is_contract(self, name: str) -> bool:
        return name in self.workspace.contracts or bool(self.workspace.versions(name))

    def shown(self, path: Path) -> str:
        """A path as a person here would write it."""
        try:
            return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        except OSError:
            return str(path)


def open_project(given: Path | None) -> DriverProject:
    """The drivers of the config that is found; without one, those of this folder.

    Raises ConfigError when the config is wrong; manifests that are wrong are in the workspace.
    """
    config, base_dir = config_source.load_or_default(config_source.find_source_or_none(given))
    return project_of(config, base_dir)


def project_of(config: Config, base_dir: Path) -> DriverProject:
    return DriverProject(config, base_dir, read_workspace(config, base_dir))


def read_workspace(config: Config, base_dir: Path) -> Workspace:
    """As a node of this config would: also held against the drivers that it accepted before."""
    settings = config.section(DriversConfig)
    accepted = registered_drivers_path(config, os.environ, base_dir)
    return load_workspace(
        base_dir,
        folders=settings.folders,
        contract_folders=settings.contracts,
        registered=read_registrations(accepted),
    )


def _unknown(what: str, name: str, known: Iterable[str]) -> InterlockError:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        hint = f'did you mean "{close[0]}"?'
    elif not names:
        hint = f"there is no {what} here at all; `interlock drivers new` makes one."
    else:
        more = ", …" if len(names) > _MOST_NAMED else ""
        hint = f"there are: {', '.join(names[:_MOST_NAMED])}{more}"
    return InterlockError(CONFIG, f"there is no {what} {name!r}; {hint}")
