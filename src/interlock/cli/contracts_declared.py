"""Contracts of drivers (TOOL.md) that break what was accepted of them, for the commands that show
such breaks and accept them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.config import Config
    from interlock.manifests.workspace import Workspace
    from interlock.node.contracts_shown import ToolChange
    from interlock.node.driver_contracts import Broken


def broken_contracts(config: Config, base_dir: Path, workspace: Workspace) -> dict[str, Broken]:
    """Those of a workspace, by key: held against what a node of this config accepted."""
    from interlock.node.driver_contracts import AcceptedContracts

    if not config.contracts.watch:
        return {}
    served = [workspace.contracts[key] for key in sorted(workspace.serving)]
    return AcceptedContracts.of(config, os.environ, base_dir).broken(served)


def declared_breaks(config: Config, base_dir: Path) -> list[tuple[ToolChange, Broken]]:
    """How each of them is shown."""
    if not any((base_dir / one).is_dir() for one in config.drivers.folders):
        return []
    from interlock.cli.driver_workspace import read_workspace

    workspace = read_workspace(config, base_dir)
    held = config.contracts.on_break == "hold"
    found = []
    for key, one in broken_contracts(config, base_dir, workspace).items():
        drivers = [workspace.drivers[key].id for key in workspace.serving[key]]
        found.append((one.shown(held=held, drivers=drivers), one))
    return found


def accept_declared(config: Config, base_dir: Path, broken: Broken) -> None:
    """Callers have to live with it. Raises InterlockError."""
    from interlock.errors import INTERNAL, InterlockError
    from interlock.node.driver_contracts import AcceptedContracts

    try:
        AcceptedContracts.of(config, os.environ, base_dir).accept(broken.contract)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InterlockError(INTERNAL, f"it cannot be written down: {why}.") from None
