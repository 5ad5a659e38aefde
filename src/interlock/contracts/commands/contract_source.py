"""The interface of features whose files declare contracts (TOOL.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from interlock.core.config import Config
    from interlock.manifests.workspace import Workspace


class ContractSource(ABC):
    """A part of the reports of a feature: it provides declared contracts to `interlock
    contracts`."""

    @abstractmethod
    def workspace(self, config: Config, base_dir: Path) -> Workspace | None:
        """Return the files that a node of this config would read. None: there are none."""
