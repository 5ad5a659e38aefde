"""Paths of the files of the contracts feature, for nodes and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from interlock.contracts.config import ContractsConfig
from interlock.core.config import Config
from interlock.core.paths import state_dir


def tool_records_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the store of observed tools."""
    return state_dir(config, environ, base_dir) / "contracts.db"


def registry_path(config: Config, base_dir: Path) -> Path | None:
    """Return the folder of the contract registry. None: no registry is configured."""
    registry = config.section(ContractsConfig).registry
    return None if registry is None else base_dir / Path(registry).expanduser()


def registered_drivers_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """Return the path of the file of driver definitions that were accepted last."""
    return state_dir(config, environ, base_dir) / "drivers.json"
