"""What a path means to `drivers check`: one manifest, a driver's folder, or a whole workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interlock.cli.driver_workspace import Desk, desk_of, open_desk
from interlock.config import DEFAULT_NAME, Config, ConfigError, load_config
from interlock.manifests.driver_reader import MANIFEST_FILE
from interlock.manifests.secrets_reader import INVENTORY_FILE, load_inventory
from interlock.manifests.tool_reader import CONTRACT_FILE, load_contract
from interlock.manifests.workspace import load_workspace

Single = tuple[Path, Any]
"""A manifest that stands for itself, and what came of reading it."""
_READERS = {CONTRACT_FILE: load_contract, INVENTORY_FILE: load_inventory}


def desks_at(paths: list[Path], given: Path | None) -> Iterator[tuple[Desk | None, list[Single]]]:
    """Everything that is to be looked at. Raises ConfigError."""
    if not paths:
        yield open_desk(given), []
        return
    config = Config()
    if given is not None:
        config = load_config(given)
    for path in paths:
        yield _at(path, config)


def _at(path: Path, config: Config) -> tuple[Desk | None, list[Single]]:
    if not path.exists():
        raise ConfigError.of("there is no such file or folder", "check the path", file=str(path))
    reader = _READERS.get(path.name)
    if path.is_file() and reader is not None:
        return None, [(path, reader(path))]
    if path.is_file() and path.name != MANIFEST_FILE:
        raise ConfigError.of(
            "this is no manifest",
            f"name a {MANIFEST_FILE}, a {CONTRACT_FILE}, a {INVENTORY_FILE} or a folder",
            file=str(path),
        )
    folder = (path.parent if path.is_file() else path).absolute()
    if (folder / DEFAULT_NAME).is_file():
        return desk_of(load_config(folder / DEFAULT_NAME), folder), []
    if any((folder / one).is_dir() for one in config.drivers.folders):
        return desk_of(config, folder), []
    root = _root_of(folder, config)
    contracts = [*config.drivers.contracts]
    if not (folder / MANIFEST_FILE).is_file():
        contracts.append(str(folder))
    workspace = load_workspace(root, folders=[folder], contract_folders=contracts)
    return Desk(_with_config(root, config), root, workspace), []


def _root_of(folder: Path, config: Config) -> Path:
    """The workspace of a driver: where the folder of drivers stands that it is in."""
    names = {Path(one).name for one in config.drivers.folders}
    for one in (folder, *folder.parents):
        if one.name in names:
            return one.parent
        if (one / DEFAULT_NAME).is_file():
            return one
    return folder


def _with_config(root: Path, config: Config) -> Config:
    own = root / DEFAULT_NAME
    return load_config(own) if own.is_file() else config
