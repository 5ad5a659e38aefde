"""What must hold for the settings of contracts beside the others."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from interlock.core.config.contracts import ContractsConfig
from interlock.core.config.reader import NodeReader


def check_contracts(reader: NodeReader, values: dict[str, Any]) -> None:
    """Write down every problem between them."""
    contracts: ContractsConfig | None = values.get("contracts")
    if contracts is None or ("contracts",) not in reader.places:
        return
    path = ("contracts", "registry")
    registry = contracts.registry
    if registry is not None and PurePath(registry) in (PurePath("."), PurePath("~")):
        reader.report(
            path,
            "the registry is a repository of its own, and something else is in this folder",
            "name a folder for it, such as contracts-registry",
        )
    elif registry is not None and registry == values.get("state_dir"):
        reader.report(path, "the node's own files are there", "name another folder")
    if contracts.on_break == "hold" and not contracts.watch:
        reader.report(
            ("contracts", "on_break"), "nothing is held that nobody watches", "remove watch: false"
        )
