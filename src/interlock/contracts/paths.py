"""Where a node keeps what it knows of contracts, for the node itself and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from interlock.contracts.config import ContractsConfig
from interlock.core.config import Config
from interlock.core.paths import state_dir


def sightings_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """What was seen of the contracts of tools, and accepted."""
    return state_dir(config, environ, base_dir) / "contracts.db"


def registry_path(config: Config, base_dir: Path) -> Path | None:
    """The repository in which contracts are published. None: nowhere."""
    registry = config.section(ContractsConfig).registry
    return None if registry is None else base_dir / Path(registry).expanduser()


def registered_drivers_path(config: Config, environ: Mapping[str, str], base_dir: Path) -> Path:
    """The drivers as they were accepted last, to hold the next ones against."""
    return state_dir(config, environ, base_dir) / "drivers.json"
